// What the copy engine must know of a tensor, made on the host for each run: pointers change.
#pragma once

#include <string>

#include "core/problem.h"
#include "cuda/common/params.h"

namespace flashcute::cuda::sm90 {

// As the driver's CUtensorMap.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

struct TensorExtents {
  int64_t channels, rows, heads, batch;
};

// A box: `chunk` channels, which are one swizzle wide, of `box_rows` rows of one head. What a box has beyond the tensor
// becomes zeros. Throws Error(INTERNAL_ERROR).
TensorMap make_tensor_map(const Operand&, DType, const TensorExtents&, int chunk, int box_rows);

// Why the copy engine cannot read the tensor, or "".
std::string map_refusal(const char* name, const Strides&, const TensorExtents&, DType);

}  // namespace flashcute::cuda::sm90
