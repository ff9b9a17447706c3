// What happens to scores between the product and the softmax when a call has features: softcap, bias, ALiBi, masks; and
// the dropout mask. A hidden key gets -inf.
#pragma once

#include "cpu/element.h"
#include "cpu/philox.h"
#include "cpu/tile.h"

namespace flashcute::cpu {

template <class K>
struct Scores {
  using Simd = typename K::Simd;
  using Vec = typename K::Vec;
  static constexpr float kLog2E = 1.442695040888963f;
  // Scores with terms are held as log2 units divided by 2^64: scales, biases and slopes of any finite size then make
  // finite scores, rounded as without the division. What it costs is less than 2^-80 of the score of a key.
  static constexpr float kUnit = 0x1p64f;
  static constexpr float kUnitsOfBias = kLog2E / kUnit;
  static constexpr float kHidden = -__builtin_inff();

  FC_INLINE bool has_row_terms(const Job& job) { return job.bias.data || job.alibi || job.mask.data; }

  // use(a zero of a mask's element type), by the type's bytes: bool and integers are told from zero alike.
  template <class Use>
  FC_INLINE void with_mask_element(int32_t width, Use use) {
    switch (width) {
      case 1:
        return use(uint8_t{0});
      case 2:
        return use(uint16_t{0});
      case 4:
        return use(uint32_t{0});
      default:
        return use(uint64_t{0});
    }
  }

  template <class T>
  static void add_bias(const ScoreView& bias, int64_t offset, int n, float* addend) {
    const T* row = static_cast<const T*>(bias.data) + offset;
    if (bias.key == 1) {
      for (int j = 0; j < n; ++j) addend[j] += to_float(row[j]) * kUnitsOfBias;
    } else {
      for (int j = 0; j < n; ++j) addend[j] += to_float(row[j * bias.key]) * kUnitsOfBias;
    }
  }

  template <class T>
  static void hide_masked(const ScoreView& mask, int64_t offset, int n, float* addend) {
    const T* row = static_cast<const T*>(mask.data) + offset;
    for (int j = 0; j < n; ++j) addend[j] = row[j * mask.key] != 0 ? addend[j] : kHidden;
  }

  // addend[j] = everything added to the scores of row i of head h at keys j0 + j, in units of kUnit; -inf hides.
  // hidden (of the key mask) may be null.
  static void row_terms(const Job& job, const Unit& unit, int64_t h, int64_t i, int64_t j0, int n, const bool* hidden,
                        float* addend) {
    for (int j = 0; j < n; ++j) addend[j] = 0;
    if (job.bias.data) {
      const ScoreView& bias = job.bias;
      const int64_t offset = unit.batch * bias.batch + h * bias.head + i * bias.row + j0 * bias.key;
      switch (bias.type) {
        case FloatType::kF32:
          add_bias<float>(bias, offset, n, addend);
          break;
        case FloatType::kF16:
          add_bias<F16>(bias, offset, n, addend);
          break;
        case FloatType::kBF16:
          add_bias<BF16>(bias, offset, n, addend);
          break;
      }
    }
    if (job.alibi) {
      const float slope = job.alibi[unit.batch * job.alibi_batch + h * job.alibi_head] * kUnitsOfBias;
      const int64_t diagonal = i + (job.top_left ? 0 : unit.len_k - unit.len_q) - j0;
      for (int j = 0; j < n; ++j) {
        const int64_t distance = diagonal > j ? diagonal - j : j - diagonal;
        addend[j] -= slope * static_cast<float>(distance);
      }
    }
    if (job.mask.data) {
      const ScoreView& mask = job.mask;
      const int64_t offset = unit.batch * mask.batch + h * mask.head + i * mask.row + j0 * mask.key;
      with_mask_element(mask.width, [&](auto zero) { hide_masked<decltype(zero)>(mask, offset, n, addend); });
    }
    if (hidden) hide_keys(hidden, n, addend);
  }

  static void hide_keys(const bool* hidden, int n, float* addend) {
    for (int j = 0; j < n; ++j) addend[j] = hidden[j] ? kHidden : addend[j];
  }

  // tanh with a relative error of a few float32 roundings.
  FC_INLINE Vec tanh(Vec x) {
    const Vec z = Simd::mul(x, x);
    Vec p = Simd::fma(Simd::set1(-5.515108962e-03f), z, Simd::set1(2.046936910e-02f));
    p = Simd::fma(p, z, Simd::set1(-5.368800711e-02f));
    p = Simd::fma(p, z, Simd::set1(1.333083015e-01f));
    p = Simd::fma(p, z, Simd::set1(-3.333325984e-01f));
    const Vec small = Simd::fma(Simd::mul(p, z), x, x);
    // tanh|x| = 1 - 2 / (e^2|x| + 1), flat above 10
    const Vec magnitude = Simd::abs(x);
    const Vec bounded = Simd::min(Simd::set1(10.0f), magnitude);
    const Vec e = Simd::template exp2<true>(Simd::mul(bounded, Simd::set1(2 * kLog2E)));
    const Vec one = Simd::set1(1.0f);
    const Vec large = Simd::sub(one, Simd::div(Simd::set1(2.0f), Simd::add(e, one)));
    const Vec negative = Simd::sub(Simd::zero(), large);
    const Vec signed_large = Simd::select_less(x, Simd::zero(), negative, large);
    return Simd::select_less(magnitude, Simd::set1(0.625f), small, signed_large);
  }

  // s = tanh(s * factor) over whole vectors.
  static void bend(float* s, int begin, int end, float factor) {
    const Vec f = Simd::set1(factor);
    for (int j = begin; j < end; j += K::kLanes) Simd::store(s + j, tanh(Simd::mul(Simd::load(s + j), f)));
  }

  // s -= center over whole vectors.
  static void move(float* s, int begin, int end, float center) {
    const Vec c = Simd::set1(center);
    for (int j = begin; j < end; j += K::kLanes) Simd::store(s + j, Simd::sub(Simd::load(s + j), c));
  }

  // to = from * factor + addend - center over whole vectors; addend may be null.
  static void transform(const float* from, float* to, int begin, int end, float factor, const float* addend,
                        float center) {
    const Vec f = Simd::set1(factor), c = Simd::set1(center), minus = Simd::set1(-center);
    for (int j = begin; j < end; j += K::kLanes) {
      const Vec x = Simd::load(from + j);
      Simd::store(to + j,
                  addend ? Simd::fma_or_hide(x, f, Simd::sub(Simd::load(addend + j), c)) : Simd::fma(x, f, minus));
    }
  }

  // keep[j] = 1 where dropout keeps the weight of key j0 + j, else 0. j0 is a multiple of 4, and n is rounded up to
  // one.
  static void dropout_mask(const Job& job, const Unit& unit, int64_t h, int64_t i, int64_t j0, int n, float* keep) {
    const uint32_t key_lo = static_cast<uint32_t>(job.seed);
    const uint32_t key_hi = static_cast<uint32_t>(job.seed >> 32) ^ static_cast<uint32_t>(job.offset >> 32);
    for (int j = 0; j < n; j += 4) {
      uint32_t c[4] = {static_cast<uint32_t>((j0 + j) / 4), static_cast<uint32_t>(i),
                       static_cast<uint32_t>(unit.batch * job.heads_q + h), static_cast<uint32_t>(job.offset)};
      philox(c, key_lo, key_hi);
      for (int l = 0; l < 4; ++l) keep[j + l] = c[l] >= job.dropout_threshold ? 1.0f : 0.0f;
    }
  }
};

}  // namespace flashcute::cpu
