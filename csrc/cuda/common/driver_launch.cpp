#include "cuda/common/driver_launch.h"

#include <cuda.h>  // types only: libcuda is not linked

#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

using LaunchKernel = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  CUstream, void**, void**);

LaunchKernel find_launch_kernel() {
#if CUDART_VERSION >= 12050
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuLaunchKernel", &entry, 12000, cudaEnableDefault, &found) == cudaSuccess &&
      found == cudaDriverEntryPointSuccess) {
    return reinterpret_cast<LaunchKernel>(entry);
  }
  cudaGetLastError();
#endif
  return nullptr;
}

LaunchKernel launch_kernel() {
  static const LaunchKernel function = find_launch_kernel();
  return function;
}

}  // namespace

DriverKernel::DriverKernel(const void* entry) : entry_(entry) {
#if CUDART_VERSION >= 12050
  cudaKernel_t kernel = nullptr;
  if (launch_kernel() != nullptr && cudaGetKernel(&kernel, entry) == cudaSuccess) {
    handle_ = kernel;
  } else {
    cudaGetLastError();
  }
#endif
}

void DriverKernel::launch(const LaunchShape& shape, void* parameters, cudaStream_t stream) const {
  void* arguments[] = {parameters};
  if (handle_ != nullptr) {
    const CUresult result =
        launch_kernel()(static_cast<CUfunction>(handle_), shape.grid, 1, 1, shape.threads, 1, 1,
                        static_cast<unsigned>(shape.shared_memory), static_cast<CUstream>(stream), arguments, nullptr);
    if (result == CUDA_SUCCESS) return;
    // Most likely this thread has no context yet. cudart makes one current, or has the words for what is wrong.
  }
  check(cudaLaunchKernel(entry_, dim3(shape.grid), dim3(shape.threads), arguments, shape.shared_memory, stream),
        "the attention kernel's launch");
}

}  // namespace flashcute::cuda
