// What warps that share rows (Config::kParts) do together. Where a warp has its rows alone, nothing is left of it.
#pragma once

#include "cuda/sm80/gemm.cuh"

namespace flashcute::cuda::sm80 {

// compute-sanitizer's racecheck reports races across barriers that warps reach at different instructions, or not all of
// them (docs/testing.md). For its sake all warps then meet at each of them.
#ifdef FLASHCUTE_RACECHECK
inline constexpr bool kWholeBarriers = true;
#else
inline constexpr bool kWholeBarriers = false;
#endif

// By all lanes of the warps that share the rows.
template <class C>
CUTE_DEVICE void sync_sharers() {
  if constexpr (C::kParts == 1) {
    __syncwarp();
  } else if constexpr (kWholeBarriers) {
    __syncthreads();
  } else {
    ptx::named_barrier(1 + int(threadIdx.x) / (32 * C::kParts), 32 * C::kParts);  // 0 is the CTA's
  }
}

// Does a thread of the warps that share rows say yes?
template <class C>
CUTE_DEVICE bool any_of_sharers(bool mine) {
  if constexpr (C::kParts == 1) {
    return ptx::rarely_any(mine);
  } else if constexpr (kWholeBarriers) {
    return __syncthreads_or(mine);
  } else {
    return ptx::named_any(1 + int(threadIdx.x) / (32 * C::kParts), 32 * C::kParts, mine);
  }
}

// values: (row), equal in a quad; becomes the combination over all parts.
template <class C, class Combine>
CUTE_DEVICE void combine_parts(typename C::SharedStorage& shared, float (&values)[C::kRowsPerThread], Combine combine) {
  if constexpr (C::kParts > 1) {
    const int row = C::row_of_thread(threadIdx.x), part = C::part_of_thread(threadIdx.x);
    if (threadIdx.x % 4 == 0) {
      CUTE_UNROLL
      for (int r = 0; r < C::kRowsPerThread; ++r) shared.exchange.rows[part][row + 8 * r] = values[r];
    }
    sync_sharers<C>();
    CUTE_UNROLL
    for (int r = 0; r < C::kRowsPerThread; ++r) {
      CUTE_UNROLL
      for (int other = 1; other < C::kParts; ++other) {
        values[r] = combine(values[r], shared.exchange.rows[(part + other) % C::kParts][row + 8 * r]);
      }
    }
  }
}

// The weights of all the tile's keys, of this part's: (MMA = 4, MMA_M, MMA_N) -> (MMA = 8, MMA_M, MMA_K).
template <class C, class Weights>
CUTE_DEVICE auto weights_of_tile(typename C::SharedStorage& shared, const LaneOffsets& lane, Weights& weights) {
  if constexpr (C::kParts == 1) {
    return as_operand(weights);
  } else {
    typename C::Element* rows = shared.exchange.weights.data();
    const unsigned row = C::row_of_thread(threadIdx.x), part = C::part_of_thread(threadIdx.x);
    Tensor words = recast<uint32_t>(weights);  // (2, MMA_M, MMA_N)
    CUTE_UNROLL
    for (int n = 0; n < size<2>(words); ++n) {
      const unsigned column = part * C::kKeysPerPart + 8 * n + 2 * (threadIdx.x % 4);
      typename C::Element* target = rows + typename C::LayoutP{}(row, column);
      CUTE_UNROLL
      for (int m = 0; m < C::kBlocksM; ++m) {
        CUTE_UNROLL
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(target + typename C::LayoutP{}(16 * m + 8 * half, 0)) = words(half, m, n);
        }
      }
    }
    sync_sharers<C>();
    const BlockReader<C, typename C::LayoutP> read(
        ptx::shared_address(rows) + 2u * typename C::LayoutP{}(row / C::kRowsPerWarp * C::kRowsPerWarp, 0),
        lane.by_rows);
    constexpr int kBlocksK = C::kBlockN / 16;
    Tensor operand = make_tensor<typename C::Element>(Shape<_8, Int<C::kBlocksM>, Int<kBlocksK>>{});
    Tensor operand_words = recast<uint32_t>(operand);
    CUTE_UNROLL
    for (int i = 0; i < kBlocksK; ++i) {
      CUTE_UNROLL
      for (int m = 0; m < C::kBlocksM; ++m) {
        read.template read<false>(m, i, &operand_words(0, m, i), &operand_words(2, m, i));
      }
    }
    return operand;
  }
}

}  // namespace flashcute::cuda::sm80
