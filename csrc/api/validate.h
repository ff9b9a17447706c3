// Descriptors and options -> Problem. The only validator: everything behind it trusts its result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.h"
#include "core/problem.h"

namespace flashcute {

constexpr int kMaxDims = 8;

// A tensor as its descriptor states it; the offsets of all elements fit 63 bits, in bytes.
struct TensorView {
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
  int64_t numel = 1;
  DType dtype = DType::kF32;
};

// strides nullptr = contiguous. Throws BAD_PARAM, BAD_TENSOR_SHAPE, BAD_TENSOR_DTYPE, NULL_POINTER.
TensorView make_view(size_t ndim, const size_t* shape, const ptrdiff_t* strides, flashcuteDtype_t dtype);

// The optional tensors of a problem, in options' order; nullptr = not declared.
struct OptionalViews {
  const TensorView *lse = nullptr, *dense_mask = nullptr, *bias = nullptr, *alibi_slopes = nullptr, *sinks = nullptr;
  const TensorView *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr, *seqused_k = nullptr, *dropout_state = nullptr;
  const TensorView *block_mask = nullptr, *probs = nullptr;
};

struct AttentionViews {
  const TensorView *out = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  OptionalViews optional;
};

// The caller's options at the size that this library knows: fields beyond the caller's struct_size keep their defaults,
// fields that this library does not know must be zero. nullptr = all defaults.
flashcuteAttentionOptions_t read_options(const flashcuteAttentionOptions_t* options);
flashcuteAttentionBuffers_t read_buffers(const flashcuteAttentionBuffers_t* buffers);
DeviceFacts read_architecture(const flashcuteArchitecture_t* architecture);

Problem validate_attention(const AttentionViews& views, const flashcuteAttentionOptions_t& options, DeviceType device,
                           int device_id);
// Parts of it.
void validate_options(const flashcuteAttentionOptions_t& options, DeviceType device, Problem& problem);
void validate_optional_tensors(const AttentionViews& views, Problem& problem);
void drop_idle_bounds(Problem& problem);  // window bounds that no row can reach become unbounded

// What a tensor reaches, in bytes: sums of one multiple of each run's step, below its count. The first run has step 1.
struct Extent {
  struct Run {
    int64_t step, count;
  };
  size_t bytes = 0;  // from the first to the last; 0: no elements, so that the pointer may be null
  int count = 0;
  Run runs[kMaxDims + 1];
};

struct MergeViews {
  const TensorView *out, *lse, *out_a, *lse_a, *out_b, *lse_b;
};
MergeProblem validate_merge(const MergeViews& views);
// Of out and lse, which may be exactly those of a or of b.
void require_own_memory(const MergeViews& views, const MergeProblem& problem);

// What each pointer of a run must be, settled at creation so that a run only compares.
struct RunContract {
  enum class Rule : uint8_t { kForbidden, kOptional, kRequired };
  struct Pointer {
    Rule rule = Rule::kForbidden;
    uint8_t alignment_mask = 0;  // size of an element, less one
  };
  Pointer lse, dense_mask, bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, dropout_state;
  Pointer key_mask, block_mask, probs;
  // Tensors that may overlap, those that are written first.
  enum Operand {
    kOut,
    kLse,
    kProbs,
    kQ,
    kK,
    kV,
    kMask,
    kDenseMask,
    kBias,
    kAlibiSlopes,
    kSinks,
    kCuSeqlensQ,
    kCuSeqlensK,
    kSequsedK,
    kDropoutState,
    kBlockMask,
    kOperands
  };
  Extent extents[kOperands];
  uint32_t present = 0;       // bit i: operand i has elements
  bool out_may_be_q = false;  // the same geometry: each row of q is read before that row of out is written
  bool seed_by_value = false;
  bool nothing_to_compute = false;
};
RunContract make_contract(const AttentionViews& views, const Problem& problem);

// Throws NULL_POINTER, BAD_PARAM; no allocation, no text unless it does.
Buffers validate_run(const RunContract& contract, const Problem& problem, void* out, const void* q, const void* k,
                     const void* v, const void* mask, const flashcuteAttentionBuffers_t* buffers);

// Throws BAD_PARAM where a run's workspace holds a byte of one of its tensors.
void require_own_workspace(const RunContract& contract, const Buffers& run, const void* workspace, size_t bytes);

}  // namespace flashcute
