#include <array>
#include <atomic>

#include "cuda/common/driver.h"
#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

constexpr int kMaxDevices = 256;

// Primary contexts are retained once, to the end of the process: memory and functions of ours live in them.
std::array<std::atomic<CUcontext>, kMaxDevices> primary_contexts{};

// Null where there is none.
CUcontext retain_primary(int device) {
  CUdevice id = 0;
  CUcontext context = nullptr;
  if (driver().device(&id, device) != CUDA_SUCCESS || driver().retain_primary(&context, id) != CUDA_SUCCESS) {
    return nullptr;
  }
  primary_contexts[size_t(device)].store(context, std::memory_order_release);
  return context;
}

CUcontext primary(int device) {
  const CUcontext known = primary_contexts[size_t(device)].load(std::memory_order_acquire);
  return known != nullptr ? known : retain_primary(device);
}

// The one that was retained can be gone, as after cudaDeviceReset.
bool push(CUcontext context, int device) {
  if (context == nullptr) return false;
  if (driver().push(context) == CUDA_SUCCESS) return true;
  context = retain_primary(device);
  return context != nullptr && driver().push(context) == CUDA_SUCCESS;
}

}  // namespace

// cudaSetDevice would do, but for the way back: since CUDA 12 it opens a context on the device it is given, and the one
// to go back to may be a GPU that the process never touches, where a context costs hundreds of megabytes.
DeviceGuard::DeviceGuard(int device) {
  if (driver().present() && device >= 0 && device < kMaxDevices) {
    const CUcontext context = primary(device);
    CUcontext current = nullptr;
    if (context != nullptr && driver().context_of_thread(&current) == CUDA_SUCCESS && current == context) return;
    pushed_ = push(context, device);
    if (pushed_) return;
  }
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");  // has the words for what went wrong, or does for an older driver
  if (current != device) previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (pushed_) {
    CUcontext ours = nullptr;
    driver().pop(&ours);
  } else if (previous_ >= 0 && cudaSetDevice(previous_) != cudaSuccess) {
    cudaGetLastError();
  }
}

}  // namespace flashcute::cuda
