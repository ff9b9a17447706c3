// The tile policy for bfloat16 with AVX512-BF16: products of pairs, sums in float32. A packed word holds two channels
// of a query or key, two keys of a value or weight; otherwise the packed forms are kernel_float.h's.
#pragma once

#include <immintrin.h>

#include "cpu/element.h"
#include "cpu/simd_avx512.h"

namespace flashcute::cpu {

// A type of its own, so that no code compiled here is shared with files that lack AVX512-BF16.
struct Avx512Bf16 : Avx512 {};

struct Bf16Kernel {
  using Simd = Avx512Bf16;
  using Element = BF16;
  using Vec = Simd::Vec;
  static constexpr int kLanes = 16;
  static constexpr int kStrip = 6;
  static constexpr int kPanel = 64;
  static constexpr int kBlockN = 256;
  static constexpr int kPair = 2;
  static constexpr int kStep = 32;
  static constexpr bool kPrecise = false;
  static constexpr bool kRounded = true;  // the weights become bfloat16
  static constexpr float kHugeValue = 0x1p114f;

  FC_INLINE Vec dot(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  FC_INLINE __m512i load_words(const BF16* p, int64_t n) {
    if (n >= 32) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1u), p);
  }

  // Returns the largest magnitude, of a row without NaN.
  static float pack_queries_row(const BF16* q, int64_t head_dim, float* packed) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fff0000);
    __m512i largest = _mm512_setzero_si512();
    for (int64_t c = 0; c < head_dim; c += 32) {
      const int64_t n = head_dim - c;
      const int pairs = n >= 32 ? 16 : static_cast<int>((n + 1) / 2);
      const __m512i words = load_words(q + c, n);
      largest = _mm512_max_epu32(largest, _mm512_and_si512(words, magnitude));
      largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_slli_epi32(words, 16), magnitude));
      Simd::store(packed + c / 2, _mm512_castsi512_ps(words), pairs);
    }
    return from_bits(_mm512_reduce_max_epu32(largest));
  }

  static void scale_queries_row(float* packed, int64_t head_dim, float factor) {
    char* words = reinterpret_cast<char*>(packed);
    for (int64_t c = 0; c < head_dim; ++c) {
      BF16 x;
      memcpy(&x, words + 2 * c, 2);
      from_float(to_float(x) * factor, x);
      memcpy(words + 2 * c, &x, 2);
    }
  }

  static void pack_keys(const BF16* k, int64_t row, int n, int64_t head_dim, const bool* hidden, float* packed) {
    const int64_t depth = (head_dim + 1) / 2;
    const int padded = (n + kStep - 1) / kStep * kStep;
    for (int j = 0; j < padded; j += kLanes) {
      float* panel = packed + (j / kPanel) * kPanel * depth + j % kPanel;
      for (int64_t c = 0; c < head_dim; c += 32) {
        Vec r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          const bool skip = j + i >= n || (hidden && hidden[j + i]);
          r[i] = skip ? Simd::zero() : _mm512_castsi512_ps(load_words(k + (j + i) * row + c, head_dim - c));
        }
        Simd::transpose(r);
        const int count = depth - c / 2 < 16 ? static_cast<int>(depth - c / 2) : 16;
        for (int i = 0; i < count; ++i) Simd::store(panel + (c / 2 + i) * kPanel, r[i]);
      }
    }
  }

  static bool pack_values(const BF16* v, int64_t row, int n, int64_t head_dim_v, const bool* hidden, float* packed) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __m512i huge = _mm512_set1_epi16(static_cast<short>((127 + 114) << 7));  // kHugeValue's bits
    __mmask32 spotted = 0;
    for (int j = 0; j < n; j += 2) {
      const bool first = !(hidden && hidden[j]);
      const bool second = j + 1 < n && !(hidden && hidden[j + 1]);
      for (int64_t c = 0; c < head_dim_v; c += 32) {
        const __m512i a = first ? load_words(v + j * row + c, head_dim_v - c) : _mm512_setzero_si512();
        const __m512i b = second ? load_words(v + (j + 1) * row + c, head_dim_v - c) : _mm512_setzero_si512();
        spotted |= _mm512_cmpge_epu16_mask(_mm512_and_si512(a, exponent), huge);
        spotted |= _mm512_cmpge_epu16_mask(_mm512_and_si512(b, exponent), huge);
        float* to = packed + (c / kPanel) * kPanel * (kBlockN / 2) + (j / 2) * kPanel + c % kPanel;
        Simd::store(to, _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, low, b)));
        Simd::store(to + 16, _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, high, b)));
      }
    }
    return spotted == 0;
  }

  FC_INLINE Vec rounded(const Vec* p) { return reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(p[1], p[0])); }
  FC_INLINE void store_weights(float* row, int key, const Vec* p) { Simd::store(row + key / 2, rounded(p)); }
  FC_INLINE Vec add_rounded(Vec sum, const Vec* p) {
    return dot(rounded(p), _mm512_castsi512_ps(_mm512_set1_epi16(0x3f80)), sum);  // times one
  }
  FC_INLINE float weight(const float* row, int key) { return to_float(reinterpret_cast<const BF16*>(row)[key]); }
  FC_INLINE Vec value(const float* panel, int key, int channel) {
    const __m512i words = _mm512_castps_si512(Simd::load(panel + (key / 2) * kPanel + channel));
    const __m512i odd = _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return _mm512_castsi512_ps(key % 2 ? odd : _mm512_slli_epi32(words, 16));
  }
};

}  // namespace flashcute::cpu
