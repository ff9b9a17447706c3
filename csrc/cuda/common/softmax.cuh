// Softmax of the rows a thread owns, over key tiles, in powers of two (scores come multiplied by log2(e)).
//
// Two ways to take a tile in:
//   online_step   the textbook one: raise the row's reference to the new maximum and rescale what was summed before.
//   fixed_step    keep the reference. There is no maximum, no shuffle and no rescale, and the result is still exact:
//                 float exponents hold any p = 2^(s - reference) as precisely as one below 1, until it overflows.
//                 failed() finds the rows where that happened; the kernel redoes those with online steps alone.
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
  float sum[kRows];        // of this thread's columns

  __device__ __forceinline__ RowSoftmax() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reference[r] = -INFINITY;
      sum[r] = 0.f;
    }
  }

  // scores, output: (rows, columns). Scores become weights; -inf marks a key the row does not see, and becomes -0 where
  // kMarkUnseen, so that its place stays known (isolate.cuh).
  template <bool kMarkUnseen, class Scores, class Output>
  __device__ __forceinline__ void online_step(Scores& scores, Output& output) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float maximum = scores(r, 0);
#pragma unroll
      for (int c = 1; c < cute::size<1>(scores); ++c) maximum = fmaxf(maximum, scores(r, c));
      maximum = fmaxf(reference[r], quad_reduce(maximum, [](float a, float b) { return fmaxf(a, b); }));
      const float base = maximum == -INFINITY ? 0.f : maximum;
      const float rescale = ptx::exp2(reference[r] - base);
      reference[r] = maximum;
      sum[r] *= rescale;
#pragma unroll
      for (int c = 0; c < cute::size<1>(output); ++c) output(r, c) *= rescale;
#pragma unroll
      for (int c = 0; c < cute::size<1>(scores); ++c) {
        float weight = ptx::exp2(scores(r, c) - base);
        if (kMarkUnseen) weight = scores(r, c) == -INFINITY ? -0.f : weight;
        sum[r] += weight;
        scores(r, c) = weight;
      }
    }
  }

  // Before the first fixed step: a row that has seen no key yet takes 0 as its reference.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) reference[r] = reference[r] == -INFINITY ? 0.f : reference[r];
  }

  // scores: raw products, of which every row sees every column.
  template <class Scores>
  __device__ __forceinline__ void fixed_step(Scores& scores, float scale_log2) {
    static_assert(decltype(cute::size<0>(scores))::value == kRows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < cute::size<1>(scores); ++c) {
        scores(r, c) = ptx::exp2(fmaf(scores(r, c), scale_log2, -reference[r]));
        sum[r] += scores(r, c);
      }
    }
  }

  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = quad_reduce(sum[r], [](float a, float b) { return a + b; });
  }

  // Did fixed steps lose row r? After reduce_sums(). A sum outside the bounds (inf and NaN are) says so at once; under
  // a high sum a weight may have passed the element type's range, or its product with V float's: that stays in O as an
  // inf or NaN. Weights of float16 cannot sink into subnormals unless the whole sum is small, and the sum is at least
  // about 1 unless settle() chose the reference.
  template <class Output>
  __device__ __forceinline__ bool failed(int r, const Output& output) const {
    constexpr bool kHalf = std::is_same_v<Element, cutlass::half_t>;
    constexpr float kLow = kHalf ? 0.5f : 0x1p-40f, kHigh = 0x1p100f;
    constexpr float kSafe = kHalf ? 0x1p15f : 0x1p20f;
    if (!(sum[r] >= kLow && sum[r] <= kHigh)) return true;
    if (sum[r] <= kSafe) return false;
    float poison = 0.f;
#pragma unroll
    for (int c = 0; c < cute::size<1>(output); ++c) poison = fmaf(output(r, c), 0.f, poison);
    return !(poison == 0.f);
  }

  // Adds a sink (natural units) to the denominator; the row's output must be multiplied by the result.
  __device__ __forceinline__ float add_sink(int r, float sink) {
    const float exponent = sink * kLog2e;
    const float maximum = fmaxf(reference[r], exponent);
    const float base = maximum == -INFINITY ? 0.f : maximum;
    const float rescale = ptx::exp2(reference[r] - base);
    sum[r] = sum[r] * rescale + ptx::exp2(exponent - base);
    reference[r] = maximum;
    return rescale;
  }

  // 1 / sum, 0 for an empty row.
  __device__ __forceinline__ float normalizer(int r) const { return sum[r] == 0.f ? 0.f : 1.f / sum[r]; }

  __device__ __forceinline__ float log_sum_exp(int r) const {
    return sum[r] == 0.f ? -INFINITY : (reference[r] + log2f(sum[r])) * kLn2;
  }
};

}  // namespace flashcute::cuda
