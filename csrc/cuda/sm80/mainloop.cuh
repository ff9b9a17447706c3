// One output tile's way over its key tiles. Two loop bodies: online_tile takes any tile; plain_tile takes those that
// every row sees whole, which is where the time goes.
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
  typename C::OutputFragment output;  // (MMA = 4, MMA_M = 2, MMA_N = D / 8)
  RowSoftmax<Element, C::kRowsPerThread> softmax;

  CUTE_DEVICE Mainloop(const Params& params, const Member& member, const TileIndex& tile, Shared& shared)
      : params_(params),
        member_(member),
        tile_(tile),
        shared_(shared),
        load_k_(params.k, head_base(params.k, member.first_k), params.head_dim),
        load_v_(params.v, head_base(params.v, member.first_k), params.head_dim_v) {
    const int last = min(first_row() + C::kBlockM, member.len_q) - 1;
    const RowBand rows = row_band<C::kBanded>(params.band, member, first_row(), last);
    all_begin_ = rows.all_begin;
    all_end_ = rows.all_end;
  }

  // Enqueues the query tile; the first key tile's wait covers it.
  CUTE_DEVICE void load_queries() const {
    const int64_t base =
        tile_.batch * params_.q.batch + tile_.head_q * params_.q.head + member_.first_q * params_.q.row;
    const TileLoader<C, typename C::LayoutQ> load_q(params_.q, base, params_.head_dim);
    load_q.load(shared_.q.data(), first_row(), member_.len_q);
  }

  CUTE_DEVICE void run(const KeyRange& range) {
    clear(output);
    softmax = {};
    if (range.begin >= range.end) return;
    stage_ = 0;
    load_keys(range.begin, 0);
    if constexpr (C::kStages == 2) load_values<false>(range.begin, 0);
    ptx::cp_async_commit();
    int n = range.begin;
    while (n < range.end) {
      for (; n < range.end && (n < range.plain_begin || n >= range.plain_end); ++n) online_tile(n, range.end);
      if (n < range.plain_end) softmax.settle();
      for (; n < range.plain_end; ++n) plain_tile(n, range.end);
    }
  }

  CUTE_DEVICE int first_row() const { return tile_.m * C::kBlockM; }
  CUTE_DEVICE int first_warp_row() const { return first_row() + int(threadIdx.x / 32) * C::kRowsPerWarp; }
  CUTE_DEVICE int first_thread_row() const { return first_warp_row() + int(threadIdx.x % 32) / 4; }

 private:
  CUTE_DEVICE int64_t head_base(const Operand& operand, int first) const {
    return tile_.batch * operand.batch + tile_.head_k * operand.head + first * operand.row;
  }

  CUTE_DEVICE void load_keys(int n, int stage) const {
    load_k_.load(shared_.stages[stage].k.data(), n * kBlockN, member_.len_k);
  }

  template <bool kPlain>
  CUTE_DEVICE void load_values(int n, int stage) const {
    Element* tile = shared_.stages[stage].v.data();
    if (kPlain || params_.key_mask.data == nullptr) {  // calls with a key mask have no plain tiles
      load_v_.load(tile, n * kBlockN, member_.len_k);
    } else {
      load_v_.load_visible(tile, n * kBlockN, columns_of(n));
    }
  }

  CUTE_DEVICE Columns<kBlockN> columns_of(int n) const {
    const KeyMaskView& mask = params_.key_mask;
    const int64_t base = tile_.batch * mask.batch + member_.first_k * mask.key;
    return visible_columns<kBlockN>(mask, base, member_.len_k, n * kBlockN);
  }

  // Tile n has landed and every warp is done with the one before; the next loads start.
  template <bool kPlain>
  CUTE_DEVICE void begin_tile(int n, int end) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if constexpr (C::kStages == 2) {
      if (n + 1 < end) {
        load_keys(n + 1, stage_ ^ 1);
        load_values<kPlain>(n + 1, stage_ ^ 1);
      }
    } else {
      load_values<kPlain>(n, 0);
    }
    ptx::cp_async_commit();
  }

  // With one stage: V has landed, every warp is done with K.
  CUTE_DEVICE void await_values(int n, int end) {
    if constexpr (C::kStages == 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (n + 1 < end) load_keys(n + 1, 0);
      ptx::cp_async_commit();
    }
  }

  CUTE_DEVICE void end_tile() {
    if constexpr (C::kStages == 2) stage_ ^= 1;
  }

  CUTE_DEVICE void plain_tile(int n, int end) {
    begin_tile<true>(n, end);
    const auto& stage = shared_.stages[stage_];
    typename C::ScoreFragment scores;
    gemm_scores<C>(scores, shared_.q.data(), stage.k.data());
    await_values(n, end);
    Tensor rows = rows_and_columns(scores);
    softmax.fixed_step(rows, params_.scale_log2);
    Tensor weights = round_weights<C>(scores);
    gemm_values<C>(output, weights, stage.v.data());
    end_tile();
  }

  CUTE_DEVICE void online_tile(int n, int end) {
    begin_tile<false>(n, end);
    const auto& stage = shared_.stages[stage_];
    bool isolate = false;
    if constexpr (C::kBanded) {
      if (rows_differ(n)) isolate = __syncthreads_or(holds_nonfinite<C>(stage.v.data()));
    }
    const Columns<kBlockN> columns = columns_of(n);
    const bool seen = columns.any() && warp_sees(n);
    typename C::ScoreFragment scores;
    if (seen) gemm_scores<C>(scores, shared_.q.data(), stage.k.data());
    await_values(n, end);
    if (seen) {
      Tensor rows = rows_and_columns(scores);
      const ElementPlace place{first_thread_row(), n * kBlockN + 2 * int(threadIdx.x % 4)};
      mask_scores(rows, place, columns);
      Tensor output_rows = rows_and_columns(output);
      softmax.template online_step<C::kBanded>(rows, output_rows);
      if constexpr (C::kExtras) ScoreExtras<Element>{params_, member_, tile_}.drop(rows, place);
      Tensor weights = round_weights<C>(scores);
      if (C::kBanded && isolate) {
        gemm_values_isolated<C>(output, weights, stage.v.data());
      } else {
        gemm_values<C>(output, weights, stage.v.data());
      }
    }
    end_tile();
  }

  // Do some rows of the CTA see a key of the tile that others do not?
  CUTE_DEVICE bool rows_differ(int n) const {
    if (C::kExtras && (params_.extras.dense_mask.data != nullptr || params_.extras.bias.data != nullptr)) return true;
    return n * kBlockN < all_begin_ || min((n + 1) * kBlockN, member_.len_k) > all_end_;
  }

  CUTE_DEVICE bool warp_sees(int n) const {
    if (first_warp_row() >= member_.len_q) return false;
    const RowBand rows =
        row_band<C::kBanded>(params_.band, member_, first_warp_row(), first_warp_row() + C::kRowsPerWarp - 1);
    return n * kBlockN < rows.any_end && (n + 1) * kBlockN > rows.any_begin;
  }

  // Raw products become scores in powers of two, -inf where the row does not see the key.
  template <class Scores>
  CUTE_DEVICE void mask_scores(Scores& scores, ElementPlace place, Columns<kBlockN> columns) const {
    if constexpr (C::kExtras) ScoreExtras<Element>{params_, member_, tile_}.apply(scores, place);
    CUTE_UNROLL
    for (int i = 0; i < Columns<kBlockN>::kWords; ++i) columns.words[i] >>= 2 * (threadIdx.x % 4);
    CUTE_UNROLL
    for (int r = 0; r < size<0>(scores); ++r) {
      const int aligned = place.row(r) + member_.diagonal - place.first_key;
      const int low = aligned - params_.band.left, high = aligned + params_.band.right;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(scores); ++c) {
        const int column = 8 * (c / 2) + c % 2;
        bool seen = (columns.words[column / 32] >> (column % 32)) & 1;
        if constexpr (C::kBanded) seen = seen && column >= low && column <= high;
        const float score = C::kExtras ? scores(r, c) : scores(r, c) * params_.scale_log2;
        scores(r, c) = seen ? score : -INFINITY;
      }
    }
  }

  const Params& params_;
  const Member& member_;
  const TileIndex& tile_;
  Shared& shared_;
  TileLoader<C, typename C::LayoutKV> load_k_, load_v_;
  int all_begin_, all_end_;
  int stage_ = 0;
};

}  // namespace flashcute::cuda::sm80
