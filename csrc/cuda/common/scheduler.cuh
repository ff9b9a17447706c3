// Which output tile a CTA computes.
//
// Heads are taken in groups whose keys and values fit the L2 cache together; within a group the tiles with the most
// keys (the last rows, under a causal mask) go first, so that the light ones fill the gaps at the end. One dimension:
// the grid's y and z end at 65535.
#pragma once

#include "cuda/common/params.h"

namespace flashcute::cuda {

struct TileIndex {
  int m, batch, head_q, head_k;
};

__device__ __forceinline__ TileIndex tile_of_block(const Params& params) {
  const unsigned block = blockIdx.x;
  const ScheduleView& schedule = params.schedule;
  const unsigned group = block / (unsigned(schedule.heads_per_group) * unsigned(schedule.tiles_m));
  const unsigned first = group * schedule.heads_per_group;
  const unsigned heads = min(unsigned(schedule.heads_per_group), unsigned(schedule.heads) - first);
  const unsigned rest = block - first * schedule.tiles_m;
  const unsigned rank = rest / heads;
  const unsigned head = first + (rest - rank * heads);
  TileIndex tile;
  tile.m = schedule.tiles_m - 1 - int(rank);
  tile.batch = int(head / unsigned(params.heads_q));
  tile.head_q = int(head) - tile.batch * params.heads_q;
  tile.head_k = tile.head_q / params.group;
  return tile;
}

}  // namespace flashcute::cuda
