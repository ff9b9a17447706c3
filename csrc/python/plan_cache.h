// Attention descriptors of the C API, made from views and kept for the next equal call.
#pragma once

#include <array>
#include <memory>

#include "arguments.h"
#include "tensor_set.h"

namespace flashcute::python {

using Views = std::array<const View*, kSlotCount>;  // null where absent

class Plan {
 public:
  Plan(const char* function, Device device, const Options& options, const Views& views, uint32_t min_alignment);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  flashcuteFlashAttentionDescriptor_t descriptor() const { return descriptor_; }
  size_t workspace() const { return workspace_; }
  Device device() const { return device_; }

 private:
  Device device_;
  flashcuteFlashAttentionDescriptor_t descriptor_ = nullptr;
  size_t workspace_ = 0;
};

// The plan of an equal earlier call, or a new one. Bounded; the least recently used one goes first.
std::shared_ptr<const Plan> find_plan(const char* function, Device device, const Options& options, const Views& views,
                                      uint32_t min_alignment);
size_t plan_cache_size();
void clear_plan_cache();

// A tensor descriptor of the C API for the length of a scope.
class NativeDescriptor {
 public:
  // swap_rows: heads and rows stand the other way round in the caller's layout.
  NativeDescriptor(const View& view, bool swap_rows, const char* function);
  NativeDescriptor(NativeDescriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  NativeDescriptor() = default;
  NativeDescriptor& operator=(NativeDescriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~NativeDescriptor();
  flashcuteTensorDescriptor_t get() const { return handle_; }

 private:
  flashcuteTensorDescriptor_t handle_ = nullptr;
};

}  // namespace flashcute::python
