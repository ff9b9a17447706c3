// Features in the plain body: what fits into the exponent that softmax.cuh makes there anyway.
//
// Softcap. The tiles whose scores are all small against the cap, which is most of them, take a cubic (params.cpp): two
// more instructions an element, and one and a quarter to find out. Those whose scores are still within the reach of a
// fifth power take that: six more. In the others, cap tanh(x) = cap - 2 cap r with r = 1 / (1 + 2^y), y = 2 log2(e) x,
// which takes two of the slow units' as many. The error is one of tanh, not relative to it: 2^y and the reciprocal are
// off by 2^-22 at most, of which tanh sees a half each near 0, where r is steepest: about 3e-7, and less elsewhere.
// Times the cap it is one of the score: 4e-5 at kMaxLeanSoftcap, as much as the polynomials', below what the LSE may be
// off by (1e-3) and a tenth of float16's half step as a weight. Greater caps take the general body with its series for
// small arguments. An infinite score makes r = 0 or 1, its limit, and NaN stays NaN.
//
// ALiBi. Where all keys of a tile lie on one side of all its rows' diagonals, slope |i + d - j| is linear in both: the
// rows' part joins the reference, the columns' is one FMA an element. The other tiles are the seeds (KeyRange), where
// weights are greatest: from there on penalties only grow, and no weight outgrows the reference by them. Walked upwards
// from the first key, each tile would lower the penalty, and 2^(slope distance) overflow. For slopes below zero the
// reverse holds: they have no plain tiles.
#pragma once

#include <cute/tensor.hpp>
#include <type_traits>
#include <utility>

#include "cuda/common/mask.cuh"
#include "cuda/common/score_mask.cuh"
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

// square: kCount times s^2 + range.shift, of one product s or of the squares of two, which are then both within. The OR
// of floats in [2^n, ...) has the exponent bits of 2^n alone where none of them is beyond 2^(n + 1): one instruction
// for two of them.
template <int kCount, class ShiftedSquare>
__device__ __forceinline__ bool are_within(const SoftcapRange& range, ShiftedSquare square) {
  static_assert(kCount % 4 == 0);
  uint32_t bits[2] = {};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) bits[j] |= __float_as_uint(square(i + 2 * j)) | __float_as_uint(square(i + 2 * j + 1));
  }
  return ((bits[0] | bits[1]) & 0x7f800000u) == range.exponent;
}

// Where the walk starts and which of its tiles may be plain: with ALiBi, the tile's, otherwise the call's.
template <int kBlockM, int kBlockN>
__device__ __forceinline__ void seed_plain(const ExtrasView& extras, int m, const Member& member, float slope_log2,
                                           KeyRange& range) {
  if (extras.alibi != nullptr) {
    // the tiles of all rows' diagonals: also of those that do not exist, lest their weights grow without bounds
    const int first_diagonal = m * kBlockM + member.diagonal;
    range.start = max(first_diagonal, 0) / kBlockN;
    range.seed_end = max(first_diagonal + kBlockM - 1, 0) / kBlockN + 1;
    range.clamp_seeds();
  }
  if (extras.plain == PlainForm::kNone || !(slope_log2 >= 0.f)) range.plain_end = 0;
}

// What 2 is raised to for the weights of a plain tile. Made of raw products, which it may change. kKept: squares are,
// as long as registers last, rather than made twice.
template <PlainForm kForm, class Scores, bool kKept>
class PlainExponents {
  static constexpr int kRows = decltype(cute::size<0>(std::declval<Scores>()))::value,
                       kCount = decltype(cute::size(std::declval<Scores>()))::value;

 public:
  // slope_log2: of ALiBi, negated where the tile's keys lie after the rows' diagonals.
  __device__ __forceinline__ PlainExponents(const float (&references)[kRows], Scores& scores, const Params& params,
                                            float slope_log2, int diagonal, ElementPlace place)
      : scores_(scores), scale_log2_(params.scale_log2), slope_log2_(slope_log2) {
    const float distance = float(place.row(0) + diagonal - place.key(0));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row_addend_[r] = -references[r];
      if constexpr (has_alibi(kForm)) row_addend_[r] = fmaf(-slope_log2, distance + float(8 * r), row_addend_[r]);
    }
    if constexpr (has_softcap(kForm)) cap(params.extras);
  }

  __device__ __forceinline__ float operator()(int r, int c) const {
    const float s = scores_(r, c);
    if constexpr (!has_softcap(kForm)) {
      return fmaf(s, scale_log2_, addend(r, c));
    } else if constexpr (kKept) {
      return fmaf(s, fmaf(squares_(r, c), bend_, slope_), addend(r, c));
    } else {
      return fmaf(s, fmaf(fmaf(s, s, shift_), bend_, slope_), addend(r, c));
    }
  }

 private:
  __device__ __forceinline__ float addend(int r, int c) const {
    if constexpr (!has_alibi(kForm)) return row_addend_[r];
    return fmaf(slope_log2_, float(8 * (c / 2) + c % 2), row_addend_[r]);
  }

  __device__ __forceinline__ bool pairs_within(const SoftcapRange& range) const {
    return are_within<kCount / 2>(range, [&](int i) {
      return fmaf(scores_(2 * i), scores_(2 * i), fmaf(scores_(2 * i + 1), scores_(2 * i + 1), range.shift));
    });
  }

  __device__ __forceinline__ bool near(const SoftcapRange& range) {
    if constexpr (kKept) {
      return are_within<kCount>(range, [&](int i) {
        squares_(i) = fmaf(scores_(i), scores_(i), range.shift);
        return squares_(i);
      });
    }
    return pairs_within(range);
  }

  __device__ __forceinline__ void cap(const ExtrasView& extras) {
    shift_ = extras.softcap_near.shift;
    slope_ = extras.softcap_near_series[0];
    bend_ = extras.softcap_near_series[1];
    int beyond = __all_sync(0xffffffffu, near(extras.softcap_near)) ? 0 : 1, middle = 0, far = 0;
    // Capped scores are what the cubic then leaves as it is. Loops of one round, not `if`s: ptxas would predicate
    // those, and each tile would take their time.
    ptx::forget_origin(beyond);
#pragma unroll 1
    for (; beyond > 0; --beyond) {
      middle = __all_sync(0xffffffffu, pairs_within(extras.softcap_middle));
      far = 1 - middle;
      if constexpr (kKept) {
        cute::fill(squares_, 0.f);
      } else {
        shift_ = bend_ = 0.f;
      }
      slope_ = 1.f;
    }
    ptx::forget_origin(middle);
#pragma unroll 1
    for (; middle > 0; --middle) {
      const float* series = extras.softcap_middle_series;
      cute::transform(scores_, scores_, [&](float s) {
        const float square = s * s;
        return s * fmaf(fmaf(series[2], square, series[1]), square, series[0]);
      });
    }
    ptx::forget_origin(far);
#pragma unroll 1
    for (; far > 0; --far) {
      cute::transform(scores_, scores_, [&](float s) {
        return fmaf(upper_share(s * extras.softcap_rate), -2.f * extras.softcap_log2, extras.softcap_log2);
      });
    }
  }

  struct Nothing {};
  Scores& scores_;
  const float scale_log2_, slope_log2_;
  float row_addend_[kRows];
  std::conditional_t<kKept && has_softcap(kForm), decltype(cute::make_tensor_like(std::declval<Scores>())), Nothing>
      squares_;
  float shift_ = 0.f, slope_ = 0.f, bend_ = 0.f;
};

}  // namespace flashcute::cuda
