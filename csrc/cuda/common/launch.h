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

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current == device) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    previous_ = current;
  }
  ~DeviceGuard() {
    if (previous_ >= 0 && cudaSetDevice(previous_) != cudaSuccess) cudaGetLastError();
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace flashcute::cuda
