// Element types, with the values of the C API.
#pragma once

#include <cstdint>

#include "flashcute/flashcute.h"

namespace flashcute {

enum class DType : int32_t {
  kByte = FLASHCUTE_DTYPE_BYTE,
  kBool = FLASHCUTE_DTYPE_BOOL,
  kI8 = FLASHCUTE_DTYPE_I8,
  kI16 = FLASHCUTE_DTYPE_I16,
  kI32 = FLASHCUTE_DTYPE_I32,
  kI64 = FLASHCUTE_DTYPE_I64,
  kU8 = FLASHCUTE_DTYPE_U8,
  kU16 = FLASHCUTE_DTYPE_U16,
  kU32 = FLASHCUTE_DTYPE_U32,
  kU64 = FLASHCUTE_DTYPE_U64,
  kF16 = FLASHCUTE_DTYPE_F16,
  kF32 = FLASHCUTE_DTYPE_F32,
  kF64 = FLASHCUTE_DTYPE_F64,
  kBF16 = FLASHCUTE_DTYPE_BF16,
};

// 0 for a value that is no dtype.
constexpr int size_of(DType dtype) {
  switch (dtype) {
    case DType::kByte:
    case DType::kBool:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool is_mask_dtype(DType dtype) {
  return size_of(dtype) != 0 && dtype != DType::kF16 && dtype != DType::kF32 && dtype != DType::kF64 &&
         dtype != DType::kBF16;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return "byte";
    case DType::kBool:
      return "bool";
    case DType::kI8:
      return "int8";
    case DType::kI16:
      return "int16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kU16:
      return "uint16";
    case DType::kU32:
      return "uint32";
    case DType::kU64:
      return "uint64";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    case DType::kF64:
      return "float64";
    case DType::kBF16:
      return "bfloat16";
  }
  return "unknown";
}

}  // namespace flashcute
