#include "api/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "api/check.h"
#include "core/fault.h"

namespace flashcute {
namespace {

// a * b, or an error about the tensor that overflows.
int64_t checked_product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "shape", "sizes and strides whose byte offsets fit 63 bits",
         text(a) + " times " + text(b));
  }
  return result;
}

int64_t checked_sum(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "shape", "sizes and strides whose byte offsets fit 63 bits",
         text(a) + " plus " + text(b));
  }
  return result;
}

// Bytes of all elements, and the farthest byte offset on either side of the first element, must fit 63 bits.
void require_addressable(const TensorView& view) {
  int64_t forward = 1, backward = 0, elements = 1;
  for (int axis = 0; axis < view.ndim; ++axis) {
    elements = checked_product(elements, std::max<int64_t>(view.shape[axis], 1));
    if (view.shape[axis] <= 1) continue;
    const int64_t reach = checked_product(view.shape[axis] - 1, view.strides[axis]);
    (reach >= 0 ? forward : backward) = checked_sum(reach >= 0 ? forward : backward, reach);
  }
  const int64_t bytes = size_of(view.dtype);
  checked_product(elements, bytes);
  checked_product(forward, bytes);
  checked_product(backward, bytes);
}

// The canonical axes of a (batch,) heads, rows, channels tensor.
struct Operand {
  int64_t batch, heads, rows, channels;
  Strides strides;
};

Operand operand(const TensorView& view) {
  const int first = view.ndim - 3;  // 0 or 1
  Operand result;
  result.batch = first == 1 ? view.shape[0] : 1;
  result.heads = view.shape[first];
  result.rows = view.shape[first + 1];
  result.channels = view.shape[first + 2];
  result.strides.batch = first == 1 ? stride_of(view, 0) : 0;
  result.strides.head = stride_of(view, first);
  result.strides.row = stride_of(view, first + 1);
  return result;
}

void validate_dtypes(const AttentionViews& views) {
  const DType dtype = views.q->dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16 && dtype != DType::kF32) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, "q", "dtype float16, bfloat16 or float32", name_of(dtype));
  }
  const std::string as_q = " (q's)";
  require_dtype("k", *views.k, dtype, as_q.c_str());
  require_dtype("v", *views.v, dtype, as_q.c_str());
  require_dtype("out", *views.out, dtype, as_q.c_str());
}

void validate_ranks(const AttentionViews& views, bool packed) {
  const int ndim = views.q->ndim;
  if (packed && ndim != 3) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "q", "three axes (heads, total, head_dim) with cu_seqlens",
         shape_text(*views.q));
  }
  if (ndim != 3 && ndim != 4) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "q", "((batch,) heads, seq, head_dim), three or four axes",
         shape_text(*views.q));
  }
  const struct {
    const char* name;
    const TensorView* view;
  } others[] = {{"k", views.k}, {"v", views.v}, {"out", views.out}};
  for (const auto& other : others) {
    if (other.view->ndim != ndim) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, other.name, "as many axes as q, which is " + shape_text(*views.q),
           shape_text(*other.view));
    }
  }
}

void validate_strides(const AttentionViews& views) {
  const struct {
    const char* name;
    const TensorView* view;
  } all[] = {{"out", views.out}, {"q", views.q}, {"k", views.k}, {"v", views.v}};
  for (const auto& tensor : all) {
    require_no_negative_strides(tensor.name, *tensor.view);
    require_contiguous_last_axis(tensor.name, *tensor.view);
  }
  require_no_overlap("out", *views.out);
}

void validate_shapes(const AttentionViews& views, Problem& problem) {
  const Operand q = operand(*views.q), k = operand(*views.k), v = operand(*views.v), out = operand(*views.out);
  const auto expect = [&](bool good, const char* name, const std::string& expected, const TensorView& view) {
    if (!good) fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, name, expected, shape_text(view));
  };
  expect(q.heads > 0, "q", "at least one head", *views.q);
  expect(k.heads > 0, "k", "at least one head (q has " + text(q.heads) + ", k has 0)", *views.k);
  expect(q.channels > 0, "q", "head_dim of at least 1", *views.q);
  expect(v.channels > 0, "v", "head_dim of at least 1", *views.v);
  expect(k.batch == q.batch, "k", "q's batch " + text(q.batch), *views.k);
  expect(v.batch == q.batch, "v", "q's batch " + text(q.batch), *views.v);
  expect(k.channels == q.channels, "k", "q's head_dim " + text(q.channels), *views.k);
  expect(v.heads == k.heads, "v", "k's " + text(k.heads) + " heads", *views.v);
  expect(v.rows == k.rows, "v", "k's seq_len " + text(k.rows), *views.v);
  if (q.heads % k.heads != 0) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "q", "heads that are a multiple of k's " + text(k.heads) + " heads",
         text(q.heads) + " heads");
  }
  expect(out.batch == q.batch && out.heads == q.heads && out.rows == q.rows && out.channels == v.channels, "out",
         "q's shape with v's head_dim, " + (views.q->ndim == 4 ? shape_text({q.batch, q.heads, q.rows, v.channels})
                                                               : shape_text({q.heads, q.rows, v.channels})),
         *views.out);

  problem.batch = q.batch;
  problem.heads_q = q.heads;
  problem.heads_k = k.heads;
  problem.seq_q = q.rows;
  problem.seq_k = k.rows;
  problem.head_dim = q.channels;
  problem.head_dim_v = v.channels;
  problem.q = q.strides;
  problem.k = k.strides;
  problem.v = v.strides;
  problem.out = out.strides;
}

}  // namespace

TensorView make_view(size_t ndim, const size_t* shape, const ptrdiff_t* strides, flashcuteDtype_t dtype) {
  if (ndim > kMaxDims) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, "ndim", "0 to 8", std::to_string(ndim));
  }
  if (ndim > 0 && shape == nullptr) {
    fail(FLASHCUTE_STATUS_NULL_POINTER, "shape", "ndim = " + std::to_string(ndim) + " sizes", "NULL");
  }
  TensorView view;
  view.ndim = static_cast<int>(ndim);
  view.dtype = static_cast<DType>(raw_value(dtype));
  if (size_of(view.dtype) == 0) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, "dtype", "one of FLASHCUTE_DTYPE_*", text(raw_value(dtype)));
  }
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (shape[axis] > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, "shape", "sizes that fit 63 bits", std::to_string(shape[axis]));
    }
    view.shape[axis] = static_cast<int64_t>(shape[axis]);
  }
  int64_t contiguous = 1;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    view.strides[axis] = strides != nullptr ? static_cast<int64_t>(strides[axis]) : contiguous;
    contiguous = checked_product(contiguous, std::max<int64_t>(view.shape[axis], 1));
    if (view.shape[axis] == 0) view.numel = 0;
  }
  if (view.numel != 0) view.numel = contiguous;
  require_addressable(view);
  return view;
}

Problem validate_attention(const AttentionViews& views, const flashcuteAttentionOptions_t& options, DeviceType device,
                           int device_id) {
  Problem problem;
  problem.device = device;
  problem.device_id = device_id;
  problem.dtype = views.q->dtype;
  validate_ranks(views, views.optional.cu_seqlens_q != nullptr || views.optional.cu_seqlens_k != nullptr);
  validate_dtypes(views);
  validate_shapes(views, problem);
  validate_strides(views);
  validate_options(options, device, problem);
  validate_optional_tensors(views, problem);
  // Packed batches and their bounds come from tensors that know nothing of each other: their product must be countable.
  checked_product(checked_product(problem.batch, problem.heads_q), problem.seq_q);
  checked_product(checked_product(problem.batch, problem.heads_k), problem.seq_k);
  drop_idle_bounds(problem);
  return problem;
}

// A row of a member sees i + d - left <= j <= i + d + right. Lengths on the device only shrink: with the alignment at
// the bottom right (d = len_k - len_q) the left bound never exceeds len_k - 1 - left and the right bound is never below
// len_k - len_q + right; at the top left (d = 0) they are len_q - 1 - left and right.
void drop_idle_bounds(Problem& problem) {
  const bool bottom_right = problem.band.alignment == Alignment::kBottomRight;
  const int64_t left_reach = bottom_right ? problem.seq_k : problem.seq_q;
  const int64_t right_reach = bottom_right ? problem.seq_q : problem.seq_k;
  if (problem.band.left >= left_reach - 1) problem.band.left = Band::kUnbounded;
  if (problem.band.right >= right_reach - 1) problem.band.right = Band::kUnbounded;
}

}  // namespace flashcute
