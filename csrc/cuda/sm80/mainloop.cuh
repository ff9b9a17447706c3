// One output tile's way over its key tiles. Two loop bodies: general_tile takes any tile; plain_tile takes those that
// every row sees whole, which is where the time goes, in the form that the call's features need (PlainForm).
#pragma once

#include "cuda/common/mask.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/common/softmax.cuh"
#include "cuda/sm80/gemm.cuh"
#include "cuda/sm80/isolate.cuh"
#include "cuda/sm80/loader.cuh"
#include "cuda/sm80/parts.cuh"

namespace flashcute::cuda::sm80 {

template <class C>
CUTE_DEVICE auto block_mask_of(const Params& params, typename C::SharedStorage& shared) {
  return BlockMask<C::kBlockM, C::kBlockN, C::kThreads>(params, shared.work.tile, shared.work.range,
                                                        shared.runs.block_bits);
}

// The first run of the walk in [begin, end). Every thread of the CTA calls it.
template <class C>
CUTE_DEVICE KeyRun first_run(const Params& params, typename C::SharedStorage& shared, int begin, int end) {
  if (params.extras.block_mask.data == nullptr) return {begin, end};
  return block_mask_of<C>(params, shared).first_run(begin, end);
}

template <class C>
class Mainloop {
  using Element = typename C::Element;
  using Shared = typename C::SharedStorage;
  static constexpr int kBlockN = C::kBlockN;

 public:
  typename C::OutputFragment output;  // (MMA = 4, MMA_M, MMA_N = D / 8 / parts)
  RowSoftmax<Element, C::kRowsPerThread> softmax;

  // (row) of the thread, as in rows_and_columns(output)
  CUTE_DEVICE auto denominators() { return make_tensor(denominators_.data(), typename C::DenominatorRows{}); }

  // shared.work must be visible to every thread.
  CUTE_DEVICE Mainloop(const Params& params, Shared& shared)
      : params_(params),
        shared_(shared),
        lane_(lane_offsets<C>()),
        load_k_(params.head_dim),
        load_v_(params.head_dim_v) {
    if (threadIdx.x % 32 == 0) {
      BandTiles& tiles = shared.warp_tiles[threadIdx.x / 32];
      tiles = {};
      if (first_warp_row() < member().len_q) tiles = tiles_of<kBlockN>(warp_band());
    }
    __syncwarp();
  }

  // Enqueues the query tile; the first key tile's wait covers it. No key, no load: nobody would wait for it.
  CUTE_DEVICE void load_queries() const {
    if (shared_.work.range.begin >= shared_.work.range.end) return;
    const Operand& q = params_.q;
    const int64_t base = tile().batch * q.batch + tile().head_q * q.head + member().first_q * q.row;
    TileLoader<C, typename C::LayoutQ> load_q(params_.head_dim);
    load_q.seek(q, base, first_row());
    load_q.load(q, shared_.q.data(), member().len_q - first_row());
  }

  // careful: references are raised at every tile, scores rounded first, and infs and NaNs of V kept from the rows that
  // do not see them.
  CUTE_DEVICE void run(bool careful) {
    clear(output);
    clear(denominators_);
    softmax = {};
    int n = range().start, end = range().end;
    if (range().begin >= end) return;
    stage_ = 0;
    bool settled = false;
    load_k_.seek(params_.k, head_base(params_.k), n * kBlockN);
    load_v_.seek(params_.v, head_base(params_.v), n * kBlockN);
    load_keys(n, 0);
    if constexpr (C::kStages == 2) load_values(n, 0);
    ptx::cp_async_commit();
    if constexpr (C::kExtras) end = shared_.runs.first_end;
    while (true) {
      if constexpr (C::kExtras) announce_run_after(end);
      while (n < end) {
        if constexpr (C::kExtras) {
          if (masks_keys()) keys().show(n);
        }
        const int plain_end = careful ? n : plain_until(n, end);
        if (plain_end > n) {
          softmax.settle();
          settled = true;
          plain_tiles(n, plain_end, end);
          n = plain_end;
        } else {
          general_tile(n++, end, settled, careful);
        }
      }
      if constexpr (!C::kExtras) {
        return;
      } else {
        const KeyRun next = shared_.runs.next;
        if (next.begin == next.end) return;
        if constexpr (C::kStages == 1) load_v_.skip(shared_.runs.skip_v);
        n = next.begin;
        end = next.end;
      }
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
  CUTE_DEVICE int first_warp_row() const { return first_row() + int(threadIdx.x / (32 * C::kParts)) * C::kRowsPerWarp; }
  CUTE_DEVICE int first_thread_row() const { return first_row() + C::row_of_thread(threadIdx.x); }

 private:
  CUTE_DEVICE const TileIndex& tile() const { return shared_.work.tile; }
  CUTE_DEVICE const Member& member() const { return shared_.work.member; }
  CUTE_DEVICE const KeyRange& range() const { return shared_.work.range; }

  CUTE_DEVICE bool masks_keys() const { return params_.key_mask.data != nullptr; }
  CUTE_DEVICE KeyMask<kBlockN, C::kThreads> keys() const {
    return {params_, tile(), member(), range(), shared_.runs.key_bits};
  }

  // Are scores nothing but scaled products?
  CUTE_DEVICE bool bare() const {
    if constexpr (!C::kExtras) return true;
    return params_.extras.plain == PlainForm::kBare;
  }

  // Where there is a key mask: may tile n, some of whose keys it hides, start a run of plain ones?
  CUTE_DEVICE bool has_holes(int n) const { return bare() && !keys().columns(n).all(); }

  // The walk is made of runs of tiles that nothing interrupts. The one after that which ends at `end`; every thread of
  // the CTA asks.
  CUTE_DEVICE KeyRun run_after(int end) const {
    bool wrapped = end <= range().start;
#pragma unroll 1
    while (true) {
      const KeyRun run = first_run<C>(params_, shared_, end, wrapped ? range().start : range().end);
      if (wrapped || run.begin < run.end) return run;
      wrapped = true;
      end = range().begin;
    }
  }

  // Of the run that ends at `end`, what comes after it: where go_on() finds it, after the barrier of the next tile.
  CUTE_DEVICE void announce_run_after(int end) {
    const KeyRun next = run_after(end);
    __syncthreads();  // the run before was announced to all
    if (threadIdx.x == 0) {
      shared_.runs.next = next;
      shared_.runs.skip_k = load_k_.bytes_of(params_.k, next.begin - end);
      shared_.runs.skip_v = load_v_.bytes_of(params_.v, next.begin - end);
    }
  }

  // The end of the run of plain tiles that starts at n; n or less when tile n is none.
  CUTE_DEVICE int plain_until(int n, int end) const {
    if (n < range().plain_begin || (n >= range().start && n < range().seed_end)) return n;
    const int plain_end = min(range().plain_end, end);
    if constexpr (C::kExtras) {
      if (masks_keys()) return has_holes(n) ? keys().visible_until(n, plain_end) : keys().whole_until(n, plain_end);
    }
    return plain_end;
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

  // From tile n of a run that ends at `end` to the next of the walk, from which loads go on. False when there is none.
  CUTE_DEVICE bool go_on(int& n, int end) {
    ++n;
    if constexpr (C::kExtras) {
      if (n == end) {
        n = shared_.runs.next.begin;
        if (n == shared_.runs.next.end) return false;
        load_k_.skip(shared_.runs.skip_k);
        if constexpr (C::kStages == 2) load_v_.skip(shared_.runs.skip_v);
      }
      return true;
    }
    return n < end;
  }

  // A tile (with one stage: its K) has landed and every warp is done with the one before.
  CUTE_DEVICE void begin_tile() const {
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // Once in tile n of a run to `end`, after begin_tile().
  CUTE_DEVICE void start_loads(int n, int end) {
    if constexpr (C::kStages == 1) {
      load_values(n, 0);
    } else if (go_on(n, end)) {
      load_keys(n, stage_ ^ 1);
      load_values(n, stage_ ^ 1);
    }
    ptx::cp_async_commit();
  }

  // With one stage: V has landed, every warp is done with K.
  CUTE_DEVICE void await_values(int n, int end) {
    if constexpr (C::kStages == 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (go_on(n, end)) load_keys(n, 0);
      ptx::cp_async_commit();
    }
  }

  CUTE_DEVICE void end_tile() {
    if constexpr (C::kStages == 2) stage_ ^= 1;
  }

  // [n, plain_end) of a run to `end`.
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
      if (masks_keys() && has_holes(n)) return plain_tiles<PlainForm::kBare, true>(n, plain_end, end);
    }
    plain_tiles<PlainForm::kBare>(n, plain_end, end);
  }

  template <PlainForm kForm, bool kHoles = false>
  CUTE_DEVICE void plain_tiles(int n, int plain_end, int end) {
    if constexpr (C::kExtras && C::kHeadDim <= 128) {  // at 128 no other register is left; at 256 that spilled
      n = ptx::uniform(n);
      plain_end = ptx::uniform(plain_end);
      end = ptx::uniform(end);
    }
    if (params_.lse.data != nullptr) {
      for (; n < plain_end; ++n) plain_tile<kForm, kHoles, true>(n, end);
    } else {
      for (; n < plain_end; ++n) plain_tile<kForm, kHoles, false>(n, end);
    }
  }

  // kHoles: the key mask hides some of the keys. kSums: the LSE is wanted, for which weights are summed as they are
  // before they are rounded.
  template <PlainForm kForm, bool kHoles, bool kSums>
  CUTE_DEVICE void plain_tile(int n, int end) {
    begin_tile();
    follow_sums();
    const auto& stage = shared_.stages[stage_];
    const LaneOffsets lane = fresh_lane_offsets();
    typename C::ScoreFragment scores;
    gemm_scores<C>(scores, warp_queries(), part_of_keys(stage.k.data()), lane, [&] { start_loads(n, end); });
    await_values(n, end);
    Tensor rows = rows_and_columns(scores);
    if constexpr (kHoles) hide_keys(rows, n);
    const float slope_log2 = n < range().start ? shared_.work.slope_log2 : -shared_.work.slope_log2;
    softmax.template weigh<kSums>(
        rows, PlainExponents<kForm, decltype(rows), (size(rows) <= 32)>(softmax.reference, rows, params_, slope_log2,
                                                                        member().diagonal, place_of(n)));
    auto weights = make_tensor<Element>(typename C::ScoreFragment{}.layout());  // (MMA = 4, MMA_M, MMA_N)
    follow_weights(scores);
    const auto operand = round_and_share(scores, weights, lane);
    gemm_values<true, C>(output, denominators_, operand, part_of_values(stage.v.data()), lane);
    end_tile();
  }

  // settled: every row has a reference, which is kept.
  CUTE_DEVICE void general_tile(int n, int end, bool settled, bool careful) {
    begin_tile();
    start_loads(n, end);
    follow_sums();
    auto& stage = shared_.stages[stage_];
    const BandTiles tiles = shared_.warp_tiles[threadIdx.x / 32];
    bool seen = n >= tiles.any_begin && n < tiles.any_end;
    const bool whole = n >= tiles.all_begin && n < tiles.all_end;
    if constexpr (C::kExtras) {
      if (masks_keys()) seen = seen && keys().columns(n).any();
    }
    if constexpr (C::kParts > 1 && kWholeBarriers) seen = true;
    const ElementPlace place = place_of(n);
    ElementBits<C::kRowsPerThread, C::kKeysPerPart / 4> visible;
    if constexpr (C::kExtras) {
      if (seen) visible = extras().template visible_pairs<C::kRowsPerThread, C::kKeysPerPart / 4>(place);
      // warps that share rows must agree
      if (C::kParts == 1) seen = __any_sync(0xffffffffu, seen && visible.bits != 0);
      // before there are scores: Philox beside them would spill
      if (careful && extras().drops()) note_dropped_keys<C>(shared_, extras(), first_row(), n * kBlockN);
    }
    const LaneOffsets lane = fresh_lane_offsets();
    typename C::ScoreFragment scores;
    if (seen) gemm_scores<C>(scores, warp_queries(), part_of_keys(stage.k.data()), lane, [] {});
    await_values(n, end);
    const bool isolate = careful && __syncthreads_or(holds_nonfinite<C>(stage.v.data()));
    Tensor rows = rows_and_columns(scores);
    if (seen) {
      // Bare products are multiplied as plain tiles do it, unrounded, but where rows are done with care: of huge scores
      // the difference is powers of two.
      const bool scaled = careful || !bare();
      if constexpr (C::kExtras) {
        if (!bare()) extras().apply(rows, place, visible);
      }
      if (careful && bare()) transform(rows, rows, [&](float s) { return s * params_.scale_log2; });
      if (!whole) mask_scores<C::kBanded>(rows, params_.band, member(), place_of(n));
      if constexpr (C::kExtras) {
        if (masks_keys()) hide_keys(rows, n);
      }
      if (isolate) note_seen_keys<C>(shared_, rows);
      Tensor output_rows = rows_and_columns(output);
      Tensor row_denominators = denominators();
      const float scale_log2 = scaled ? 1.f : params_.scale_log2;
      if (!settled) {
        softmax.apply(softmax.raise_references(rows, scale_log2, unite_maxima()), output_rows, row_denominators);
      }
      softmax.weigh(rows, scale_log2);
      if (isolate) add_nonfinite<C>(output_rows, shared_, stage.v.data(), C::kExtras && extras().drops());
    }
    if (isolate) {
      __syncthreads();
      clear_nonfinite<C>(stage.v.data());
      __syncthreads();
    }
    if (seen) {
      auto weights = make_tensor<Element>(typename C::ScoreFragment{}.layout());  // (MMA = 4, MMA_M, MMA_N)
      follow_weights(scores);
      auto operand = round_and_share(scores, weights, lane);
      sum_weights<C>(denominators_, operand);
      if constexpr (C::kExtras) {
        if (extras().drop(rows, place)) {  // dropped weights count in the denominators
          round_weights<C>(scores, weights);
          if constexpr (C::kParts > 1) {
            sync_sharers<C>();
            operand = weights_of_tile<C>(shared_, lane, weights);
          }
        }
      }
      gemm_values<false, C>(output, denominators_, operand, part_of_values(stage.v.data()), lane);
    }
    end_tile();
  }

  // Before a tile's weights are made. Warps that share rows know the same sums.
  CUTE_DEVICE void follow_sums() {
    if constexpr (!kLooksAtWeights<Element>) {
      Tensor row_denominators = denominators();
      float levels[C::kRowsPerThread];
      CUTE_UNROLL
      for (int r = 0; r < C::kRowsPerThread; ++r) levels[r] = row_denominators(r);
      if (!ptx::rarely_any(softmax.outgrown(levels))) return;
      Tensor output_rows = rows_and_columns(output);
      softmax.template raise_outgrown<0>(levels, output_rows, output_rows, row_denominators, [](auto&) {});
    }
  }

  // Of the tile's weights, which those of float16 must not outgrow. Warps that share rows know their own keys alone.
  CUTE_DEVICE void follow_weights(typename C::ScoreFragment& scores) {
    if constexpr (kLooksAtWeights<Element>) {
      Tensor rows = rows_and_columns(scores);
      float levels[C::kRowsPerThread];
      CUTE_UNROLL
      for (int r = 0; r < C::kRowsPerThread; ++r) levels[r] = greatest_in_row(rows, r);
      if (!any_of_sharers<C>(softmax.outgrown(levels))) return;
      Tensor output_rows = rows_and_columns(output);
      Tensor row_denominators = denominators();
      softmax.template raise_outgrown<size<1>(rows)>(levels, rows, output_rows, row_denominators, unite_maxima());
    }
  }

  // The weights of the tile as the tensor cores take them.
  template <class Weights>
  CUTE_DEVICE auto round_and_share(const typename C::ScoreFragment& scores, Weights& weights, const LaneOffsets& lane) {
    round_weights<C>(scores, weights);
    return weights_of_tile<C>(shared_, lane, weights);
  }

  // Makes the maxima of a part of the keys those of the whole rows.
  CUTE_DEVICE auto unite_maxima() const {
    return [this](auto& maxima) { combine_parts<C>(shared_, maxima, [](float a, float b) { return fmaxf(a, b); }); };
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
           2u * typename C::LayoutQ{}(C::kRowsPerWarp * (threadIdx.x / (32 * C::kParts)), 0);
  }

  CUTE_DEVICE static int part() { return C::part_of_thread(threadIdx.x); }

  CUTE_DEVICE static uint32_t part_of_keys(const Element* k) {
    return ptx::shared_address(k) + part() * 2 * typename C::LayoutKV{}(Int<C::kKeysPerPart % kBlockN>{}, _0{});
  }

  CUTE_DEVICE static uint32_t part_of_values(const Element* v) {
    return ptx::shared_address(v) + part() * 2 * typename C::LayoutKV{}(_0{}, Int<C::kChannelsPerPart % C::kHeadDim>{});
  }

  CUTE_DEVICE ScoreExtras<Element> extras() const { return {params_, tile(), member(), shared_.work.slope_log2}; }

  CUTE_DEVICE ElementPlace place_of(int n) const {
    return {first_thread_row(), n * kBlockN + part() * C::kKeysPerPart + 2 * int(threadIdx.x % 4)};
  }

  CUTE_DEVICE RowBand warp_band() const {
    return row_band<C::kBanded>(params_.band, member(), first_warp_row(), first_warp_row() + C::kRowsPerWarp - 1);
  }

  // -inf where the key mask hides the key of tile n.
  template <class Scores>
  CUTE_DEVICE void hide_keys(Scores& scores, int n) const {
    const auto columns = keys().columns(n).template part<C::kKeysPerPart>(part());
    cuda::hide_keys(scores, columns, 2 * int(threadIdx.x % 4));
  }

  const Params& params_;
  Shared& shared_;
  LaneOffsets lane_;
  typename C::DenominatorFragment denominators_;
  TileLoader<C, typename C::LayoutKV> load_k_, load_v_;
  int stage_ = 0;
};

}  // namespace flashcute::cuda::sm80
