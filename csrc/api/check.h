// Words and small checks that every validator shares.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>

#include "api/validate.h"
#include "core/error.h"

namespace flashcute {

// Throws "(argument): expected …, given …"; c_api.cpp puts the function's name before it.
[[noreturn]] void fail(flashcuteStatus_t status, const std::string& argument, const std::string& expected,
                       const std::string& given);

// The number in an enumerator that came from C, which may be none of its type's (then only its bytes may be read).
template <typename Enum>
int64_t raw_value(const Enum& enumerator) {
  static_assert(sizeof(Enum) == sizeof(int32_t), "C enumerations are ints here");
  int32_t value = 0;
  std::memcpy(&value, &enumerator, sizeof value);
  return value;
}

std::string text(double value);
std::string text(int64_t value);
std::string shape_text(const TensorView& tensor);
std::string shape_text(std::initializer_list<int64_t> shape);
std::string strides_text(const TensorView& tensor);

// A stride that addresses something: 0 for axes of length 1 and in empty tensors, where any value is legal.
int64_t stride_of(const TensorView& tensor, int axis);

void require_shape(const char* name, const TensorView& tensor, std::initializer_list<int64_t> shape, const char* axes);
void require_dtype(const char* name, const TensorView& tensor, DType dtype, const char* hint = "");
void require_no_negative_strides(const char* name, const TensorView& tensor);
void require_contiguous_last_axis(const char* name, const TensorView& tensor);
// A written tensor must not overlap itself.
void require_no_overlap(const char* name, const TensorView& tensor);

}  // namespace flashcute
