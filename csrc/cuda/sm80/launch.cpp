#include "cuda/sm80/launch.h"

#include "cuda/common/family.h"
#include "cuda/common/pack.h"

namespace flashcute::cuda::sm80 {

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  if (kernel.mask != MaskClass::kAny) {
    if (const char* feature = feature_of_class_any(p)) {
      return std::string(feature) + " needs a kernel of mask class any";
    }
  }
  return size_refusal(kernel, p);
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
  plan_packing(p, plan);
}

}  // namespace flashcute::cuda::sm80
