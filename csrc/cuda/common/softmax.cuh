// Softmax of the rows that a thread owns, over key tiles, in powers of two (scores come multiplied by log2(e)).
//
// A row's weights are 2^(score - reference). There are two ways to take a tile in.
// Online softmax raises the reference to the new row max, computes the weights and rescales the sums so far.
// With a kept reference there is no row max, no shuffle and no rescale. Floats hold a weight above 1 as precisely as
// one below, so nothing is lost until a type ends: float16 at 2^16, bfloat16 and the float32 sums at 2^128. Long before
// that, outgrown() sees it and raise_outgrown() raises the references. Two things are left for a second pass over the
// tile, and failed() finds them: a score so far above the reference that its weight is inf already, and nonfinite
// values.
//
// There are two sums of weights. The tensor cores multiply V by weights rounded to 16 bits, so a row's output is
// divided by the sum of the rounded weights (`denominators`): equal values average to themselves however few keys
// dominate. The LSE is made of the weights before they are rounded (`sum`).
#pragma once

#include <cmath>
#include <cute/tensor.hpp>
#include <limits>

#include "cuda/common/ptx.cuh"

namespace flashcute::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Finite scores in natural units times log2(e) would overflow from 2.36e38 on, which finite masks are (the lowest
// float32). From 2^127 on powers of two stand for fewer of them: order and equality are kept, and no weight but 0 and 1
// can come of such differences.
inline constexpr float kDense = 0x1p127f, kDenseLog2 = kDense * kLog2e, kDenseRate = 0.5f;

__device__ __forceinline__ float to_log2(float natural) {
  const float scaled = natural * kLog2e;
  const float dense = copysignf(fmaf(fabsf(natural) - kDense, kDenseRate, kDenseLog2), natural);
  return fabsf(natural) > kDense ? dense : scaled;  // inf stays inf, NaN stays NaN
}

__device__ __forceinline__ float from_log2(float scaled) {
  if (!(fabsf(scaled) > kDenseLog2) || fabsf(scaled) == INFINITY) return scaled * kLn2;
  constexpr float kGreatest = std::numeric_limits<float>::max();
  return copysignf(fminf(fmaf(fabsf(scaled) - kDenseLog2, 1.f / kDenseRate, kDense), kGreatest), scaled);
}

// The four lanes of a quad hold one row of an m16n8 accumulator.
template <class Combine>
__device__ __forceinline__ float quad_reduce(float x, Combine combine) {
  x = combine(x, __shfl_xor_sync(0xffffffffu, x, 2));
  return combine(x, __shfl_xor_sync(0xffffffffu, x, 1));
}

// Where references lie and how far weights may outgrow them, in powers of two.
template <class Element>
struct WeightRange;

// float16 weights overflow at 2^16 and lose precision below 2^-14, so the first tile's largest weight is 1. References
// rise when the greatest weight of a row passes kCeiling.
template <>
struct WeightRange<cutlass::half_t> {
  static constexpr float kMargin = 0.f, kCeiling = 0x1p14f, kLowestSum = 0.5f;
};

// bfloat16 has float32's exponents. Weights start at 2^-32, so that sums of weighted values stay finite for up to 2^29
// keys of any finite value. Weights overflow at 2^128. sm80 compares the sum of a row's weights with kCeiling before
// each tile, which may then add 2^117 times as much. sm90 compares nothing: a score may lie 2^160 above the first row
// max.
template <>
struct WeightRange<cutlass::bfloat16_t> {
  static constexpr float kMargin = 32.f, kCeiling = 0x1p10f, kLowestSum = 0x1p-70f;
};

// Does the greatest weight of a row decide whether its reference rises, rather than the sum of its weights?
template <class Element>
inline constexpr bool kLooksAtWeights = std::is_same_v<Element, cutlass::half_t>;

// The greatest of the floats in a row of weights, which are not negative: their bits compare as integers do, of which
// Hopper takes three in one instruction.
template <class Weights>
__device__ __forceinline__ float greatest_in_row(const Weights& weights, int r) {
  constexpr int kColumns = decltype(cute::size<1>(weights))::value;
  static_assert(kColumns % 2 == 0);
  const auto bits = [&](int c) { return __float_as_int(weights(r, c)); };
  int greatest = 0;
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) {
#if __CUDA_ARCH__ >= 900
    greatest = __vimax3_s32(greatest, bits(c), bits(c + 1));
#else
    greatest = max(greatest, max(bits(c), bits(c + 1)));
#endif
  }
  return __int_as_float(greatest);
}

template <class Element, int kRows>
struct RowSoftmax {
  static constexpr float kFar = 120.f;  // 2^-120 is a float

  float reference[kRows];  // -inf before the row's first visible key
  float sum[kRows];        // of this thread's columns, unrounded; for the LSE alone

  __device__ __forceinline__ RowSoftmax() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reference[r] = -INFINITY;
      sum[r] = 0.f;
    }
  }

  // What each row was summed with before its reference rose is multiplied by this twice: 2^-growth itself can be below
  // the smallest float while the product is not.
  struct Rescale {
    float half[kRows];
  };

  // scores: (rows, columns), `scale_log2` > 0 apart from powers of two; -inf marks a key that the row does not see.
  // unite(maxima) makes them those of the whole rows, where other warps have scores of theirs. The caller applies
  // the result to the output and the denominators.
  template <class Scores, class Unite>
  __device__ __forceinline__ Rescale raise_references(const Scores& scores, float scale_log2, Unite unite) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
    float maxima[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      maxima[r] = scores(r, 0);
#pragma unroll
      for (int c = 1; c < cute::size<1>(scores); ++c) maxima[r] = fmaxf(maxima[r], scores(r, c));
      maxima[r] = fmaf(quad_reduce(maxima[r], [](float a, float b) { return fmaxf(a, b); }), scale_log2,
                       WeightRange<Element>::kMargin);
    }
    unite(maxima);
    Rescale rescale;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float raised = fmaxf(reference[r], maxima[r]);
      // before the first visible key, sums and output are zero: nothing to rescale
      rescale.half[r] = reference[r] == -INFINITY ? 1.f : ptx::exp2(0.5f * (reference[r] - raised));
      sum[r] = sum[r] * rescale.half[r] * rescale.half[r];
      reference[r] = raised;
    }
    return rescale;
  }

  // output: (rows, columns); denominators: (rows).
  template <class Output, class Denominators>
  __device__ __forceinline__ static void apply(const Rescale& rescale, Output& output, Denominators& denominators) {
    bool changed = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) changed |= !(rescale.half[r] == 1.f);
    if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      denominators(r) = denominators(r) * rescale.half[r] * rescale.half[r];
#pragma unroll
      for (int c = 0; c < cute::size<1>(output); ++c) output(r, c) = output(r, c) * rescale.half[r] * rescale.half[r];
    }
  }

  // levels: of float16 each row's greatest weight, of bfloat16 its sum before this tile, or this thread's part of it.
  __device__ __forceinline__ static bool outgrown(const float (&levels)[kRows]) {
    float greatest = levels[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) greatest = fmaxf(greatest, levels[r]);
    return greatest > WeightRange<Element>::kCeiling;
  }

  // Where a row has outgrown its reference, those beside it get a new one too: they would outgrow theirs soon. Weights
  // beyond any sum are left: failed() sees them. weights: (rows, columns), of which kColumns are made; unite(levels):
  // as in raise_references().
  template <int kColumns, class Weights, class Output, class Denominators, class Unite>
  __device__ __forceinline__ void raise_outgrown(float (&levels)[kRows], Weights& weights, Output& output,
                                                 Denominators& denominators, Unite unite) {
    constexpr float kMargin = WeightRange<Element>::kMargin, kGreatestLevel = 0x1p120f;  // whose sums are floats
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      levels[r] = quad_reduce(levels[r], [](float a, float b) { return fmaxf(a, b); });
    }
    unite(levels);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float grown = floorf(ptx::log2(levels[r]) + kMargin);  // whole: weights stay rounded
      if (!__any_sync(0xffffffffu, grown > 8.f)) continue;
      const float step = grown > 0.f && levels[r] < kGreatestLevel ? fminf(grown, kFar) : 0.f;
      const float factor = ptx::exp2(-step);
      reference[r] += step;
      denominators(r) *= factor;
      sum[r] *= factor;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) weights(r, c) *= factor;
#pragma unroll
      for (int c = 0; c < cute::size<1>(output); ++c) output(r, c) *= factor;
    }
  }

  // Scores as above become weights.
  template <class Scores>
  __device__ __forceinline__ void weigh(Scores& scores, float scale_log2) {
    float base[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) base[r] = reference[r] == -INFINITY ? 0.f : reference[r];
    weigh<true>(scores, [&](int r, int c) { return fmaf(scores(r, c), scale_log2, -base[r]); });
  }

  // Before references are kept: a row that has seen no key yet takes 0 as its own.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) reference[r] = reference[r] == -INFINITY ? 0.f : reference[r];
  }

  // Weights are 2^exponent(r, c), in which the row's reference is subtracted. kSum: the LSE is wanted.
  template <bool kSum, class Scores, class Exponent>
  __device__ __forceinline__ void weigh(Scores& scores, Exponent exponent) {
    weigh<kSum, 0, decltype(cute::size<1>(scores))::value>(scores, exponent);
  }

  // Those of columns [kBegin, kEnd).
  template <bool kSum, int kBegin, int kEnd, class Scores, class Exponent>
  __device__ __forceinline__ void weigh(Scores& scores, Exponent exponent) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float tile_sum = 0.f;  // first: added to a long row's sum one by one, equal weights would all round the same way
#pragma unroll
      for (int c = kBegin; c < kEnd; ++c) {
        scores(r, c) = ptx::exp2(exponent(r, c));
        if constexpr (kSum) tile_sum += scores(r, c);
      }
      if constexpr (kSum) sum[r] += tile_sum;
    }
  }

  // Must a row be computed again? Two things can have gone wrong, and both show. An inf or NaN in O: a weight or a sum
  // passed float32's range, or a weight of zero met a nonfinite value of V, which may be of a key that the row does not
  // see. A denominator out of bounds, of a row that saw a key: above, floats near their end; below, weights may have
  // sunk into subnormals (the denominator is at least about 2^-kMargin unless settle() chose the reference), or scores
  // are so huge that their unrounded product is powers of two away from the reference. A NaN, out of all bounds, may
  // also come from the row that shares the accumulator (sm80/gemm.cuh, sum_block).
  template <class Output>
  __device__ __forceinline__ bool failed(int r, const Output& output, float denominator) const {
    constexpr float kLow = WeightRange<Element>::kLowestSum, kHigh = 0x1p125f;
    float poison[4] = {};  // four chains: one would wait for itself
#pragma unroll
    for (int c = 0; c < cute::size<1>(output); ++c) poison[c % 4] = fmaf(output(r, c), 0.f, poison[c % 4]);
    return !(poison[0] + poison[1] + poison[2] + poison[3] == 0.f) ||
           (reference[r] != -INFINITY && !(denominator >= kLow && denominator <= kHigh));
  }

  // Adds a sink (natural units) to both sums; the row's output must be multiplied by the result.
  __device__ __forceinline__ float add_sink(int r, float sink, float& denominator, float& sum) {
    const float exponent = to_log2(sink);
    const float raised = fmaxf(reference[r], exponent);
    const float base = raised == -INFINITY ? 0.f : raised;
    const float rescale = ptx::exp2(reference[r] - base);
    // An infinite sink is all of a row without keys, and makes NaN of others, as an infinite score does.
    const float weight = denominator == 0.f && exponent == base ? 1.f : ptx::exp2(exponent - base);
    denominator = denominator * rescale + weight;
    sum = sum * rescale + weight;
    reference[r] = raised;
    return rescale;
  }

  // sum: over all columns. -inf for an empty row.
  __device__ __forceinline__ float log_sum_exp(int r, float sum) const {
    return sum == 0.f ? -INFINITY : from_log2(reference[r] + log2f(sum));
  }
};

}  // namespace flashcute::cuda
