// A math warpgroup's way over the key tiles of one output tile: 64 query rows. They see fewer tiles than the CTA's
// together under a band; it passes over the others.
#pragma once

#include "cuda/sm90/steps.cuh"

namespace flashcute::cuda::sm90 {

template <class C>
class Mainloop : public Steps<C> {
  using S = Steps<C>;

 public:
  using S::output, S::softmax, S::release_queries, S::pass;

  CUTE_DEVICE Mainloop(const Params& params, typename C::SharedStorage& shared) : S(params, shared) {}

  CUTE_DEVICE void run() {
    reset();
    const BandTiles own = own_tiles();
    const int begin = ptx::uniform(work().seen.any_begin), end = ptx::uniform(work().seen.any_end);
    if (own.any_begin >= own.any_end) {
      find_place();
      release_queries();
      pass_over(begin, end);
      return;
    }
    if constexpr (C::kExtras) return run_extras();
    if constexpr (C::kBanded) pass_over(begin, own.any_begin);
    seed(own.any_begin, own.any_end, own.all_begin <= own.any_begin && own.any_begin < own.all_end);
    const bool sums = params_.lse.data != nullptr;
    int n = own.any_begin + 1;
    int online_end = C::kBanded ? min(first_plain(own), own.any_end) : n;
    if (pass() == Pass::kOnline) online_end = own.any_end;
#pragma unroll 1
    for (; n < online_end; ++n) this->template step<Step::kOnline, true>(n, own.any_end);
    softmax.settle();
    if constexpr (C::kHeadDim <= 64) {  // where ptxas would settle it again in every step
      for (float& reference : softmax.reference) ptx::forget_origin(reference);
    }
    if (sums) {
      for (; n < own.all_end; ++n) this->template step<Step::kPlain, true>(n, own.any_end);
    } else {
      for (; n < own.all_end; ++n) this->template step<Step::kPlain, false>(n, own.any_end);
    }
    for (; n < own.any_end; ++n) this->template step<Step::kFixed, true>(n, own.any_end);
    const int v_stage = await_values(k_.before());
    start_values<C>(output, weights_, operands_.values(v_stage));
    find_place();
    end_values(v_stage);
    if constexpr (C::kBanded) pass_over(own.any_end, end);
  }

  // Online steps on rounded scores, and the nonfinite values of V kept from the rows that do not see their keys.
  CUTE_DEVICE void run_nonfinite() {
    reset();
    const int end = ptx::uniform(work().seen.any_end);
    for (int n = ptx::uniform(work().seen.any_begin); n < end; ++n) nonfinite_tile(n);
    find_place();
    release_queries();
  }

 private:
  using S::await_values, S::end_values, S::finish_values, S::pass_over;
  using S::params_, S::shared_, S::weights_, S::operands_, S::k_;
  using S::seed, S::general_tile, S::nonfinite_tile;
  using S::work, S::walk, S::range_start, S::walk_end, S::own_tiles, S::find_place, S::reset;

  // From the range's start to its end, and then what is before the start. Tiles that these rows do not see may come in
  // between: what is pending must have joined the output before they are passed over. Bounds stay in shared memory, as
  // registers are for the accumulators.
  CUTE_DEVICE void run_extras() {
    int n = range_start();
    bool pending = false;
#pragma unroll 1
    do {
      const BandTiles own = own_tiles();
      if (n < own.any_begin || n >= own.any_end) {
        if (pending) finish_values();
        pending = false;
        pass_over(n, n + 1);
        ++n;
      } else {
        const int first = n;
        if (pending) n = plain_tiles(n, plain_until(n));
        if (n == first) {
          if (pending) finish_values();
          general_tile(n, n >= own.all_begin && n < own.all_end);
          pending = true;
          ++n;
        }
      }
      if (n == ptx::uniform(work().seen.any_end)) n = ptx::uniform(work().seen.any_begin);
    } while (n != range_start());
    if (pending) finish_values();
    find_place();
  }

  // The end of the run of tiles, plain but for the key mask, that starts at n; n or less where tile n is none.
  CUTE_DEVICE int plain_until(int n) const {
    const KeyRange& range = walk().range;
    const bool wrapped = n < range_start();
    if (range.plain_end == 0 || n < own_tiles().all_begin) return n;
    if (!wrapped && n < ptx::uniform(range.seed_end)) return n;
    return min(own_tiles().all_end, ptx::uniform(wrapped ? range.start : range.end));
  }

  // From n on, until `end` or a tile that is not plain, whose number it returns.
  CUTE_DEVICE int plain_tiles(int n, int end) {
    switch (params_.extras.plain) {
      case PlainForm::kSoftcap:
        return plain_tiles<PlainForm::kSoftcap>(n, end);
      case PlainForm::kAlibi:
        return plain_tiles<PlainForm::kAlibi>(n, end);
      case PlainForm::kSoftcapAlibi:
        return plain_tiles<PlainForm::kSoftcapAlibi>(n, end);
      default:
        return plain_tiles<PlainForm::kBare>(n, end);
    }
  }

  template <PlainForm kForm>
  CUTE_DEVICE int plain_tiles(int n, int end) {
    const bool asks = this->template asks_for_columns<kForm>();
    if (n >= end || (asks && !this->next_columns().all())) return n;
    softmax.settle();
    const int last = walk_end();
    const float slope_log2 = n < range_start() ? walk().slope_log2 : -walk().slope_log2;  // of all up to `end`
    do {
      const int stop = asks ? n + 1 : end;
      if (params_.lse.data != nullptr) {
        for (; n < stop; ++n) this->template plain_tile<kForm, true>(n, last, slope_log2);
      } else {
        for (; n < stop; ++n) this->template plain_tile<kForm, false>(n, last, slope_log2);
      }
    } while (n < end && this->next_columns().all());
    return n;
  }
};

}  // namespace flashcute::cuda::sm90
