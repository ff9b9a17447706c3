// Host side of one compiled kernel: its entry in the registry and its launch.
#pragma once

#include "cuda/common/driver_launch.h"
#include "cuda/common/family.h"
#include "cuda/common/launch.h"
#include "cuda/common/pack.h"
#include "cuda/common/probs.h"
#include "cuda/sm90/kernel.cuh"
#include "cuda/sm90/launch.h"

namespace flashcute::cuda::sm90 {

template <class C>
KernelResources resources(int device) {
  return resources_of(reinterpret_cast<const void*>(&attention_kernel<C>), C::kThreads,
                      sizeof(typename C::SharedStorage), device);
}

template <class C>
void run(const Problem& problem, const Plan& plan, const Buffers& buffers, void* workspace, void* stream) {
  if (plan.grid == 0) return;
  const DeviceGuard guard(problem.device_id);
  const cudaStream_t cuda_stream = static_cast<cudaStream_t>(stream);
  if (plan.workspace != 0) run_packing(problem, plan, buffers, workspace, cuda_stream);
  KernelParams given =
      make_kernel_params(problem, plan, buffers, workspace, C::kChunk, C::kRowsPerWarpgroup, C::kRowsPerWarp);
  if constexpr (kSanitized) given.maps_out = false;
  if (given.ticket != nullptr) {
    check(cudaMemsetAsync(given.ticket, 0, sizeof(unsigned), cuda_stream), "cudaMemsetAsync");
  }
  static DriverKernel kernel(reinterpret_cast<const void*>(&attention_kernel<C>), sizeof(typename C::SharedStorage));
  kernel.launch({unsigned(plan.grid), C::kThreads}, &given, cuda_stream);
  if (buffers.probs != nullptr) run_probs(problem, given.params, buffers.probs, cuda_stream);
}

template <class C>
KernelInfo kernel_info(const char* name) {
  KernelInfo info;
  info.name = name;
  info.family = Family::kSm90;
  info.device = DeviceType::kNvidia;
  info.head_dim = C::kHeadDim;
  info.head_dim_v = C::kHeadDimV;
  info.dtype = std::is_same_v<typename C::Element, cutlass::half_t> ? DType::kF16 : DType::kBF16;
  info.mask = C::kMask;
  info.block_m = C::kBlockM;
  info.block_n = C::kBlockN;
  info.stages = C::kStages;
  info.threads = C::kThreads;
  info.min_blocks = 1;
  info.min_capability = info.max_capability = 90;  // sm_90a has no successor
  info.shared_memory = sizeof(typename C::SharedStorage);
  info.refuse = &refuse;
  info.plan = &plan;
  info.resources = &resources<C>;
  info.run = &run<C>;
  return info;
}

}  // namespace flashcute::cuda::sm90
