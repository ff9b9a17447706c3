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

// A tile in shared memory whose columns, 16 by 16, the tensor cores take by their descriptors.
template <class Layout, class Element>
CUTE_DEVICE auto first_columns(const Element* tile) {
  Tensor whole = make_tensor(make_smem_ptr(tile), Layout{});
  return local_tile(whole, Shape<Int<size<0>(Layout{})>, _16>{}, make_coord(_0{}, _0{}));
}

// A warpgroup's operands in shared memory, each as descriptors (MMA, 1, MMA_K). With kKept, uniform registers keep
// where the first ones are, so that what stands between a turn and its products is an addition; otherwise that is found
// each time. 3% at head_dim 64, nothing where products take longer.
template <class C>
class Operands {
  using Shared = typename C::SharedStorage;
  using Element = typename C::Element;
  static constexpr bool kKept = C::kHeadDim <= 64 && !C::kExtras;
  static constexpr int kUnit = sizeof(uint128_t);  // of the descriptors' addresses

 public:
  CUTE_DEVICE Operands(const Shared& shared, int warpgroup)
      : shared_(shared),
        q_(keep(shared.q[warpgroup].data())),
        k_(keep(shared.k[0].data())),
        v_(keep(shared.v[0].data())) {}

  CUTE_DEVICE auto queries(int warpgroup) const {
    if constexpr (kKept) {
      return row_operand<typename C::LayoutQ>(q_);
    } else {
      const auto thr_mma = typename C::MmaScores{}.get_slice(threadIdx.x % 128);
      return thr_mma.partition_fragment_A(
          make_tensor(make_smem_ptr(shared_.q[warpgroup].data()), typename C::LayoutQ{}));
    }
  }

  CUTE_DEVICE auto keys(int stage) const {
    if constexpr (kKept) {
      return row_operand<typename C::LayoutK>(k_ + stage * int(sizeof(shared_.k[0]) / kUnit));
    } else {
      const auto thr_mma = typename C::MmaScores{}.get_slice(threadIdx.x % 128);
      return thr_mma.partition_fragment_B(make_tensor(make_smem_ptr(shared_.k[stage].data()), typename C::LayoutK{}));
    }
  }

  CUTE_DEVICE auto values(int stage) const {
    using Layout = typename C::LayoutVt;
    // partition_fragment_B would want whole chunks of columns
    auto first = SM90::GMMA::make_gmma_desc<GMMA::Major::MN>(first_columns<Layout>(shared_.v[stage].data()));
    if constexpr (kKept) put(first, v_ + stage * int(sizeof(shared_.v[0]) / kUnit));
    constexpr int kStep = 16 * C::kChunk * sizeof(Element) / kUnit;
    return make_tensor(SM90::GMMA::DescriptorIterator{first}, Shape<_1, _1, Int<C::kBlockN / 16>>{},
                       Stride<_0, _0, Int<kStep>>{});
  }

 private:
  CUTE_DEVICE static uint32_t keep(const Element* tile) {
    return kKept ? ptx::uniform(ptx::shared_address(tile) / kUnit) : 0;
  }

  CUTE_DEVICE static void put(GmmaDescriptor& descriptor, uint32_t place) {
    descriptor.reg32_[0] = (descriptor.reg32_[0] & 0xffff0000u) + place;
  }

  template <class Layout>
  CUTE_DEVICE static auto row_operand(uint32_t place) {
    auto first =
        SM90::GMMA::make_gmma_desc<GMMA::Major::K>(first_columns<Layout>(static_cast<const Element*>(nullptr)));
    put(first, place);
    constexpr int kNextChunk = size<0>(Layout{}) * C::kChunk * sizeof(Element) / kUnit;
    return make_tensor(SM90::GMMA::DescriptorIterator{first},
                       Shape<_1, _1, Shape<Int<C::kChunk / 16>, Int<C::kChunks>>>{},
                       Stride<_0, _0, Stride<_2, Int<kNextChunk>>>{});
  }

  const Shared& shared_;
  const uint32_t q_, k_, v_;
};

// scores = Q K^T
template <class C, class Queries, class Keys>
CUTE_DEVICE void start_scores(typename C::ScoreFragment& scores, const Queries& tSrQ, const Keys& tSrK) {
  static_assert(knows_accumulators<C>());
  typename C::MmaScores mma;
  CUTE_STATIC_ASSERT_V(size<2>(tSrQ) == Int<C::kHeadDim / 16>{});
  CUTE_STATIC_ASSERT_V(size<2>(tSrQ) == size<2>(tSrK));
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
template <class C, class Values>
CUTE_DEVICE void start_values(typename C::OutputFragment& output, typename C::WeightFragment& weights,
                              const Values& tOrV) {
  typename C::MmaValues mma;
  CUTE_STATIC_ASSERT_V(size<2>(tOrV) == size<2>(weights));
  warpgroup_fence_operand(output);
  warpgroup_fence_operand(weights);
  warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < size<2>(tOrV); ++i) gemm(mma, weights(_, _, i), tOrV(_, _, i), output);
  warpgroup_commit_batch();
}

// The weights as the tensor cores see them.
template <class C>
CUTE_DEVICE void pack_weights(const typename C::ScoreFragment& scores, typename C::WeightFragment& weights) {
  Tensor words = recast<uint32_t>(weights);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) words(i) = ptx::pack<typename C::Element>(scores(2 * i), scores(2 * i + 1));
}

// Where the tensor cores do not sum the weights: rounds those of columns [kBegin, kEnd), multiples of 2, and adds their
// sums, each row's own. A word holds two weights of one row, and rows alternate. denominators: (rows = 2)
template <class C, int kBegin, int kEnd, class Denominators>
CUTE_DEVICE void round_and_sum(typename C::ScoreFragment& scores, Denominators& denominators) {
  using Element = typename C::Element;
  if constexpr (C::kSums) return;
  float low[2] = {}, high[2] = {};
  CUTE_UNROLL
  for (int i = kBegin; i < kEnd; ++i) {
    const float2 rounded = ptx::unpack<Element>(ptx::pack<Element>(scores(2 * i), scores(2 * i + 1)));
    scores(2 * i) = rounded.x;
    scores(2 * i + 1) = rounded.y;
    low[i % 2] += rounded.x;
    high[i % 2] += rounded.y;
  }
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) denominators(r) += low[r] + high[r];
}

}  // namespace flashcute::cuda::sm90
