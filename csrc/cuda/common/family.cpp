#include "cuda/common/family.h"

#include <cuda_runtime_api.h>

#include "cuda/common/launch.h"
#include "cuda/common/params.h"

namespace flashcute::cuda {
namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 30;
constexpr int64_t kMaxTiles = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxTotal = (int64_t{1} << 31) - 1;  // cu_seqlens are int32

std::string above(const char* what, int64_t value, int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " is above " + std::to_string(limit);
}

// The first of what only kernels of mask class any have; nullptr where there is none.
const char* feature_of_class_any(const Problem& p) {
  if (!(p.scale > 0.0f)) return "a scale that is not positive";  // the lean softmax takes maxima before it scales
  if (p.softcap > 0.0f) return "softcap";
  if (p.key_mask.present) return "a key mask";
  if (p.bias.present) return "bias";
  if (p.alibi.present) return "alibi_slopes";
  if (p.dense_mask.present) return "a pair mask";
  if (p.block_mask.present) return "a block mask";
  if (p.sinks.present) return "sinks";
  if (p.dropout.p > 0.0f) return "dropout_p";
  return nullptr;
}

}  // namespace

int64_t tiles_of(const KernelInfo& kernel, const Problem& p) {
  return tiles_of_head(p, kernel.block_m) * heads_with_tiles(p);
}

std::string common_refusal(const KernelInfo& kernel, const Problem& p) {
  if (kernel.mask != MaskClass::kAny) {
    if (const char* feature = feature_of_class_any(p)) {
      return std::string(feature) + " needs a kernel of mask class any";
    }
  }
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
  return "";
}

KernelResources resources_of(const void* kernel, int threads, size_t shared_memory, int device) {
  const DeviceGuard guard(device);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_memory)),
        "cudaFuncSetAttribute");
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  KernelResources result;
  result.registers = attributes.numRegs;
  result.local_memory = attributes.localSizeBytes;
  check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&result.blocks_per_multiprocessor, kernel, threads, shared_memory),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return result;
}

}  // namespace flashcute::cuda
