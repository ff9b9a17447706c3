// Launches through the driver's own entry point, found at run time: cudart adds half a microsecond or more to each
// launch, and a launch is most of what a call on small tensors costs.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

namespace flashcute::cuda {

struct LaunchShape {
  unsigned grid, threads;
};

// A kernel and what the driver calls it in each context that has launched it. Through cudart go the first launch in a
// context, and all where the driver or cudart is too old. It lives to the end of the process, as its contexts do.
class DriverKernel {
 public:
  // shared_memory: bytes a CTA, also above 48 KB. `entry` is the kernel's host symbol.
  DriverKernel(const void* entry, size_t shared_memory) : entry_(entry), shared_memory_(shared_memory) {}
  DriverKernel(const DriverKernel&) = delete;
  DriverKernel& operator=(const DriverKernel&) = delete;

  // Under a DeviceGuard. `parameters` is the kernel's only parameter. Throws Error(INTERNAL_ERROR).
  void launch(const LaunchShape& shape, void* parameters, cudaStream_t stream);

 private:
  struct Loaded {
    unsigned long long context;  // the driver's number of it, never given twice: an address could be
    void* function;
    Loaded* next;
  };
  static constexpr int kMaxContexts = 64;  // contexts that come and go must not pile up

  // False where the thread's context has not launched this kernel yet, or the launch failed.
  bool launch_known(const LaunchShape& shape, void** arguments, cudaStream_t stream);
  void remember();

  const void* entry_;
  size_t shared_memory_;
  std::atomic<Loaded*> loaded_{nullptr};
};

}  // namespace flashcute::cuda
