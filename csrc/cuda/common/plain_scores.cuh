// Features in the plain body: what fits into the exponent that softmax.cuh makes there anyway.
//
// Softcap. The tiles whose scores are all small against the cap, which is most of them, take a polynomial: three more
// instructions an element, and one to find out. The others: cap tanh(x) = cap - 2 cap r with r = 1 / (1 + 2^y), y = 2
// log2(e) x, so that the exponent is one more FMA of r: four instructions an element more than none. The error is one
// of tanh, not relative to it: 2^y and the reciprocal are off by 2^-22 at most, of which tanh sees a half each near 0,
// where r is steepest: about 3e-7, and less elsewhere. Times the cap it is one of the score: 4e-5 at kMaxLeanSoftcap,
// below what the LSE may be off by (1e-4) and a tenth of float16's half step as a weight. Greater caps take the general
// body with its series for small arguments. An infinite score makes r = 0 or 1, its limit, and NaN stays NaN.
//
// ALiBi. Where all keys of a tile lie on one side of all its rows' diagonals, slope |i + d - j| is linear in both: the
// rows' part joins the reference, the columns' is one FMA an element. The other tiles are the seeds (KeyRange), where
// weights are greatest: from there on penalties only grow, and no weight outgrows the reference by them. Walked upwards
// from the first key, each tile would lower the penalty, and 2^(slope distance) overflow. For slopes below zero the
// reverse holds: they have no plain tiles.
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/score_pairs.cuh"
#include "cuda/common/softmax.cuh"

namespace flashcute::cuda {

constexpr bool has_softcap(PlainForm form) {
  return form == PlainForm::kSoftcap || form == PlainForm::kSoftcapAlibi;
}

constexpr bool has_alibi(PlainForm form) {
  return form == PlainForm::kAlibi || form == PlainForm::kSoftcapAlibi;
}

// 1 / (1 + 2^y): tanh(x) is 1 minus twice this, of y = 2 log2(e) x.
__device__ __forceinline__ float upper_share(float y) {
  return ptx::reciprocal(1.f + ptx::exp2(y));
}

// NaNs count for nothing. Rows by themselves first: one chain of maxima would wait for itself.
template <class Scores>
__device__ __forceinline__ float greatest_magnitude(const Scores& scores) {
  constexpr int kRows = decltype(cute::size<0>(scores))::value;
  float greatest[kRows] = {};
#pragma unroll
  for (int c = 0; c < cute::size<1>(scores); ++c) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) greatest[r] = fmaxf(greatest[r], fabsf(scores(r, c)));
  }
#pragma unroll
  for (int r = 1; r < kRows; ++r) greatest[0] = fmaxf(greatest[0], greatest[r]);
  return greatest[0];
}

// Raw products become weights. slope_log2: of ALiBi, negated where the tile's keys lie after the rows' diagonals.
template <PlainForm kForm, bool kSum, class Softmax, class Scores>
__device__ __forceinline__ void weigh_plain_scores(Softmax& softmax, Scores& scores, const Params& params,
                                                   float slope_log2, int diagonal, ElementPlace place) {
  constexpr int kRows = decltype(cute::size<0>(scores))::value;
  const ExtrasView& extras = params.extras;
  float row_addend[kRows];
  const float distance = float(place.row(0) + diagonal - place.key(0));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    row_addend[r] = -softmax.reference[r];
    if constexpr (has_alibi(kForm)) row_addend[r] = fmaf(-slope_log2, distance + float(8 * r), row_addend[r]);
  }
  const auto addend = [&](int r, int c) {
    if constexpr (!has_alibi(kForm)) return row_addend[r];
    return fmaf(slope_log2, float(8 * (c / 2) + c % 2), row_addend[r]);
  };
  if constexpr (has_softcap(kForm)) {
    const bool near = __all_sync(0xffffffffu, greatest_magnitude(scores) <= extras.softcap_near);
    int far_rounds = near ? 0 : 1;
    ptx::forget_origin(far_rounds);
    // Not an `if`: both ways would be predicated, and each tile would take the time of both.
#pragma unroll 1
    for (; far_rounds > 0; --far_rounds) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) row_addend[r] += extras.softcap_log2;
      softmax.template weigh<kSum>(scores, [&](int r, int c) {
        return fmaf(upper_share(scores(r, c) * extras.softcap_rate), -2.f * extras.softcap_log2, addend(r, c));
      });
    }
    if (near) {
      const float* series = extras.softcap_series;
      softmax.template weigh<kSum>(scores, [&](int r, int c) {
        const float s = scores(r, c), square = s * s;
        return fmaf(s, fmaf(square, fmaf(square, series[2], series[1]), series[0]), addend(r, c));
      });
    }
  } else {
    softmax.template weigh<kSum>(scores,
                                 [&](int r, int c) { return fmaf(scores(r, c), params.scale_log2, addend(r, c)); });
  }
}

}  // namespace flashcute::cuda
