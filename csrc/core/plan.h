// How a problem will be run. Plain data, printable (flashcuteGetPlan, desc.plan), decided once at creation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashcute {

struct KernelInfo;

// Byte offsets of one staging area in the workspace; size 0 = not packed.
struct Staging {
  size_t offset = 0, size = 0;
  int64_t batch = 0, head = 0, row = 0;  // strides of the packed copy, in elements
};

struct Plan {
  const KernelInfo* kernel = nullptr;
  int block_m = 0, block_n = 0;                 // query and key rows of a tile
  int threads = 0;                              // CPU: worker threads at most; GPU: threads of a CTA
  int64_t grid = 0;                             // CPU: independent tiles; GPU: CTAs
  int heads_per_group = 0;                      // GPU: heads whose tiles are taken together (scheduler.cuh)
  size_t shared_memory = 0;                     // GPU: bytes a CTA
  size_t workspace = 0;                         // bytes, a multiple of 256, the sum of all below
  Staging q, k, v;                              // GPU: tensors that are copied first (cuda/common/pack.h)
  size_t scratch_offset = 0, scratch_size = 0;  // what the kernel itself asks for
};

}  // namespace flashcute
