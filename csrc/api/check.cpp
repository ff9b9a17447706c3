#include "api/check.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/number.h"

namespace flashcute {
namespace {

std::string tuple_text(const int64_t* values, size_t count) {
  std::string result = "(";
  for (size_t i = 0; i < count; ++i) result += (i != 0 ? ", " : "") + std::to_string(values[i]);
  return result + (count == 1 ? ",)" : ")");
}

}  // namespace

void fail(flashcuteStatus_t status, const std::string& argument, const std::string& expected,
          const std::string& given) {
  throw Error(status, "(" + argument + "): expected " + expected + ", given " + given);
}

std::string text(double value) {
  return number_text(value, 6);
}

std::string text(int64_t value) {
  return std::to_string(value);
}

std::string shape_text(const TensorView& tensor) {
  return tuple_text(tensor.shape, tensor.ndim);
}
std::string shape_text(std::initializer_list<int64_t> shape) {
  return tuple_text(shape.begin(), shape.size());
}
std::string strides_text(const TensorView& tensor) {
  return tuple_text(tensor.strides, tensor.ndim);
}

int64_t stride_of(const TensorView& tensor, int axis) {
  return tensor.numel == 0 || tensor.shape[axis] == 1 ? 0 : tensor.strides[axis];
}

void require_shape(const char* name, const TensorView& tensor, std::initializer_list<int64_t> shape, const char* axes) {
  if (tensor.ndim == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.shape)) return;
  fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, name, std::string(axes) + " = " + shape_text(shape), shape_text(tensor));
}

void require_dtype(const char* name, const TensorView& tensor, DType dtype, const char* hint) {
  if (tensor.dtype == dtype) return;
  fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, name, std::string("dtype ") + name_of(dtype) + hint, name_of(tensor.dtype));
}

void require_no_negative_strides(const char* name, const TensorView& tensor) {
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (stride_of(tensor, axis) < 0) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, name, "no negative strides", strides_text(tensor));
    }
  }
}

void require_contiguous_last_axis(const char* name, const TensorView& tensor) {
  const int last = tensor.ndim - 1;
  if (tensor.numel == 0 || tensor.shape[last] == 1 || tensor.strides[last] == 1) return;
  fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, name, "stride 1 on the last axis",
       "strides " + strides_text(tensor) + " for shape " + shape_text(tensor));
}

void require_no_overlap(const char* name, const TensorView& tensor) {
  if (tensor.numel == 0) return;
  std::array<std::pair<int64_t, int64_t>, kMaxDims> axes;  // stride, length; the unused ones sort last
  axes.fill({std::numeric_limits<int64_t>::max(), 1});
  int count = 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] > 1) axes[count++] = {tensor.strides[axis], tensor.shape[axis]};
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;  // the farthest element of the axes seen so far
  for (int i = 0; i < count; ++i) {
    if (axes[i].first <= reach) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, name,
           "a written tensor whose elements do not overlap, each stride beyond the reach of the smaller ones",
           "strides " + strides_text(tensor) + " for shape " + shape_text(tensor));
    }
    reach += (axes[i].second - 1) * axes[i].first;
  }
}

}  // namespace flashcute
