// What every launch shares: errors as exceptions, and the device set for the call and restored after it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace flashcute::cuda {

// Throws INTERNAL_ERROR with CUDA's own text. A launch's error must not surface again in somebody else's call.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Error(FLASHCUTE_STATUS_INTERNAL_ERROR, std::string("expected ") + what + " to succeed, given " +
                                                   cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

// Makes the device current, and afterwards what was current before. Opens no context but the device's own, and asks
// nothing of the driver where the device is current already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != device) enter(device, current);
  }
  ~DeviceGuard() {
    if (switched()) leave();
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  bool switched() const { return pushed_ || previous_ >= 0; }

 private:
  void enter(int device, int previous);
  void leave();

  bool pushed_ = false;
  int previous_ = -1;  // where an older driver is switched by cudaSetDevice
};

}  // namespace flashcute::cuda
