// Online softmax over one tile of scores, strip by strip: weights replace the scores, and the rows' largest score and
// sums of weights move on. Two sums where weights are rounded: a row's output is divided by the weights that it was
// made with, so that equal values average to themselves, and the LSE is made of the weights as they were.
#pragma once

#include "cpu/element.h"
#include "cpu/scores.h"
#include "cpu/scratch.h"
#include "cpu/tile.h"

namespace flashcute::cpu {

// One tile's keys j0 .. j0 + n, and what is special about them.
struct KeyTile {
  int64_t j0 = 0;
  int n = 0;
  bool some_hidden = false;   // by the key mask
  bool values_finite = true;  // otherwise hidden values must not even be multiplied by zero
  float value_scale = 1;      // by which weights of values shrink, so that sums of huge values stay finite
};

template <class K>
struct Softmax {
  using Simd = typename K::Simd;
  using Vec = typename K::Vec;
  static constexpr int kLanes = K::kLanes;
  static constexpr int kStep = K::kStep;
  // The fma that multiplies a score and takes the row's largest off rounds once, but the largest was rounded before: by
  // up to 16 powers of two here, and soon by more than a weight can hold. From here on products are rounded first.
  static constexpr float kLargestUnrounded = 0x1p28f;
  static constexpr float kLargestFactor = 0x1p64f;  // larger ones could make NaN of a product of 0

  // A few rows of queries, from row `first` of the unit, and their part of the scratch.
  struct Strip {
    int64_t first;
    int rows;
    const Range* ranges;  // what each row sees
    Range all;            // their union
    float* scores;        // in: scores; out: weights
    float* correction;    // out: by which each row's earlier sums shrink
    uint32_t* seen;       // out, where a value is not finite: each row's visible keys
    float* row(int r) const { return scores + r * Scratch<K>::kScoreStride; }
  };

  FC_INLINE int step_down(int j) { return j / kStep * kStep; }
  FC_INLINE int step_up(int j) { return (j + kStep - 1) / kStep * kStep; }

  // -inf outside lo .. hi, in the whole steps that hold them.
  static void hide_edges(float* s, Range range) {
    const int begin = step_down(range.lo), end = step_up(range.hi);
    for (int j = begin; j < range.lo; j += kLanes) {
      Simd::store(s + j, Simd::keep_range(Simd::load(s + j), range.lo - j, range.hi - j));
    }
    for (int j = end - kStep; j < end; j += kLanes) {
      if (j + kLanes > range.hi) {
        Simd::store(s + j, Simd::keep_range(Simd::load(s + j), range.lo - j, range.hi - j));
      }
    }
  }

  static float largest(const float* s, int begin, int end) {
    Vec a = Simd::load(s + begin);
    Vec b = a;
    int j = begin + kLanes;
    for (; j + kLanes < end; j += 2 * kLanes) {
      a = Simd::max(Simd::load(s + j), a);
      b = Simd::max(Simd::load(s + j + kLanes), b);
    }
    if (j < end) a = Simd::max(Simd::load(s + j), a);
    return Simd::reduce_max(Simd::max(a, b));
  }

  struct Sums {
    Vec exact = Simd::zero(), rounded = Simd::zero();  // by lanes
  };

  // Weights 2^(s * factor - reference) of one row; returns their sums.
  FC_INLINE Sums weigh(float* s, int begin, int end, float factor, float reference) {
    const Vec f = Simd::set1(factor), minus = Simd::set1(-reference);
    Sums sums;
    for (int j = begin; j < end; j += kStep) {
      Vec p[kStep / kLanes];
      for (int i = 0; i < kStep / kLanes; ++i) {
        p[i] = Simd::template exp2<K::kPrecise>(Simd::fma(Simd::load(s + j + i * kLanes), f, minus));
        sums.exact = Simd::add(sums.exact, p[i]);
      }
      if constexpr (K::kRounded) sums.rounded = K::add_rounded(sums.rounded, p);
      K::store_weights(s, j, p);
    }
    return sums;
  }

  // The same with the visible keys noted and dropped weights zeroed, each if asked for by a pointer, and the weights of
  // values scaled.
  static Sums weigh_with_care(float* s, int begin, int end, float factor, float reference, float value_scale,
                              uint32_t* seen, const float* keep) {
    const Vec f = Simd::set1(factor), minus = Simd::set1(-reference), scale = Simd::set1(value_scale);
    Sums sums;
    for (int j = begin; j < end; j += kStep) {
      Vec p[kStep / kLanes];
      for (int i = 0; i < kStep / kLanes; ++i) {
        const int key = j + i * kLanes;
        const Vec x = Simd::load(s + key);
        if (seen) seen[key / kLanes] = Simd::visible(x);
        p[i] = Simd::template exp2<K::kPrecise>(Simd::fma(x, f, minus));
        sums.exact = Simd::add(sums.exact, p[i]);
      }
      if constexpr (K::kRounded) sums.rounded = K::add_rounded(sums.rounded, p);
      for (Vec& x : p) x = Simd::mul(x, scale);
      for (int i = 0; keep && i < kStep / kLanes; ++i) p[i] = Simd::mul(p[i], Simd::load(keep + j + i * kLanes));
      K::store_weights(s, j, p);
    }
    return sums;
  }

  static void clear_weights(float* s, int begin, int end) {
    Vec zeros[kStep / kLanes];
    for (Vec& z : zeros) z = Simd::zero();
    for (int j = begin; j < end; j += kStep) K::store_weights(s, j, zeros);
  }

  static void strip(const Job& job, const Unit& unit, const Scratch<K>& scratch, const KeyTile& tile,
                    const Strip& strip) {
    const bool row_terms = Scores<K>::has_row_terms(job);
    // With a positive factor and nothing between product and softmax, the factor waits for the exponential: one
    // rounding less than on the scores, and none on the queries.
    const bool general = row_terms || tile.some_hidden || job.softcap_log2 != 0 || !(job.score_factor > 0);

    float factor[K::kStrip];  // what remains to be multiplied
    float offset[K::kStrip];  // what then remains to be taken off
    float shrink[K::kStrip + kLanes];
    for (int r = 0; r < strip.rows; ++r) {
      const double before = scratch.m[strip.first + r];
      double after = before;
      double center = 0;  // what the scores of the row were moved by
      factor[r] = scratch.factor[strip.first + r];
      if (!strip.ranges[r].empty()) {
        const int begin = step_down(strip.ranges[r].lo), end = step_up(strip.ranges[r].hi);
        double top = 0;
        bool in_units = general || factor[r] >= kLargestFactor;
        if (!in_units) {
          hide_edges(strip.row(r), strip.ranges[r]);
          top = largest(strip.row(r), begin, end) * factor[r];
          in_units = __builtin_fabs(top) >= kLargestUnrounded;
        }
        if (in_units) {
          center = finish_scores(job, unit, scratch, tile, strip, r);
          factor[r] = Scores<K>::kUnit;
          top = center + static_cast<double>(largest(strip.row(r), begin, end)) * factor[r];
          if (__builtin_fabs(top) < kLargestUnrounded) top = static_cast<float>(top);  // as it will be taken off
        }
        after = top > before ? top : before;
        scratch.m[strip.first + r] = after;
      }
      const double reference = after == -__builtin_inf() ? 0.0 : after;
      offset[r] = offset_of(reference - center);
      shrink[r] = static_cast<float>(before - reference);
    }
    for (int r = 0; r < strip.rows; r += kLanes) {
      Simd::store(strip.correction + r, Simd::template exp2<true>(Simd::load(shrink + r)));
    }
    for (int r = 0; r < strip.rows; ++r) {
      if (strip.ranges[r].empty()) strip.correction[r] = 1.0f;
      weigh_row(job, unit, scratch, tile, strip, r, factor[r], offset[r]);
    }
  }

 private:
  // Infinite where the tile's scores lie that far below the row's largest. Never -inf, which would make NaN of a hidden
  // score: where the tile hides all keys from a row whose largest score is below float32's range.
  FC_INLINE float offset_of(double x) {
    constexpr double kLeast = -0x1.fffffep127;
    return static_cast<float>(x < kLeast ? kLeast : x);
  }

  FC_INLINE float to_finite(double x) {
    constexpr double kMost = 0x1.fffffep127;
    return static_cast<float>(x > kMost ? kMost : x < -kMost ? -kMost : x);
  }

  // Softcap, bias, ALiBi, masks and edges on one row; the scores are then in units of kUnit. Returns what they were
  // moved by, log2 units: float32's products are added to once more with the row's maximum taken off first, since a
  // score near 100 carries a rounding that its weight shows. Large scores move by their maximum after rounding, so that
  // what is left has a weight, however large they were.
  static double finish_scores(const Job& job, const Unit& unit, const Scratch<K>& scratch, const KeyTile& tile,
                              const Strip& strip, int r) {
    const int begin = step_down(strip.ranges[r].lo), end = step_up(strip.ranges[r].hi);
    const float* addend = tile.some_hidden ? scratch.key_addend : nullptr;
    if (Scores<K>::has_row_terms(job)) {
      const int64_t index = unit.first_row + strip.first + r;
      const int n = (end < tile.n ? end : tile.n) - begin;
      Scores<K>::row_terms(job, unit, unit.first_head + index % job.group, index / job.group, tile.j0 + begin, n,
                           tile.some_hidden ? scratch.hidden + begin : nullptr, scratch.addend + begin);
      addend = scratch.addend;
    }
    float* row = strip.row(r);
    double full_factor = job.score_factor * scratch.q_scale[strip.first + r];
    if (job.softcap_log2 != 0) {
      Scores<K>::bend(row, begin, end, to_finite(full_factor));
      full_factor = job.softcap_log2;
    }
    const float factor = to_finite(full_factor / static_cast<double>(Scores<K>::kUnit));
    if (K::kPrecise) {
      for (int j = begin; j < end; ++j) scratch.products[j] = row[j];
    }
    Scores<K>::transform(row, row, begin, end, factor, addend, 0.0f);
    hide_edges(row, strip.ranges[r]);
    const float top = largest(row, begin, end);
    if (!(__builtin_fabsf(top) < __builtin_inff())) return 0;
    if (__builtin_fabsf(top) >= kLargestUnrounded / Scores<K>::kUnit) {
      Scores<K>::move(row, begin, end, top);
    } else {
      if (!K::kPrecise) return 0;
      Scores<K>::transform(scratch.products, row, begin, end, factor, addend, top);
      hide_edges(row, strip.ranges[r]);
    }
    return static_cast<double>(top) * static_cast<double>(Scores<K>::kUnit);
  }

  FC_INLINE void move_on(float* total, float correction, Vec sum) {
    Simd::store(total, Simd::fma(Simd::load(total), Simd::set1(correction), sum));
  }

  // Turns the scores of one row into weights, over all keys of the strip.
  static void weigh_row(const Job& job, const Unit& unit, const Scratch<K>& scratch, const KeyTile& tile,
                        const Strip& strip, int r, float factor, float offset) {
    constexpr int kBlocks = Scratch<K>::kBlocks;
    float* row = strip.row(r);
    const Range range = strip.ranges[r];
    uint32_t* seen = tile.values_finite ? nullptr : strip.seen + r * kBlocks;
    if (seen) {
      for (int b = 0; b < kBlocks; ++b) seen[b] = 0;
    }
    const int strip_begin = step_down(strip.all.lo), strip_end = step_up(strip.all.hi);
    if (range.empty()) return clear_weights(row, strip_begin, strip_end);

    const int begin = step_down(range.lo), end = step_up(range.hi);
    Sums sums;
    if (!seen && !job.dropout && tile.value_scale == 1.0f) {
      sums = weigh(row, begin, end, factor, offset);
    } else {
      const float* keep = nullptr;
      if (job.dropout) {
        const int64_t index = unit.first_row + strip.first + r;
        Scores<K>::dropout_mask(job, unit, unit.first_head + index % job.group, index / job.group, tile.j0, end,
                                scratch.keep);
        keep = scratch.keep;
      }
      sums = weigh_with_care(row, begin, end, factor, offset, tile.value_scale, seen, keep);
    }
    clear_weights(row, strip_begin, begin);
    clear_weights(row, end, strip_end);
    float* l = scratch.l + (strip.first + r) * scratch.l_stride;
    move_on(l, strip.correction[r], sums.exact);
    if (K::kRounded) move_on(l + kLanes, strip.correction[r], sums.rounded);
  }
};

}  // namespace flashcute::cpu
