#include "cuda/common/driver_launch.h"

#include "cuda/common/driver.h"
#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

constexpr unsigned long long kNoContext = ~0ull;

// The number of the context current in this thread.
unsigned long long current_context() {
  CUcontext current = nullptr;
  unsigned long long number = 0;
  if (!driver().present() || driver().context_of_thread(&current) != CUDA_SUCCESS || current == nullptr ||
      driver().number_of(current, &number) != CUDA_SUCCESS) {
    return kNoContext;
  }
  return number;
}

}  // namespace

bool DriverKernel::launch_known(const LaunchShape& shape, void** arguments, cudaStream_t stream) {
  const unsigned long long context = current_context();
  const Loaded* kernel = loaded_.load(std::memory_order_acquire);
  while (kernel != nullptr && kernel->context != context) kernel = kernel->next;
  if (kernel == nullptr) return false;
  return driver().launch(static_cast<CUfunction>(kernel->function), shape.grid, 1, 1, shape.threads, 1, 1,
                         static_cast<unsigned>(shared_memory_), static_cast<CUstream>(stream), arguments,
                         nullptr) == CUDA_SUCCESS;
}

void DriverKernel::launch(const LaunchShape& shape, void* parameters, cudaStream_t stream) {
  void* arguments[] = {parameters};
  if (launch_known(shape, arguments, stream)) return;
  // The first launch in a context; or one that failed, which fails here alike, and cudart has the words.
  check(cudaFuncSetAttribute(entry_, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_memory_)),
        "cudaFuncSetAttribute");
  check(cudaLaunchKernel(entry_, dim3(shape.grid), dim3(shape.threads), arguments, shared_memory_, stream),
        "the attention kernel's launch");
  remember();
}

void DriverKernel::remember() {
#if CUDART_VERSION >= 12050
  const unsigned long long context = current_context();
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
  Loaded* kernel = new Loaded{context, function, loaded_.load()};
  while (!loaded_.compare_exchange_weak(kernel->next, kernel, std::memory_order_release)) {
  }
#endif
}

}  // namespace flashcute::cuda
