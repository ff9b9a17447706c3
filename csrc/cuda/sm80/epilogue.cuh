// From accumulators to memory: normalise, LSE, and O through shared memory so that stores are whole rows.
#pragma once

#include "cuda/sm80/mainloop.cuh"

namespace flashcute::cuda::sm80 {

// Rows to write: all, those that did not fail, or those that did.
enum class Rows { kAll, kKept, kRedone };

template <class C>
class Epilogue {
  using Element = typename C::Element;

 public:
  CUTE_DEVICE Epilogue(const Params& params, typename C::SharedStorage& shared)
      : params_(params), shared_(shared), tile_(shared.work.tile), member_(shared.work.member), thread_(threadIdx.x) {
    ptx::forget_origin(thread_);  // addresses made of it are made here, not kept over the key tiles
  }

  // Every thread of the CTA calls it.
  CUTE_DEVICE void store(Mainloop<C>& loop, Rows selected) const {
    write_lse_and_scale(loop, selected);
    __syncthreads();  // every warp has read its last V
    write_shared(loop);
    __syncthreads();
    Element* out = static_cast<Element*>(const_cast<void*>(params_.out.data)) + tile_.batch * params_.out.batch +
                   tile_.head_q * params_.out.head + member_.first_q * params_.out.row;
    Tensor sO = make_tensor(make_smem_ptr(shared_.o.data()), typename C::LayoutO{});  // (BLOCK_M, D)
#pragma unroll 1
    for (int row = thread_ / C::kThreadsPerRow; row < C::kBlockM; row += C::kRowsPerPass) {
      if (first_row() + row >= member_.len_q) break;
      if (!writes(selected, row)) continue;
#pragma unroll 1
      for (int chunk = thread_ % C::kThreadsPerRow; chunk * 8 < params_.head_dim_v; chunk += C::kThreadsPerRow) {
        store_chunk(out + int64_t(first_row() + row) * params_.out.row + chunk * 8, &sO(row, chunk * 8),
                    min(params_.head_dim_v - chunk * 8, 8));
      }
    }
  }

 private:
  CUTE_DEVICE void store_chunk(Element* target, const Element* source, int channels) const {
    if (params_.out_vectors && channels == 8) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
    } else {
#pragma unroll 1
      for (int i = 0; i < channels; ++i) target[i] = source[i];
    }
  }

  CUTE_DEVICE bool writes(Rows selected, int row) const {  // row within the tile
    if (selected == Rows::kAll) return true;
    return bool((shared_.redo_rows[row / C::kRowsPerWarp] >> (row % C::kRowsPerWarp)) & 1) ==
           (selected == Rows::kRedone);
  }

  CUTE_DEVICE int first_row() const { return tile_.m * C::kBlockM; }

  CUTE_DEVICE void write_lse_and_scale(Mainloop<C>& loop, Rows selected) const {
    Tensor rows = rows_and_columns(loop.output);
    CUTE_UNROLL
    for (int r = 0; r < size<0>(rows); ++r) {
      const int row = first_row() + C::row_of_thread(thread_) + 8 * r;
      float factor = 1.f, denominator = loop.denominators()(r);
      const bool empty = denominator == 0.f;  // and stays so, whatever the sink
      float sum = quad_reduce(loop.softmax.sum[r], [](float a, float b) { return a + b; });
      if constexpr (C::kExtras) {
        factor = params_.extras.dropout.keep_scale;
        if (params_.extras.sinks != nullptr) {
          factor *= loop.softmax.add_sink(r, sink_of<Element>(params_.extras, tile_), denominator, sum);
        }
      }
      if (params_.lse.data != nullptr && thread_ % 4 == 0 && row < member_.len_q &&
          writes(selected, row - first_row())) {
        params_.lse.data[tile_.batch * params_.lse.batch + tile_.head_q * params_.lse.head +
                         int64_t(member_.first_q + row) * params_.lse.row] = loop.softmax.log_sum_exp(r, sum);
      }
      factor = empty ? 0.f : factor / denominator;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(rows); ++c) rows(r, c) *= factor;
    }
  }

  CUTE_DEVICE void write_shared(const Mainloop<C>& loop) const {
    Tensor sO = make_tensor(make_smem_ptr(shared_.o.data()), typename C::LayoutO{});  // (BLOCK_M, D)
    const int row = C::row_of_thread(thread_), column = 2 * (thread_ % 4);
    CUTE_UNROLL
    for (int m = 0; m < size<1>(loop.output); ++m) {
      CUTE_UNROLL
      for (int n = 0; n < size<2>(loop.output); ++n) {
        CUTE_UNROLL
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(&sO(row + 16 * m + 8 * half, 8 * n + column)) =
              ptx::pack<Element>(loop.output(2 * half, m, n), loop.output(2 * half + 1, m, n));
        }
      }
    }
  }

  const Params& params_;
  typename C::SharedStorage& shared_;
  const TileIndex tile_;
  const Member member_;
  int thread_;
};

}  // namespace flashcute::cuda::sm80
