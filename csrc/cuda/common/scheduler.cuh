// Which output tile a CTA computes.
//
// Heads are taken in groups whose keys and values fit the L2 cache together; within a group the tiles with the most
// keys (the last rows, under a causal mask) go first, so that the light ones fill the gaps at the end. One dimension:
// the grid's y and z end at 65535.
//
// Packed members have lengths that only the device knows. Member b owns the slots from cu_seqlens_q[b] / kBlockM + b
// up to the next member's first: never fewer than it has tiles, and total_q / kBlockM + batch of them in all, however
// the rows are shared out. A CTA finds its slot's owner, and has nothing to do in a slot too many.
#pragma once

#include "cuda/common/seqlen.cuh"

namespace flashcute::cuda {

struct TileIndex {
  int m, batch, head_q, head_k;  // m < 0: a slot without a tile
};

template <int kBlockM>
__device__ __forceinline__ int first_slot(const LengthsView& lengths, int member) {
  return clamped_start(lengths.cu_q, member, lengths.total_q) / kBlockM + member;
}

// The member that owns a slot. All lanes of a warp call it: each round looks at 32 members, which is one round for
// most batches, where halving would wait for memory five times.
template <int kBlockM>
__device__ __forceinline__ int owner_of_slot(const LengthsView& lengths, int slot) {
  const int lane = threadIdx.x % 32;
  int low = 0, high = lengths.members;  // it lies in [low, high)
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int candidate = low + lane * step;
    const bool begun = lane == 0 || (candidate < high && first_slot<kBlockM>(lengths, candidate) <= slot);
    low += (31 - __clz(int(__ballot_sync(0xffffffffu, begun)))) * step;
    high = min(high, low + step);
  }
  return low;
}

// The tile that comes at place `block` in the order. All lanes of a warp call it.
template <int kBlockM>
__device__ __forceinline__ TileIndex tile_of_block(const Params& params, unsigned block) {
  const ScheduleView& schedule = params.schedule;
  const unsigned group = block / (unsigned(schedule.heads_per_group) * unsigned(schedule.tiles_m));
  const unsigned first = group * schedule.heads_per_group;
  const unsigned heads = min(unsigned(schedule.heads_per_group), unsigned(schedule.heads) - first);
  const unsigned rest = block - first * schedule.tiles_m;
  const unsigned rank = rest / heads;
  const unsigned head = first + (rest - rank * heads);
  TileIndex tile;
  if (const LengthsView& lengths = params.lengths; lengths.cu_q != nullptr) {
    tile.batch = owner_of_slot<kBlockM>(lengths, int(rank));
    const int start = clamped_start(lengths.cu_q, tile.batch, lengths.total_q);
    const int rows = clamped_length(lengths.cu_q, tile.batch, start, lengths.total_q);
    tile.m = (rows + kBlockM - 1) / kBlockM - 1 - (int(rank) - (start / kBlockM + tile.batch));
    tile.head_q = int(head);
  } else {
    tile.m = schedule.tiles_m - 1 - int(rank);
    tile.batch = int(head / unsigned(params.heads_q));
    tile.head_q = int(head) - tile.batch * params.heads_q;
  }
  tile.head_k = tile.head_q / params.group;
  return tile;
}

}  // namespace flashcute::cuda
