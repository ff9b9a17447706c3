#include "cuda/common/driver.h"

#include <cuda_runtime_api.h>

namespace flashcute::cuda {
namespace {

template <class Function>
bool find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(driver_entry(name));
  return function != nullptr;
}

}  // namespace

void* driver_entry(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : nullptr;
}

const Driver& driver() {
  static const Driver all = [] {
    Driver found;
    const bool complete = find("cuLaunchKernel", found.launch) && find("cuCtxGetCurrent", found.context_of_thread) &&
                          find("cuCtxGetId", found.number_of) && find("cuDeviceGet", found.device) &&
                          find("cuDevicePrimaryCtxRetain", found.retain_primary) &&
                          find("cuCtxPushCurrent", found.push) && find("cuCtxPopCurrent", found.pop);
    return complete ? found : Driver{};
  }();
  return all;
}

}  // namespace flashcute::cuda
