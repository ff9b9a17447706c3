#include "api/overlap.h"

#include <algorithm>
#include <numeric>

#include "api/check.h"

namespace flashcute {
namespace {

// step * t of a sum, for a t from low to high.
struct Term {
  int64_t step, low, high;
};

// Is there a t for each term so that the sum is `wanted`? Terms have different steps, the largest first.
class Search {
 public:
  void add(int64_t step, int64_t low, int64_t high) {
    for (int i = 0; i < count_; ++i) {
      if (terms_[i].step != step) continue;
      terms_[i].low += low;
      terms_[i].high += high;
      return;
    }
    terms_[count_++] = {step, low, high};
  }

  bool finds(int64_t wanted) {
    std::sort(terms_, terms_ + count_, [](const Term& a, const Term& b) { return a.step > b.step; });
    rest_[count_] = {0, 0, 0};
    for (int i = count_ - 1; i >= 0; --i) {
      const Term &term = terms_[i], &rest = rest_[i + 1];
      rest_[i] = {std::gcd(term.step, rest.step), term.step * term.low + rest.low, term.step * term.high + rest.high};
    }
    return finds(0, wanted);
  }

 private:
  static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }

  bool finds(int i, int64_t wanted) {
    const Term& sums = rest_[i];
    if (wanted < sums.low || wanted > sums.high || (sums.step != 0 && wanted % sums.step != 0)) return false;
    if (i == count_) return true;
    const Term &term = terms_[i], &rest = rest_[i + 1];
    const int64_t first = std::max(term.low, -floor_divide(rest.high - wanted, term.step));
    const int64_t last = std::min(term.high, floor_divide(wanted - rest.low, term.step));
    for (int64_t t = first; t <= last && --budget_ > 0; ++t) {
      if (finds(i + 1, wanted - t * term.step)) return true;
    }
    return false;
  }

  Term terms_[2 * kMaxDims + 2];
  Term rest_[2 * kMaxDims + 3];  // of the sums from a term on: the greatest common step, the least, the largest
  int count_ = 0;
  int budget_ = 10000;
};

}  // namespace

Extent extent_of(const TensorView& view) {
  Extent extent;
  if (view.numel == 0) return extent;
  const int64_t size = size_of(view.dtype);
  extent.runs[0] = {1, size};
  extent.count = 1;
  Extent::Run axes[kMaxDims];  // the smallest step first
  int count = 0;
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] <= 1 || view.strides[axis] == 0) continue;
    const Extent::Run run = {view.strides[axis] * size, view.shape[axis]};
    int at = count++;
    for (; at > 0 && axes[at - 1].step > run.step; --at) axes[at] = axes[at - 1];
    axes[at] = run;
  }
  int64_t last = size - 1;
  for (int i = 0; i < count; ++i) {
    last += axes[i].step * (axes[i].count - 1);
    Extent::Run& inner = extent.runs[extent.count - 1];
    if (axes[i].step == inner.step * inner.count) {
      inner.count *= axes[i].count;
    } else {
      extent.runs[extent.count++] = axes[i];
    }
  }
  extent.bytes = static_cast<size_t>(last + 1);
  return extent;
}

bool share_memory(const Extent& a, const void* a_data, const Extent& b, const void* b_data) {
  constexpr size_t kMost = size_t{1} << 60;  // so that no sum overflows; no memory is as large
  if (a.bytes == 0 || b.bytes == 0 || a.bytes > kMost || b.bytes > kMost) return false;
  const auto first = reinterpret_cast<uintptr_t>(a_data), second = reinterpret_cast<uintptr_t>(b_data);
  if (first >= second + b.bytes || second >= first + a.bytes) return false;
  if (first == second || (a.count == 1 && b.count == 1)) return true;
  Search search;
  for (int i = 0; i < a.count; ++i) search.add(a.runs[i].step, 0, a.runs[i].count - 1);
  for (int i = 0; i < b.count; ++i) search.add(b.runs[i].step, 1 - b.runs[i].count, 0);
  return search.finds(static_cast<int64_t>(second - first));
}

bool same_geometry(const TensorView& a, const TensorView& b) {
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] != b.shape[axis] || (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis])) return false;
  }
  return a.ndim == b.ndim;
}

void bad_overlap(const char* name, const char* other) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, name, "memory of its own",
       std::string("memory that overlaps ") + other + ", which the same run uses");
}

}  // namespace flashcute
