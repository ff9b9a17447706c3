#include "cuda/common/driver_launch.h"

#include <cuda.h>  // types only: libcuda is not linked

#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

constexpr unsigned long long kNoContext = ~0ull;

struct Driver {
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                     void**) = nullptr;
  CUresult (*context_of_thread)(CUcontext*) = nullptr;
  CUresult (*number_of)(CUcontext, unsigned long long*) = nullptr;

  // The number of the context current in this thread.
  unsigned long long context() const {
    CUcontext current = nullptr;
    unsigned long long number = 0;
    if (number_of == nullptr || context_of_thread(&current) != CUDA_SUCCESS || current == nullptr ||
        number_of(current, &number) != CUDA_SUCCESS) {
      return kNoContext;
    }
    return number;
  }
};

#if CUDART_VERSION >= 12050
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

const Driver& driver() {
  static const Driver all = [] {
    Driver found;
    const bool complete = find("cuLaunchKernel", found.launch) && find("cuCtxGetCurrent", found.context_of_thread) &&
                          find("cuCtxGetId", found.number_of);
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

}  // namespace

void DriverKernel::launch(int device, const LaunchShape& shape, void* parameters, cudaStream_t stream) {
  void* arguments[] = {parameters};
  const unsigned long long context = driver().context();
  const Loaded* kernel = loaded_.load(std::memory_order_acquire);
  while (kernel != nullptr && kernel->context != context) kernel = kernel->next;
  if (kernel != nullptr && kernel->device == device) {
    const CUresult result =
        driver().launch(static_cast<CUfunction>(kernel->function), shape.grid, 1, 1, shape.threads, 1, 1,
                        static_cast<unsigned>(shared_memory_), static_cast<CUstream>(stream), arguments, nullptr);
    if (result == CUDA_SUCCESS) return;  // cudart fails alike, and has the words
  }
  const DeviceGuard guard(device);
  check(cudaFuncSetAttribute(entry_, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_memory_)),
        "cudaFuncSetAttribute");
  check(cudaLaunchKernel(entry_, dim3(shape.grid), dim3(shape.threads), arguments, shared_memory_, stream),
        "the attention kernel's launch");
  if (kernel == nullptr) remember(device);
}

void DriverKernel::remember(int device) {
#if CUDART_VERSION >= 12050
  const unsigned long long context = driver().context();
  if (context == kNoContext) return;
  int known = 0;
  for (const Loaded* kernel = loaded_.load(std::memory_order_acquire); kernel != nullptr; kernel = kernel->next) {
    if (kernel->context == context || ++known == kMaxContexts) return;
  }
  cudaFunction_t function = nullptr;
  if (cudaGetFuncBySymbol(&function, entry_) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  Loaded* kernel = new Loaded{context, device, function, loaded_.load()};
  while (!loaded_.compare_exchange_weak(kernel->next, kernel, std::memory_order_release)) {
  }
#else
  (void)device;
#endif
}

}  // namespace flashcute::cuda
