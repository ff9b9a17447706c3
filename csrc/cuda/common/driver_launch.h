// Launches through the driver's own entry point, found at run time: cudart adds 0.3 µs or more to each launch, and a
// launch is most of what a call on small tensors costs.
#pragma once

#include <cuda_runtime_api.h>

namespace flashcute::cuda {

struct LaunchShape {
  unsigned grid, threads;
  size_t shared_memory;
};

// A kernel as the driver knows it, on every device and in every context. Null where cudart is too old to tell: launches
// then go through cudart.
class DriverKernel {
 public:
  explicit DriverKernel(const void* entry);
  // `parameters` is the kernel's only parameter. Throws Error(INTERNAL_ERROR).
  void launch(const LaunchShape& shape, void* parameters, cudaStream_t stream) const;

 private:
  const void* entry_;
  void* handle_ = nullptr;
};

}  // namespace flashcute::cuda
