// What a math warpgroup does with one key tile, and with what the tiles have in common: rings of stages, turns at the
// tensor cores, masks. Q K^T of a tile goes under the softmax of the one before (step); first tiles, those of
// the pass for nonfinite values and those of mask class any that are not plain go by themselves.
#pragma once

#include "cuda/common/key_mask.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/common/softmax.cuh"
#include "cuda/sm90/gemm.cuh"
#include "cuda/sm90/isolate.cuh"

namespace flashcute::cuda::sm90 {

// How a step takes a tile in (softmax.cuh).
enum class Step {
  kOnline,  // masked where a row does not see all of the tile
  kFixed,   // masked
  kPlain,   // fixed, of a tile that every row sees whole
};

// Where a warp's rows of the output go: the first one's, in its tensor.
struct Place {
  int row, rows_left, head, batch;  // rows_left: of the member, from there on
};

template <class C>
class Steps {
  using Element = typename C::Element;
  using Shared = typename C::SharedStorage;
  static constexpr int kBlockN = C::kBlockN;
  // Steps find their keys there, awaited under the product before, where the producer is a tile further ahead. Bands
  // have few tiles, whose first ones come late: 2% slower at head_dim 64.
  static constexpr bool kKeysAhead = C::kWarpgroups > 2 && !C::kBanded;

 public:
  typename C::OutputFragment output;
  RowSoftmax<Element, 2> softmax;

  CUTE_DEVICE Steps(const Params& params, Shared& shared) : params_(params), shared_(shared) {
    if (warpgroup() == C::kWarpgroups - 1) pass_turn();
  }

  // Waits for the next work and its queries.
  CUTE_DEVICE WorkKind await_work() {
    __syncwarp();  // every lane has read what it needs of the item before: release_queries() says so
    item_.advance();
    ptx::wait(shared_.queries_full[warpgroup()], queries_parity(item_));
    return kind();
  }

  CUTE_DEVICE WorkKind kind() const { return static_cast<WorkKind>(ptx::uniform(static_cast<int>(work().kind))); }

  CUTE_DEVICE Pass pass() const { return static_cast<Pass>(ptx::uniform(static_cast<int>(work().pass))); }

  // After await_work(), exactly once for each.
  CUTE_DEVICE void release_queries() const { arrive_as_warp(shared_.queries_empty[warpgroup()]); }

  CUTE_DEVICE int slot() const { return item_.stage(); }
  // Found while a product is under way, for the epilogue.
  CUTE_DEVICE Place place() const { return place_; }
  // In shared memory: registers are for the accumulators.
  CUTE_DEVICE const Member& member() const { return work().member; }
  CUTE_DEVICE int row(int r) const { return first_row() + C::row_of_thread(ptx::thread_again()) + 8 * r; }

  // The sum of the row's rounded weights.
  CUTE_DEVICE float denominator(int r) {
    if constexpr (C::kSums) {
      return rows_and_columns(output)(r, C::kHeadDimV / 4);
    } else {
      return quad_reduce(denominators_(r), [](float a, float b) { return a + b; });
    }
  }

  CUTE_DEVICE float sink() const { return sink_of<Element>(params_.extras, work().tile); }

  CUTE_DEVICE float lse_of_true_slope(float lse) const {
    return cuda::lse_of_true_slope(params_.extras, work().tile, lse);
  }

  // Is there a key that the row sees?
  CUTE_DEVICE bool sees_any(int r) const {
    const RowBand band = row_band<C::kBanded>(params_.band, member(), row(r), row(r));
    return band.any_begin < band.any_end;
  }

 protected:
  CUTE_DEVICE const Work<C::kWarpgroups>& work() const { return shared_.work[slot()]; }

  CUTE_DEVICE int warpgroup() const {
    if constexpr (C::kExtras && C::kHeadDim > 192) {
      return ptx::uniform(ptx::thread_again() / 128);  // no register is left for it
    } else {
      return warpgroup_;
    }
  }

  CUTE_DEVICE auto queries() const { return operands_.queries(warpgroup()); }

  CUTE_DEVICE int first_row() const { return work().tile.m * C::kBlockM; }

  CUTE_DEVICE void find_place() {
    const int first = ptx::uniform(first_row() + ptx::thread_again() / 32 * C::kRowsPerWarp);
    place_.row = ptx::uniform(member().first_q + first);
    place_.rows_left = ptx::uniform(member().len_q - first);
    place_.head = ptx::uniform(work().tile.head_q);
    place_.batch = ptx::uniform(work().tile.batch);
  }

  CUTE_DEVICE void await_keys() const { ptx::wait(shared_.k_full[k_.stage()], k_.parity()); }

  CUTE_DEVICE void await_next_keys(int n, int end) const {
    if (kKeysAhead && n + 1 < end) await_keys();
  }

  CUTE_DEVICE void release_keys() {
    arrive_as_warp(shared_.k_empty[k_.stage()]);
    k_.advance();
  }

  // Their stage. Keys are one tile ahead of values.
  CUTE_DEVICE int await_values(StageIndex<C::kStages> v) const {
    // matrix descriptors then take no moves to uniform registers, 38 a tile at head_dim 128
    const int stage = ptx::uniform(v.stage());
    ptx::wait(shared_.v_full[stage], v.parity());
    return stage;
  }

  CUTE_DEVICE void release_values(int stage) const { arrive_as_warp(shared_.v_empty[stage]); }

  CUTE_DEVICE void await_turn() const { ptx::named_sync(kTurnOfFirst + warpgroup(), 256); }

  CUTE_DEVICE void pass_turn() const {
    ptx::named_arrive(kTurnOfFirst + (warpgroup() == C::kWarpgroups - 1 ? 0 : warpgroup() + 1), 256);
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
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      await_turn();
      pass_turn();
      await_keys();  // lest this warpgroup's arrivals run a phase ahead
      release_keys();
      release_values(await_values(k_.before()));
    }
  }

  // Of keys that are there, with no product of values beside.
  CUTE_DEVICE void compute_scores(typename C::ScoreFragment& scores) {
    await_turn();
    start_scores<C>(scores, queries(), operands_.keys(k_.stage()));
    pass_turn();
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release_keys();
  }

  // The first tile, whose maxima are the references of those that follow.
  CUTE_DEVICE void seed(int n, int end, bool plain) {
    typename C::ScoreFragment scores;
    await_keys();
    compute_scores(scores);
    if (n + 1 == end) release_queries();
    await_next_keys(n, end);
    Tensor rows = rows_and_columns(scores);
    if (!plain) mask_scores(rows, n);
    raise_and_weigh(rows, params_.scale_log2);
    round_weights(scores);
  }

  // Scores of tile n, the last before `end` or another; the values of the tile before it join the output meanwhile.
  template <Step kStep, bool kSum>
  CUTE_DEVICE void step(int n, int end) {
    step<kStep, kSum>(n, end, [&](auto& rows) {
      return [&](int r, int c) { return fmaf(rows(r, c), params_.scale_log2, -softmax.reference[r]); };
    });
  }

  // exponents(rows): of raw scores, what 2 is raised to for the weight (r, c).
  template <Step kStep, bool kSum, class Exponents>
  CUTE_DEVICE void step(int n, int end, Exponents exponents) {
    typename C::ScoreFragment scores;
    const int k_stage = ptx::uniform(k_.stage());
    if constexpr (!kKeysAhead) await_keys();
    await_turn();
    start_scores<C>(scores, queries(), operands_.keys(k_stage));
    const int v_stage = await_values(k_.before());
    start_values<C>(output, weights_, operands_.values(v_stage));
    pass_turn();
    warpgroup_wait<1>();
    warpgroup_fence_operand(scores);
    release_keys();
    if (n + 1 == end) release_queries();
    Tensor rows = rows_and_columns(scores);
    if constexpr (kStep == Step::kFixed) mask_scores(rows, n);
    if constexpr (kStep == Step::kOnline) {
      if (n < own_tiles().all_begin || n >= own_tiles().all_end) mask_scores(rows, n);
      const auto rescale = softmax.raise_references(rows, params_.scale_log2, [](auto&) {});
      softmax.weigh(rows, params_.scale_log2);
      end_values(v_stage);
      apply(rescale);
      round_weights(scores);
      return;
    }
    const auto exponent = exponents(rows);
    constexpr int kEarly = C::kEarlyColumns, kAll = kBlockN / 4;
    constexpr bool kFollows = kLooksAtWeights<Element>;  // bfloat16 that outgrows its range takes the online pass
    softmax.template weigh<kSum, 0, kEarly>(rows, exponent);
    if constexpr (!kFollows) round_and_sum<C, 0, kEarly>(scores, denominators_);
    if constexpr (kEarly != 0) {
      // Left alone, ptxas puts nearly all of the weights after the product. A wait for what is over, which it takes for
      // a place to branch, holds these before.
      warpgroup_fence_operand(scores);
      ptx::wait(shared_.over, 1);
    }
    await_next_keys(n, end);
    end_values(v_stage);
    softmax.template weigh<kSum, kEarly, kAll>(rows, exponent);
    if constexpr (kFollows) follow_weights(rows);
    round_and_sum<C, kFollows ? 0 : kEarly, kAll>(scores, denominators_);
    pack_weights<C>(scores, weights_);
  }

  // Before weights are rounded and while no product is under way.
  template <class Weights>
  CUTE_DEVICE void follow_weights(Weights& weights) {
    float levels[2] = {greatest_in_row(weights, 0), greatest_in_row(weights, 1)};
    if (!ptx::rarely_any(softmax.outgrown(levels))) return;
    Tensor output_rows = rows_and_columns(output);
    softmax.template raise_outgrown<kBlockN / 4>(levels, weights, output_rows, denominators_, [](auto&) {});
  }

  CUTE_DEVICE void end_values(int stage) {
    warpgroup_wait<0>();
    warpgroup_fence_operand(output);
    release_values(stage);
  }

  template <class Rescale>
  CUTE_DEVICE void apply(const Rescale& rescale) {
    Tensor output_rows = rows_and_columns(output);
    softmax.apply(rescale, output_rows, denominators_);
  }

  // scores: (rows, columns)
  template <class Scores>
  CUTE_DEVICE void raise_and_weigh(Scores& scores, float scale_log2) {
    apply(softmax.raise_references(scores, scale_log2, [](auto&) {}));
    softmax.weigh(scores, scale_log2);
  }

  CUTE_DEVICE void round_weights(typename C::ScoreFragment& scores) {
    round_and_sum<C, 0, kBlockN / 4>(scores, denominators_);
    pack_weights<C>(scores, weights_);
  }

  // ---- mask class any ----

  CUTE_DEVICE const Walk& walk() const { return shared_.walks[slot()]; }
  CUTE_DEVICE int range_start() const { return ptx::uniform(walk().range.start); }

  // The tile behind the last one that these rows see on the walk.
  CUTE_DEVICE int walk_end() const {
    const BandTiles own = own_tiles();
    return own.any_begin < range_start() ? min(own.any_end, range_start()) : own.any_end;
  }

  // The weights of the last tile.
  CUTE_DEVICE void finish_values() {
    const int v_stage = await_values(k_.before());
    start_values<C>(output, weights_, operands_.values(v_stage));
    end_values(v_stage);
  }

  // Of the tile whose keys come next, those that the key mask lets take part.
  CUTE_DEVICE Columns<kBlockN> next_columns() const {
    if (params_.key_mask.data == nullptr) return Columns<kBlockN>::full();
    await_keys();
    return shared_.columns[k_.stage()];
  }

  // Raw products become scores in powers of two.
  template <class Scores>
  CUTE_DEVICE void transform_scores(Scores& scores, int n) const {
    const ScoreExtras<Element> extras{params_, work().tile, member(), walk().slope_log2};
    extras.scale_and_cap(scores);
    extras.add_alibi(scores, place_of(n));
  }

  // -inf where the key mask hides the key.
  template <class Scores>
  CUTE_DEVICE static void hide_keys(Scores& scores, const Columns<kBlockN>& columns) {
    cuda::hide_keys(scores, columns, C::column_of_thread(ptx::thread_again()));
  }

  CUTE_DEVICE ElementPlace place_of(int n) const {
    return {row(0), n * kBlockN + C::column_of_thread(ptx::thread_again())};
  }

  // Any tile; its weights are left for its values.
  CUTE_DEVICE void general_tile(int n, bool whole) {
    typename C::ScoreFragment scores;
    await_keys();
    const Columns<kBlockN> columns = next_columns();
    compute_scores(scores);
    if (n + 1 == walk_end()) release_queries();
    Tensor rows = rows_and_columns(scores);
    // Bare products are multiplied as plain tiles do it, unrounded: of huge scores the difference is powers of two.
    const bool bare = params_.extras.plain == PlainForm::kBare;
    if (!bare) transform_scores(rows, n);
    if (!whole) mask_scores(rows, n);
    if (!columns.all()) hide_keys(rows, columns);
    raise_and_weigh(rows, bare ? params_.scale_log2 : 1.f);
    round_weights(scores);
  }

  // Is a tile plain only where the key mask hides none of it?
  template <PlainForm kForm>
  CUTE_DEVICE bool asks_for_columns() const {
    return params_.key_mask.data != nullptr && kForm != PlainForm::kBare;
  }

  // last: the walk's, behind which there is none. slope_log2: ALiBi's, negated where keys lie after the rows'
  // diagonals.
  template <PlainForm kForm, bool kSum>
  CUTE_DEVICE void plain_tile(int n, int last, float slope_log2) {
    Columns<kBlockN> columns;
    const bool hides = kForm == PlainForm::kBare && params_.key_mask.data != nullptr;
    if (hides) columns = next_columns();
    step<Step::kPlain, kSum>(n, last, [&](auto& rows) {
      if (hides && !columns.all()) hide_keys(rows, columns);
      return PlainExponents<kForm, std::remove_reference_t<decltype(rows)>, false>(
          softmax.reference, rows, params_, slope_log2, member().diagonal, place_of(n));
    });
  }

  CUTE_DEVICE void nonfinite_tile(int n) {
    typename C::ScoreFragment scores;
    await_keys();
    Columns<kBlockN> columns;
    if constexpr (C::kExtras) columns = next_columns();
    start_scores<C>(scores, queries(), operands_.keys(k_.stage()));
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release_keys();
    const int v_stage = await_values(k_.before());
    Element* v = shared_.v[v_stage].data();
    const bool isolate = ptx::named_any(kAllMath, C::kMathThreads, holds_nonfinite<C>(v));
    Tensor rows = rows_and_columns(scores);
    Tensor output_rows = rows_and_columns(output);
    if constexpr (C::kExtras) {
      transform_scores(rows, n);
    } else {
      transform(rows, rows, [&](float s) { return s * params_.scale_log2; });
    }
    mask_scores(rows, n);
    if constexpr (C::kExtras) hide_keys(rows, columns);
    if (isolate) note_seen_keys<C>(shared_, rows);
    raise_and_weigh(rows, 1.f);
    if (isolate) {
      add_nonfinite<C>(output_rows, shared_, v);
      ptx::named_sync(kAllMath, C::kMathThreads);
      clear_nonfinite<C>(v);
      ptx::named_sync(kAllMath, C::kMathThreads);
    }
    round_weights(scores);
    start_values<C>(output, weights_, operands_.values(v_stage));
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
      // bits would be as many instructions, and were 2% slower at head_dim 64
      cuda::mask_scores<false>(scores, params_.band, member(), {0, first_key});
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
  const Operands<C> operands_{shared_, warpgroup_};
};

}  // namespace flashcute::cuda::sm90
