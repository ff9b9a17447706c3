// Host side of one compiled kernel: its entry in the registry and its launch.
#pragma once

#include <atomic>

#include "cuda/common/driver_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/pack.h"
#include "cuda/sm80/kernel.cuh"
#include "cuda/sm80/launch.h"

namespace flashcute::cuda::sm80 {

// The opt-in to more than 48 KB of shared memory, once a device: it costs more than a launch.
template <class C>
void allow_shared_memory(int device) {
  static std::atomic<uint64_t> done{0};  // one bit a device; those above 63 ask every time
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (done.load(std::memory_order_acquire) & bit) return;
  check(cudaFuncSetAttribute(attention_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             int(sizeof(typename C::SharedStorage))),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_release);
}

template <class C>
KernelResources resources(int device) {
  const DeviceGuard guard(device);
  allow_shared_memory<C>(device);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, attention_kernel<C>), "cudaFuncGetAttributes");
  KernelResources result;
  result.registers = attributes.numRegs;
  result.local_memory = attributes.localSizeBytes;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&result.blocks_per_multiprocessor, attention_kernel<C>,
                                                      C::kThreads, sizeof(typename C::SharedStorage)),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return result;
}

template <class C>
void run(const Problem& problem, const Plan& plan, const Buffers& buffers, void* workspace, void* stream) {
  if (plan.grid == 0) return;
  const DeviceGuard guard(problem.device_id);
  allow_shared_memory<C>(problem.device_id);
  const cudaStream_t cuda_stream = static_cast<cudaStream_t>(stream);
  if (plan.workspace != 0) run_packing(problem, plan, buffers, workspace, cuda_stream);
  Params params = make_params(problem, plan, buffers, workspace, C::kRowsPerPass);
  static const DriverKernel kernel(reinterpret_cast<const void*>(&attention_kernel<C>));
  kernel.launch({unsigned(plan.grid), C::kThreads, sizeof(typename C::SharedStorage)}, &params, cuda_stream);
}

template <class C>
KernelInfo kernel_info(const char* name) {
  KernelInfo info;
  info.name = name;
  info.family = Family::kSm80;
  info.device = DeviceType::kNvidia;
  info.head_dim = C::kHeadDim;
  info.dtype = std::is_same_v<typename C::Element, cutlass::half_t> ? DType::kF16 : DType::kBF16;
  info.mask = C::kMask;
  info.block_m = C::kBlockM;
  info.block_n = C::kBlockN;
  info.stages = C::kStages;
  info.threads = C::kThreads;
  info.min_blocks = C::kMinBlocks;
  info.min_capability = 80;
  info.shared_memory = sizeof(typename C::SharedStorage);
  info.refuse = &refuse;
  info.plan = &plan;
  info.resources = &resources<C>;
  info.run = &run<C>;
  return info;
}

}  // namespace flashcute::cuda::sm80
