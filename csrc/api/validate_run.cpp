#include <array>

#include "api/check.h"
#include "api/overlap.h"
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

constexpr const char* kNames[RunContract::kOperands] = {
    "out",       "lse",          "probs",        "q",         "k",
    "v",         "mask",         "dense_mask",   "bias",      "alibi_slopes",
    "sinks",     "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "dropout_state",
    "block_mask"};

using Pointers = std::array<const void*, RunContract::kOperands>;  // in the order of kNames

Pointers pointers_of(const Buffers& run) {
  return {run.out,       run.lse,          run.probs,        run.q,         run.k,
          run.v,         run.key_mask,     run.dense_mask,   run.bias,      run.alibi_slopes,
          run.sinks,     run.cu_seqlens_q, run.cu_seqlens_k, run.seqused_k, run.dropout_state,
          run.block_mask};
}

// Overlap of a written tensor with the others.
void require_own_memory(const RunContract& contract, const Buffers& run) {
  const Pointers data = pointers_of(run);
  constexpr const char* kWritten[] = {"out", "buffers->lse", "buffers->probs"};
  for (int written = 0; written <= RunContract::kProbs; ++written) {
    if ((contract.present >> written & 1u) == 0) continue;
    for (uint32_t others = contract.present & ~1u; others != 0; others &= others - 1) {
      const int other = __builtin_ctz(others);
      if (other <= written || data[other] == nullptr) continue;
      const bool in_place = written == RunContract::kOut && other == RunContract::kQ && contract.out_may_be_q;
      if (in_place && run.out == run.q) continue;
      if (!share_memory(contract.extents[written], data[written], contract.extents[other], data[other])) continue;
      if (other <= RunContract::kProbs) bad_overlap(kWritten[other], kNames[written]);
      bad_overlap(kWritten[written], kNames[other]);
    }
  }
}

}  // namespace

void require_own_workspace(const RunContract& contract, const Buffers& run, const void* workspace, size_t bytes) {
  const Pointers data = pointers_of(run);
  Extent all;
  all.bytes = bytes;
  all.count = 1;
  all.runs[0] = {1, static_cast<int64_t>(bytes)};
  for (uint32_t others = contract.present; others != 0; others &= others - 1) {
    const int other = __builtin_ctz(others);
    if (data[other] == nullptr || !share_memory(all, workspace, contract.extents[other], data[other])) continue;
    bad_overlap("workspace", kNames[other]);
  }
}

namespace {

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
  const TensorView* const all[RunContract::kOperands] = {views.out,
                                                         optional.lse,
                                                         optional.probs,
                                                         views.q,
                                                         views.k,
                                                         views.v,
                                                         views.mask,
                                                         optional.dense_mask,
                                                         optional.bias,
                                                         optional.alibi_slopes,
                                                         optional.sinks,
                                                         optional.cu_seqlens_q,
                                                         optional.cu_seqlens_k,
                                                         optional.seqused_k,
                                                         optional.dropout_state,
                                                         optional.block_mask};
  for (int operand = 0; operand < RunContract::kOperands; ++operand) {
    if (all[operand] == nullptr) continue;
    contract.extents[operand] = extent_of(*all[operand]);
    if (contract.extents[operand].bytes != 0) contract.present |= 1u << operand;
  }
  contract.out_may_be_q = same_geometry(*views.out, *views.q);
  contract.seed_by_value = problem.dropout.p > 0.0f && optional.dropout_state == nullptr;
  contract.nothing_to_compute = nothing_to_compute(problem);
  return contract;
}

Buffers validate_run(const RunContract& contract, const Problem& problem, void* out, const void* q, const void* k,
                     const void* v, const void* mask, const flashcuteAttentionBuffers_t* buffers) {
  const flashcuteAttentionBuffers_t given = read_buffers(buffers);
  Buffers run;
  run.out = take_operand(contract.present >> RunContract::kOut & 1u, "out", out, problem.min_alignment);
  run.q = take_operand(contract.present >> RunContract::kQ & 1u, "q", q, problem.min_alignment);
  run.k = take_operand(contract.present >> RunContract::kK & 1u, "k", k, problem.min_alignment);
  run.v = take_operand(contract.present >> RunContract::kV & 1u, "v", v, problem.min_alignment);
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
