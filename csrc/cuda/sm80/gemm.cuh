// The two matrix products of a tile, in steps: one ldmatrix of K or V, which is two n-blocks of one k-block, and the
// MMAs that it feeds. Operands come from swizzled shared memory a few steps ahead of the tensor cores: enough to hide
// their way, few enough to leave the accumulators their registers.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/sm80/config.cuh"

namespace flashcute::cuda::sm80 {

template <class C>
inline constexpr int kStepsAhead = C::kBlocksM == 2 ? 2 : 4;  // eight MMAs

// The M blocks of n-block n, there and back: V's fragment or P's is that of the MMA before.
template <class C>
CUTE_HOST_DEVICE constexpr int block_m_of(int step, int n) {
  return n % 2 == 0 ? step : C::kBlocksM - 1 - step;
}

// Where in a swizzled tile this lane reads its row of 16 bytes, for the four 8 x 8 matrices of a 16 x 16 block: in
// bytes, of block (0, 0). Kept for the tile loops; what each block adds is made on the way (BlockReader), since the
// accumulators need the registers.
struct LaneOffsets {
  uint32_t by_rows;     // matrices down the rows first: Q as A operand; V, transposed by the read, as B operand
  uint32_t by_columns;  // along the columns first: K as B operand
};

template <class C>
CUTE_DEVICE LaneOffsets lane_offsets() {
  const uint32_t lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
  const typename C::LayoutKV layout;
  return {2u * layout(row + 8 * low, 8 * high), 2u * layout(row + 8 * high, 8 * low)};
}

template <class C, class SmemLayout>
class BlockReader {
 public:
  // tile: the shared address of (0, 0), or of a row of blocks of this warp's own.
  CUTE_DEVICE BlockReader(uint32_t tile, uint32_t lane_offset) : lane_(tile + lane_offset) {}

  // Two registers an 8 x 8 pair, in the order of the matrices. Along an atom's columns a swizzle is an exclusive or.
  template <bool kTransposed>
  CUTE_DEVICE void read(int block_row, int block_column, uint32_t* first, uint32_t* second) const {
    constexpr int kBlocks = C::kAtomColumns / 16;
    const uint32_t address = (lane_ ^ uint32_t(32 * (block_column % kBlocks))) +
                             2u * SmemLayout{}(16 * block_row, C::kAtomColumns * (block_column / kBlocks));
    ptx::load_matrices<kTransposed>(address, first, second);
  }

 private:
  uint32_t lane_;
};

// scores = Q K^T. q, k: the addresses of the warp's first row and of its part's first key. start_loads() is called when
// the tensor cores have work to go on with (TileShape::loads_after).
template <class C, class StartLoads>
CUTE_DEVICE void gemm_scores(typename C::ScoreFragment& scores, uint32_t q, uint32_t k, const LaneOffsets& lane,
                             StartLoads start_loads) {
  const BlockReader<C, typename C::LayoutQ> read_q(q, lane.by_rows);
  const BlockReader<C, typename C::LayoutKV> read_k(k, lane.by_columns);
  constexpr int kPairs = C::kKeysPerPart / 16, kBlocksK = C::kHeadDim / 16, kSteps = kPairs * kBlocksK;
  static_assert(C::kTile.loads_after < kSteps);
  Tensor tSrQ = make_tensor<typename C::Element>(Shape<_8, Int<C::kBlocksM>, Int<kBlocksK>>{});  // (MMA, MMA_M, MMA_K)
  Tensor tSrK = make_tensor<typename C::Element>(Shape<_4, Int<2 * kPairs>, Int<kBlocksK>>{});   // (MMA, MMA_N, MMA_K)
  Tensor q_words = recast<uint32_t>(tSrQ);
  Tensor k_words = recast<uint32_t>(tSrK);

  const auto load = [&](int step) {
    const int i = step / kPairs, pair = step % kPairs;
    if (pair == 0) {
      CUTE_UNROLL
      for (int m = 0; m < C::kBlocksM; ++m) read_q.template read<false>(m, i, &q_words(0, m, i), &q_words(2, m, i));
    }
    read_k.template read<false>(pair, i, &k_words(0, 2 * pair, i), &k_words(0, 2 * pair + 1, i));
  };
  clear(scores);
  if (C::kTile.loads_after == 0) start_loads();
  CUTE_UNROLL
  for (int step = 0; step < kStepsAhead<C>; ++step) load(step);
  CUTE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    if (step + kStepsAhead<C> < kSteps) load(step + kStepsAhead<C>);
    if (step > 0 && step == C::kTile.loads_after) start_loads();
    const int i = step / kPairs;
    CUTE_UNROLL
    for (int n = step % kPairs * 2; n < step % kPairs * 2 + 2; ++n) {
      CUTE_UNROLL
      for (int block = 0; block < C::kBlocksM; ++block) {
        const int m = block_m_of<C>(block, n);
        Tensor accumulator = scores(_, m, n);  // (MMA = 4)
        gemm(typename C::TiledMma{}, tSrQ(_, m, i), tSrK(_, n, i), accumulator);
      }
    }
  }
}

// Weights in the element type, laid out as the scores: (MMA = 4, MMA_M, MMA_N).
template <class C, class Weights>
CUTE_DEVICE void round_weights(const typename C::ScoreFragment& scores, Weights& weights) {
  Tensor words = recast<uint32_t>(weights);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) {
    words(i) = ptx::pack<typename C::Element>(scores(2 * i), scores(2 * i + 1));
  }
}

// An accumulator's registers are an A operand's: two 8-column blocks make one of 16.
// (MMA = 4, MMA_M, MMA_N) -> (MMA = 8, MMA_M, MMA_K = MMA_N / 2)
template <class Weights>
CUTE_DEVICE auto as_operand(Weights& weights) {
  const auto divided = logical_divide(weights.layout(), Shape<X, X, _2>{});  // (4, MMA_M, (2, MMA_N / 2))
  return make_tensor(weights.data(), make_layout(make_layout(get<0>(divided), get<2, 0>(divided)), get<1>(divided),
                                                 get<2, 1>(divided)));
}

// denominators += the sums of M block m, k-block k of the weights. With two M blocks, a NaN or inf among a row's
// weights spoils the row 16 beside it too, as 0 * NaN: rows with either are done again.
template <int m, class C, class Operand>
CUTE_DEVICE void sum_block(typename C::DenominatorFragment& denominators, const Operand& operand, int k) {
  Tensor ones = make_tensor<typename C::Element>(Shape<_4>{});  // (MMA = 4): a thread holds one column
  fill(ones, typename C::Element(C::kBlocksM == 1 || int(threadIdx.x) / 4 % 2 == m ? 1.f : 0.f));
  gemm(typename C::TiledMma{}, operand(_, Int<m>{}, k), ones, denominators);
}

// The sums of all weights, each row by itself. tOrP: (MMA = 8, MMA_M, MMA_K)
template <class C, class Operand>
CUTE_DEVICE void sum_weights(typename C::DenominatorFragment& denominators, const Operand& tOrP) {
  Tensor ones = make_tensor<typename C::Element>(Shape<_4>{});
  fill(ones, typename C::Element(1));
  CUTE_UNROLL
  for (int m = 0; m < C::kBlocksM; ++m) {
    Tensor sums = make_tensor<float>(Shape<_4>{});
    clear(sums);
    CUTE_UNROLL
    for (int k = 0; k < size<2>(tOrP); ++k) gemm(typename C::TiledMma{}, tOrP(_, m, k), ones, sums);
    denominators(m) += sums(0);
    denominators(2 + m) += sums(2);
  }
}

// output += weights V, and with kSums the denominators beside it. tOrP: (MMA = 8, MMA_M, MMA_K); v: the address of the
// part's first channel.
template <bool kSums, class C, class Operand>
CUTE_DEVICE void gemm_values(typename C::OutputFragment& output, typename C::DenominatorFragment& denominators,
                             const Operand& tOrP, uint32_t v, const LaneOffsets& lane) {
  const BlockReader<C, typename C::LayoutKV> read_v(v, lane.by_rows);
  constexpr int kPairs = C::kChannelsPerPart / 16, kBlocksK = C::kBlockN / 16, kSteps = kPairs * kBlocksK;
  Tensor tOrV = make_tensor<typename C::Element>(Shape<_4, Int<2 * kPairs>, Int<kBlocksK>>{});  // (MMA, MMA_N, MMA_K)
  Tensor v_words = recast<uint32_t>(tOrV);
  CUTE_STATIC_ASSERT_V(size<2>(tOrP) == Int<kBlocksK>{});

  const auto load = [&](int step) {
    const int i = step / kPairs, pair = step % kPairs;
    read_v.template read<true>(i, pair, &v_words(0, 2 * pair, i), &v_words(0, 2 * pair + 1, i));
  };
  CUTE_UNROLL
  for (int step = 0; step < kStepsAhead<C>; ++step) load(step);
  CUTE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    if (step + kStepsAhead<C> < kSteps) load(step + kStepsAhead<C>);
    const int i = step / kPairs, pair = step % kPairs;
    // Both sums go to one accumulator: far apart, so that neither waits for the other.
    if constexpr (kSums) {
      if (pair == 0) sum_block<0, C>(denominators, tOrP, i);
      if (C::kBlocksM == 2 && pair == kPairs / 2) sum_block<C::kBlocksM - 1, C>(denominators, tOrP, i);
    }
    CUTE_UNROLL
    for (int n = 2 * pair; n < 2 * pair + 2; ++n) {
      CUTE_UNROLL
      for (int block = 0; block < C::kBlocksM; ++block) {
        const int m = block_m_of<C>(block, n);
        Tensor accumulator = output(_, m, n);  // (MMA = 4)
        gemm(typename C::TiledMma{}, tOrP(_, m, i), tOrV(_, n, i), accumulator);
      }
    }
  }
}

}  // namespace flashcute::cuda::sm80
