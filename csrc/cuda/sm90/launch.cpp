#include "cuda/sm90/launch.h"

#include <algorithm>

#include "cuda/common/family.h"
#include "cuda/common/pack.h"

namespace flashcute::cuda::sm90 {
namespace {

constexpr size_t kScratchBytes = 256;  // the ticket, and what is not used of a workspace's unit

TensorExtents extents_q(const Problem& p) {
  return {p.head_dim, p.packed() ? p.lengths.total_q : p.seq_q, p.heads_q, p.packed() ? 1 : p.batch};
}

TensorExtents extents_k(const Problem& p, int64_t channels) {
  return {channels, p.packed() ? p.lengths.total_k : p.seq_k, p.heads_k, p.packed() ? 1 : p.batch};
}

Strides as_read(const Strides& strides, const Staging& staging) {
  return staging.size == 0 ? strides : Strides{staging.batch, staging.head, staging.row};
}

// Values for each pair of query and key.
const char* feature_beyond_family(const Problem& p) {
  if (p.bias.present) return "bias";
  if (p.dense_mask.present) return "a pair mask";
  if (p.block_mask.present) return "a block mask";
  if (p.dropout.p > 0.0f) return "dropout_p";
  return nullptr;
}

bool equal_tiles(const KernelInfo& kernel, const Problem& p) {
  return !p.band.bounded() && !p.key_mask.present && !p.packed() && p.seq_q % kernel.block_m == 0;
}

// CTAs at work at a time, dealt out over few heads, read the same keys from L2. Of unequal tiles the heaviest must go
// first, in groups large enough that the last one's end together, and of nearly one size.
int heads_per_group(const Problem& p, bool equal) {
  if (equal) return 1;
  constexpr int64_t kHeads = 16;  // by measurement: docs/perf-log.md
  const int64_t heads = heads_with_tiles(p), groups = std::max<int64_t>(1, heads / kHeads);
  return static_cast<int>((heads + groups - 1) / groups);
}

}  // namespace

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  if (const char* feature = feature_beyond_family(p)) return std::string(feature) + " is not for the sm90 family";
  std::string reason = common_refusal(kernel, p);
  if (!reason.empty()) return reason;
  // A copy of nothing has no map.
  if (extents_k(p, p.head_dim).rows == 0) return "there are no keys";
  Plan staged;
  plan_packing(p, staged);
  reason = map_refusal("q", as_read(p.q, staged.q), extents_q(p), p.dtype);
  if (reason.empty()) reason = map_refusal("k", as_read(p.k, staged.k), extents_k(p, p.head_dim), p.dtype);
  if (reason.empty()) reason = map_refusal("v", as_read(p.v, staged.v), extents_k(p, p.head_dim_v), p.dtype);
  return reason;
}

void plan(const KernelInfo& kernel, const Problem& p, const DeviceFacts& facts, Plan& plan) {
  plan.block_m = kernel.block_m;
  plan.block_n = kernel.block_n;
  plan.threads = kernel.threads;
  plan.shared_memory = kernel.shared_memory;
  plan_packing(p, plan);
  const int64_t tiles = tiles_of(kernel, p);
  plan.grid = std::min<int64_t>(tiles, facts.multiprocessors);
  const bool equal = equal_tiles(kernel, p);
  plan.heads_per_group = heads_per_group(p, equal);
  if (tiles > plan.grid && !equal) {
    plan.scratch_offset = plan.workspace;
    plan.scratch_size = kScratchBytes;
    plan.workspace += plan.scratch_size;
  }
}

KernelParams make_kernel_params(const Problem& p, const Plan& plan, const Buffers& buffers, void* workspace, int chunk,
                                int rows_q, int rows_out) {
  KernelParams given{};
  given.params = make_params(p, plan, buffers, workspace, 0);
  given.tiles = unsigned(tiles_of(*plan.kernel, p));
  if (plan.scratch_size != 0) {
    given.ticket = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + plan.scratch_offset);
  }
  given.q = make_tensor_map(given.params.q, p.dtype, extents_q(p), chunk, rows_q);
  given.k = make_tensor_map(given.params.k, p.dtype, extents_k(p, p.head_dim), chunk, plan.block_n);
  given.v = make_tensor_map(given.params.v, p.dtype, extents_k(p, p.head_dim_v), chunk, plan.block_n);
  TensorExtents extents_out = extents_q(p);
  extents_out.channels = p.head_dim_v;
  // The copy engine writes 16 bytes at a time, over a row's end if need be.
  given.maps_out =
      given.params.out_vectors && p.head_dim_v % 8 == 0 && map_refusal("out", p.out, extents_out, p.dtype).empty();
  if (given.maps_out) given.out = make_tensor_map(given.params.out, p.dtype, extents_out, chunk, rows_out);
  return given;
}

}  // namespace flashcute::cuda::sm90
