// A kernel of its own, since probs are for tests of small problems: attention kernels keep their registers, and a test
// sees weights that were made another way than the output. One warp a row, two adjacent keys a lane, products by FMAs;
// features by the functions that attention kernels use. The row's place holds its scores until their largest is known.
#include "cuda/common/probs.h"

#include "cuda/common/block_mask.cuh"
#include "cuda/common/key_mask.cuh"
#include "cuda/common/launch.h"
#include "cuda/common/scores.cuh"

namespace flashcute::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

struct ProbsJob {
  Params params;
  Probs strides;
  float* probs;
  int64_t rows;  // of all heads
};

template <class Combine>
__device__ __forceinline__ float warp_reduce(float x, Combine combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// A row of one head, as its warp sees it.
template <class Element>
class ProbsRow {
  // (row, column) of a lane's pair
  using Pair = decltype(cute::make_tensor<float>(cute::Shape<cute::_1, cute::_2>{}));

 public:
  __device__ __forceinline__ ProbsRow(const ProbsJob& job, const TileIndex& tile, const Member& member, int row)
      : job_(job),
        params_(job.params),
        tile_(tile),
        member_(member),
        row_(row),
        band_(row_band<true>(params_.band, member, row, row)),
        extras_{params_, tile_, member_, slope_log2_of(params_.extras, tile)} {}

  __device__ __forceinline__ void write() const {
    float maximum = -INFINITY;
    for_each_pair([&](int key, float* first, float* second) {
      const Pair scores = scores_of(key);
      *first = scores(0);
      if (second != nullptr) *second = scores(1);
      maximum = fmaxf(maximum, fmaxf(scores(0), scores(1)));
    });
    RowSoftmax<Element, 1> softmax;
    softmax.reference[0] = warp_reduce(maximum, [](float a, float b) { return fmaxf(a, b); });
    const float base = softmax.reference[0] == -INFINITY ? 0.f : softmax.reference[0];
    float sum = 0.f;
    for_each_pair([&](int, const float* first, const float* second) {
      sum += ptx::exp2(*first - base);
      if (second != nullptr) sum += ptx::exp2(*second - base);
    });
    float denominator = warp_reduce(sum, [](float a, float b) { return a + b; });
    float factor = params_.extras.dropout.keep_scale;
    if (params_.extras.sinks != nullptr) {
      factor *= softmax.add_sink(0, sink_of<Element>(params_.extras, tile_), denominator, sum);
    }
    factor /= denominator;
    for_each_pair([&](int key, float* first, float* second) {
      Pair weights;
      weights(0) = ptx::exp2(*first - base);
      weights(1) = second == nullptr ? 0.f : ptx::exp2(*second - base);
      extras_.drop(weights, place_of(key));
      *first = *first == -INFINITY ? 0.f : weights(0) * factor;  // not 0 * NaN, where a row is NaN
      if (second != nullptr) *second = *second == -INFINITY ? 0.f : weights(1) * factor;
    });
  }

 private:
  __device__ __forceinline__ ElementPlace place_of(int key) const { return {row_, key}; }

  // visit(first key, where its weight goes, where that of the next goes or null at the row's end)
  template <class Visit>
  __device__ __forceinline__ void for_each_pair(Visit visit) const {
    float* row =
        job_.probs + tile_.batch * job_.strides.batch + tile_.head_q * job_.strides.head + row_ * job_.strides.row;
    for (int key = 2 * int(threadIdx.x % 32); key < params_.seq_k; key += 64) {
      float* first = row + key * job_.strides.key;
      visit(key, first, key + 1 < params_.seq_k ? first + job_.strides.key : nullptr);
    }
  }

  __device__ __forceinline__ bool sees(int key) const {
    return key >= band_.any_begin && key < band_.any_end &&
           (params_.key_mask.data == nullptr || key_mask_row(params_.key_mask, tile_, member_).is_set(key)) &&
           (params_.extras.block_mask.data == nullptr ||
            block_mask_row(params_, tile_, row_).is_set(key / int(kMaskBlock)));
  }

  __device__ __forceinline__ float product(int key) const {
    const Operand &q = params_.q, &k = params_.k;
    const Element* query =
        static_cast<const Element*>(q.data) + tile_.batch * q.batch + tile_.head_q * q.head + row_ * q.row;
    const Element* keys =
        static_cast<const Element*>(k.data) + tile_.batch * k.batch + tile_.head_k * k.head + key * k.row;
    float sum = 0.f;
    for (int c = 0; c < params_.head_dim; ++c) {
      sum = fmaf(static_cast<float>(query[c]), static_cast<float>(keys[c]), sum);
    }
    return sum;
  }

  // In powers of two, of a key and the next; -inf where the row does not see one.
  __device__ __forceinline__ Pair scores_of(int key) const {
    Pair scores;
    const bool seen[2] = {sees(key), sees(key + 1)};
    if (seen[0] || seen[1]) {
#pragma unroll
      for (int c = 0; c < 2; ++c) scores(c) = seen[c] ? product(key + c) : 0.f;
      extras_.apply(scores, place_of(key), extras_.template visible_pairs<1, 2>(place_of(key)));
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) scores(c) = seen[c] ? scores(c) : -INFINITY;
    return scores;
  }

  const ProbsJob& job_;
  const Params& params_;
  const TileIndex& tile_;
  const Member& member_;
  int row_;
  RowBand band_;
  ScoreExtras<Element> extras_;
};

template <class Element>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) probs_kernel(const __grid_constant__ ProbsJob job) {
  const int64_t line = int64_t(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
  if (line >= job.rows) return;
  const int row = int(line % job.params.seq_q), head = int(line / job.params.seq_q);
  TileIndex tile{};
  tile.batch = head / job.params.heads_q;
  tile.head_q = head % job.params.heads_q;
  tile.head_k = tile.head_q / job.params.group;
  const Member member = member_of(job.params, tile.batch);
  ProbsRow<Element>(job, tile, member, row).write();
}

}  // namespace

void run_probs(const Problem& problem, const Params& params, float* probs, cudaStream_t stream) {
  const int64_t rows = problem.batch * problem.heads_q * problem.seq_q;  // validated: at most FLASHCUTE_MAX_PROBS
  if (rows == 0 || problem.seq_k == 0) return;
  ProbsJob job{params, problem.probs, probs, rows};
  void* arguments[] = {&job};
  const void* kernel = problem.dtype == DType::kF16 ? reinterpret_cast<const void*>(&probs_kernel<cutlass::half_t>)
                                                    : reinterpret_cast<const void*>(&probs_kernel<cutlass::bfloat16_t>);
  check(cudaLaunchKernel(kernel, dim3(unsigned((rows + kWarpsPerBlock - 1) / kWarpsPerBlock)),
                         dim3(32 * kWarpsPerBlock), arguments, 0, stream),
        "the probs kernel's launch");
}

}  // namespace flashcute::cuda
