// The sm90 family as the registry sees it: what it refuses, how it plans. One truth for all its kernels.
#pragma once

#include <string>

#include "core/kernel.h"
#include "cuda/common/params.h"
#include "cuda/sm90/tensor_maps.h"

namespace flashcute::cuda::sm90 {

// What a kernel is given.
struct KernelParams {
  Params params;
  unsigned tiles;
  unsigned* ticket;        // the next tile to hand out, less the CTAs' first ones; null: tiles are dealt out in turn
  TensorMap q, k, v, out;  // (channel, row, head, batch)
  bool maps_out;           // is there one of out?
};

std::string refuse(const KernelInfo&, const Problem&, const DeviceFacts&);
void plan(const KernelInfo&, const Problem&, const DeviceFacts&, Plan&);

// chunk: channels of a box; rows_q, rows_out: rows of one.
KernelParams make_kernel_params(const Problem&, const Plan&, const Buffers&, void* workspace, int chunk, int rows_q,
                                int rows_out);

}  // namespace flashcute::cuda::sm90
