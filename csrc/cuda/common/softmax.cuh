// Softmax of the rows a thread owns, over key tiles, in powers of two (scores come multiplied by log2(e)).
//
// Two ways to take a tile in. The textbook's: raise the row's reference to the new maximum and rescale what was summed
// before (raise_references), then weigh. Or only weigh: there is no maximum, no shuffle and no rescale, and nothing is
// lost, since floats hold any p = 2^(s - reference) as precisely as one below 1, until it overflows. failed() finds
// the rows of which that is not true; the kernel redoes those and raises at every tile.
//
// Two sums of weights. Those that the tensor cores multiply V by are rounded to 16 bits, so a row's output is divided
// by the sum of the rounded ones, made by the tensor cores too (`denominators`): equal values average to themselves
// however few keys dominate. The LSE is made of the weights as they were (`sum`).
#pragma once

#include <cmath>
#include <cute/tensor.hpp>

#include "cuda/common/ptx.cuh"

namespace flashcute::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// The four lanes of a quad hold one row of an m16n8 accumulator.
template <class Combine>
__device__ __forceinline__ float quad_reduce(float x, Combine combine) {
  x = combine(x, __shfl_xor_sync(0xffffffffu, x, 2));
  return combine(x, __shfl_xor_sync(0xffffffffu, x, 1));
}

template <class Element, int kRows>
struct RowSoftmax {
  float reference[kRows];  // the exponent's zero; -inf before the row's first visible key
  float sum[kRows];        // of this thread's columns, unrounded; for the LSE alone

  __device__ __forceinline__ RowSoftmax() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reference[r] = -INFINITY;
      sum[r] = 0.f;
    }
  }

  // scores, output: (rows, columns); denominators: (rows). Scores are `scale_log2` > 0 apart from powers of two; -inf
  // marks a key that the row does not see. unite(maxima) makes them those of the whole rows, where other warps have
  // scores of theirs.
  template <class Scores, class Output, class Denominators, class Unite>
  __device__ __forceinline__ void raise_references(const Scores& scores, Output& output, Denominators& denominators,
                                                   float scale_log2, Unite unite) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
    float maxima[kRows], rescale[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      maxima[r] = scores(r, 0);
#pragma unroll
      for (int c = 1; c < cute::size<1>(scores); ++c) maxima[r] = fmaxf(maxima[r], scores(r, c));
      maxima[r] = quad_reduce(maxima[r], [](float a, float b) { return fmaxf(a, b); }) * scale_log2;
    }
    unite(maxima);
    bool changed = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float maximum = fmaxf(reference[r], maxima[r]);
      // before the first visible key, sums and output are zero: nothing to rescale
      rescale[r] = reference[r] == -INFINITY ? 1.f : ptx::exp2(reference[r] - maximum);
      changed |= !(rescale[r] == 1.f);
      reference[r] = maximum;
    }
    if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        denominators(r) *= rescale[r];
        sum[r] *= rescale[r];
#pragma unroll
        for (int c = 0; c < cute::size<1>(output); ++c) output(r, c) *= rescale[r];
      }
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

  // Those of columns [kBegin, kEnd); for the LSE they count `factor` times.
  template <bool kSum, int kBegin, int kEnd, class Scores, class Exponent>
  __device__ __forceinline__ void weigh(Scores& scores, Exponent exponent, float factor = 1.f) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float tile_sum = 0.f;  // first: added to a long row's sum one by one, equal weights would all round the same way
#pragma unroll
      for (int c = kBegin; c < kEnd; ++c) {
        scores(r, c) = ptx::exp2(exponent(r, c));
        if constexpr (kSum) tile_sum += scores(r, c);
      }
      if constexpr (kSum) sum[r] += tile_sum * factor;
    }
  }

  // Must a row be done again, with care? Two things can have gone wrong, and both show. An inf or NaN in O: a weight
  // passed the element type's range, or a weight of zero met an inf or NaN in V, which may be of a key that the row
  // does not see. A denominator out of bounds, of a row that saw a key: above, floats near their end; below, weights
  // may have sunk into subnormals (it is at least about 1 unless settle() chose the reference), or scores are so huge
  // that their unrounded product is powers of two away from the reference. A NaN, out of all bounds, may also come from
  // the row that shares the accumulator (sm80/gemm.cuh, sum_block).
  template <class Output>
  __device__ __forceinline__ bool failed(int r, const Output& output, float denominator) const {
    constexpr float kLow = std::is_same_v<Element, cutlass::half_t> ? 0.5f : 0x1p-24f, kHigh = 0x1p100f;
    float poison[4] = {};  // four chains: one would wait for itself
#pragma unroll
    for (int c = 0; c < cute::size<1>(output); ++c) poison[c % 4] = fmaf(output(r, c), 0.f, poison[c % 4]);
    return !(poison[0] + poison[1] + poison[2] + poison[3] == 0.f) ||
           (reference[r] != -INFINITY && !(denominator >= kLow && denominator <= kHigh));
  }

  // Adds a sink (natural units) to both sums; the row's output must be multiplied by the result.
  __device__ __forceinline__ float add_sink(int r, float sink, float& denominator, float& sum) {
    const float exponent = sink * kLog2e;
    const float maximum = fmaxf(reference[r], exponent);
    const float base = maximum == -INFINITY ? 0.f : maximum;
    const float rescale = ptx::exp2(reference[r] - base), weight = ptx::exp2(exponent - base);
    denominator = denominator * rescale + weight;
    sum = sum * rescale + weight;
    reference[r] = maximum;
    return rescale;
  }

  // sum: over all columns. -inf for an empty row.
  __device__ __forceinline__ float log_sum_exp(int r, float sum) const {
    return sum == 0.f ? -INFINITY : (reference[r] + log2f(sum)) * kLn2;
  }
};

}  // namespace flashcute::cuda
