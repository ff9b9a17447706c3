// What a row is made of beyond the tile: its query, and its sums over all keys. float32 sums are of kKeysPerSum keys at
// most; those of more are float64, since the error of a sum grows with the number of its terms.
#pragma once

#include <math.h>

#include "cpu/element.h"
#include "cpu/scratch.h"

namespace flashcute::cpu {

// Packs a row of queries, divided by a power of two so that no product with a finite key leaves float32; returns that
// power.
template <class K>
static double pack_query(const typename K::Element* q, int64_t head_dim, float* packed) {
  const float largest = K::pack_queries_row(q, head_dim, packed);
  if (!(largest < __builtin_inff())) return 1;                    // the row has no finite result
  int exponent = static_cast<int>(to_bits(largest) >> 23) - 126;  // |q| < 2^exponent
  for (int64_t n = 1; n < head_dim; n *= 2) ++exponent;
  if (exponent <= 0) return 1;
  constexpr int kMost = 120;  // in two steps beyond that, so that each is a normal number
  double scale = 1;
  for (int rest = exponent; rest > 0; rest -= kMost) {
    const int step = rest < kMost ? rest : kMost;
    K::scale_queries_row(packed, head_dim, from_bits(static_cast<uint32_t>(127 - step) << 23));
    scale *= static_cast<double>(from_bits(static_cast<uint32_t>(127 + step) << 23));
  }
  return scale;
}

// What a row comes to: its largest score in log2 units, and the sums of its weights as they were and as values were
// multiplied by them, relative to that score.
struct RowSums {
  double top = 0, weights = 0, values = 0;
};

constexpr double kMostFloat = 0x1.fffffep127;

FC_INLINE bool beyond_float(double x) {
  return __builtin_fabs(x) > kMostFloat && __builtin_fabs(x) < __builtin_inf();
}

// Adds a sink (natural units); returns what the row's output has to be multiplied by.
FC_INLINE double add_sink(RowSums& sums, double sink) {
  const double sink_log2 = sink * 1.4426950408889634;
  const double top = sums.top >= sink_log2 ? sums.top : sink_log2;  // a NaN sink makes NaN
  const double shrink = ::exp2(sums.top - top), weight = ::exp2(sink_log2 - top);
  const double part = sums.values * shrink;
  sums = {top, sums.weights * shrink + weight, part + weight};
  return part / sums.values;
}

// The LSE of a row that sees a key. Beyond float32 it is the nearest finite number: infinities are for rows that see
// nothing.
FC_INLINE float log_sum(const RowSums& sums) {
  const double lse = (sums.top + ::log2(sums.weights)) * 0.6931471805599453;
  return static_cast<float>(!beyond_float(lse) ? lse : lse < 0 ? -kMostFloat : kMostFloat);
}

// Sums over more than kKeysPerSum keys. Which rows have them, and when sums are added to them, is up to their keys
// alone, not to the unit that a row is in.
template <class K>
struct Totals {
  static constexpr int64_t kKeysPerSum = Scratch<K>::kKeysPerSum;

  FC_INLINE bool has(const Scratch<K>& s, int64_t r) {
    return s.lo[r] < s.hi[r] && s.lo[r] / kKeysPerSum != (s.hi[r] - 1) / kKeysPerSum;
  }

  static void start_row(const Scratch<K>& s, int64_t r) {
    memset(s.total_o + r * s.o_stride, 0, static_cast<size_t>(s.o_stride) * sizeof(double));
    memset(s.total_l + r * s.l_stride, 0, static_cast<size_t>(s.l_stride) * sizeof(double));
    s.total_m[r] = -__builtin_inf();
  }

  FC_INLINE void move(float* sums, int64_t n, double shrink, double unscale, double* totals) {
    for (int64_t c = 0; c < n; ++c) {
      totals[c] = totals[c] * shrink + static_cast<double>(sums[c]) * unscale;
      sums[c] = 0;
    }
  }

  // Moves a row's sums into its totals, where values are not scaled.
  static void add_row(const Scratch<K>& s, int64_t r, float value_scale) {
    const double before = s.total_m[r], after = s.m[r];
    const double shrink = before == after ? 1.0 : ::exp2(before - after);
    move(s.o + r * s.o_stride, s.o_stride, shrink, 1.0 / static_cast<double>(value_scale), s.total_o + r * s.o_stride);
    move(s.l + r * s.l_stride, s.l_stride, shrink, 1.0, s.total_l + r * s.l_stride);
    s.total_m[r] = after;
  }

  static double sum_of_lanes(const double* lanes) {
    double sum = 0;
    for (int i = 0; i < K::kLanes; ++i) sum += lanes[i];
    return sum;
  }
  FC_INLINE double sum_of_lanes(const float* lanes) {
    return static_cast<double>(K::Simd::reduce_add(K::Simd::load(lanes)));
  }

  template <class T>
  FC_INLINE RowSums row_sums(double top, const T* l) {
    const double weights = sum_of_lanes(l);
    return {top, weights, K::kRounded ? sum_of_lanes(l + K::kLanes) : weights};
  }

  // o *= factor, from the totals where the row has them. An average of finite values is finite, however it rounds.
  static void normalise(const Scratch<K>& s, int64_t r, bool has_totals, double factor, float value_scale,
                        bool is_average) {
    float* o = s.o + r * s.o_stride;
    const double* totals = s.total_o + r * s.o_stride;
    const double unscale = 1.0 / static_cast<double>(value_scale);
    for (int64_t c = 0; c < s.o_stride; ++c) {
      double x = (has_totals ? totals[c] : static_cast<double>(o[c]) * unscale) * factor;
      if (is_average && beyond_float(x)) x = x < 0 ? -kMostFloat : kMostFloat;
      o[c] = static_cast<float>(x);
    }
  }
};

}  // namespace flashcute::cpu
