// Calls that are not about one attention problem: merging partial results, memory, threads.
#include <cstdlib>
#include <cstring>

#include "api/check.h"
#include "api/firewall.h"
#include "core/backend.h"

namespace flashcute {
namespace {

constexpr size_t kMemoryAlignment = 256;

void* allocate_on_cpu(size_t bytes) {
  if (bytes > SIZE_MAX - kMemoryAlignment) throw std::bad_alloc();
  void* memory = std::aligned_alloc(kMemoryAlignment, (bytes + kMemoryAlignment - 1) & ~(kMemoryAlignment - 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Pointers of empty tensors may be null.
void require_data(const TensorView& view, const void* pointer, const char* name) {
  if (view.numel == 0) return;
  require(static_cast<const char*>(pointer), name);
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(size_of(view.dtype));
  if (beyond != 0) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, name,
         "a pointer aligned to its elements of " + std::to_string(size_of(view.dtype)) + " bytes",
         "one that is " + std::to_string(beyond) + " bytes beyond");
  }
}

// The device of a call that hands work to it.
const DeviceFacts& working_device(flashcuteHandle_t handle) {
  const DeviceFacts& facts = require_device(handle, "handle").facts;
  require_real(facts, "handle");
  may_fail_to_launch();
  return facts;
}

}  // namespace
}  // namespace flashcute

using namespace flashcute;

flashcuteStatus_t flashcuteMergeStates(flashcuteHandle_t handle, flashcuteTensorDescriptor_t out_desc, void* out,
                                       flashcuteTensorDescriptor_t lse_desc, float* lse,
                                       flashcuteTensorDescriptor_t out_a_desc, const void* out_a,
                                       flashcuteTensorDescriptor_t lse_a_desc, const float* lse_a,
                                       flashcuteTensorDescriptor_t out_b_desc, const void* out_b,
                                       flashcuteTensorDescriptor_t lse_b_desc, const float* lse_b, void* stream) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = require_device(handle, "handle").facts;
    const MergeViews views = {&view_of(out_desc, "out_desc"),     &view_of(lse_desc, "lse_desc"),
                              &view_of(out_a_desc, "out_a_desc"), &view_of(lse_a_desc, "lse_a_desc"),
                              &view_of(out_b_desc, "out_b_desc"), &view_of(lse_b_desc, "lse_b_desc")};
    MergeProblem problem = validate_merge(views);
    require_data(*views.out, out, "out");
    require_data(*views.lse, lse, "lse");
    require_data(*views.out_a, out_a, "out_a");
    require_data(*views.lse_a, lse_a, "lse_a");
    require_data(*views.out_b, out_b, "out_b");
    require_data(*views.lse_b, lse_b, "lse_b");
    problem.result.out = out;
    problem.result.lse = lse;
    problem.a.out = out_a;
    problem.a.lse = lse_a;
    problem.b.out = out_b;
    problem.b.lse = lse_b;
    if (views.lse->numel == 0) return;
    require_real(facts, "handle");
    require_own_memory(views, problem);
    may_fail_to_launch();
    if (facts.type == DeviceType::kNvidia) {
      cuda::merge(problem, facts.id, stream);
    } else {
      cpu::merge(problem);
    }
  });
}

flashcuteStatus_t flashcuteAllocate(flashcuteHandle_t handle, void** memory, size_t bytes) {
  return guarded(__func__, [&] {
    void*& result = require(memory, "memory");
    result = nullptr;
    const DeviceFacts& facts = working_device(handle);
    may_run_out_of_memory();
    if (bytes == 0) return;
    result = facts.type == DeviceType::kNvidia ? cuda::allocate(facts.id, bytes) : allocate_on_cpu(bytes);
  });
}

flashcuteStatus_t flashcuteRelease(flashcuteHandle_t handle, void* memory) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = working_device(handle);
    if (memory == nullptr) return;
    if (facts.type == DeviceType::kNvidia) {
      cuda::release(facts.id, memory);
    } else {
      std::free(memory);
    }
  });
}

flashcuteStatus_t flashcuteCopyToDevice(flashcuteHandle_t handle, void* device, const void* host, size_t bytes,
                                        void* stream) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = working_device(handle);
    if (bytes == 0) return;
    require(static_cast<char*>(device), "device");
    require(static_cast<const char*>(host), "host");
    if (facts.type == DeviceType::kNvidia) {
      cuda::copy_to_device(facts.id, device, host, bytes, stream);
    } else {
      std::memmove(device, host, bytes);
    }
  });
}

flashcuteStatus_t flashcuteCopyToHost(flashcuteHandle_t handle, void* host, const void* device, size_t bytes,
                                      void* stream) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = working_device(handle);
    if (bytes == 0) return;
    require(static_cast<char*>(host), "host");
    require(static_cast<const char*>(device), "device");
    if (facts.type == DeviceType::kNvidia) {
      cuda::copy_to_host(facts.id, host, device, bytes, stream);
    } else {
      std::memmove(host, device, bytes);
    }
  });
}

flashcuteStatus_t flashcuteSynchronize(flashcuteHandle_t handle, void* stream) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = working_device(handle);
    if (facts.type == DeviceType::kNvidia) cuda::synchronize(facts.id, stream);
  });
}

flashcuteStatus_t flashcuteStreamWait(flashcuteHandle_t handle, void* waiter, void* signaller) {
  return guarded(__func__, [&] {
    const DeviceFacts& facts = working_device(handle);
    if (facts.type == DeviceType::kNvidia) cuda::stream_wait(facts.id, waiter, signaller);
  });
}

flashcuteStatus_t flashcuteStreamIsCapturing(flashcuteHandle_t handle, void* stream, int* capturing) {
  return guarded(__func__, [&] {
    require(capturing, "capturing");
    *capturing = 0;
    const DeviceFacts& facts = working_device(handle);
    if (facts.type == DeviceType::kNvidia) *capturing = cuda::stream_is_capturing(facts.id, stream);
  });
}

flashcuteStatus_t flashcuteSetNumThreads(int num_threads) {
  return guarded(__func__, [&] { cpu::set_num_threads(num_threads); });
}

int flashcuteGetNumThreads(void) {
  int count = 0;
  guarded(__func__, [&] { count = cpu::num_threads(); });
  return count;
}
