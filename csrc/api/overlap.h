// Which bytes a strided tensor reaches, and whether two tensors have one in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/validate.h"

namespace flashcute {

// The first element lies at offset 0. Strides are not negative.
Extent extent_of(const TensorView& view);

// True where the two certainly share a byte. A search that takes too long, which strides of no common order can cause,
// ends as false.
bool share_memory(const Extent& a, const void* a_data, const Extent& b, const void* b_data);

// The same shape and strides, so that at one pointer they are one tensor.
bool same_geometry(const TensorView& a, const TensorView& b);

// Throws BAD_PARAM: `name` is written while `other` is read or written.
[[noreturn]] void bad_overlap(const char* name, const char* other);

}  // namespace flashcute
