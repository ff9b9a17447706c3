// Half-precision elements and their conversion, in plain C++. Everything has internal linkage, because this header is
// compiled with different instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#define FC_INLINE static inline __attribute__((always_inline))

namespace flashcute::cpu {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

FC_INLINE float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

FC_INLINE uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

FC_INLINE float to_float(float value) {
  return value;
}

FC_INLINE float to_float(BF16 value) {
  return from_bits(static_cast<uint32_t>(value.bits) << 16);
}

FC_INLINE float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) return from_bits(sign | to_bits(static_cast<float>(magnitude) * 0x1p-24f));
  return from_bits(sign | ((magnitude << 13) + 0x38000000u));
}

FC_INLINE void from_float(float value, float& out) {
  out = value;
}

// Round to nearest even; NaN stays NaN.
FC_INLINE void from_float(float value, BF16& out) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out.bits = static_cast<uint16_t>(bits >> 16 | 0x40u);
  } else {
    out.bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

FC_INLINE void from_float(float value, F16& out) {
  const uint32_t bits = to_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24, so the hardware rounds
    half = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | half);
}

}  // namespace flashcute::cpu
