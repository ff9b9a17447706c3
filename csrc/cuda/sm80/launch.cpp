#include "cuda/sm80/launch.h"

#include "cuda/common/pack.h"
#include "cuda/common/params.h"

namespace flashcute::cuda::sm80 {
namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 30;
constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxTotal = (int64_t{1} << 31) - 1;  // cu_seqlens are int32

int64_t grid_of(const KernelInfo& kernel, const Problem& p) {
  return tiles_of_head(p, kernel.block_m) * heads_with_tiles(p);
}

std::string above(const char* what, int64_t value, int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " is above " + std::to_string(limit);
}

// The first of what only the kernels of mask class "any" have.
const char* extra_of(const Problem& p) {
  if (!(p.scale > 0.0f)) return "a scale that is not positive";  // the lean softmax takes maxima before it scales
  if (p.softcap > 0.0f) return "softcap";
  if (p.bias.present) return "bias";
  if (p.alibi.present) return "alibi_slopes";
  if (p.dense_mask.present) return "a dense mask";
  if (p.block_mask.present) return "a block mask";
  if (p.sinks.present) return "sinks";
  if (p.dropout.p > 0.0f) return "dropout_p";
  return nullptr;
}

}  // namespace

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  if (kernel.mask != MaskClass::kAny) {
    if (const char* extra = extra_of(p)) return std::string(extra) + " needs a kernel of mask class any";
  }
  if (p.batch > kMaxBatch) return above("batch", p.batch, kMaxBatch);
  if (p.seq_q > kMaxLength) return above("seq_q", p.seq_q, kMaxLength);
  if (p.seq_k > kMaxLength) return above("seq_k", p.seq_k, kMaxLength);
  if (p.lengths.packed_q && p.lengths.total_q > kMaxTotal) return above("total_q", p.lengths.total_q, kMaxTotal);
  if (p.lengths.packed_k && p.lengths.total_k > kMaxTotal) return above("total_k", p.lengths.total_k, kMaxTotal);
  if (p.heads_q > kMaxGrid) return above("heads_q", p.heads_q, kMaxGrid);  // and the number of tiles fits 64 bits
  if (grid_of(kernel, p) > kMaxGrid) return above("the number of tiles", grid_of(kernel, p), kMaxGrid);
  if (p.min_alignment < uint32_t(size_of(p.dtype))) {
    return "min_alignment " + std::to_string(p.min_alignment) + " is below the element size " +
           std::to_string(size_of(p.dtype));
  }
  return "";
}

// Only on a device that is full: of a few tiles, small ones are no faster.
bool favoured(const KernelInfo& kernel, const Problem& p, const DeviceFacts& facts) {
  constexpr size_t kReserved = 1024;  // of each CTA's shared memory, by the driver
  return p.seq_k <= kernel.short_keys && grid_of(kernel, p) > 2 * int64_t{facts.multiprocessors} &&
         2 * (kernel.shared_memory + kReserved) <= facts.shared_memory_per_multiprocessor;
}

void plan(const KernelInfo& kernel, const Problem& p, const DeviceFacts&, Plan& plan) {
  plan.block_m = kernel.block_m;
  plan.block_n = kernel.block_n;
  plan.threads = kernel.threads;
  plan.shared_memory = kernel.shared_memory;
  plan.grid = grid_of(kernel, p);
  plan_packing(p, plan);
}

}  // namespace flashcute::cuda::sm80
