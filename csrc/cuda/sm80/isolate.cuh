// Tiles of which different rows see different keys, with an inf or NaN in V: 0 * NaN must not carry it into the rows
// that do not see its key. Rare, so it is looked for (holds_nonfinite, a few instructions at a band's edge) and only
// then paid for.
#pragma once

#include "cuda/sm80/gemm.cuh"

namespace flashcute::cuda::sm80 {

// Two elements in a word.
template <class Element>
struct HalfBits {
  static constexpr bool kHalf = std::is_same_v<Element, cutlass::half_t>;
  static constexpr uint32_t kExponent = kHalf ? 0x7C00u : 0x7F80u;
  static constexpr uint32_t kExponents = kExponent * 0x00010001u;
  static constexpr uint32_t kCarry = kHalf ? 0x04000400u : 0x00800080u;  // an all-ones exponent carries into the sign
  static constexpr uint32_t kOne = kHalf ? 0x3C00u : 0x3F80u;

  // What a tile's keys hold is counted in one float: +inf as 1, -inf as 128, NaN as 16384, exact in either type.
  static constexpr int kCountLimit = 128;
  static constexpr uint32_t kUp = kOne, kDown = kHalf ? 0x5800u : 0x4300u, kNan = kHalf ? 0x7400u : 0x4680u;

  // The sign bit of each half that is inf or NaN.
  CUTE_DEVICE static uint32_t nonfinite(uint32_t word) { return ((word & kExponents) + kCarry) & 0x80008000u; }
  CUTE_DEVICE static uint32_t whole_halves(uint32_t signs) { return (signs >> 15) * 0xFFFFu; }

  CUTE_DEVICE static uint32_t classify_half(uint32_t half) {
    const uint32_t magnitude = half & 0x7FFFu;
    if (magnitude < kExponent) return 0;
    return magnitude > kExponent ? kNan : half >> 15 ? kDown : kUp;
  }
  CUTE_DEVICE static uint32_t classify(uint32_t word) {
    return classify_half(word & 0xFFFFu) | classify_half(word >> 16) << 16;
  }

  CUTE_DEVICE static float sum_of(int count) {
    if (count == 0) return 0.f;
    const bool up = count % kCountLimit != 0, down = count >= kCountLimit;
    return up && down || count >= kCountLimit * kCountLimit ? NAN : up ? INFINITY : -INFINITY;
  }
};

// Does this thread's share of the tile hold an inf or NaN?
template <class C>
CUTE_DEVICE bool holds_nonfinite(const typename C::Element* v) {
  constexpr int kVectors = cosize_v<typename C::LayoutKV> / 8;
  static_assert(kVectors % C::kThreads == 0);
  uint32_t found = 0;
  CUTE_UNROLL
  for (int i = 0; i < kVectors / C::kThreads; ++i) {
    const uint4 vector = reinterpret_cast<const uint4*>(v)[threadIdx.x + i * C::kThreads];
    found |= HalfBits<typename C::Element>::nonfinite(vector.x) | HalfBits<typename C::Element>::nonfinite(vector.y) |
             HalfBits<typename C::Element>::nonfinite(vector.z) | HalfBits<typename C::Element>::nonfinite(vector.w);
  }
  return found != 0;
}

// gemm_values for such a tile: a product with the finite values, and one that counts, for each output, the visible keys
// whose value is +inf, -inf or NaN. A weight of -0 marks a key that its row does not see.
template <class C, class Weights>
CUTE_DEVICE void gemm_values_isolated(typename C::OutputFragment& output, Weights& weights,
                                      const typename C::Element* v) {
  using Bits = HalfBits<typename C::Element>;
  using Op = typename C::MmaOp;
  constexpr int kBlocksM = 2, kBlocksK = C::kBlockN / 16, kBlocksN = C::kHeadDim / 16;
  static_assert(C::kBlockN < Bits::kCountLimit);
  ValueOperand<C> operand;
  Tensor tOrP = recast<uint32_t>(as_operand(weights));  // (MMA = 4 words, MMA_M = 2, MMA_K)
  Tensor tXsV = operand.source(v);                      // (CPY = 8, CPY_N = D / 16, MMA_K)
  CUTE_STATIC_ASSERT_V(size<1>(tXsV) == Int<kBlocksN>{});
  CUTE_STATIC_ASSERT_V(size<0>(tOrP) == _4{});

  CUTE_UNROLL
  for (int n = 0; n < kBlocksN; ++n) {
    Tensor counts = make_tensor<float>(Shape<_4, Int<kBlocksM>, _2>{});  // (MMA, MMA_M, 8-column block)
    clear(counts);
    CUTE_UNROLL
    for (int k = 0; k < kBlocksK; ++k) {
      Tensor values = make_tensor<typename C::Element>(shape(tXsV(_, _0{}, _0{})));
      copy(typename C::LoadTransposedAtom{}, tXsV(_, n, k), values);
      Tensor words = recast<uint32_t>(values);  // (2 k-halves, 2 column blocks)
      Tensor codes = make_tensor_like(words);
      CUTE_UNROLL
      for (int i = 0; i < size(words); ++i) {
        codes(i) = Bits::classify(words(i));
        words(i) &= ~Bits::whole_halves(Bits::nonfinite(words(i)));
      }
      CUTE_UNROLL
      for (int m = 0; m < kBlocksM; ++m) {
        uint32_t visible[4];
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) visible[i] = (~tOrP(i, m, k) >> 15 & 0x00010001u) * Bits::kOne;
        CUTE_UNROLL
        for (int block = 0; block < 2; ++block) {
          auto sum = output(_, m, 2 * n + block);
          auto count = counts(_, m, block);
          const uint32_t *b = &words(2 * block), *code = &codes(2 * block);
          Op::fma(sum(0), sum(1), sum(2), sum(3), tOrP(0, m, k), tOrP(1, m, k), tOrP(2, m, k), tOrP(3, m, k), b[0],
                  b[1], sum(0), sum(1), sum(2), sum(3));
          Op::fma(count(0), count(1), count(2), count(3), visible[0], visible[1], visible[2], visible[3], code[0],
                  code[1], count(0), count(1), count(2), count(3));
        }
      }
    }
    CUTE_UNROLL
    for (int m = 0; m < kBlocksM; ++m) {
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) output(i % 4, m, 2 * n + i / 4) += Bits::sum_of(int(counts(i % 4, m, i / 4)));
    }
  }
}

}  // namespace flashcute::cuda::sm80
