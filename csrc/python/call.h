// One attention call: its tensors, its plan, its run. attention() and AttentionDescriptor share it.
#pragma once

#include "plan_cache.h"
#include "results.h"
#include "stream_order.h"

namespace flashcute::python {

// Refuses tensors whose gradients PyTorch would expect to flow through one call. The modes are asked for once: with
// both off, which is how inference runs, the tensors need not be asked at all.
class GradGuard {
 public:
  void check(PyObject* x, const Producer& producer, Where where);

 private:
  bool asked_ = false;
  bool backward_ = false, forward_ = false;  // the modes of differentiation that are on
};

class Call {
 public:
  Call(const char* function, const Arguments& arguments) : function_(function), arguments_(arguments) {}

  // Reads every tensor given; checks that they share a device and that no gradient would be lost.
  void read_inputs();
  // `out` and `lse` as given, or new ones.
  void bind_results(const View& out_geometry, const View* lse_geometry);
  // `probs` as given, or a new one. After the plan is found, which refuses a problem too large for it.
  void bind_probs(const View& geometry);
  // seed and offset by value, unless `seed` was a tensor. Throws where dropout has no seed. After the plan is found,
  // which checks dropout_p.
  void bind_seed(const Options& options, bool has_default, uint64_t default_seed, uint64_t default_offset);

  Views views() const;
  // What the pointers of q, k, v and out are aligned to, 16 at most.
  uint32_t alignment() const;
  Device device() const { return tensors_[kQ].view.device; }
  const View& operator[](Slot slot) const { return tensors_[slot].view; }

  // Runs and returns what the caller gets: out, or the tuple of out, lse and probs, of the last two what was asked for.
  PyObject* run(const Plan& plan, const Options& options);

 private:
  Where where(Arg arg) const { return {function_, name_of(arg)}; }
  void* data_of(Slot slot) const { return tensors_.has(slot) ? tensors_[slot].view.data : nullptr; }
  void read(Slot slot, Arg arg, Use use);
  void bind_result(Slot slot, Arg arg, const View& geometry, double unset, nb::object& result);
  bool packed() const { return tensors_.has(kCuSeqlensQ) || tensors_.has(kCuSeqlensK); }

  const char* function_;
  const Arguments& arguments_;
  Stream stream_;
  GradGuard grad_;
  TensorSet tensors_;
  nb::object out_, lse_, probs_;
  bool dense_mask_ = false;  // tensors_[kKeyMask] stands for kDenseMask
  uint64_t seed_ = 0, offset_ = 0;
};

// Is a seed argument a tensor (or a descriptor of one) rather than a number?
bool is_tensor_seed(PyObject* value);
// Whether a mask is one of keys or one of pairs, which its rank decides.
Slot mask_slot(const View& mask, bool packed, Where where);

// The contiguous results of a problem, in the caller's axis order. Throws where q and v have no such shape.
View out_geometry(const View& q, const View& v, Where where);
View lse_geometry(const View& q, const Options& options);
View probs_geometry(const View& q, const View& k, const Options& options);

}  // namespace flashcute::python
