// What mask class "any" adds to the scores of one tile, in the settled order: scale, softcap, bias, ALiBi, mask; and
// dropout on the weights. Decisions that need memory or many instructions are collected as one bit an element in rolled
// loops: unrolled, Philox alone would be 3000 instructions.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/common/mask.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/scheduler.cuh"
#include "cuda/common/softmax.cuh"

namespace flashcute::cuda {

// Where a thread's elements of a score tile lie: row(r), column(c) within the member.
struct ElementPlace {
  int first_row, first_key;  // of element (0, 0)
  __device__ __forceinline__ int row(int r) const { return first_row + 8 * r; }
  __device__ __forceinline__ int key(int c) const { return first_key + 8 * (c / 2) + c % 2; }
};

template <int kRows, int kColumns>
struct ElementBits {
  static_assert(kRows * kColumns <= 64);
  uint64_t bits = 0;
  __device__ __forceinline__ bool operator()(int r, int c) const { return (bits >> (r * kColumns + c)) & 1; }
};

// tanh with a relative error near 1e-6, which softcap multiplies by the cap; tanh.approx has 5e-4. Small arguments by
// the series, the others by the two fast units.
__device__ __forceinline__ float tanh_precise(float x) {
  const float square = x * x;
  const float series = x * fmaf(square, fmaf(square, fmaf(square, -17.f / 315.f, 2.f / 15.f), -1.f / 3.f), 1.f);
  const float quotient = 1.f - 2.f * ptx::reciprocal(1.f + ptx::exp2(2.f * kLog2e * x));
  return fabsf(x) < 0.125f ? series : quotient;
}

template <class Element>
__device__ __forceinline__ float load_float(const void* data, int64_t index, bool float32) {
  return float32 ? static_cast<const float*>(data)[index]
                 : static_cast<float>(static_cast<const Element*>(data)[index]);
}

template <class Element>
struct ScoreExtras {
  const Params& params;
  TileIndex tile;
  Member member;

  // Raw products become scores in powers of two.
  template <class Scores>
  __device__ __forceinline__ void apply(Scores& scores, ElementPlace place) const {
    const ExtrasView& extras = params.extras;
    constexpr int kRows = decltype(cute::size<0>(scores))::value, kColumns = decltype(cute::size<1>(scores))::value;
    cute::transform(scores, scores, [&](float s) { return s * params.scale; });
    if (extras.softcap > 0.f) {
      const float inverse = 1.f / extras.softcap;
      cute::transform(scores, scores, [&](float s) { return extras.softcap * tanh_precise(s * inverse); });
    }
    if (extras.bias.data != nullptr) add_bias(scores, place);
    if (extras.alibi != nullptr) {
      const float slope = extras.alibi[tile.batch * extras.alibi_batch + tile.head_q * extras.alibi_head];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          scores(r, c) -= slope * fabsf(float(place.row(r) + member.diagonal - place.key(c)));
        }
      }
    }
    cute::transform(scores, scores, [](float s) { return s * kLog2e; });
    if (extras.dense_mask.data != nullptr) {
      const auto seen = dense_bits<kRows, kColumns>(place);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) scores(r, c) = seen(r, c) ? scores(r, c) : -INFINITY;
      }
    }
  }

  // Dropped weights become 0. False where there is no dropout.
  template <class Weights>
  __device__ __forceinline__ bool drop(Weights& weights, ElementPlace place) const {
    const DropoutView& dropout = params.extras.dropout;
    if (dropout.threshold == 0) return false;
    constexpr int kRows = decltype(cute::size<0>(weights))::value, kColumns = decltype(cute::size<1>(weights))::value;
    const uint64_t seed = dropout.state != nullptr ? dropout.state[0] : dropout.seed;
    const uint64_t offset = dropout.state != nullptr ? dropout.state[1] : dropout.offset;
    const uint32_t key_low = uint32_t(seed), key_high = uint32_t(seed >> 32) ^ uint32_t(offset >> 32);
    const uint32_t head = uint32_t(tile.batch) * uint32_t(params.heads_q) + uint32_t(tile.head_q);
    ElementBits<kRows, kColumns> kept;
#pragma unroll 1
    for (int pair = 0; pair < kRows * kColumns / 2; ++pair) {
      const int r = pair / (kColumns / 2), c = 2 * (pair % (kColumns / 2));
      const uint32_t key = uint32_t(place.key(c));
      const PhiloxWords random = philox(key_low, key_high, key / 4, uint32_t(place.row(r)), head, uint32_t(offset));
      const bool upper = key % 4 != 0;  // a thread's pairs start at even keys
      const uint64_t low = (upper ? random.word[2] : random.word[0]) >= dropout.threshold;
      const uint64_t high = (upper ? random.word[3] : random.word[1]) >= dropout.threshold;
      kept.bits |= (low | high << 1) << (2 * pair);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        weights(r, c) = kept(r, c) ? weights(r, c) : 0.f;
      }
    }
    return true;
  }

 private:
  __device__ __forceinline__ int64_t base_of(const ScoreView& view) const {
    return tile.batch * view.batch + tile.head_q * view.head;
  }

  __device__ __forceinline__ bool inside(int row, int key) const { return row < member.len_q && key < member.len_k; }

  template <class Scores>
  __device__ __forceinline__ void add_bias(Scores& scores, ElementPlace place) const {
    const ScoreView& bias = params.extras.bias;
    const bool float32 = bias.element_size == 4;
    constexpr int kRows = decltype(cute::size<0>(scores))::value, kColumns = decltype(cute::size<1>(scores))::value;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t base = base_of(bias) + int64_t(place.row(r)) * bias.row;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (inside(place.row(r), place.key(c))) {
          const float value = load_float<Element>(bias.data, base + int64_t(place.key(c)) * bias.key, float32);
          scores(r, c) = value == -INFINITY ? value : scores(r, c) + value;  // it hides a NaN score too
        }
      }
    }
  }

  template <int kRows, int kColumns>
  __device__ __forceinline__ ElementBits<kRows, kColumns> dense_bits(ElementPlace place) const {
    const ScoreView& mask = params.extras.dense_mask;
    ElementBits<kRows, kColumns> seen;
#pragma unroll 1
    for (int e = 0; e < kRows * kColumns; ++e) {
      const int row = place.row(e / kColumns), key = place.key(e % kColumns);
      if (!inside(row, key)) continue;
      const int64_t index = base_of(mask) + int64_t(row) * mask.row + int64_t(key) * mask.key;
      seen.bits |= uint64_t(nonzero_at(mask.data, index, mask.element_size)) << e;
    }
    return seen;
  }
};

}  // namespace flashcute::cuda
