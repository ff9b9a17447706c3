// Four float lanes with the compiler's vector extension: SSE2, NEON or whatever the target has. See simd_avx512.h for
// the operations.
#pragma once

#include "cpu/element.h"

namespace flashcute::cpu {

struct Generic {
  typedef float Vec __attribute__((vector_size(16)));
  typedef int32_t IVec __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;

  FC_INLINE Vec zero() { return Vec{0, 0, 0, 0}; }
  FC_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
  FC_INLINE Vec select(IVec condition, Vec x, Vec y) {
    return reinterpret_cast<Vec>((condition & reinterpret_cast<IVec>(x)) | (~condition & reinterpret_cast<IVec>(y)));
  }
  FC_INLINE Vec load(const float* p) {
    Vec a;
    memcpy(&a, p, 16);
    return a;
  }
  FC_INLINE void store(float* p, Vec a) { memcpy(p, &a, 16); }
  FC_INLINE Vec add(Vec a, Vec b) { return a + b; }
  FC_INLINE Vec sub(Vec a, Vec b) { return a - b; }
  FC_INLINE Vec mul(Vec a, Vec b) { return a * b; }
  FC_INLINE Vec div(Vec a, Vec b) { return a / b; }
  FC_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  FC_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }
  FC_INLINE Vec min(Vec a, Vec b) { return select(a < b, a, b); }
  FC_INLINE Vec abs(Vec a) { return reinterpret_cast<Vec>(reinterpret_cast<IVec>(a) & 0x7fffffff); }
  FC_INLINE float reduce_max(Vec a) {
    const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
  }
  FC_INLINE float reduce_add(Vec a) { return (a[0] + a[1]) + (a[2] + a[3]); }

  FC_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) { return select(a < b, x, y); }
  FC_INLINE Vec fma_or_hide(Vec s, Vec factor, Vec addend) {
    return select(addend == set1(-__builtin_inff()), addend, s * factor + addend);
  }
  FC_INLINE Vec keep_range(Vec s, int64_t lo, int64_t hi) {
    const float hidden = -__builtin_inff();
    for (int i = 0; i < 4; ++i) {
      if (i < lo || i >= hi) s[i] = hidden;
    }
    return s;
  }
  FC_INLINE uint32_t visible(Vec s) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(s[i] != -__builtin_inff()) << i;
    return bits;
  }
  FC_INLINE Vec spot_nonfinite(Vec seen, Vec x) { return x * zero() + seen; }
  FC_INLINE bool is_zero(Vec seen) { return seen[0] == 0 && seen[1] == 0 && seen[2] == 0 && seen[3] == 0; }

  template <bool kPrecise>
  FC_INLINE Vec exp2(Vec x) {
    const Vec bounded = max(set1(-126.0f), x);
    const Vec magic = set1(12582912.0f);  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const Vec shifted = (bounded - 0.5f) + magic;
    const Vec f = bounded - (shifted - magic);
    Vec p = set1(1.867130496e-03f) * f + 9.017029415e-03f;
    p = p * f + 5.579991376e-02f;
    p = p * f + 2.401644500e-01f;
    p = p * f + 6.931513118e-01f;
    p = p * f + 1.0f;
    const IVec exponent = (reinterpret_cast<IVec>(shifted) - (0x4b400000 - 127)) << 23;
    const IVec tiny = x < set1(-126.0f);
    return reinterpret_cast<Vec>(reinterpret_cast<IVec>(p * reinterpret_cast<Vec>(exponent)) & ~tiny);
  }

  template <class T>
  FC_INLINE Vec load(const T* p, int n) {
    Vec a = zero();
    for (int i = 0; i < n; ++i) a[i] = to_float(p[i]);
    return a;
  }
  FC_INLINE Vec load(const F16* p) { return Vec{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
  FC_INLINE Vec load(const BF16* p) { return Vec{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }

  template <class T>
  FC_INLINE void store(T* p, Vec a, int n) {
    for (int i = 0; i < n; ++i) from_float(a[i], p[i]);
  }

  FC_INLINE void transpose(Vec (&r)[4]) {
    const Vec a = r[0], b = r[1], c = r[2], d = r[3];
    for (int i = 0; i < 4; ++i) r[i] = Vec{a[i], b[i], c[i], d[i]};
  }
};

}  // namespace flashcute::cpu
