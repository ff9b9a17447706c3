// The two matrix products of a tile. Operands come from swizzled shared memory by ldmatrix, one k-block ahead of the
// tensor cores.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/sm80/config.cuh"

namespace flashcute::cuda::sm80 {

// scores = Q K^T
template <class C>
CUTE_DEVICE void gemm_scores(typename C::ScoreFragment& scores, const typename C::Element* q,
                             const typename C::Element* k) {
  typename C::TiledMma mma;
  const auto thr_mma = mma.get_slice(threadIdx.x);
  Tensor sQ = make_tensor(make_smem_ptr(q), typename C::LayoutQ{});   // (BLOCK_M, D)
  Tensor sK = make_tensor(make_smem_ptr(k), typename C::LayoutKV{});  // (BLOCK_N, D)
  Tensor tSrQ = thr_mma.partition_fragment_A(sQ);                     // (MMA = 8, MMA_M, MMA_K)
  Tensor tSrK = thr_mma.partition_fragment_B(sK);                     // (MMA = 4, MMA_N, MMA_K)
  CUTE_STATIC_ASSERT_V(size<2>(tSrQ) == Int<C::kHeadDim / 16>{});
  CUTE_STATIC_ASSERT_V(size<2>(tSrQ) == size<2>(tSrK));

  const auto copy_q = make_tiled_copy_A(typename C::LoadAtom{}, mma);
  const auto copy_k = make_tiled_copy_B(typename C::LoadAtom{}, mma);
  const auto thr_copy_q = copy_q.get_slice(threadIdx.x);
  const auto thr_copy_k = copy_k.get_slice(threadIdx.x);
  Tensor tXsQ = thr_copy_q.partition_S(sQ);  // (CPY, CPY_M, MMA_K)
  Tensor tXrQ = thr_copy_q.retile_D(tSrQ);
  Tensor tXsK = thr_copy_k.partition_S(sK);  // (CPY, CPY_N, MMA_K)
  Tensor tXrK = thr_copy_k.retile_D(tSrK);

  clear(scores);
  copy(copy_q, tXsQ(_, _, _0{}), tXrQ(_, _, _0{}));
  copy(copy_k, tXsK(_, _, _0{}), tXrK(_, _, _0{}));
  CUTE_UNROLL
  for (int i = 0; i < size<2>(tSrQ); ++i) {
    if (i + 1 < size<2>(tSrQ)) {
      copy(copy_q, tXsQ(_, _, i + 1), tXrQ(_, _, i + 1));
      copy(copy_k, tXsK(_, _, i + 1), tXrK(_, _, i + 1));
    }
    gemm(mma, tSrQ(_, _, i), tSrK(_, _, i), scores);
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

// The fragment and the copies of V^T as the B operand of PV.
template <class C>
struct ValueOperand {
  typename C::TiledMma mma;
  decltype(make_tiled_copy_B(typename C::LoadTransposedAtom{}, typename C::TiledMma{})) tiled_copy =
      make_tiled_copy_B(typename C::LoadTransposedAtom{}, typename C::TiledMma{});

  CUTE_DEVICE auto fragment() const {  // (MMA = 4, MMA_N, MMA_K)
    const typename C::Element* none = nullptr;
    return mma.get_slice(threadIdx.x)
        .partition_fragment_B(make_tensor(make_smem_ptr(none), typename C::LayoutVtPlain{}));
  }
  CUTE_DEVICE auto source(const typename C::Element* v) const {  // (CPY, CPY_N, MMA_K)
    return tiled_copy.get_slice(threadIdx.x).partition_S(make_tensor(make_smem_ptr(v), typename C::LayoutVt{}));
  }
};

// denominators += the sums of M block m, k-block k of the weights. With two M blocks, a NaN or inf among a row's
// weights spoils the row 16 beside it too, as 0 * NaN: rows with either are done again.
template <int m, class C, class Operand>
CUTE_DEVICE void sum_block(typename C::DenominatorFragment& denominators, const Operand& operand, int k) {
  Tensor ones = make_tensor<typename C::Element>(Shape<_4>{});  // (MMA = 4): a thread holds one column
  fill(ones, typename C::Element(C::kBlocksM == 1 || int(threadIdx.x) / 4 % 2 == m ? 1.f : 0.f));
  gemm(typename C::TiledMma{}, operand(_, Int<m>{}, k), ones, denominators);
}

// The sums of all weights, each row by itself.
template <class C, class Weights>
CUTE_DEVICE void sum_weights(typename C::DenominatorFragment& denominators, Weights& weights) {
  Tensor tOrP = as_operand(weights);  // (MMA = 8, MMA_M, MMA_K)
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

// output += weights V, and with kSums the denominators beside it.
template <bool kSums, class C, class Weights>
CUTE_DEVICE void gemm_values(typename C::OutputFragment& output, typename C::DenominatorFragment& denominators,
                             Weights& weights, const typename C::Element* v) {
  ValueOperand<C> operand;
  Tensor tOrP = as_operand(weights);  // (MMA = 8, MMA_M, MMA_K)
  Tensor tOrV = operand.fragment();   // (MMA = 4, MMA_N, MMA_K)
  Tensor tXsV = operand.source(v);    // (CPY, CPY_N, MMA_K)
  Tensor tXrV = operand.tiled_copy.get_slice(threadIdx.x).retile_D(tOrV);
  CUTE_STATIC_ASSERT_V(size<2>(tOrP) == size<2>(tOrV));
  CUTE_STATIC_ASSERT_V(size<2>(tOrP) == Int<C::kBlockN / 16>{});
  constexpr int kBlocks = decltype(size<1>(tOrV))::value;

  copy(operand.tiled_copy, tXsV(_, _, _0{}), tXrV(_, _, _0{}));
  CUTE_UNROLL
  for (int i = 0; i < size<2>(tOrP); ++i) {
    if (i + 1 < size<2>(tOrP)) copy(operand.tiled_copy, tXsV(_, _, i + 1), tXrV(_, _, i + 1));
    if constexpr (kSums) sum_block<0, C>(denominators, tOrP, i);
    CUTE_UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      // Both sums go to one accumulator: far apart, so that neither waits for the other.
      if constexpr (kSums) {
        if (C::kBlocksM == 2 && n == kBlocks / 2) sum_block<C::kBlocksM - 1, C>(denominators, tOrP, i);
      }
      CUTE_UNROLL
      for (int step = 0; step < C::kBlocksM; ++step) {
        const int m = n % 2 == 0
                          ? step
                          : C::kBlocksM - 1 - step;  // there and back: V's fragment or P's is that of the MMA before
        Tensor block = output(_, m, n);              // (MMA = 4)
        gemm(operand.mma, tOrP(_, m, i), tOrV(_, n, i), block);
      }
    }
  }
}

}  // namespace flashcute::cuda::sm80
