#include "cuda/sm80/launch.h"

#include <algorithm>

#include "cuda/common/family.h"
#include "cuda/common/pack.h"
#include "cuda/common/params.h"

namespace flashcute::cuda::sm80 {
namespace {

// Keys and values of one group of heads stay in L2 together: an A100 has 40 MB, an H100 50 MB, half of it near an SM.
int heads_per_group(const Problem& p) {
  constexpr int64_t kGroupBytes = 16 << 20;
  const int64_t kv_bytes = std::max<int64_t>(1, p.seq_k * (p.head_dim + p.head_dim_v) * size_of(p.dtype));
  const int64_t together = std::max<int64_t>(1, kGroupBytes / kv_bytes) * p.group();
  return static_cast<int>(std::min(heads_with_tiles(p), together));
}

}  // namespace

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  return common_refusal(kernel, p);
}

// Only on a device that is full: of a few tiles, small ones are no faster.
bool favoured(const KernelInfo& kernel, const Problem& p, const DeviceFacts& facts) {
  constexpr size_t kReserved = 1024;  // of each CTA's shared memory, by the driver
  return p.seq_k <= kernel.short_keys && tiles_of(kernel, p) > 2 * int64_t{facts.multiprocessors} &&
         2 * (kernel.shared_memory + kReserved) <= facts.shared_memory_per_multiprocessor;
}

void plan(const KernelInfo& kernel, const Problem& p, const DeviceFacts&, Plan& plan) {
  plan.block_m = kernel.block_m;
  plan.block_n = kernel.block_n;
  plan.threads = kernel.threads;
  plan.shared_memory = kernel.shared_memory;
  plan.grid = tiles_of(kernel, p);
  plan.heads_per_group = heads_per_group(p);
  plan_packing(p, plan);
}

}  // namespace flashcute::cuda::sm80
