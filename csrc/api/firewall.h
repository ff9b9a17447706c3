// Between C and C++: no exception leaves the library, and each failure leaves a message on its thread.
#pragma once

#include <exception>
#include <new>

#include "api/objects.h"
#include "core/error.h"
#include "core/fault.h"

namespace flashcute {

// Keeps "function(argument): …" for this thread and returns status.
flashcuteStatus_t report(const char* function, flashcuteStatus_t status, const char* message) noexcept;

template <typename Body>
flashcuteStatus_t guarded(const char* function, Body&& body) noexcept {
  try {
    body();
    return FLASHCUTE_STATUS_SUCCESS;
  } catch (const Error& error) {
    return report(function, error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return report(function, FLASHCUTE_STATUS_INTERNAL_ERROR, "expected memory, given none: the allocation failed");
  } catch (const std::exception& error) {
    return report(function, FLASHCUTE_STATUS_INTERNAL_ERROR, error.what());
  } catch (...) {
    return report(function, FLASHCUTE_STATUS_INTERNAL_ERROR, "an unknown exception");
  }
}

[[noreturn]] void throw_null(const char* argument, flashcuteStatus_t status);
[[noreturn]] void throw_dead(const char* argument);
[[noreturn]] void throw_unknown_device(const char* argument);
[[noreturn]] void throw_planning(const char* argument, const DeviceFacts& facts);

template <typename T>
T& require(T* pointer, const char* argument, flashcuteStatus_t null_status = FLASHCUTE_STATUS_NULL_POINTER) {
  if (__builtin_expect(pointer == nullptr, 0)) throw_null(argument, null_status);
  return *pointer;
}

// A handle or descriptor that lives.
template <typename T>
T& require_alive(T* object, const char* argument, flashcuteStatus_t null_status = FLASHCUTE_STATUS_NULL_POINTER) {
  require(object, argument, null_status);
  if (__builtin_expect(!object->alive(), 0)) throw_dead(argument);
  return *object;
}

// A living one whose device type this build knows.
template <typename T>
T& require_device(T* object, const char* argument, flashcuteStatus_t null_status = FLASHCUTE_STATUS_NULL_POINTER) {
  require_alive(object, argument, null_status);
  const DeviceType type = object->facts.type;
  const bool known = type == DeviceType::kCpu || type == DeviceType::kNvidia;
  if (__builtin_expect(!known || fault_is(FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE), 0)) throw_unknown_device(argument);
  return *object;
}

inline const TensorView& view_of(flashcuteTensorDescriptor_t desc, const char* argument) {
  return require_alive(desc, argument).view;
}

inline const TensorView* optional_view(flashcuteTensorDescriptor_t desc, const char* argument) {
  return desc == nullptr ? nullptr : &view_of(desc, argument);
}

// Work needs a device, where plans need its facts only.
inline void require_real(const DeviceFacts& facts, const char* argument) {
  if (__builtin_expect(facts.planning, 0)) throw_planning(argument, facts);
}

// Stands before work that is handed to a device.
inline void may_fail_to_launch() {
  if (fault_is(FLASHCUTE_FAULT_LAUNCH_FAILURE)) {
    throw Error(FLASHCUTE_STATUS_INTERNAL_ERROR,
                "expected a launch, given the failure that flashcuteInjectFault asked for");
  }
}

}  // namespace flashcute
