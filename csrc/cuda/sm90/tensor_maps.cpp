#include "cuda/sm90/tensor_maps.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "cuda/common/driver.h"

namespace flashcute::cuda::sm90 {
namespace {

constexpr int64_t kAlignment = 16;                      // bytes, of bases and strides
constexpr int64_t kMaxStride = (int64_t{1} << 40) - 1;  // bytes
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode find_encode() {
  void* entry = driver_entry("cuTensorMapEncodeTiled");
  if (entry == nullptr) {
    throw Error(FLASHCUTE_STATUS_INTERNAL_ERROR,
                "expected a driver with cuTensorMapEncodeTiled, which those for Hopper GPUs have, given one without");
  }
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

TensorMap make_tensor_map(const Operand& operand, DType dtype, const TensorExtents& extents, int chunk, int box_rows) {
  static const Encode encode = find_encode();
  const auto bytes = [&](int64_t stride, int64_t extent) {  // of an axis of length 1, any stride will do
    return extent > 1 ? static_cast<cuuint64_t>(stride * size_of(dtype)) : static_cast<cuuint64_t>(kAlignment);
  };
  const cuuint64_t sizes[4] = {cuuint64_t(extents.channels), cuuint64_t(extents.rows), cuuint64_t(extents.heads),
                               cuuint64_t(extents.batch)};
  const cuuint64_t strides[3] = {bytes(operand.row, extents.rows), bytes(operand.head, extents.heads),
                                 bytes(operand.batch, extents.batch)};
  const cuuint32_t box[4] = {cuuint32_t(chunk), cuuint32_t(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
             const_cast<void*>(operand.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             chunk == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(FLASHCUTE_STATUS_INTERNAL_ERROR,
                "expected cuTensorMapEncodeTiled to succeed, given driver error " + std::to_string(int(result)));
  }
  TensorMap copy;
  std::memcpy(&copy, &map, sizeof(copy));
  return copy;
}

std::string map_refusal(const char* name, const Strides& strides, const TensorExtents& extents, DType dtype) {
  const struct {
    const char* axis;
    int64_t stride, extent;
  } axes[] = {{"row", strides.row, extents.rows},
              {"head", strides.head, extents.heads},
              {"batch", strides.batch, extents.batch}};
  for (const auto& [axis, stride, extent] : axes) {
    if (extent <= 1) continue;
    const int64_t elements = kAlignment / size_of(dtype);
    if (stride % elements != 0 || stride <= 0 || stride > kMaxStride / size_of(dtype)) {
      return std::string("the ") + axis + " stride " + std::to_string(stride) + " of " + name +
             " is not a positive multiple of " + std::to_string(elements) + " below 2^40 bytes";
    }
  }
  return "";
}

}  // namespace flashcute::cuda::sm90
