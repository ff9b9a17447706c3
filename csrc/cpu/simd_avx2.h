// Eight float lanes with AVX2, FMA and F16C; see simd_avx512.h for the operations.
#pragma once

#include <immintrin.h>

#include "cpu/element.h"

namespace flashcute::cpu {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;

  FC_INLINE __m256i lane_index() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  FC_INLINE __m256i first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_index()); }

  FC_INLINE Vec zero() { return _mm256_setzero_ps(); }
  FC_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
  FC_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  FC_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
  FC_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  FC_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  FC_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  FC_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  FC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  FC_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  FC_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  FC_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  FC_INLINE float reduce_max(Vec a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  FC_INLINE float reduce_add(Vec a) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
  }

  FC_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  FC_INLINE Vec fma_or_hide(Vec s, Vec factor, Vec addend) {
    const Vec hidden = _mm256_cmp_ps(addend, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm256_blendv_ps(_mm256_fmadd_ps(s, factor, addend), addend, hidden);
  }
  FC_INLINE Vec keep_range(Vec s, int64_t lo, int64_t hi) {
    const int a = lo < 0 ? 0 : lo > 8 ? 8 : static_cast<int>(lo);
    const int b = hi < 0 ? 0 : hi > 8 ? 8 : static_cast<int>(hi);
    const __m256i keep = _mm256_andnot_si256(first(a), first(b));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), s, _mm256_castsi256_ps(keep));
  }
  FC_INLINE uint32_t visible(Vec s) {
    const Vec seen = _mm256_cmp_ps(s, _mm256_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ);
    return static_cast<uint32_t>(_mm256_movemask_ps(seen));
  }
  FC_INLINE Vec spot_nonfinite(Vec seen, Vec x) { return _mm256_fmadd_ps(x, _mm256_setzero_ps(), seen); }
  FC_INLINE bool is_zero(Vec seen) {
    return _mm256_movemask_ps(_mm256_cmp_ps(seen, _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
  }

  // Zero below 2^-126, so that the exponent can be built by an integer shift.
  template <bool kPrecise>
  FC_INLINE Vec exp2(Vec x) {
    const Vec bounded = _mm256_max_ps(_mm256_set1_ps(-126.0f), x);
    const Vec n = _mm256_floor_ps(bounded);
    const Vec f = _mm256_sub_ps(bounded, n);
    Vec p = _mm256_fmadd_ps(_mm256_set1_ps(1.867130496e-03f), f, _mm256_set1_ps(9.017029415e-03f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.579991376e-02f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.401644500e-01f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.931513118e-01f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const Vec normal = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(exponent)), normal);
  }

  template <class T>
  FC_INLINE Vec load(const T* p, int n) {
    T part[8] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
  }
  FC_INLINE Vec load(const F16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  FC_INLINE Vec load(const BF16* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }

  FC_INLINE void store(float* p, Vec a, int n) {
    if (n >= 8) return _mm256_storeu_ps(p, a);
    _mm256_maskstore_ps(p, first(n), a);
  }
  FC_INLINE void store(F16* p, Vec a, int n) {
    const __m128i half = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(p, &half, static_cast<size_t>(n) * 2);
  }
  FC_INLINE void store(BF16* p, Vec a, int n) {
    float part[8];
    _mm256_storeu_ps(part, a);
    for (int i = 0; i < n; ++i) from_float(part[i], p[i]);
  }

  FC_INLINE void transpose(Vec (&r)[8]) {
    Vec t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) t[i] = r[i], t[i + 4] = r[i + 4];
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }
};

}  // namespace flashcute::cpu
