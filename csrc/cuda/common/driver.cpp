#include "cuda/common/driver.h"

#include <cuda_runtime_api.h>

namespace flashcute::cuda {

#if CUDART_VERSION >= 12050
namespace {

template <class Function>
bool find(const char* name, Function& function) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  function = reinterpret_cast<Function>(entry);
  return true;
}

}  // namespace

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
#else
const Driver& driver() {
  static const Driver none;
  return none;
}
#endif

}  // namespace flashcute::cuda
