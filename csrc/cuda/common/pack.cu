#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/common/pack.h"

namespace flashcute::cuda {
namespace {

constexpr int kPackThreads = 256;

struct PackJob {
  const uint16_t* source;
  uint16_t* target;
  int64_t elements, heads, rows;
  int channels, channels_padded;  // padded with zeros to whole 16-byte vectors
  int64_t source_batch, source_head, source_row, target_batch, target_head, target_row;
};

__global__ void __launch_bounds__(kPackThreads) pack_kernel(const __grid_constant__ PackJob job) {
  const int64_t step = int64_t(gridDim.x) * kPackThreads;
  for (int64_t i = int64_t(blockIdx.x) * kPackThreads + threadIdx.x; i < job.elements; i += step) {
    const int64_t channel = i % job.channels_padded, line = i / job.channels_padded;
    const int64_t row = line % job.rows, head = line / job.rows % job.heads, batch = line / job.rows / job.heads;
    job.target[batch * job.target_batch + head * job.target_head + row * job.target_row + channel] =
        channel < job.channels
            ? job.source[batch * job.source_batch + head * job.source_head + row * job.source_row + channel]
            : uint16_t(0);
  }
}

struct Extents {
  int64_t batches, heads, rows, channels;
};

Extents query_extents(const Problem& p) {
  return {p.packed() ? 1 : p.batch, p.heads_q, p.packed() ? p.lengths.total_q : p.seq_q, p.head_dim};
}

Extents key_extents(const Problem& p, int64_t channels) {
  return {p.packed() ? 1 : p.batch, p.heads_k, p.packed() ? p.lengths.total_k : p.seq_k, channels};
}

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Can the kernels' loaders read it as it is, in whole 16-byte vectors?
bool aligned(const Problem& p, const Strides& strides, const Extents& extents) {
  const auto fits = [&](int64_t stride, int64_t extent) { return extent <= 1 || stride * size_of(p.dtype) % 16 == 0; };
  return p.min_alignment >= 16 && extents.channels * size_of(p.dtype) % 16 == 0 &&
         fits(strides.batch, extents.batches) && fits(strides.head, extents.heads) && fits(strides.row, extents.rows);
}

// An axis of stride 0 is packed once.
Extents without_repeats(Extents extents, const Strides& strides) {
  if (strides.batch == 0) extents.batches = std::min<int64_t>(extents.batches, 1);
  if (strides.head == 0) extents.heads = std::min<int64_t>(extents.heads, 1);
  if (strides.row == 0) extents.rows = std::min<int64_t>(extents.rows, 1);
  return extents;
}

void plan_one(const Problem& p, const Strides& strides, const Extents& all, bool always, Plan& plan, Staging& staging) {
  if (!always && aligned(p, strides, all)) return;
  const Extents extents = without_repeats(all, strides);
  const int64_t row = round_up(extents.channels, 8);
  staging.row = strides.row == 0 ? 0 : row;
  staging.head = strides.head == 0 ? 0 : row * extents.rows;
  staging.batch = strides.batch == 0 ? 0 : row * extents.rows * extents.heads;
  staging.offset = plan.workspace;
  staging.size = size_t(round_up(row * extents.rows * extents.heads * extents.batches * size_of(p.dtype), 256));
  plan.workspace += staging.size;
}

void run_one(const Strides& strides, const Extents& all, const Staging& staging, const void* source, void* workspace,
             cudaStream_t stream) {
  if (staging.size == 0) return;
  const Extents extents = without_repeats(all, strides);
  const int64_t channels_padded = round_up(extents.channels, 8);
  const int64_t elements = extents.batches * extents.heads * extents.rows * channels_padded;
  if (elements == 0) return;
  PackJob job{static_cast<const uint16_t*>(source),
              reinterpret_cast<uint16_t*>(static_cast<char*>(workspace) + staging.offset),
              elements,
              extents.heads,
              extents.rows,
              int(extents.channels),
              int(channels_padded),
              strides.batch,
              strides.head,
              strides.row,
              staging.batch,
              staging.head,
              staging.row};
  const int64_t blocks = std::min<int64_t>((elements + kPackThreads - 1) / kPackThreads, INT32_MAX);
  void* arguments[] = {&job};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(&pack_kernel), dim3(unsigned(blocks)), dim3(kPackThreads),
                         arguments, 0, stream),
        "the packing kernel's launch");
}

}  // namespace

void plan_packing(const Problem& p, Plan& plan) {
  // The weights are computed after out, which may lie in the memory of q.
  plan_one(p, p.q, query_extents(p), p.probs.present, plan, plan.q);
  plan_one(p, p.k, key_extents(p, p.head_dim), false, plan, plan.k);
  plan_one(p, p.v, key_extents(p, p.head_dim_v), false, plan, plan.v);
}

void run_packing(const Problem& p, const Plan& plan, const Buffers& b, void* workspace, cudaStream_t stream) {
  run_one(p.q, query_extents(p), plan.q, b.q, workspace, stream);
  run_one(p.k, key_extents(p, p.head_dim), plan.k, b.k, workspace, stream);
  run_one(p.v, key_extents(p, p.head_dim_v), plan.v, b.v, workspace, stream);
}

}  // namespace flashcute::cuda
