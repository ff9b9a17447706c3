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
    const bool whole_chunks = params_.out_vectors && params_.head_dim_v % 8 == 0;
    whole_chunks ? store_chunks(selected) : store_elements(selected);
  }

 private:
  // Each row as threads of 16 bytes.
  CUTE_DEVICE void store_chunks(Rows selected) const {
    constexpr int kPasses = C::kBlockM / C::kRowsPerPass;
    constexpr int kPassElements = typename C::LayoutO{}(Int<C::kRowsPerPass>{}, _0{});
    constexpr int kStepElements = typename C::LayoutO{}(_0{}, Int<C::kThreadsPerRow * 8>{});
    const int first = unsigned(thread_) / C::kThreadsPerRow, chunk = unsigned(thread_) % C::kThreadsPerRow;
    const Element* source = shared_.o.data() + typename C::LayoutO{}(first, chunk * 8);
    Element* target = out() + int64_t(first_row() + first) * params_.out.row + chunk * 8;
    const int64_t step = C::kRowsPerPass * params_.out.row;
    uint32_t passes = passes_to_write(selected, first);
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      CUTE_UNROLL
      for (int i = 0; i < C::kChunksPerThread; ++i) {
        const int channel = (chunk + i * C::kThreadsPerRow) * 8;
        if ((passes >> pass) & 1 && channel < params_.head_dim_v) {
          *reinterpret_cast<uint4*>(target + i * C::kThreadsPerRow * 8) =
              *reinterpret_cast<const uint4*>(source + pass * kPassElements + i * kStepElements);
        }
      }
      target += step;
    }
  }

  // One bit a pass of store_chunks.
  CUTE_DEVICE uint32_t passes_to_write(Rows selected, int first) const {
    constexpr int kPasses = C::kBlockM / C::kRowsPerPass;
    static_assert(kPasses < 32);
    const int rows = member_.len_q - first_row() - first;  // of this thread's, a pass apart
    const int count = min(max((rows + C::kRowsPerPass - 1) / C::kRowsPerPass, 0), kPasses);
    uint32_t passes = (1u << count) - 1;
    if (selected != Rows::kAll) {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        if (!writes(selected, first + pass * C::kRowsPerPass)) passes &= ~(1u << pass);
      }
    }
    return passes;
  }

  CUTE_DEVICE void store_elements(Rows selected) const {
    Tensor sO = make_tensor(make_smem_ptr(shared_.o.data()), typename C::LayoutO{});  // (BLOCK_M, D)
#pragma unroll 1
    for (int row = thread_ / C::kThreadsPerRow; row < C::kBlockM; row += C::kRowsPerPass) {
      if (first_row() + row >= member_.len_q) break;
      if (!writes(selected, row)) continue;
      Element* target = out() + int64_t(first_row() + row) * params_.out.row;
#pragma unroll 1
      for (int channel = thread_ % C::kThreadsPerRow; channel < params_.head_dim_v; channel += C::kThreadsPerRow) {
        target[channel] = sO(row, channel);
      }
    }
  }

  CUTE_DEVICE Element* out() const {  // row 0 of the member
    return static_cast<Element*>(const_cast<void*>(params_.out.data)) + tile_.batch * params_.out.batch +
           tile_.head_q * params_.out.head + member_.first_q * params_.out.row;
  }

  CUTE_DEVICE bool writes(Rows selected, int row) const {  // row within the tile
    if (selected == Rows::kAll) return true;
    uint32_t redo = 0;  // any part's
    CUTE_UNROLL
    for (int i = 0; i < C::kParts; ++i) redo |= shared_.redo_rows[row / C::kRowsPerWarp * C::kParts + i];
    return bool((redo >> (row % C::kRowsPerWarp)) & 1) == (selected == Rows::kRedone);
  }

  CUTE_DEVICE int first_row() const { return tile_.m * C::kBlockM; }

  CUTE_DEVICE void write_lse_and_scale(Mainloop<C>& loop, Rows selected) const {
    Tensor rows = rows_and_columns(loop.output);
    if (params_.lse.data != nullptr) {
      const auto add = [](float a, float b) { return a + b; };
      CUTE_UNROLL
      for (int r = 0; r < size<0>(rows); ++r) loop.softmax.sum[r] = quad_reduce(loop.softmax.sum[r], add);
      combine_parts<C>(shared_, loop.softmax.sum, add);
    }
    CUTE_UNROLL
    for (int r = 0; r < size<0>(rows); ++r) {
      const int row = first_row() + C::row_of_thread(thread_) + 8 * r;
      float factor = 1.f, denominator = loop.denominators()(r), sum = loop.softmax.sum[r];
      const bool empty = denominator == 0.f;  // and stays so, whatever the sink
      if constexpr (C::kExtras) {
        factor = params_.extras.dropout.keep_scale;
        if (params_.extras.sinks != nullptr) {
          factor *= loop.softmax.add_sink(r, sink_of<Element>(params_.extras, tile_), denominator, sum);
        }
      }
      if (params_.lse.data != nullptr && thread_ % 4 == 0 && C::part_of_thread(thread_) == 0 && row < member_.len_q &&
          writes(selected, row - first_row())) {
        params_.lse.data[tile_.batch * params_.lse.batch + tile_.head_q * params_.lse.head +
                         int64_t(member_.first_q + row) * params_.lse.row] = lse(loop.softmax.log_sum_exp(r, sum));
      }
      factor = empty ? 0.f : factor / denominator;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(rows); ++c) rows(r, c) *= factor;
    }
  }

  CUTE_DEVICE float lse(float found) const {
    if constexpr (!C::kExtras) return found;
    return lse_of_true_slope(params_.extras, tile_, found);
  }

  // Swizzles repeat after 8 rows and after an atom's columns: beyond those, addresses differ by constants.
  CUTE_DEVICE void write_shared(const Mainloop<C>& loop) const {
    const int row = C::row_of_thread(thread_), column = 2 * (unsigned(thread_) % 4);
    Element* part = shared_.o.data() +
                    C::part_of_thread(thread_) * typename C::LayoutO{}(_0{}, Int<C::kChannelsPerPart % C::kHeadDim>{});
    constexpr int kBlocks = C::kAtomColumns / 8;
    CUTE_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      Element* target = part + typename C::LayoutO{}(row, 8 * j + column);
      CUTE_UNROLL
      for (int n = j; n < size<2>(loop.output); n += kBlocks) {
        CUTE_UNROLL
        for (int m = 0; m < size<1>(loop.output); ++m) {
          CUTE_UNROLL
          for (int half = 0; half < 2; ++half) {
            *reinterpret_cast<uint32_t*>(target + typename C::LayoutO{}(16 * m + 8 * half, 8 * (n - j))) =
                ptx::pack<Element>(loop.output(2 * half, m, n), loop.output(2 * half + 1, m, n));
          }
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
