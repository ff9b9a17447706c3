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

// Where a warp's rows of the output go: the first one's, in its tensor.
struct Place {
  int row, rows_left, head, batch;  // rows_left: of the member, from there on
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
    if (warpgroup_ == C::kWarpgroups - 1) pass_turn();
  }

  // Waits for the next work and its queries.
  CUTE_DEVICE WorkKind await_work() {
    item_.advance();
    ptx::wait(shared_.queries_full[warpgroup_], queries_parity(item_));
    return kind();
  }

  CUTE_DEVICE WorkKind kind() const { return static_cast<WorkKind>(ptx::uniform(static_cast<int>(work().kind))); }

  // After await_work(), exactly once for each.
  CUTE_DEVICE void release_queries() const { arrive(shared_.queries_empty[warpgroup_]); }

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
    if constexpr (C::kBanded) pass_over(begin, own.any_begin);
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
    const int v_stage = await_values(k_.before());
    start_values<C>(output, weights_, shared_.v[v_stage].data());
    find_place();
    end_values(v_stage);
    if constexpr (C::kBanded) pass_over(own.any_end, end);
  }

  // Online steps alone, on rounded scores; and infs and NaNs of V kept from the rows that do not see them.
  CUTE_DEVICE void run_careful() {
    reset();
    const int end = ptx::uniform(work().seen.any_end);
    for (int n = ptx::uniform(work().seen.any_begin); n < end; ++n) careful_tile(n);
    find_place();
    release_queries();
  }

  CUTE_DEVICE int slot() const { return item_.stage(); }
  // Found while a product is under way, for the epilogue.
  CUTE_DEVICE Place place() const { return place_; }
  // In shared memory: registers are for the accumulators.
  CUTE_DEVICE const Member& member() const { return work().member; }
  CUTE_DEVICE int row(int r) const { return first_row() + C::row_of_thread(ptx::thread_again()) + 8 * r; }

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

  CUTE_DEVICE Element* queries() const { return shared_.q[warpgroup_].data(); }

  CUTE_DEVICE int first_row() const { return work().tile.m * C::kBlockM; }

  CUTE_DEVICE void find_place() {
    const int first = ptx::uniform(first_row() + ptx::thread_again() / 32 * C::kRowsPerWarp);
    place_.row = ptx::uniform(member().first_q + first);
    place_.rows_left = ptx::uniform(member().len_q - first);
    place_.head = ptx::uniform(work().tile.head_q);
    place_.batch = ptx::uniform(work().tile.batch);
  }

  CUTE_DEVICE void arrive(ptx::Barrier& barrier) const {
    if (threadIdx.x % 32 == 0) ptx::arrive(barrier);
  }

  CUTE_DEVICE void await_keys() const { ptx::wait(shared_.k_full[k_.stage()], k_.parity()); }

  CUTE_DEVICE void release_keys() {
    arrive(shared_.k_empty[k_.stage()]);
    k_.advance();
  }

  // Their stage. Keys are one tile ahead of values.
  CUTE_DEVICE int await_values(StageIndex<C::kStages> v) const {
    // matrix descriptors then take no moves to uniform registers, 38 a tile at head_dim 128
    const int stage = ptx::uniform(v.stage());
    ptx::wait(shared_.v_full[stage], v.parity());
    return stage;
  }

  CUTE_DEVICE void release_values(int stage) const { arrive(shared_.v_empty[stage]); }

  CUTE_DEVICE void await_turn() const { ptx::named_sync(kTurnOfFirst + warpgroup_, 256); }

  CUTE_DEVICE void pass_turn() const {
    ptx::named_arrive(kTurnOfFirst + (warpgroup_ == C::kWarpgroups - 1 ? 0 : warpgroup_ + 1), 256);
  }

  CUTE_DEVICE void reset() {
    clear(output);
    clear(denominators_);
    softmax = {};
  }

  // The tiles that this warpgroup's rows see.
  CUTE_DEVICE BandTiles own_tiles() const {
    const BandTiles& own = work().seen_by[warpgroup_];
    return {ptx::uniform(own.any_begin), ptx::uniform(own.any_end), ptx::uniform(own.all_begin),
            ptx::uniform(own.all_end)};
  }

  CUTE_DEVICE void pass_over(int begin, int end) {
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      await_turn();
      pass_turn();
      await_keys();  // lest this warpgroup's arrivals run a phase ahead
      release_keys();
      release_values(await_values(k_.before()));
    }
  }

  // The first tile, whose maxima are the references of those that follow.
  CUTE_DEVICE void seed(int n, int end, bool plain) {
    typename C::ScoreFragment scores;
    await_keys();
    await_turn();
    start_scores<C>(scores, queries(), shared_.k[k_.stage()].data());
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
    const int k_stage = ptx::uniform(k_.stage());
    await_keys();
    await_turn();
    start_scores<C>(scores, queries(), shared_.k[k_stage].data());
    const int v_stage = await_values(k_.before());
    start_values<C>(output, weights_, shared_.v[v_stage].data());
    pass_turn();
    warpgroup_wait<1>();
    warpgroup_fence_operand(scores);
    release_keys();
    if (n + 1 == end) release_queries();
    Tensor rows = rows_and_columns(scores);
    if constexpr (kStep != Step::kPlain) mask_scores(rows, n);
    if constexpr (kStep == Step::kOnline) {
      end_values(v_stage);
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
    end_values(v_stage);
    softmax.template weigh<kSum, kEarly, kAll>(rows, exponent, factor);
    if constexpr (kCuts) {
      sum_weights<C, kEarly, kAll>(scores, denominators_);
      join_weights<C>(scores, weights_);
    } else {
      round_weights<C>(scores, weights_, denominators_);
    }
  }

  CUTE_DEVICE void end_values(int stage) {
    warpgroup_wait<0>();
    warpgroup_fence_operand(output);
    release_values(stage);
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
    start_scores<C>(scores, queries(), shared_.k[k_.stage()].data());
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release_keys();
    const int v_stage = await_values(k_.before());
    Element* v = shared_.v[v_stage].data();
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
    end_values(v_stage);
  }

  // -inf where the row does not see the key.
  template <class Scores>
  CUTE_DEVICE void mask_scores(Scores& scores, int n) const {
    const int thread = ptx::thread_again(), first_key = n * kBlockN + C::column_of_thread(thread);
    if constexpr (C::kBanded) {
      Member member{};
      member.len_k = ptx::uniform(this->member().len_k);
      member.diagonal = ptx::uniform(this->member().diagonal + first_row());  // of the tile's first row
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int row = C::row_of_thread(thread) + 8 * r;
        const RowBand band = row_band<true>(params_.band, member, row, row);
        const int end = columns_before(band.any_end - first_key);
        const int begin = min(columns_before(band.any_begin - first_key), end);
        const uint32_t seen = ptx::bits(begin, end - begin);
        CUTE_UNROLL
        for (int c = 0; c < size<1>(scores); ++c) scores(r, c) = (seen >> c) & 1 ? scores(r, c) : -INFINITY;
      }
    } else {
      // one limit for all rows: bits would be as many instructions, and were 2% slower at head_dim 64
      const int end = member().len_k - first_key;
      CUTE_UNROLL
      for (int i = 0; i < size(scores); ++i) {
        const int r = i % 2, c = i / 2, column = 8 * (c / 2) + c % 2;
        scores(r, c) = column < end ? scores(r, c) : -INFINITY;
      }
    }
  }

  // Of a row's columns that a thread holds, which are 0, 1, 8, 9, 16, ..: how many are below `column`?
  CUTE_DEVICE static int columns_before(int column) {
    column = min(max(column, 0), kBlockN);
    return column / 8 * 2 + min(column % 8, 2);
  }

  const Params& params_;
  Shared& shared_;
  typename C::WeightFragment weights_;
  // Of this thread's columns; nothing where they are among the output's.
  Tensor<ArrayEngine<float, 2>, Layout<_2>> denominators_;
  StageIndex<C::kStages> k_;
  Place place_;
  StageIndex<kItems> item_{2 * kItems - 1};
  const int warpgroup_ = ptx::uniform(int(threadIdx.x) / 128);
};

}  // namespace flashcute::cuda::sm90
