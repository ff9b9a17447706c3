#include "api/check.h"
#include "api/validate.h"

namespace flashcute {
namespace {

constexpr const char* kInt32Hint = " (lengths are int32; convert int64 ones)";

void validate_lengths(const OptionalViews& views, Problem& problem) {
  const TensorView *cu_q = views.cu_seqlens_q, *cu_k = views.cu_seqlens_k;
  if ((cu_q == nullptr) != (cu_k == nullptr)) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, cu_q == nullptr ? "options->cu_seqlens_q" : "options->cu_seqlens_k",
         "cu_seqlens_q and cu_seqlens_k, both or neither", "only the other one");
  }
  if (cu_q != nullptr) {
    const struct {
      const char* name;
      const TensorView* view;
    } both[] = {{"options->cu_seqlens_q", cu_q}, {"options->cu_seqlens_k", cu_k}};
    for (const auto& cu : both) {
      require_dtype(cu.name, *cu.view, DType::kI32, kInt32Hint);
      if (cu.view->ndim != 1 || cu.view->numel == 0) {
        fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, cu.name, "(batch + 1,), at least one entry", shape_text(*cu.view));
      }
      require_contiguous_last_axis(cu.name, *cu.view);
    }
    if (cu_k->shape[0] != cu_q->shape[0]) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "options->cu_seqlens_k",
           "the length of cu_seqlens_q, " + shape_text(*cu_q), shape_text(*cu_k));
    }
    problem.lengths.packed_q = problem.lengths.packed_k = true;
    problem.batch = cu_q->shape[0] - 1;
  }
  if (views.seqused_k != nullptr) {
    require_dtype("options->seqused_k", *views.seqused_k, DType::kI32, kInt32Hint);
    require_shape("options->seqused_k", *views.seqused_k, {problem.batch}, "(batch,)");
    require_contiguous_last_axis("options->seqused_k", *views.seqused_k);
    problem.lengths.seqused_k = true;
  }
}

void require_mask_dtype(const char* name, const TensorView& view) {
  if (is_mask_dtype(view.dtype)) return;
  fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, name, "bool or an integer type", name_of(view.dtype));
}

void validate_key_mask(const TensorView& mask, Problem& problem) {
  require_mask_dtype("mask", mask);
  const bool packed = problem.packed();
  const int64_t keys = packed ? problem.lengths.total_k : problem.seq_k;
  if (packed) {
    require_shape("mask", mask, {keys}, "(total_k,) with cu_seqlens");
  } else if (mask.ndim == 1) {
    require_shape("mask", mask, {keys}, "(seq_k,)");
  } else if (mask.ndim == 2) {
    require_shape("mask", mask, {problem.batch, keys},
                  "a mask of pairs in options->dense_mask or, for a mask of keys, (batch, seq_k)");
  } else {
    require_shape("mask", mask, {keys},
                  "((batch,) seq_k), of one or two axes (dense masks go into options->dense_mask)");
  }
  require_no_negative_strides("mask", mask);
  require_contiguous_last_axis("mask", mask);
  problem.key_mask.present = true;
  problem.key_mask.dtype = mask.dtype;
  problem.key_mask.batch = mask.ndim == 2 ? stride_of(mask, 0) : 0;
  problem.key_mask.key = 1;
}

void require_not_packed(const char* name, const TensorView& view, const Problem& problem) {
  if (!problem.packed()) return;
  fail(FLASHCUTE_STATUS_BAD_PARAM, name, "none with cu_seqlens (packed tensors have no common score matrix)",
       shape_text(view));
}

ScoreTensor score_tensor(const TensorView& view) {
  ScoreTensor result;
  result.present = true;
  result.dtype = view.dtype;
  result.batch = stride_of(view, 0);
  result.head = stride_of(view, 1);
  result.row = stride_of(view, 2);
  result.key = stride_of(view, 3);
  return result;
}

// A tensor broadcastable to (batch, heads_q, seq_q, seq_k).
ScoreTensor validate_score_tensor(const char* name, const TensorView& view, const Problem& problem) {
  require_not_packed(name, view, problem);
  const int64_t target[4] = {problem.batch, problem.heads_q, problem.seq_q, problem.seq_k};
  bool good = view.ndim == 4;
  for (int axis = 0; good && axis < 4; ++axis) good = view.shape[axis] == target[axis] || view.shape[axis] == 1;
  if (!good) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, name,
         "four axes broadcastable to (batch, heads_q, seq_q, seq_k) = " +
             shape_text({target[0], target[1], target[2], target[3]}),
         shape_text(view));
  }
  require_no_negative_strides(name, view);
  return score_tensor(view);
}

// Batch and heads may be broadcast; blocks are all there.
ScoreTensor validate_block_mask(const TensorView& view, const Problem& problem) {
  const char* name = "options->block_mask";
  require_mask_dtype(name, view);
  require_not_packed(name, view, problem);
  const auto blocks = [](int64_t length) { return length / kMaskBlock + (length % kMaskBlock != 0); };
  const int64_t rows = blocks(problem.seq_q), keys = blocks(problem.seq_k);
  const bool good = view.ndim == 4 && (view.shape[0] == problem.batch || view.shape[0] == 1) &&
                    (view.shape[1] == problem.heads_q || view.shape[1] == 1) && view.shape[2] == rows &&
                    view.shape[3] == keys;
  if (!good) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, name,
         "(batch or 1, heads_q or 1, blocks of " + text(kMaskBlock) + " queries, blocks of " + text(kMaskBlock) +
             " keys) = " + shape_text({problem.batch, problem.heads_q, rows, keys}),
         shape_text(view));
  }
  require_no_negative_strides(name, view);
  return score_tensor(view);
}

void require_float32_or_q(const char* name, const TensorView& view, DType dtype) {
  if (view.dtype == DType::kF32 || view.dtype == dtype) return;
  std::string expected = "dtype float32";
  if (dtype != DType::kF32) expected += std::string(" or q's ") + name_of(dtype);
  fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, name, expected, name_of(view.dtype));
}

void validate_alibi(const TensorView& slopes, Problem& problem) {
  const char* name = "options->alibi_slopes";
  require_dtype(name, slopes, DType::kF32);
  if (slopes.ndim == 2) {
    require_shape(name, slopes, {problem.batch, problem.heads_q}, "((batch,) heads_q)");
  } else {
    require_shape(name, slopes, {problem.heads_q}, "((batch,) heads_q)");
  }
  require_no_negative_strides(name, slopes);
  problem.alibi.present = true;
  problem.alibi.batch = slopes.ndim == 2 ? stride_of(slopes, 0) : 0;
  problem.alibi.head = stride_of(slopes, slopes.ndim - 1);
}

void validate_sinks(const TensorView& sinks, Problem& problem) {
  const char* name = "options->sinks";
  require_float32_or_q(name, sinks, problem.dtype);
  require_shape(name, sinks, {problem.heads_q}, "(heads_q,)");
  require_no_negative_strides(name, sinks);
  problem.sinks.present = true;
  problem.sinks.dtype = sinks.dtype;
  problem.sinks.head = stride_of(sinks, 0);
}

// q_rank: a 3-D problem may give lse as (heads_q, seq_q), its q's axes, or as (1, heads_q, seq_q).
void validate_lse(const TensorView& lse, int q_rank, Problem& problem) {
  const char* name = "options->lse";
  require_dtype(name, lse, DType::kF32);
  if (problem.packed()) {
    require_shape(name, lse, {problem.heads_q, problem.lengths.total_q}, "(heads_q, total_q)");
  } else if (q_rank == 3 && lse.ndim == 2) {
    require_shape(name, lse, {problem.heads_q, problem.seq_q}, "(heads_q, seq_q)");
  } else {
    require_shape(name, lse, {problem.batch, problem.heads_q, problem.seq_q}, "(batch, heads_q, seq_q)");
  }
  require_no_negative_strides(name, lse);
  require_no_overlap(name, lse);
  problem.lse.present = true;
  problem.lse.batch = lse.ndim == 3 ? stride_of(lse, 0) : 0;
  problem.lse.head = stride_of(lse, lse.ndim - 2);
  problem.lse.row = stride_of(lse, lse.ndim - 1);
}

// q_rank: as for lse.
void validate_probs(const TensorView& probs, int q_rank, Problem& problem) {
  const char* name = "options->probs";
  require_dtype(name, probs, DType::kF32);
  require_not_packed(name, probs, problem);
  if (q_rank == 3 && probs.ndim == 3) {
    require_shape(name, probs, {problem.heads_q, problem.seq_q, problem.seq_k}, "(heads_q, seq_q, seq_k)");
  } else {
    require_shape(name, probs, {problem.batch, problem.heads_q, problem.seq_q, problem.seq_k},
                  "(batch, heads_q, seq_q, seq_k)");
  }
  if (probs.numel > FLASHCUTE_MAX_PROBS) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, name,
         "a problem of at most " + text(int64_t{FLASHCUTE_MAX_PROBS}) +
             " pairs of a query and a key, as the whole "
             "matrix of weights is for tests",
         text(probs.numel) + " of them");
  }
  require_no_negative_strides(name, probs);
  require_no_overlap(name, probs);
  problem.probs.present = true;
  problem.probs.batch = probs.ndim == 4 ? stride_of(probs, 0) : 0;
  problem.probs.head = stride_of(probs, probs.ndim - 3);
  problem.probs.row = stride_of(probs, probs.ndim - 2);
  problem.probs.key = stride_of(probs, probs.ndim - 1);
}

void validate_dropout_state(const TensorView& state, Problem& problem) {
  const char* name = "options->dropout_state";
  require_dtype(name, state, DType::kU64);
  require_shape(name, state, {2}, "(seed, offset)");
  require_contiguous_last_axis(name, state);
  problem.dropout.state_on_device = problem.dropout.p > 0.0f;
}

}  // namespace

void validate_optional_tensors(const AttentionViews& views, Problem& problem) {
  const OptionalViews& optional = views.optional;
  validate_lengths(optional, problem);
  if (views.mask != nullptr) validate_key_mask(*views.mask, problem);
  if (optional.dense_mask != nullptr) {
    require_mask_dtype("options->dense_mask", *optional.dense_mask);
    problem.dense_mask = validate_score_tensor("options->dense_mask", *optional.dense_mask, problem);
  }
  if (optional.block_mask != nullptr) problem.block_mask = validate_block_mask(*optional.block_mask, problem);
  if (optional.bias != nullptr) {
    require_float32_or_q("options->bias", *optional.bias, problem.dtype);
    problem.bias = validate_score_tensor("options->bias", *optional.bias, problem);
  }
  if (optional.alibi_slopes != nullptr) validate_alibi(*optional.alibi_slopes, problem);
  if (optional.sinks != nullptr) validate_sinks(*optional.sinks, problem);
  if (optional.lse != nullptr) validate_lse(*optional.lse, views.q->ndim, problem);
  if (optional.probs != nullptr) validate_probs(*optional.probs, views.q->ndim, problem);
  if (optional.dropout_state != nullptr) validate_dropout_state(*optional.dropout_state, problem);
}

}  // namespace flashcute
