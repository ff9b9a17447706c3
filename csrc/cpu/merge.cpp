// Joins two partial results over disjoint keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/backend.h"
#include "cpu/element.h"
#include "cpu/pool.h"

namespace flashcute::cpu {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// out may be the memory of a or b: both are read at a channel before it is written.
template <class T>
void merge_row(const MergeProblem& p, int64_t batch, int64_t head, int64_t row) {
  const auto offset = [&](const Strides& s) { return batch * s.batch + head * s.head + row * s.row; };
  const T* a = static_cast<const T*>(p.a.out) + offset(p.a.out_strides);
  const T* b = static_cast<const T*>(p.b.out) + offset(p.b.out_strides);
  T* out = static_cast<T*>(const_cast<void*>(p.result.out)) + offset(p.result.out_strides);
  const float lse_a = p.a.lse[offset(p.a.lse_strides)], lse_b = p.b.lse[offset(p.b.lse_strides)];
  float& lse = const_cast<float*>(p.result.lse)[offset(p.result.lse_strides)];

  const bool empty_a = std::isinf(lse_a), empty_b = std::isinf(lse_b);
  if (empty_a || empty_b) {
    lse = empty_a && empty_b ? kEmpty : empty_a ? lse_b : lse_a;
    const T* only = empty_a ? b : a;
    const bool none = empty_a && empty_b, lost = std::isnan(lse);  // without an LSE nobody knows the weight of out
    for (int64_t c = 0; c < p.head_dim; ++c) {
      if (lost) {
        from_float(lse, out[c]);
      } else {
        out[c] = none ? T{} : only[c];
      }
    }
    return;
  }
  const double top = std::max(lse_a, lse_b);
  const double ea = std::exp(lse_a - top), eb = std::exp(lse_b - top);
  const double wa = ea / (ea + eb), wb = eb / (ea + eb);
  for (int64_t c = 0; c < p.head_dim; ++c) {  // in double: an average of float32's largest stays below infinity
    from_float(static_cast<float>(to_float(a[c]) * wa + to_float(b[c]) * wb), out[c]);
  }
  constexpr double kMost = std::numeric_limits<float>::max();
  lse = static_cast<float>(std::min(top + std::log(ea + eb), kMost));  // infinity would be an empty row's
}

template <class T>
void merge_all(const MergeProblem& p) {
  constexpr int64_t kRows = 64;  // of one piece of work
  const int64_t rows = p.batch * p.heads * p.rows;
  const int threads = rows * (p.head_dim + 16) < (int64_t{1} << 16) ? 1 : num_threads();
  const auto work = [](void* context, int, int64_t index) {
    const MergeProblem& p = *static_cast<const MergeProblem*>(context);
    const int64_t rows = p.batch * p.heads * p.rows;
    for (int64_t r = index * kRows; r < std::min(rows, (index + 1) * kRows); ++r) {
      merge_row<T>(p, r / (p.heads * p.rows), r / p.rows % p.heads, r % p.rows);
    }
  };
  parallel_for(threads, (rows + kRows - 1) / kRows, work, const_cast<MergeProblem*>(&p));
}

}  // namespace

void merge(const MergeProblem& p) {
  switch (p.dtype) {
    case DType::kF16:
      return merge_all<F16>(p);
    case DType::kBF16:
      return merge_all<BF16>(p);
    default:
      return merge_all<float>(p);
  }
}

}  // namespace flashcute::cpu
