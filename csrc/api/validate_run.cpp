#include "api/check.h"
#include "api/validate.h"
#include "dispatch/heuristics.h"

namespace flashcute {
namespace {

using Rule = RunContract::Rule;

RunContract::Pointer declared(const TensorView* view) {
  if (view == nullptr) return {};
  return {view->numel > 0 ? Rule::kRequired : Rule::kOptional, static_cast<uint8_t>(size_of(view->dtype) - 1)};
}

[[noreturn]] void bad_pointer(RunContract::Pointer contract, const char* name, const void* pointer) {
  if (pointer == nullptr) {
    fail(FLASHCUTE_STATUS_NULL_POINTER, name, "the buffer that the descriptor declares", "NULL");
  }
  if (contract.rule == Rule::kForbidden) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, name, "NULL, as the descriptor declares no such tensor", "a pointer");
  }
  fail(FLASHCUTE_STATUS_BAD_PARAM, name,
       "a pointer aligned to its elements of " + std::to_string(contract.alignment_mask + 1) + " bytes",
       "one that is " + std::to_string(reinterpret_cast<uintptr_t>(pointer) & contract.alignment_mask) +
           " bytes beyond");
}

template <typename T>
T* take(RunContract::Pointer contract, const char* name, T* pointer) {
  const bool misaligned = (reinterpret_cast<uintptr_t>(pointer) & contract.alignment_mask) != 0;
  const bool wrong =
      pointer == nullptr ? contract.rule == Rule::kRequired : contract.rule == Rule::kForbidden || misaligned;
  if (__builtin_expect(wrong, 0)) bad_pointer(contract, name, pointer);
  return pointer;
}

[[noreturn]] void bad_operand(const char* name, const void* pointer, uint32_t alignment) {
  if (pointer == nullptr) fail(FLASHCUTE_STATUS_NULL_POINTER, name, "a pointer to the tensor's first element", "NULL");
  fail(FLASHCUTE_STATUS_BAD_PARAM, name,
       "a pointer aligned to " + std::to_string(alignment) +
           " bytes, as the descriptor was created for (min_alignment; create one for tensors like this)",
       "one that is " + std::to_string(reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) + " bytes beyond");
}

RunContract::Extent extent_of(const TensorView& view) {
  if (view.numel == 0) return {};
  int64_t last = 0;  // offset of the last element
  for (int axis = 0; axis < view.ndim; ++axis) last += (view.shape[axis] - 1) * view.strides[axis];
  return {static_cast<size_t>(last + 1) * static_cast<size_t>(size_of(view.dtype)), last + 1 == view.numel};
}

bool same_geometry(const TensorView& a, const TensorView& b) {
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] != b.shape[axis] || (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis])) return false;
  }
  return a.ndim == b.ndim;
}

bool share_memory(RunContract::Extent a, const void* a_data, RunContract::Extent b, const void* b_data) {
  if (a.bytes == 0 || b.bytes == 0) return false;
  if (a_data == b_data) return true;
  const auto first = reinterpret_cast<uintptr_t>(a_data), second = reinterpret_cast<uintptr_t>(b_data);
  return a.dense && b.dense && first < second + b.bytes && second < first + a.bytes;
}

[[noreturn]] void bad_overlap(const char* name, const char* other) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, name, std::string("memory of its own, as runs read ") + other + " while they write",
       std::string("memory that ") + other + " shares");
}

// Overlap of a written tensor with the others, as far as it is certain.
void require_own_memory(const RunContract& contract, const Buffers& run) {
  const bool in_place = contract.out_may_be_q && run.out == run.q;
  if (!in_place && share_memory(contract.out, run.out, contract.q, run.q)) bad_overlap("out", "q");
  if (share_memory(contract.out, run.out, contract.k, run.k)) bad_overlap("out", "k");
  if (share_memory(contract.out, run.out, contract.v, run.v)) bad_overlap("out", "v");
  const auto apart = [&](const char* name, RunContract::Extent extent, const void* data) {
    if (share_memory(extent, data, contract.out, run.out)) bad_overlap(name, "out");
    if (share_memory(extent, data, contract.q, run.q)) bad_overlap(name, "q");
    if (share_memory(extent, data, contract.k, run.k)) bad_overlap(name, "k");
    if (share_memory(extent, data, contract.v, run.v)) bad_overlap(name, "v");
  };
  if (run.lse != nullptr) apart("buffers->lse", contract.lse_extent, run.lse);
  if (run.probs == nullptr) return;
  apart("buffers->probs", contract.probs_extent, run.probs);
  if (run.lse != nullptr && share_memory(contract.probs_extent, run.probs, contract.lse_extent, run.lse)) {
    bad_overlap("buffers->probs", "lse");
  }
}

template <typename T>
T* take_operand(bool required, const char* name, T* pointer, uint32_t alignment) {
  const bool misaligned = (reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) != 0;
  if (__builtin_expect(required && (pointer == nullptr || misaligned), 0)) bad_operand(name, pointer, alignment);
  return pointer;
}

}  // namespace

RunContract make_contract(const AttentionViews& views, const Problem& problem) {
  const OptionalViews& optional = views.optional;
  RunContract contract;
  contract.lse = declared(optional.lse);
  contract.dense_mask = declared(optional.dense_mask);
  contract.bias = declared(optional.bias);
  contract.alibi_slopes = declared(optional.alibi_slopes);
  contract.sinks = declared(optional.sinks);
  contract.cu_seqlens_q = declared(optional.cu_seqlens_q);
  contract.cu_seqlens_k = declared(optional.cu_seqlens_k);
  contract.seqused_k = declared(optional.seqused_k);
  contract.dropout_state = declared(optional.dropout_state);
  contract.block_mask = declared(optional.block_mask);
  contract.probs = declared(optional.probs);
  contract.key_mask = declared(views.mask);
  if (views.mask != nullptr) contract.key_mask.rule = Rule::kOptional;  // NULL: every key takes part
  contract.q = extent_of(*views.q);
  contract.k = extent_of(*views.k);
  contract.v = extent_of(*views.v);
  contract.out = extent_of(*views.out);
  if (optional.lse != nullptr) contract.lse_extent = extent_of(*optional.lse);
  if (optional.probs != nullptr) contract.probs_extent = extent_of(*optional.probs);
  contract.out_may_be_q = same_geometry(*views.out, *views.q);
  contract.seed_by_value = problem.dropout.p > 0.0f && optional.dropout_state == nullptr;
  contract.nothing_to_compute = nothing_to_compute(problem);
  return contract;
}

Buffers validate_run(const RunContract& contract, const Problem& problem, void* out, const void* q, const void* k,
                     const void* v, const void* mask, const flashcuteAttentionBuffers_t* buffers) {
  const flashcuteAttentionBuffers_t given = read_buffers(buffers);
  Buffers run;
  run.out = take_operand(contract.out.bytes > 0, "out", out, problem.min_alignment);
  run.q = take_operand(contract.q.bytes > 0, "q", q, problem.min_alignment);
  run.k = take_operand(contract.k.bytes > 0, "k", k, problem.min_alignment);
  run.v = take_operand(contract.v.bytes > 0, "v", v, problem.min_alignment);
  run.key_mask = take(contract.key_mask, "mask", mask);
  run.lse = take(contract.lse, "buffers->lse", given.lse);
  run.dense_mask = take(contract.dense_mask, "buffers->dense_mask", given.dense_mask);
  run.bias = take(contract.bias, "buffers->bias", given.bias);
  run.alibi_slopes = take(contract.alibi_slopes, "buffers->alibi_slopes", given.alibi_slopes);
  run.sinks = take(contract.sinks, "buffers->sinks", given.sinks);
  run.cu_seqlens_q = take(contract.cu_seqlens_q, "buffers->cu_seqlens_q", given.cu_seqlens_q);
  run.cu_seqlens_k = take(contract.cu_seqlens_k, "buffers->cu_seqlens_k", given.cu_seqlens_k);
  run.seqused_k = take(contract.seqused_k, "buffers->seqused_k", given.seqused_k);
  run.dropout_state = take(contract.dropout_state, "buffers->dropout_state", given.dropout_state);
  run.block_mask = take(contract.block_mask, "buffers->block_mask", given.block_mask);
  run.probs = take(contract.probs, "buffers->probs", given.probs);
  require_own_memory(contract, run);
  if (!problem.dropout.state_on_device) run.dropout_state = nullptr;  // declared, but dropout_p is 0
  if (contract.seed_by_value) {
    if (buffers == nullptr) {
      fail(FLASHCUTE_STATUS_NULL_POINTER, "buffers", "seed and offset, since dropout_p > 0", "NULL");
    }
    run.seed = given.seed;
    run.offset = given.offset;
  }
  return run;
}

}  // namespace flashcute
