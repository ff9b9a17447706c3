// A math warpgroup's way over the key tiles of one output tile: 64 query rows, Q K^T of the next tile under the softmax
// of this one. Its rows see fewer tiles than the CTA's together under a band; it passes over the others.
#pragma once

#include "cuda/common/softmax.cuh"
#include "cuda/sm90/gemm.cuh"
#include "cuda/sm90/isolate.cuh"

namespace flashcute::cuda::sm90 {

// How a step takes a tile in (softmax.cuh).
enum class Step {
  kOnline,  // masked
  kFixed,   // masked
  kPlain,   // fixed, of a tile that every row sees whole
};

template <class C>
class Mainloop {
  using Element = typename C::Element;
  using Shared = typename C::SharedStorage;
  static constexpr int kBlockN = C::kBlockN;

 public:
  typename C::OutputFragment output;
  RowSoftmax<Element, 2> softmax;

  CUTE_DEVICE Mainloop(const Params& params, Shared& shared) : params_(params), shared_(shared) {
    if (C::kOrdered && warpgroup() == C::kWarpgroups - 1) pass_turn();
  }

  // Waits for the next work and its queries.
  CUTE_DEVICE WorkKind await_work() {
    ptx::wait(shared_.queries_full, items_ % 2);
    ++items_;
    return static_cast<WorkKind>(ptx::uniform(static_cast<int>(work().kind)));
  }

  // After await_work(), exactly once for each.
  CUTE_DEVICE void release_queries() { arrive(shared_.queries_empty); }

  CUTE_DEVICE void run() {
    reset();
    const BandTiles own = own_tiles();
    const int begin = ptx::uniform(work().seen.any_begin), end = ptx::uniform(work().seen.any_end);
    if (own.any_begin >= own.any_end) {
      release_queries();
      pass_over(begin, end);
      return;
    }
    pass_over(begin, own.any_begin);
    seed(own.any_begin, own.any_end, own.all_begin <= own.any_begin && own.any_begin < own.all_end);
    const bool sums = params_.lse.data != nullptr;
    int n = own.any_begin + 1;
    for (const int seeds_end = min(own.all_begin, own.any_end); C::kBanded && n < seeds_end; ++n) {
      step<Step::kOnline, true>(n, own.any_end);
    }
    softmax.settle();
    if (sums) {
      for (; n < own.all_end; ++n) step<Step::kPlain, true>(n, own.any_end);
    } else {
      for (; n < own.all_end; ++n) step<Step::kPlain, false>(n, own.any_end);
    }
    for (; n < own.any_end; ++n) step<Step::kFixed, true>(n, own.any_end);
    ptx::wait(shared_.v_full[v_.stage], v_.parity);
    start_values<C>(output, weights_, shared_.v[v_.stage].data());
    end_values();
    pass_over(own.any_end, end);
  }

  // Online steps alone, on rounded scores; and infs and NaNs of V kept from the rows that do not see them.
  CUTE_DEVICE void run_careful() {
    reset();
    const int end = ptx::uniform(work().seen.any_end);
    for (int n = ptx::uniform(work().seen.any_begin); n < end; ++n) careful_tile(n);
    release_queries();
  }

  CUTE_DEVICE int slot() const { return (items_ - 1) % 2; }
  // In shared memory: registers are for the accumulators.
  CUTE_DEVICE const TileIndex& tile() const { return work().tile; }
  CUTE_DEVICE const Member& member() const { return work().member; }
  CUTE_DEVICE int row(int r) const { return first_row() + C::row_of_thread(threadIdx.x) + 8 * r; }

  // The sum of the row's rounded weights.
  CUTE_DEVICE float denominator(int r) {
    if constexpr (C::kSums) {
      return rows_and_columns(output)(r, C::kHeadDim / 4);
    } else {
      return quad_reduce(denominators_(r), [](float a, float b) { return a + b; });
    }
  }

  // Is there a key that the row sees?
  CUTE_DEVICE bool sees_any(int r) const {
    const RowBand band = row_band<C::kBanded>(params_.band, member(), row(r), row(r));
    return band.any_begin < band.any_end;
  }

 private:
  CUTE_DEVICE const Work<C::kWarpgroups>& work() const { return shared_.work[slot()]; }
  CUTE_DEVICE int warpgroup() const { return warpgroup_; }
  CUTE_DEVICE int first_row() const { return tile().m * C::kBlockM; }

  CUTE_DEVICE void arrive(ptx::Barrier& barrier) const {
    if (threadIdx.x % 32 == 0) ptx::arrive(barrier);
  }

  CUTE_DEVICE void await_keys() const { ptx::wait(shared_.k_full[k_.stage], k_.parity); }

  CUTE_DEVICE void release_keys() {
    arrive(shared_.k_empty[k_.stage]);
    k_.advance();
  }

  CUTE_DEVICE void release_values() {
    arrive(shared_.v_empty[v_.stage]);
    v_.advance();
  }

  CUTE_DEVICE void await_turn() const {
    if constexpr (C::kOrdered) ptx::named_sync(kTurnOfFirst + warpgroup(), 256);
  }

  CUTE_DEVICE void pass_turn() const {
    if constexpr (C::kOrdered) {
      ptx::named_arrive(kTurnOfFirst + (warpgroup() == C::kWarpgroups - 1 ? 0 : warpgroup() + 1), 256);
    }
  }

  CUTE_DEVICE void reset() {
    clear(output);
    clear(denominators_);
    softmax = {};
  }

  // The tiles that this warpgroup's rows see.
  CUTE_DEVICE BandTiles own_tiles() const {
    const BandTiles& own = work().seen_by[warpgroup()];
    return {ptx::uniform(own.any_begin), ptx::uniform(own.any_end), ptx::uniform(own.all_begin),
            ptx::uniform(own.all_end)};
  }

  CUTE_DEVICE void pass_over(int begin, int end) {
    for (int n = begin; n < end; ++n) {
      await_turn();
      pass_turn();
      await_keys();  // lest this warpgroup's arrivals run a phase ahead
      release_keys();
      ptx::wait(shared_.v_full[v_.stage], v_.parity);
      release_values();
    }
  }

  // The first tile, whose maxima are the references of those that follow.
  CUTE_DEVICE void seed(int n, int end, bool plain) {
    typename C::ScoreFragment scores;
    await_keys();
    await_turn();
    start_scores<C>(scores, queries(), shared_.k[k_.stage].data());
    pass_turn();
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release_keys();
    if (n + 1 == end) release_queries();
    Tensor rows = rows_and_columns(scores);
    if (!plain) mask_scores(rows, n);
    raise_and_weigh(rows, params_.scale_log2);
    round_weights<C>(scores, weights_, denominators_);
  }

  // Scores of tile n; the values of the tile before it join the output meanwhile.
  template <Step kStep, bool kSum>
  CUTE_DEVICE void step(int n, int end) {
    typename C::ScoreFragment scores;
    // matrix descriptors then take no moves to uniform registers, 38 a tile at head_dim 128
    const int k_stage = ptx::uniform(k_.stage), v_stage = ptx::uniform(v_.stage);
    await_keys();
    await_turn();
    start_scores<C>(scores, queries(), shared_.k[k_stage].data());
    ptx::wait(shared_.v_full[v_.stage], v_.parity);
    start_values<C>(output, weights_, shared_.v[v_stage].data());
    pass_turn();
    warpgroup_wait<1>();
    warpgroup_fence_operand(scores);
    release_keys();
    if (n + 1 == end) release_queries();
    Tensor rows = rows_and_columns(scores);
    if constexpr (kStep != Step::kPlain) mask_scores(rows, n);
    if constexpr (kStep == Step::kOnline) {
      end_values();
      raise_and_weigh(rows, params_.scale_log2);
      round_weights<C>(scores, weights_, denominators_);
      return;
    }
    constexpr bool kCuts = kCutsWeights<C>;
    const auto exponent = [&](int r, int c) {
      return fmaf(rows(r, c), params_.scale_log2, (kCuts ? kCutLiftLog2 : 0.f) - softmax.reference[r]);
    };
    const float factor = kCuts ? 1 / kCutLift : 1.f;
    constexpr int kEarly = C::kEarlyColumns, kAll = kBlockN / 4;
    softmax.template weigh<kSum, 0, kEarly>(rows, exponent, factor);
    if constexpr (kCuts) sum_weights<C, 0, kEarly>(scores, denominators_);
    if constexpr (kEarly != 0) {
      // Left alone, ptxas puts nearly all of the weights after the product. A wait for what is over, which it takes for
      // a place to branch, holds these before.
      warpgroup_fence_operand(scores);
      ptx::wait(shared_.over, 1);
    }
    end_values();
    softmax.template weigh<kSum, kEarly, kAll>(rows, exponent, factor);
    if constexpr (kCuts) {
      sum_weights<C, kEarly, kAll>(scores, denominators_);
      join_weights<C>(scores, weights_);
    } else {
      round_weights<C>(scores, weights_, denominators_);
    }
  }

  CUTE_DEVICE void end_values() {
    warpgroup_wait<0>();
    warpgroup_fence_operand(output);
    release_values();
  }

  // scores: (rows, columns)
  template <class Scores>
  CUTE_DEVICE void raise_and_weigh(Scores& scores, float scale_log2) {
    Tensor output_rows = rows_and_columns(output);
    softmax.raise_references(scores, output_rows, denominators_, scale_log2, [](auto&) {});
    softmax.weigh(scores, scale_log2);
  }

  CUTE_DEVICE void careful_tile(int n) {
    typename C::ScoreFragment scores;
    await_keys();
    start_scores<C>(scores, queries(), shared_.k[k_.stage].data());
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release_keys();
    ptx::wait(shared_.v_full[v_.stage], v_.parity);
    Element* v = shared_.v[v_.stage].data();
    const bool isolate = ptx::named_any(kAllMath, C::kMathThreads, holds_nonfinite<C>(v));
    Tensor rows = rows_and_columns(scores);
    Tensor output_rows = rows_and_columns(output);
    mask_scores(rows, n);
    if (isolate) note_seen_keys<C>(shared_, rows);
    transform(rows, rows, [&](float s) { return s * params_.scale_log2; });
    raise_and_weigh(rows, 1.f);
    if (isolate) {
      add_nonfinite<C>(output_rows, shared_, v);
      ptx::named_sync(kAllMath, C::kMathThreads);
      clear_nonfinite<C>(v);
      ptx::named_sync(kAllMath, C::kMathThreads);
    }
    round_weights<C>(scores, weights_, denominators_);
    start_values<C>(output, weights_, v);
    end_values();
  }

  CUTE_DEVICE const Element* queries() const { return shared_.q[warpgroup()].data(); }

  // -inf where the row does not see the key.
  template <class Scores>
  CUTE_DEVICE void mask_scores(Scores& scores, int n) const {
    const int first_key = n * kBlockN + 2 * int(threadIdx.x % 4);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const RowBand band = row_band<C::kBanded>(params_.band, member(), row(r), row(r));
      const int begin = band.any_begin - first_key, end = band.any_end - first_key;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(scores); ++c) {
        const int column = 8 * (c / 2) + c % 2;
        bool seen = column < end;
        if constexpr (C::kBanded) seen = seen && column >= begin;
        scores(r, c) = seen ? scores(r, c) : -INFINITY;
      }
    }
  }

  const Params& params_;
  Shared& shared_;
  typename C::WeightFragment weights_;
  // Of this thread's columns; nothing where they are among the output's.
  Tensor<ArrayEngine<float, 2>, Layout<_2>> denominators_;
  StageIndex<C::kStages> k_, v_;
  uint32_t items_ = 0;
  const int warpgroup_ = ptx::uniform(int(threadIdx.x) / 128);
};

}  // namespace flashcute::cuda::sm90
