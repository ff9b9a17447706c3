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

// Makes the device's primary context current, which tensors and streams of cudart and of the frameworks live in, and
// afterwards what was current before: nothing, in a thread that has made no CUDA call yet, or another library's
// context. Opens no context but that one, and only looks where it is current already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
  int previous_ = -1;  // where an older driver is switched by cudaSetDevice
};

}  // namespace flashcute::cuda
