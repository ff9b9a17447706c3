// One output tile's way over its key tiles. Two loop bodies: online_tile takes any tile; plain_tile takes those that
// every row sees whole, which is where the time goes, in the form that the call's features need (PlainForm).
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/common/softmax.cuh"
#include "cuda/sm80/gemm.cuh"
#include "cuda/sm80/isolate.cuh"
#include "cuda/sm80/loader.cuh"

namespace flashcute::cuda::sm80 {

template <class C>
class Mainloop {
  using Element = typename C::Element;
  using Shared = typename C::SharedStorage;
  static constexpr int kBlockN = C::kBlockN;

 public:
  typename C::OutputFragment output;  // (MMA = 4, MMA_M, MMA_N = D / 8)
  RowSoftmax<Element, C::kRowsPerThread> softmax;

  // (row) of the thread, as in rows_and_columns(output)
  CUTE_DEVICE auto denominators() { return make_tensor(denominators_.data(), typename C::DenominatorRows{}); }

  // shared.work must be visible to every thread.
  CUTE_DEVICE Mainloop(const Params& params, Shared& shared)
      : params_(params),
        shared_(shared),
        lane_(lane_offsets<C>()),
        load_k_(params.head_dim),
        load_v_(params.head_dim_v) {}

  // Enqueues the query tile; the first key tile's wait covers it. No key, no load: nobody would wait for it.
  CUTE_DEVICE void load_queries() const {
    if (shared_.work.range.begin >= shared_.work.range.end) return;
    const Operand& q = params_.q;
    const int64_t base = tile().batch * q.batch + tile().head_q * q.head + member().first_q * q.row;
    TileLoader<C, typename C::LayoutQ> load_q(params_.head_dim);
    load_q.seek(q, base, first_row());
    load_q.load(q, shared_.q.data(), member().len_q - first_row());
  }

  // careful: online steps alone, on rounded scores; and infs and NaNs of V kept from the rows that do not see them.
  CUTE_DEVICE void run(bool careful) {
    clear(output);
    clear(denominators_);
    softmax = {};
    int n = range().start, end = range().end;
    if (range().begin >= end) return;
    stage_ = 0;
    load_k_.seek(params_.k, head_base(params_.k), n * kBlockN);
    load_v_.seek(params_.v, head_base(params_.v), n * kBlockN);
    load_keys(n, 0);
    if constexpr (C::kStages == 2) load_values(n, 0);
    ptx::cp_async_commit();
    while (true) {
      while (n < end) {
        if (masks_keys()) keys().show(n);
        const int plain_end = careful ? n : plain_until(n, end);
        if (plain_end > n) {
          softmax.settle();
          plain_tiles(n, plain_end, end);
          n = plain_end;
        } else {
          online_tile(n++, end, careful);
        }
      }
      if (!wraps(end)) return;
      n = range().begin;
      end = range().start;
      if constexpr (C::kStages == 1) load_v_.go_back(params_.v, range().end - n);
    }
  }

  // Leaves the rows that must be redone in shared memory, one bit a row; true when the CTA has any.
  CUTE_DEVICE bool publish_failed_rows() {
    Tensor rows = rows_and_columns(output);
    uint32_t failed = 0;
    CUTE_UNROLL
    for (int r = 0; r < C::kRowsPerThread; ++r) {
      const bool lost = softmax.failed(r, rows, denominators()(r)) && first_thread_row() + 8 * r < member().len_q;
      failed |= uint32_t(lost) << (threadIdx.x % 32 / 4 + 8 * r);
    }
    failed = __reduce_or_sync(0xffffffffu, failed);
    if (threadIdx.x % 32 == 0) shared_.redo_rows[threadIdx.x / 32] = failed;
    return __syncthreads_or(failed != 0);
  }

  CUTE_DEVICE int first_row() const { return tile().m * C::kBlockM; }
  CUTE_DEVICE int first_warp_row() const { return first_row() + int(threadIdx.x / 32) * C::kRowsPerWarp; }
  CUTE_DEVICE int first_thread_row() const { return first_row() + C::row_of_thread(threadIdx.x); }

 private:
  CUTE_DEVICE const TileIndex& tile() const { return shared_.work.tile; }
  CUTE_DEVICE const Member& member() const { return shared_.work.member; }
  CUTE_DEVICE const KeyRange& range() const { return shared_.work.range; }

  CUTE_DEVICE bool masks_keys() const { return params_.key_mask.data != nullptr; }
  CUTE_DEVICE KeyMask<kBlockN, C::kThreads> keys() const {
    return {params_, tile(), member(), range(), shared_.key_bits};
  }

  // Does the walk that ends at `end` go on from the beginning?
  CUTE_DEVICE bool wraps(int end) const { return C::kExtras && end == range().end && range().begin < range().start; }

  // The end of the run of plain tiles that starts at n; n or less when tile n is none.
  CUTE_DEVICE int plain_until(int n, int end) const {
    if (n < range().plain_begin || (n >= range().start && n < range().seed_end)) return n;
    const int plain_end = min(range().plain_end, end);
    return masks_keys() ? keys().whole_until(n, plain_end) : plain_end;
  }

  CUTE_DEVICE int64_t head_base(const Operand& operand) const {
    return tile().batch * operand.batch + tile().head_k * operand.head + member().first_k * operand.row;
  }

  CUTE_DEVICE void load_keys(int n, int stage) {
    load_k_.load(params_.k, shared_.stages[stage].k.data(), member().len_k - n * kBlockN);
  }

  CUTE_DEVICE void load_values(int n, int stage) {
    load_v_.load(params_.v, shared_.stages[stage].v.data(), member().len_k - n * kBlockN);
  }

  CUTE_DEVICE Columns<kBlockN> columns_of(int n) const {
    return masks_keys() ? keys().columns(n) : existing_columns<kBlockN>(member().len_k, n * kBlockN);
  }

  // The tile after n; `end` or more when there is none. Loads go on from it.
  CUTE_DEVICE int next_tile(int n, int end) {
    const int next = n + 1;
    if constexpr (C::kExtras) {
      if (next == end && wraps(end)) {
        const int tiles = end - range().begin;
        load_k_.go_back(params_.k, tiles);
        if constexpr (C::kStages == 2) load_v_.go_back(params_.v, tiles);
        return range().begin;
      }
    }
    return next;
  }

  // Tile n (with one stage: its K) has landed and every warp is done with the one before; the next loads start.
  CUTE_DEVICE void begin_tile(int n, int end) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if constexpr (C::kStages == 1) {
      load_values(n, 0);
    } else if (const int next = next_tile(n, end); next < end) {
      load_keys(next, stage_ ^ 1);
      load_values(next, stage_ ^ 1);
    }
    ptx::cp_async_commit();
  }

  // With one stage: V has landed, every warp is done with K.
  CUTE_DEVICE void await_values(int n, int end) {
    if constexpr (C::kStages == 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (const int next = next_tile(n, end); next < end) load_keys(next, 0);
      ptx::cp_async_commit();
    }
  }

  CUTE_DEVICE void end_tile() {
    if constexpr (C::kStages == 2) stage_ ^= 1;
  }

  // [n, plain_end) of a walk to `end`.
  CUTE_DEVICE void plain_tiles(int n, int plain_end, int end) {
    if constexpr (C::kExtras) {
      switch (params_.extras.plain) {
        case PlainForm::kSoftcap:
          return plain_tiles<PlainForm::kSoftcap>(n, plain_end, end);
        case PlainForm::kAlibi:
          return plain_tiles<PlainForm::kAlibi>(n, plain_end, end);
        case PlainForm::kSoftcapAlibi:
          return plain_tiles<PlainForm::kSoftcapAlibi>(n, plain_end, end);
        default:
          break;
      }
    }
    plain_tiles<PlainForm::kBare>(n, plain_end, end);
  }

  template <PlainForm kForm>
  CUTE_DEVICE void plain_tiles(int n, int plain_end, int end) {
    if (params_.lse.data != nullptr) {
      for (; n < plain_end; ++n) plain_tile<kForm, true>(n, end);
    } else {
      for (; n < plain_end; ++n) plain_tile<kForm, false>(n, end);
    }
  }

  // kSums: the LSE is wanted, for which weights are summed as they are before they are rounded.
  template <PlainForm kForm, bool kSums>
  CUTE_DEVICE void plain_tile(int n, int end) {
    begin_tile(n, end);
    const auto& stage = shared_.stages[stage_];
    const LaneOffsets lane = fresh_lane_offsets();
    typename C::ScoreFragment scores;
    gemm_scores<C>(scores, warp_queries(), ptx::shared_address(stage.k.data()), lane);
    await_values(n, end);
    Tensor rows = rows_and_columns(scores);
    const float slope_log2 = n < range().start ? shared_.work.slope_log2 : -shared_.work.slope_log2;
    weigh_plain_scores<kForm, kSums>(softmax, rows, params_, slope_log2, member().diagonal, place_of(n));
    auto weights = make_tensor<Element>(typename C::ScoreFragment{}.layout());  // (MMA = 4, MMA_M, MMA_N)
    round_weights<C>(scores, weights);
    gemm_values<true, C>(output, denominators_, weights, ptx::shared_address(stage.v.data()), lane);
    end_tile();
  }

  CUTE_DEVICE void online_tile(int n, int end, bool careful) {
    begin_tile(n, end);
    auto& stage = shared_.stages[stage_];
    bool seen = columns_of(n).any() && warp_sees(n);
    const ElementPlace place = place_of(n);
    ElementBits<C::kRowsPerThread, kBlockN / 4> visible;
    if constexpr (C::kExtras) {
      if (seen) visible = extras().template visible_pairs<C::kRowsPerThread, kBlockN / 4>(place);
      seen = __any_sync(0xffffffffu, seen && visible.bits != 0);
      // before there are scores: Philox beside them would spill
      if (careful && extras().drops()) note_dropped_keys<C>(shared_, extras(), first_warp_row(), n * kBlockN);
    }
    const LaneOffsets lane = fresh_lane_offsets();
    typename C::ScoreFragment scores;
    if (seen) gemm_scores<C>(scores, warp_queries(), ptx::shared_address(stage.k.data()), lane);
    await_values(n, end);
    const bool isolate = careful && __syncthreads_or(holds_nonfinite<C>(stage.v.data()));
    Tensor rows = rows_and_columns(scores);
    if (seen) {
      if constexpr (C::kExtras) extras().apply(rows, place, visible);
      if (!warp_sees_all(n, columns_of(n))) mask_scores(rows, place_of(n), columns_of(n));
      if (isolate) note_seen_keys<C>(shared_, rows);
      Tensor output_rows = rows_and_columns(output);
      Tensor row_denominators = denominators();
      // what is not multiplied here is multiplied unrounded, beside a reference that is not: too much for huge scores
      const bool scaled = C::kExtras || careful;
      if (scaled && !C::kExtras) transform(rows, rows, [&](float s) { return s * params_.scale_log2; });
      softmax.online_step(rows, output_rows, row_denominators, scaled ? 1.f : params_.scale_log2);
      if (isolate) add_nonfinite<C>(output_rows, shared_, stage.v.data(), C::kExtras && extras().drops());
    }
    if (isolate) {
      __syncthreads();
      clear_nonfinite<C>(stage.v.data());
      __syncthreads();
    }
    if (seen) {
      auto weights = make_tensor<Element>(typename C::ScoreFragment{}.layout());  // (MMA = 4, MMA_M, MMA_N)
      round_weights<C>(scores, weights);
      sum_weights<C>(denominators_, weights);
      if constexpr (C::kExtras) {  // dropped weights count in the denominators
        if (extras().drop(rows, place)) round_weights<C>(scores, weights);
      }
      gemm_values<false, C>(output, denominators_, weights, ptx::shared_address(stage.v.data()), lane);
    }
    end_tile();
  }

  // For one tile: what is made of them must not live longer.
  CUTE_DEVICE LaneOffsets fresh_lane_offsets() const {
    LaneOffsets lane = lane_;
    ptx::forget_origin(lane.by_rows);
    ptx::forget_origin(lane.by_columns);
    return lane;
  }

  CUTE_DEVICE uint32_t warp_queries() const {
    return ptx::shared_address(shared_.q.data()) +
           2u * typename C::LayoutQ{}(int(threadIdx.x / 32) * C::kRowsPerWarp, 0);
  }

  CUTE_DEVICE ScoreExtras<Element> extras() const { return {params_, tile(), member(), shared_.work.slope_log2}; }

  CUTE_DEVICE ElementPlace place_of(int n) const {
    return {first_thread_row(), n * kBlockN + 2 * int(threadIdx.x % 4)};
  }

  CUTE_DEVICE bool warp_sees(int n) const {
    if (first_warp_row() >= member().len_q) return false;
    const RowBand rows = warp_band();
    return n * kBlockN < rows.any_end && (n + 1) * kBlockN > rows.any_begin;
  }

  CUTE_DEVICE bool warp_sees_all(int n, const Columns<kBlockN>& columns) const {
    const RowBand rows = warp_band();
    return columns.all() && n * kBlockN >= rows.all_begin && (n + 1) * kBlockN <= rows.all_end;
  }

  CUTE_DEVICE RowBand warp_band() const {
    return row_band<C::kBanded>(params_.band, member(), first_warp_row(), first_warp_row() + C::kRowsPerWarp - 1);
  }

  // -inf where the row does not see the key.
  template <class Scores>
  CUTE_DEVICE void mask_scores(Scores& scores, ElementPlace place, Columns<kBlockN> columns) const {
    CUTE_UNROLL
    for (int i = 0; i < C::kColumnWords; ++i) columns.words[i] >>= 2 * (threadIdx.x % 4);
    const int diagonal = member().diagonal;
    CUTE_UNROLL
    for (int r = 0; r < size<0>(scores); ++r) {
      const int aligned = place.row(r) + diagonal - place.first_key;
      const int low = aligned - params_.band.left, high = aligned + params_.band.right;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(scores); ++c) {
        const int column = 8 * (c / 2) + c % 2;
        bool seen = (columns.words[column / 32] >> (column % 32)) & 1;
        if constexpr (C::kBanded) seen = seen && column >= low && column <= high;
        scores(r, c) = seen ? scores(r, c) : -INFINITY;
      }
    }
  }

  const Params& params_;
  Shared& shared_;
  LaneOffsets lane_;
  typename C::DenominatorFragment denominators_;
  TileLoader<C, typename C::LayoutKV> load_k_, load_v_;
  int stage_ = 0;
};

}  // namespace flashcute::cuda::sm80
