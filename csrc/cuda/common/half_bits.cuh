// Infs and NaNs among 16-bit floats, two to a word.
#pragma once

#include <cutlass/numeric_types.h>
#include <cstdint>
#include <type_traits>

namespace flashcute::cuda {

// Two elements in a word.
template <class Element>
struct HalfBits {
  static constexpr uint32_t kExponents = std::is_same_v<Element, cutlass::half_t> ? 0x7C007C00u : 0x7F807F80u;
  static constexpr uint32_t kCarry = std::is_same_v<Element, cutlass::half_t> ? 0x04000400u : 0x00800080u;

  // All bits of each half that is inf or NaN: its exponent, all ones, carries into the sign bit.
  __device__ __forceinline__ static uint32_t nonfinite(uint32_t word) {
    return ((((word & kExponents) + kCarry) & 0x80008000u) >> 15) * 0xFFFFu;
  }
  __device__ __forceinline__ static uint32_t nonfinite(const uint4& x) {
    return nonfinite(x.x) | nonfinite(x.y) | nonfinite(x.z) | nonfinite(x.w);
  }
  // `x` with zeros for infs and NaNs.
  __device__ __forceinline__ static uint4 finite(const uint4& x) {
    return {x.x & ~nonfinite(x.x), x.y & ~nonfinite(x.y), x.z & ~nonfinite(x.z), x.w & ~nonfinite(x.w)};
  }
};

}  // namespace flashcute::cuda
