// What mask class "any" adds to the scores of one tile that takes the general way, in the settled order: scale,
// softcap, bias, ALiBi, mask; and dropout on the weights. (Plain tiles: plain_scores.cuh.) Decisions that cost many
// instructions are collected as one bit an element in rolled loops: unrolled, Philox alone would be 3000 instructions.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/common/mask.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/common/plain_scores.cuh"
#include "cuda/common/scheduler.cuh"
#include "cuda/common/score_mask.cuh"
#include "cuda/common/score_pairs.cuh"

namespace flashcute::cuda {

// tanh(x), of y = 2 log2(e) x, with a relative error near 1e-6, which softcap multiplies by the cap; tanh.approx has
// 5e-4. Small arguments by the series, the others by the two fast units.
__device__ __forceinline__ float tanh_precise(float y) {
  const float x = y * (0.5f * kLn2), square = x * x;
  const float series = x * fmaf(square, fmaf(square, fmaf(square, -17.f / 315.f, 2.f / 15.f), -1.f / 3.f), 1.f);
  return fabsf(x) < 0.125f ? series : 1.f - 2.f * upper_share(y);
}

inline constexpr float kSteepest = 0x1p96f;

__device__ __forceinline__ float slope_of(const ExtrasView& extras, const TileIndex& tile) {
  return extras.alibi[tile.batch * extras.alibi_batch + tile.head_q * extras.alibi_head];
}

__device__ __forceinline__ bool is_too_steep(float slope) {
  return fabsf(slope) > kSteepest && fabsf(slope) < INFINITY;
}

// ALiBi's slope, times log2(e); 0 without. Any finite slope this steep leaves the nearest key alone, and at the
// greatest distance its product is still finite.
__device__ __forceinline__ float slope_log2_of(const ExtrasView& extras, const TileIndex& tile) {
  if (extras.alibi == nullptr) return 0.f;
  const float slope = slope_of(extras, tile);
  return is_too_steep(slope) ? copysignf(kSteepest, slope) : kLog2e * slope;
}

// The LSE of a row whose scores were made with slope_log2_of(): where that is the steepest slope, the true one's.
__device__ __forceinline__ float lse_of_true_slope(const ExtrasView& extras, const TileIndex& tile, float lse) {
  if (extras.alibi == nullptr || !(fabsf(lse) > 0x1p90f)) return lse;
  const float slope = slope_of(extras, tile);
  if (!is_too_steep(slope) || fabsf(lse) == INFINITY) return lse;
  constexpr float kGreatest = std::numeric_limits<float>::max();
  return fminf(fmaxf(lse / (kSteepest * kLn2) * fabsf(slope), -kGreatest), kGreatest);
}

// Where there are sinks.
template <class Element>
__device__ __forceinline__ float sink_of(const ExtrasView& extras, const TileIndex& tile) {
  return load_float<Element>(extras.sinks, tile.head_q * extras.sinks_head, extras.sinks_float32);
}

template <class Element>
struct ScoreExtras {
  const Params& params;
  const TileIndex& tile;
  const Member& member;
  float slope_log2;

  // Which pairs the pair mask lets take part; apart from apply(), so that the wait for memory can be spent elsewhere.
  // Elements outside the problem may be either.
  template <int kRows, int kColumns>
  __device__ __forceinline__ ElementBits<kRows, kColumns> visible_pairs(ElementPlace place) const {
    const ScoreView& mask = params.extras.dense_mask;
    return mask.data == nullptr ? all_elements<kRows, kColumns>()
                                : mask_bits<kRows, kColumns>(mask, base_of(mask), member, place);
  }

  // Raw products become scores in powers of two.
  template <class Scores, class Bits>
  __device__ __forceinline__ void apply(Scores& scores, ElementPlace place, const Bits& visible) const {
    const ExtrasView& extras = params.extras;
    constexpr int kRows = decltype(cute::size<0>(scores))::value, kColumns = decltype(cute::size<1>(scores))::value;
    scale_and_cap(scores);
    if (extras.bias.data != nullptr) {
      const bool float32 = extras.bias.element_size == 4;
      const auto add = [&](int r, int c, float bias) {  // -inf hides a NaN score too
        const float sum = fabsf(bias) > kDense ? to_log2(bias) + scores(r, c) : fmaf(bias, kLog2e, scores(r, c));
        scores(r, c) = bias == -INFINITY ? bias : sum;
      };
      if (float32) {
        for_each_value<float, kRows, kColumns>(extras.bias, base_of(extras.bias), member, place, add);
      } else {
        for_each_value<Element, kRows, kColumns>(extras.bias, base_of(extras.bias), member, place, add);
      }
    }
    add_alibi(scores, place);
    if (extras.dense_mask.data != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) scores(r, c) = visible(r, c) ? scores(r, c) : -INFINITY;
      }
    }
  }

  // Raw products become scores in powers of two, as far as softcap.
  template <class Scores>
  __device__ __forceinline__ void scale_and_cap(Scores& scores) const {
    const ExtrasView& extras = params.extras;
    if (extras.softcap == 0.f) {
      cute::transform(scores, scores, [&](float s) { return s * params.scale_log2; });
    } else if (extras.softcap <= kMaxLeanSoftcap) {
      cute::transform(scores, scores, [&](float s) {
        return fmaf(upper_share(s * extras.softcap_rate), -2.f * extras.softcap_log2, extras.softcap_log2);
      });
    } else {
      cute::transform(scores, scores,
                      [&](float s) { return extras.softcap_log2 * tanh_precise(s * extras.softcap_rate); });
    }
  }

  template <class Scores>
  __device__ __forceinline__ void add_alibi(Scores& scores, ElementPlace place) const {
    if (params.extras.alibi == nullptr) return;
#pragma unroll
    for (int r = 0; r < decltype(cute::size<0>(scores))::value; ++r) {
#pragma unroll
      for (int c = 0; c < decltype(cute::size<1>(scores))::value; ++c) {
        const float distance = fabsf(float(place.row(r) + member.diagonal - place.key(c)));
        scores(r, c) = fmaf(-slope_log2, distance, scores(r, c));
      }
    }
  }

  __device__ __forceinline__ bool drops() const { return params.extras.dropout.threshold != 0; }

  // Where there is dropout: which of the weights of the row's four keys from this one on, a multiple of four, are
  // dropped, one bit each.
  __device__ __forceinline__ uint32_t dropped(int row, int key) const {
    const PhiloxWords random = random_of(row, key);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= uint32_t(random.word[i] < params.extras.dropout.threshold) << i;
    return bits;
  }

  // Dropped weights become 0. False where there is no dropout.
  template <class Weights>
  __device__ __forceinline__ bool drop(Weights& weights, ElementPlace place) const {
    const DropoutView& dropout = params.extras.dropout;
    if (!drops()) return false;
    constexpr int kRows = decltype(cute::size<0>(weights))::value, kColumns = decltype(cute::size<1>(weights))::value;
    using Word = typename ElementBits<kRows, kColumns>::Word;
    ElementBits<kRows, kColumns> kept;
#pragma unroll 1
    for (int pair = 0; pair < kRows * kColumns / 2; ++pair) {
      const int r = pair / (kColumns / 2), c = 2 * (pair % (kColumns / 2));
      const int key = place.key(c);
      const PhiloxWords random = random_of(place.row(r), key);
      const bool upper = key % 4 != 0;  // a thread's pairs start at even keys
      const bool low = (upper ? random.word[2] : random.word[0]) >= dropout.threshold;
      const bool high = (upper ? random.word[3] : random.word[1]) >= dropout.threshold;
      kept.bits |= (Word(low) | Word(high) << 1) << (2 * pair);
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
  // One word for each of four keys, this one among them.
  __device__ __forceinline__ PhiloxWords random_of(int row, int key) const {
    const DropoutView& dropout = params.extras.dropout;
    const uint64_t seed = dropout.state != nullptr ? dropout.state[0] : dropout.seed;
    const uint64_t offset = dropout.state != nullptr ? dropout.state[1] : dropout.offset;
    const uint32_t head = uint32_t(tile.batch) * uint32_t(params.heads_q) + uint32_t(tile.head_q);
    return philox(uint32_t(seed), uint32_t(seed >> 32) ^ uint32_t(offset >> 32), uint32_t(key) / 4, uint32_t(row), head,
                  uint32_t(offset));
  }

  __device__ __forceinline__ int64_t base_of(const ScoreView& view) const {
    return tile.batch * view.batch + tile.head_q * view.head;
  }
};

}  // namespace flashcute::cuda
