#include <map>
#include <mutex>

#include "cuda/common/driver.h"
#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

// Primary contexts are retained once, to the end of the process: memory and functions of ours live in them.
class PrimaryContexts {
 public:
  // `again`: the one that was given before is gone, as after cudaDeviceReset. Null where there is none.
  CUcontext of(int device, bool again) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CUcontext& context = contexts_[device];
    if (context == nullptr || again) {
      CUdevice id = 0;
      if (driver().device(&id, device) != CUDA_SUCCESS || driver().retain_primary(&context, id) != CUDA_SUCCESS) {
        context = nullptr;
      }
    }
    return context;
  }

 private:
  std::mutex mutex_;
  std::map<int, CUcontext> contexts_;
};

bool push(int device) {
  static PrimaryContexts* contexts = new PrimaryContexts;  // threads may outlive static objects
  for (bool again : {false, true}) {
    const CUcontext context = contexts->of(device, again);
    if (context != nullptr && driver().push(context) == CUDA_SUCCESS) return true;
  }
  return false;
}

}  // namespace

// cudaSetDevice would do, but for the way back: since CUDA 12 it opens a context on the device it is given, and the one
// to go back to may be a GPU that the process never touches, where a context costs hundreds of megabytes.
void DeviceGuard::enter(int device, int previous) {
  if (driver().present() && push(device)) {
    pushed_ = true;
    return;
  }
  check(cudaSetDevice(device), "cudaSetDevice");  // has the words for what went wrong, or does for an older driver
  previous_ = previous;
}

void DeviceGuard::leave() {
  if (pushed_) {
    CUcontext ours = nullptr;
    driver().pop(&ours);
  } else if (cudaSetDevice(previous_) != cudaSuccess) {
    cudaGetLastError();
  }
}

}  // namespace flashcute::cuda
