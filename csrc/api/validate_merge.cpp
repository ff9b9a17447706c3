#include "api/check.h"
#include "api/overlap.h"
#include "api/validate.h"

namespace flashcute {
namespace {

bool same_shape(const TensorView& a, const TensorView& b, int axes) {
  for (int axis = 0; axis < axes; ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
  }
  return true;
}

MergeOperand operand(const char* out_name, const TensorView& out, const char* lse_name, const TensorView& lse,
                     const TensorView& like) {
  require_dtype(out_name, out, like.dtype, " (out's)");
  if (out.ndim != like.ndim || !same_shape(out, like, like.ndim)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, out_name, "out's shape " + shape_text(like), shape_text(out));
  }
  require_dtype(lse_name, lse, DType::kF32);
  if (lse.ndim != like.ndim - 1 || !same_shape(lse, like, like.ndim - 1)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, lse_name, "out's shape " + shape_text(like) + " without head_dim",
         shape_text(lse));
  }
  require_no_negative_strides(out_name, out);
  require_no_negative_strides(lse_name, lse);
  require_contiguous_last_axis(out_name, out);
  const int first = like.ndim - 3;
  MergeOperand result;
  result.out_strides.batch = first == 1 ? stride_of(out, 0) : 0;
  result.out_strides.head = stride_of(out, first);
  result.out_strides.row = stride_of(out, first + 1);
  result.lse_strides.batch = first == 1 ? stride_of(lse, 0) : 0;
  result.lse_strides.head = stride_of(lse, first);
  result.lse_strides.row = stride_of(lse, first + 1);
  return result;
}

}  // namespace

MergeProblem validate_merge(const MergeViews& views) {
  const TensorView& out = *views.out;
  if (out.dtype != DType::kF16 && out.dtype != DType::kBF16 && out.dtype != DType::kF32) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, "out_desc", "dtype float16, bfloat16 or float32", name_of(out.dtype));
  }
  if (out.ndim != 3 && out.ndim != 4) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "out_desc", "((batch,) heads, seq, head_dim), three or four axes",
         shape_text(out));
  }
  MergeProblem problem;
  problem.dtype = out.dtype;
  const int first = out.ndim - 3;
  problem.batch = first == 1 ? out.shape[0] : 1;
  problem.heads = out.shape[first];
  problem.rows = out.shape[first + 1];
  problem.head_dim = out.shape[first + 2];
  problem.result = operand("out_desc", out, "lse_desc", *views.lse, out);
  problem.a = operand("out_a_desc", *views.out_a, "lse_a_desc", *views.lse_a, out);
  problem.b = operand("out_b_desc", *views.out_b, "lse_b_desc", *views.lse_b, out);
  require_no_overlap("out_desc", out);
  require_no_overlap("lse_desc", *views.lse);
  return problem;
}

void require_own_memory(const MergeViews& views, const MergeProblem& problem) {
  struct Memory {
    const char* name;
    const TensorView* view;
    const void* data;
  };
  const Memory out = {"out", views.out, problem.result.out}, lse = {"lse", views.lse, problem.result.lse};
  const Memory reads[] = {{"out_a", views.out_a, problem.a.out},
                          {"out_b", views.out_b, problem.b.out},
                          {"lse_a", views.lse_a, problem.a.lse},
                          {"lse_b", views.lse_b, problem.b.lse}};
  const auto apart = [](const Memory& written, const Memory& other) {
    if (share_memory(extent_of(*written.view), written.data, extent_of(*other.view), other.data)) {
      bad_overlap(written.name, other.name);
    }
  };
  apart(lse, out);
  for (const Memory& written : {out, lse}) {
    for (const Memory& read : reads) {
      const bool alike = written.view->ndim == read.view->ndim;
      if (alike && written.data == read.data && same_geometry(*written.view, *read.view)) continue;
      apart(written, read);
    }
  }
}

}  // namespace flashcute
