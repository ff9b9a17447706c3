// Online softmax over one tile of scores, strip by strip: weights replace the scores, and the rows' largest score and
// sum of weights move on.
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
};

// Visible keys of a row or strip in a tile, relative to its first.
struct Range {
  int lo = 0, hi = 0;
  __attribute__((always_inline)) bool empty() const { return lo >= hi; }
};

template <class K>
struct Softmax {
  using Simd = typename K::Simd;
  using Vec = typename K::Vec;
  static constexpr int kLanes = K::kLanes;
  static constexpr int kStep = K::kStep;

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

  // Weights 2^(s * factor - reference) of one row; returns their sum by lanes.
  FC_INLINE Vec weigh(float* s, int begin, int end, float factor, float reference) {
    const Vec f = Simd::set1(factor), minus = Simd::set1(-reference);
    Vec sum = Simd::zero();
    for (int j = begin; j < end; j += kStep) {
      Vec p[kStep / kLanes];
      for (int i = 0; i < kStep / kLanes; ++i) {
        p[i] = Simd::template exp2<K::kPrecise>(Simd::fma(Simd::load(s + j + i * kLanes), f, minus));
        sum = Simd::add(sum, p[i]);
      }
      K::store_weights(s, j, p);
    }
    return sum;
  }

  // The same with the visible keys noted and dropped weights zeroed, each if asked for by a pointer.
  static Vec weigh_with_care(float* s, int begin, int end, float factor, float reference, uint32_t* seen,
                             const float* keep) {
    const Vec f = Simd::set1(factor), minus = Simd::set1(-reference);
    Vec sum = Simd::zero();
    for (int j = begin; j < end; j += kStep) {
      Vec p[kStep / kLanes];
      for (int i = 0; i < kStep / kLanes; ++i) {
        const int key = j + i * kLanes;
        const Vec x = Simd::load(s + key);
        if (seen) seen[key / kLanes] = Simd::visible(x);
        p[i] = Simd::template exp2<K::kPrecise>(Simd::fma(x, f, minus));
        sum = Simd::add(sum, p[i]);
        if (keep) p[i] = Simd::mul(p[i], Simd::load(keep + key));
      }
      K::store_weights(s, j, p);
    }
    return sum;
  }

  static void clear_weights(float* s, int begin, int end) {
    Vec zeros[kStep / kLanes];
    for (Vec& z : zeros) z = Simd::zero();
    for (int j = begin; j < end; j += kStep) K::store_weights(s, j, zeros);
  }

  // rows of the strip that starts at row r0 of the unit; ranges: what each sees; strip: their union. The correction of
  // each row, and with unclean values the visible keys, are left for the second product.
  static void strip(const Job& job, const Unit& unit, const Scratch<K>& scratch, const KeyTile& tile, int64_t r0,
                    int rows, const Range* ranges, Range strip, float* s, float* correction, uint32_t* seen) {
    constexpr int64_t kStride = Scratch<K>::kScoreStride;
    constexpr int kBlocks = Scratch<K>::kBlocks;
    const bool row_terms = Scores<K>::has_row_terms(job);
    const float product_factor = K::kScaledQueries ? 1.0f : job.score_factor;
    // With a positive factor and nothing between product and softmax, the factor can wait for the exponential.
    const bool general = row_terms || tile.some_hidden || job.softcap_log2 != 0 || !(product_factor > 0);
    const float factor = general ? 1.0f : product_factor;

    float reference[K::kStrip + kLanes];
    float shrink[K::kStrip + kLanes];
    for (int r = 0; r < rows; ++r) {
      const Range range = ranges[r];
      const float before = scratch.m[r0 + r];
      float after = before;
      if (!range.empty()) {
        float* row = s + r * kStride;
        const int begin = step_down(range.lo), end = step_up(range.hi);
        if (general) {
          const float* addend = tile.some_hidden ? scratch.key_addend : nullptr;
          if (row_terms) {
            const int64_t index = unit.first_row + r0 + r;
            const int64_t head = unit.head_k * job.group + index % job.group;
            Scores<K>::row_terms(job, unit, head, index / job.group, tile.j0, tile.n,
                                 tile.some_hidden ? scratch.hidden : nullptr, scratch.addend);
            addend = scratch.addend;
          }
          Scores<K>::transform(row, begin, end, product_factor, job.softcap_log2, addend);
        }
        hide_edges(row, range);
        const float top = largest(row, begin, end) * factor;
        if (top > before) after = top;
        scratch.m[r0 + r] = after;
      }
      reference[r] = after == -__builtin_inff() ? 0.0f : after;
      shrink[r] = before - reference[r];
    }
    for (int r = 0; r < rows; r += kLanes) {
      Simd::store(correction + r, Simd::template exp2<true>(Simd::load(shrink + r)));
    }

    const int strip_begin = step_down(strip.lo), strip_end = step_up(strip.hi);
    for (int r = 0; r < rows; ++r) {
      float* row = s + r * kStride;
      const Range range = ranges[r];
      if (range.empty()) {
        correction[r] = 1.0f;
        clear_weights(row, strip_begin, strip_end);
        if (!tile.values_finite) {
          for (int b = 0; b < kBlocks; ++b) seen[r * kBlocks + b] = 0;
        }
        continue;
      }
      const int begin = step_down(range.lo), end = step_up(range.hi);
      Vec sum;
      if (tile.values_finite && !job.dropout) {
        sum = weigh(row, begin, end, factor, reference[r]);
      } else {
        const float* keep = nullptr;
        if (job.dropout) {
          const int64_t index = unit.first_row + r0 + r;
          Scores<K>::dropout_mask(job, unit, unit.head_k * job.group + index % job.group, index / job.group, tile.j0,
                                  end, scratch.keep);
          keep = scratch.keep;
        }
        uint32_t* bits = tile.values_finite ? nullptr : seen + r * kBlocks;
        if (bits) {
          for (int b = 0; b < kBlocks; ++b) bits[b] = 0;
        }
        sum = weigh_with_care(row, begin, end, factor, reference[r], bits, keep);
      }
      clear_weights(row, strip_begin, begin);
      clear_weights(row, end, strip_end);
      float* l = scratch.l + (r0 + r) * kLanes;
      Simd::store(l, Simd::fma(Simd::load(l), Simd::set1(correction[r]), sum));
    }
  }
};

}  // namespace flashcute::cpu
