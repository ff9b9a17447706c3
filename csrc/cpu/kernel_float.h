// The tile policy that computes in float32, whatever the element type: elements are converted while they are packed.
// Packed forms, with P = kPanel columns:
//   queries  (rows, head_dim)               scaled
//   keys     (block_n / P, head_dim, P)     transposed
//   values   (head_dim_v / P, block_n, P)
//   weights  (rows, block_n)                over the scores
#pragma once

#include "cpu/element.h"

namespace flashcute::cpu {

template <class SimdType, class ElementType, int kStripRows, int kPanelVecs>
struct FloatKernel {
  using Simd = SimdType;
  using Element = ElementType;
  using Vec = typename Simd::Vec;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kStrip = kStripRows;
  static constexpr int kPanel = kPanelVecs * kLanes;
  static constexpr int kBlockN = 128;
  static constexpr int kPair = 1;         // channels or keys in one packed word
  static constexpr int kStep = kLanes;    // keys that the softmax takes at a time
  static constexpr bool kPrecise = true;  // exp2 to float32's precision
  static constexpr bool kRounded = false;
  static constexpr float kHugeValue = 0x1p114f;

  FC_INLINE Vec dot(Vec a, Vec b, Vec c) { return Simd::fma(a, b, c); }

  // Returns the largest magnitude, of a row without NaN.
  static float pack_queries_row(const Element* q, int64_t head_dim, float* packed) {
    Vec largest = Simd::zero();
    int64_t c = 0;
    for (; c + kLanes <= head_dim; c += kLanes) {
      const Vec x = Simd::load(q + c);
      largest = Simd::max(Simd::abs(x), largest);
      Simd::store(packed + c, x);
    }
    if (c < head_dim) {
      const int n = static_cast<int>(head_dim - c);
      const Vec x = Simd::load(q + c, n);
      largest = Simd::max(Simd::abs(x), largest);
      Simd::store(packed + c, x, n);
    }
    return Simd::reduce_max(largest);
  }

  static void scale_queries_row(float* packed, int64_t head_dim, float factor) {
    for (int64_t c = 0; c < head_dim; ++c) packed[c] *= factor;
  }

  // Loads lanes c.. of up to kLanes keys, zeros for those that hidden names or that lie beyond n.
  FC_INLINE void load_keys(const Element* k, int64_t row, int keys, int64_t c, int64_t head_dim, const bool* hidden,
                           Vec (&r)[kLanes]) {
    const bool whole = c + kLanes <= head_dim;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i >= keys || (hidden && hidden[i])) {
        r[i] = Simd::zero();
      } else {
        const Element* p = k + i * row + c;
        r[i] = whole ? Simd::load(p) : Simd::load(p, static_cast<int>(head_dim - c));
      }
    }
  }

  static void pack_keys(const Element* k, int64_t row, int n, int64_t head_dim, const bool* hidden, float* packed) {
    for (int j = 0; j < n; j += kLanes) {
      float* panel = packed + (j / kPanel) * kPanel * head_dim + j % kPanel;
      for (int64_t c = 0; c < head_dim; c += kLanes) {
        Vec r[kLanes];
        load_keys(k + j * row, row, n - j, c, head_dim, hidden ? hidden + j : nullptr, r);
        Simd::transpose(r);
        const int count = head_dim - c < kLanes ? static_cast<int>(head_dim - c) : kLanes;
        for (int i = 0; i < count; ++i) Simd::store(panel + (c + i) * kPanel, r[i]);
      }
    }
  }

  // Returns whether all visible values are finite and below kHugeValue.
  static bool pack_values(const Element* v, int64_t row, int n, int64_t head_dim_v, const bool* hidden, float* packed) {
    const Vec over = Simd::set1(0x1p127f / kHugeValue * 2);  // times that, huge values are infinite
    Vec seen = Simd::zero();
    for (int j = 0; j < n; ++j) {
      float* to = packed + j * kPanel;
      const Element* from = v + j * row;
      const bool skip = hidden && hidden[j];
      for (int64_t c = 0; c < head_dim_v; c += kLanes) {
        Vec x = Simd::zero();
        if (!skip) {
          x = c + kLanes <= head_dim_v ? Simd::load(from + c) : Simd::load(from + c, static_cast<int>(head_dim_v - c));
        }
        seen = Simd::spot_nonfinite(seen, Simd::mul(x, over));
        Simd::store(to + (c / kPanel) * kPanel * kBlockN + c % kPanel, x);
      }
    }
    return Simd::is_zero(seen);
  }

  FC_INLINE void store_weights(float* row, int key, const Vec* p) { Simd::store(row + key, p[0]); }
  FC_INLINE float weight(const float* row, int key) { return row[key]; }
  // Channels of key's value in a panel of packed values.
  FC_INLINE Vec value(const float* panel, int key, int channel) { return Simd::load(panel + key * kPanel + channel); }
};

}  // namespace flashcute::cpu
