// Sixteen float lanes with AVX-512 F, BW, DQ and VL. The operations every simd_*.h offers; partial forms touch exactly
// the first n elements.
#pragma once

#include <immintrin.h>

#include "cpu/element.h"

namespace flashcute::cpu {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;

  FC_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

  FC_INLINE Vec zero() { return _mm512_setzero_ps(); }
  FC_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
  FC_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  FC_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
  FC_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  FC_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  FC_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  FC_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  FC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  FC_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  FC_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }  // b where either is NaN
  FC_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
  FC_INLINE float reduce_max(Vec a) { return _mm512_reduce_max_ps(a); }
  FC_INLINE float reduce_add(Vec a) { return _mm512_reduce_add_ps(a); }

  // a < b ? x : y
  FC_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  // addend == -inf ? -inf : s * factor + addend
  FC_INLINE Vec fma_or_hide(Vec s, Vec factor, Vec addend) {
    const __mmask16 hidden = _mm512_cmp_ps_mask(addend, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(_mm512_fmadd_ps(s, factor, addend), hidden, addend);
  }
  // Lanes lo <= lane < hi keep s, the others become -inf.
  FC_INLINE Vec keep_range(Vec s, int64_t lo, int64_t hi) {
    const int a = lo < 0 ? 0 : lo > 16 ? 16 : static_cast<int>(lo);
    const int b = hi < 0 ? 0 : hi > 16 ? 16 : static_cast<int>(hi);
    const __mmask16 keep = static_cast<__mmask16>(((1u << b) - 1u) & ~((1u << a) - 1u));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), keep, s);
  }
  // Bit l: lane l is not -inf.
  FC_INLINE uint32_t visible(Vec s) { return _mm512_cmp_ps_mask(s, _mm512_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ); }
  // Accumulates something that is_zero() until a NaN or infinity has been seen.
  FC_INLINE Vec spot_nonfinite(Vec seen, Vec x) { return _mm512_fmadd_ps(x, _mm512_setzero_ps(), seen); }
  FC_INLINE bool is_zero(Vec seen) { return _mm512_cmp_ps_mask(seen, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0; }

  // With x = n + f, 0 <= f < 1: vscalefps takes floor(x) itself, and gives exact zeros for -inf.
  template <bool kPrecise>
  FC_INLINE Vec exp2(Vec x) {
    const Vec f = _mm512_reduce_ps(x, 0x09);
    Vec p;
    if (kPrecise) {
      p = _mm512_fmadd_ps(_mm512_set1_ps(1.867130496e-03f), f, _mm512_set1_ps(9.017029415e-03f));
      p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.579991376e-02f));
      p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401644500e-01f));
      p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931513118e-01f));
    } else {
      p = _mm512_fmadd_ps(_mm512_set1_ps(1.342668797e-02f), f, _mm512_set1_ps(5.224246823e-02f));
      p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.412802076e-01f));
      p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.930448445e-01f));
    }
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f)), x);
  }

  FC_INLINE Vec load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  FC_INLINE Vec load(const F16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  FC_INLINE Vec load(const F16* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  FC_INLINE Vec widen(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
  FC_INLINE Vec load(const BF16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  FC_INLINE Vec load(const BF16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }

  FC_INLINE void store(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  FC_INLINE void store(F16* p, Vec a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  FC_INLINE void store(BF16* p, Vec a, int n) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }

  FC_INLINE void transpose(Vec (&r)[16]) {
    Vec t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
      const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
      r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
      r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
      r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // r[4g + c] holds, in 128-bit lane l, column 4l + c of rows 4g .. 4g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      t[c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
      t[4 + c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
      t[8 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
      t[12 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
      r[8 + c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0xdd);
      r[4 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
      r[12 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xdd);
    }
  }
};

}  // namespace flashcute::cpu
