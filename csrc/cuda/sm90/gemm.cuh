// The two matrix products of a warpgroup. Both only start one; warpgroup_wait<pending> ends them, after which the
// accumulator may be looked at.
#pragma once

#include "cuda/sm90/config.cuh"

namespace flashcute::cuda::sm90 {

// Are row_of_thread and column_of_thread those of the accumulators?
template <class C>
constexpr bool knows_accumulators() {
  constexpr auto layout = typename C::MmaScores{}.get_layoutC_TV();  // (thread, value) -> row + 64 column
  for (int thread = 0; thread < 128; ++thread) {
    const int first = layout(thread, 0);
    if (first % 64 != C::row_of_thread(thread) || first / 64 != C::column_of_thread(thread)) return false;
  }
  return true;
}

// What the tensor cores take of a tile in shared memory: the descriptor of its first 16 columns. Its lower word says
// where they are.
template <class Layout, GMMA::Major kMajor, class Element>
CUTE_DEVICE GmmaDescriptor describe(const Element* tile) {
  Tensor whole = make_tensor(make_smem_ptr(tile), Layout{});
  // partition_fragment_B would want whole chunks of columns
  Tensor columns = local_tile(whole, Shape<Int<size<0>(Layout{})>, _16>{}, make_coord(_0{}, _0{}));
  return SM90::GMMA::make_gmma_desc<kMajor>(columns);
}

template <class Layout, GMMA::Major kMajor, class Element>
CUTE_DEVICE uint32_t place_of(const Element* tile) {
  return (describe<Layout, kMajor>(tile).reg32_[0] & 0xffff0000u) | ptx::shared_address(tile) / sizeof(uint128_t);
}

template <class Layout, GMMA::Major kMajor, class Element>
CUTE_DEVICE auto descriptors_from(uint32_t place) {
  GmmaDescriptor first = describe<Layout, kMajor>(static_cast<const Element*>(nullptr));
  first.reg32_[0] = place;
  return SM90::GMMA::DescriptorIterator{first};
}

// The places of a warpgroup's operands. Uniform registers keep the first ones, so that what stands between a turn and
// its products is an addition; where the accumulators leave no room for them they are made each time.
template <class C>
class Operands {
  using Shared = typename C::SharedStorage;
  static constexpr bool kKept = C::kHeadDim <= 192 && !C::kExtras;

 public:
  CUTE_DEVICE Operands(const Shared& shared, int warpgroup)
      : shared_(shared), q_(keep(of_queries(warpgroup))), k_(keep(of_keys(0))), v_(keep(of_values(0))) {}

  CUTE_DEVICE uint32_t queries(int warpgroup) const { return kKept ? q_ : of_queries(warpgroup); }

  CUTE_DEVICE uint32_t keys(int stage) const { return kKept ? k_ + stage * stride(shared_.k) : of_keys(stage); }

  CUTE_DEVICE uint32_t values(int stage) const { return kKept ? v_ + stage * stride(shared_.v) : of_values(stage); }

 private:
  CUTE_DEVICE static uint32_t keep(uint32_t place) { return kKept ? ptx::uniform(place) : 0; }

  template <class Stage, int kStages>
  CUTE_DEVICE static constexpr int stride(const Stage (&)[kStages]) {
    return sizeof(Stage) / sizeof(uint128_t);
  }

  CUTE_DEVICE uint32_t of_queries(int warpgroup) const {
    return place_of<typename C::LayoutQ, GMMA::Major::K>(shared_.q[warpgroup].data());
  }
  CUTE_DEVICE uint32_t of_keys(int stage) const {
    return place_of<typename C::LayoutKV, GMMA::Major::K>(shared_.k[stage].data());
  }
  CUTE_DEVICE uint32_t of_values(int stage) const {
    return place_of<typename C::LayoutVt, GMMA::Major::MN>(shared_.v[stage].data());
  }

  const Shared& shared_;
  const uint32_t q_, k_, v_;
};

// scores = Q K^T, of places of Q and K.
template <class C>
CUTE_DEVICE void start_scores(typename C::ScoreFragment& scores, uint32_t q, uint32_t k) {
  static_assert(knows_accumulators<C>());
  typename C::MmaScores mma;
  const auto operand = [](uint32_t place, auto layout) {
    using Layout = decltype(layout);
    constexpr int kChunkStep = size<0>(Layout{}) * C::kChunk * sizeof(typename C::Element) / sizeof(uint128_t);
    return make_tensor(descriptors_from<Layout, GMMA::Major::K, typename C::Element>(place),
                       cute::Layout<Shape<_1, _1, Shape<Int<C::kChunk / 16>, Int<C::kChunks>>>,
                                    Stride<_0, _0, Stride<_2, Int<kChunkStep>>>>{});
  };
  Tensor tSrQ = operand(q, typename C::LayoutQ{});   // (MMA, MMA_M = 1, MMA_K)
  Tensor tSrK = operand(k, typename C::LayoutKV{});  // (MMA, MMA_N = 1, MMA_K)
  CUTE_STATIC_ASSERT_V(size<2>(tSrQ) == Int<C::kHeadDim / 16>{});
  warpgroup_fence_operand(scores);
  warpgroup_arrive();
  mma.accumulate_ = GMMA::ScaleOut::Zero;
  CUTE_UNROLL
  for (int i = 0; i < size<2>(tSrQ); ++i) {
    gemm(mma, tSrQ(_, _, i), tSrK(_, _, i), scores);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

// output += weights V, and their sums beside it where the tensor cores make them.
template <class C>
CUTE_DEVICE void start_values(typename C::OutputFragment& output, typename C::WeightFragment& weights, uint32_t v) {
  using Element = typename C::Element;
  typename C::MmaValues mma;
  constexpr int kStep = 16 * C::kChunk * sizeof(Element) / sizeof(uint128_t);
  Tensor tOrV = make_tensor(descriptors_from<typename C::LayoutVt, GMMA::Major::MN, Element>(v),
                            Shape<_1, _1, Int<C::kBlockN / 16>>{}, Stride<_0, _0, Int<kStep>>{});  // (MMA, 1, MMA_K)
  CUTE_STATIC_ASSERT_V(size<2>(tOrV) == size<2>(weights));
  warpgroup_fence_operand(output);
  warpgroup_fence_operand(weights);
  warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < size<2>(tOrV); ++i) gemm(mma, weights(_, _, i), tOrV(_, _, i), output);
  warpgroup_commit_batch();
}

template <class C>
CUTE_DEVICE void pack_weights(const typename C::ScoreFragment& scores, typename C::WeightFragment& weights) {
  Tensor words = recast<uint32_t>(weights);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) words(i) = ptx::pack<typename C::Element>(scores(2 * i), scores(2 * i + 1));
}

// The weights as the tensor cores see them, and their sums where those do not make them, each row's own: a word holds
// two of one row, and rows alternate. denominators: (rows = 2)
template <class C, class Denominators>
CUTE_DEVICE void round_weights(const typename C::ScoreFragment& scores, typename C::WeightFragment& weights,
                               Denominators& denominators) {
  using Element = typename C::Element;
  if constexpr (C::kSums) return pack_weights<C>(scores, weights);
  Tensor words = recast<uint32_t>(weights);
  float low[2] = {}, high[2] = {};
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) {
    words(i) = ptx::pack<Element>(scores(2 * i), scores(2 * i + 1));
    const float2 rounded = ptx::unpack<Element>(words(i));
    low[i % 2] += rounded.x;
    high[i % 2] += rounded.y;
  }
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) denominators(r) += low[r] + high[r];
}

// The same in parts, of which only the last needs the weights' registers: sum_weights() of every column, then
// join_weights(). A bfloat16 is the upper half of a float, and cutting a float there costs no more than taking a word
// apart; with weights kCutLift times as large, no weight is off by more than a rounded one may be. Not beside sinks,
// whose weights are not cut.
template <class C>
inline constexpr bool kCutsWeights =
    !C::kSums && !C::kExtras && std::is_same_v<typename C::Element, cutlass::bfloat16_t>;
inline constexpr float kCutLift = 1.f + 0x1p-8f, kCutLiftLog2 = 0.0056245492f;

// Of columns [kBegin, kEnd), multiples of 2.
template <class C, int kBegin, int kEnd, class Denominators>
CUTE_DEVICE void sum_weights(typename C::ScoreFragment& scores, Denominators& denominators) {
  float low[2] = {}, high[2] = {};
  CUTE_UNROLL
  for (int i = kBegin; i < kEnd; ++i) {
    for (int j = 2 * i; j < 2 * i + 2; ++j) scores(j) = __uint_as_float(__float_as_uint(scores(j)) & 0xffff0000u);
    low[i % 2] += scores(2 * i);
    high[i % 2] += scores(2 * i + 1);
  }
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) denominators(r) += low[r] + high[r];
}

template <class C>
CUTE_DEVICE void join_weights(const typename C::ScoreFragment& scores, typename C::WeightFragment& weights) {
  Tensor words = recast<uint32_t>(weights);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) {
    words(i) = __byte_perm(__float_as_uint(scores(2 * i)), __float_as_uint(scores(2 * i + 1)), 0x7632);
  }
}

}  // namespace flashcute::cuda::sm90
