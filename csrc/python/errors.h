// How failures travel in this module: a StatusError (or a Python error already raised) until the boundary, where it
// becomes the exception class of its status.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "flashcute/flashcute.h"

namespace nb = nanobind;

namespace flashcute::python {

class StatusError final : public std::exception {
 public:
  StatusError(flashcuteStatus_t status, std::string message, nb::object cause = nb::object())
      : status_(status), message_(std::move(message)), cause_(std::move(cause)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  flashcuteStatus_t status() const { return status_; }
  const nb::object& cause() const { return cause_; }

 private:
  flashcuteStatus_t status_;
  std::string message_;
  nb::object cause_;
};

// A call that does not fit the signature: Python's TypeError.
class SignatureError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Joins strings, characters and integers. Not through a stream: streams need the process's one C++ library to agree on
// locales, which an extension module that carries its own cannot count on.
inline void append(std::string& result, const std::string& part) {
  result += part;
}
inline void append(std::string& result, std::string_view part) {
  result += part;
}
inline void append(std::string& result, const char* part) {
  result += part;
}
inline void append(std::string& result, char part) {
  result += part;
}
template <class Integer, std::enable_if_t<std::is_integral_v<Integer> && !std::is_same_v<Integer, char>, int> = 0>
void append(std::string& result, Integer part) {
  result += std::to_string(part);
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::string result;
  (append(result, parts), ...);
  return result;
}

// The name of a call and of one of its arguments, for "flashcute.attention(q): expected …, given …".
struct Where {
  const char* function;
  const char* argument;
};

template <class... Parts>
[[noreturn]] void fail(flashcuteStatus_t status, Where where, const Parts&... parts) {
  throw StatusError(status, text("flashcute.", where.function, '(', where.argument, "): ", parts...));
}

// Turns the Python error that is set into a StatusError with it as the cause. MemoryError, KeyboardInterrupt and their
// like pass unchanged. A '%' in `what` stands for the type of `subject`.
[[noreturn]] void fail_from_python(flashcuteStatus_t status, Where where, std::string what, PyObject* subject);

// Throws the library's own message of a failure, as one of the Python call and argument that the caller knows.
[[noreturn]] void fail_from_library(flashcuteStatus_t status, const char* function);

inline void check(flashcuteStatus_t status, const char* function) {
  if (status != FLASHCUTE_STATUS_SUCCESS) fail_from_library(status, function);
}

// Inside a catch block: sets the Python error of the exception in flight.
void set_python_error() noexcept;

// str(x) and repr(x), for messages. Never fail.
std::string str_of(nb::handle x);
std::string repr_of(nb::handle x);

// type(x).__name__, for messages.
std::string type_name(PyObject* x);

}  // namespace flashcute::python
