#include "cuda/sm90/launch.h"

#include <algorithm>

#include "cuda/common/pack.h"

namespace flashcute::cuda::sm90 {
namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 30;
constexpr int64_t kMaxTiles = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxTotal = (int64_t{1} << 31) - 1;  // cu_seqlens are int32
constexpr size_t kScratchBytes = 256;                  // the ticket, and what is not used of a workspace's unit

int64_t tiles_of(const KernelInfo& kernel, const Problem& p) {
  return tiles_of_head(p, kernel.block_m) * heads_with_tiles(p);
}

std::string above(const char* what, int64_t value, int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " is above " + std::to_string(limit);
}

TensorExtents extents_q(const Problem& p) {
  return {p.head_dim, p.packed() ? p.lengths.total_q : p.seq_q, p.heads_q, p.packed() ? 1 : p.batch};
}

TensorExtents extents_k(const Problem& p, int64_t channels) {
  return {channels, p.packed() ? p.lengths.total_k : p.seq_k, p.heads_k, p.packed() ? 1 : p.batch};
}

Strides as_read(const Strides& strides, const Staging& staging) {
  return staging.size == 0 ? strides : Strides{staging.batch, staging.head, staging.row};
}

// The first of what these kernels do not have.
const char* missing_feature(const Problem& p) {
  if (!(p.scale > 0.0f)) return "a scale that is not positive";  // maxima are taken before the scale
  if (p.softcap > 0.0f) return "softcap";
  if (p.bias.present) return "bias";
  if (p.alibi.present) return "alibi_slopes";
  if (p.dense_mask.present) return "a dense mask";
  if (p.key_mask.present) return "a key mask";
  if (p.sinks.present) return "sinks";
  if (p.dropout.p > 0.0f) return "dropout_p";
  if (p.block_mask.present) return "block_mask";
  return nullptr;
}

}  // namespace

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  if (const char* feature = missing_feature(p)) return std::string(feature) + " is not for the sm90 family so far";
  if (p.batch > kMaxBatch) return above("batch", p.batch, kMaxBatch);
  if (p.seq_q > kMaxLength) return above("seq_q", p.seq_q, kMaxLength);
  if (p.seq_k > kMaxLength) return above("seq_k", p.seq_k, kMaxLength);
  if (p.lengths.packed_q && p.lengths.total_q > kMaxTotal) return above("total_q", p.lengths.total_q, kMaxTotal);
  if (p.lengths.packed_k && p.lengths.total_k > kMaxTotal) return above("total_k", p.lengths.total_k, kMaxTotal);
  if (p.heads_q > kMaxTiles) return above("heads_q", p.heads_q, kMaxTiles);  // and the number of tiles fits 64 bits
  if (tiles_of(kernel, p) > kMaxTiles) return above("the number of tiles", tiles_of(kernel, p), kMaxTiles);
  if (p.min_alignment < uint32_t(size_of(p.dtype))) {
    return "min_alignment " + std::to_string(p.min_alignment) + " is below the element size " +
           std::to_string(size_of(p.dtype));
  }
  // A copy of nothing has no map.
  if (extents_k(p, p.head_dim).rows == 0) return "there are no keys";
  Plan staged;
  plan_packing(p, staged);
  std::string reason = map_refusal("q", as_read(p.q, staged.q), extents_q(p), p.dtype);
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
  if (tiles > plan.grid && (kernel.mask == MaskClass::kBanded || p.packed())) {  // tiles of unequal weight
    plan.scratch_offset = plan.workspace;
    plan.scratch_size = kScratchBytes;
    plan.workspace += plan.scratch_size;
  }
}

KernelParams make_kernel_params(const Problem& p, const Plan& plan, const Buffers& buffers, void* workspace, int chunk,
                                int rows_q) {
  KernelParams given{};
  given.params = make_params(p, plan, buffers, workspace, 0);
  given.tiles = unsigned(tiles_of(*plan.kernel, p));
  if (plan.scratch_size != 0) {
    given.ticket = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + plan.scratch_offset);
  }
  given.q = make_tensor_map(given.params.q, p.dtype, extents_q(p), chunk, rows_q);
  given.k = make_tensor_map(given.params.k, p.dtype, extents_k(p, p.head_dim), chunk, plan.block_n);
  given.v = make_tensor_map(given.params.v, p.dtype, extents_k(p, p.head_dim_v), chunk, plan.block_n);
  return given;
}

}  // namespace flashcute::cuda::sm90
