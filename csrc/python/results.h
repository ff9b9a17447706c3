// Memory that a call makes: results of the caller's type, workspaces, and copies of what the kernels cannot read.
#pragma once

#include "tensor.h"

namespace flashcute::python {

// A contiguous copy by the producer's own means. New reference.
nb::object contiguous_copy(PyObject* x, const Producer& producer, Where where);

// A new contiguous tensor on the device of `like`, of its framework where that can allocate, otherwise a DeviceArray.
nb::object allocate_like(const Tensor& like, const View& geometry, Where where, const Stream& stream);

// Sets a tensor made by allocate_like to one value: 0 or -inf.
void fill(const Tensor& tensor, double value, Where where, const Stream& stream);

// Tells PyTorch that a tensor of the caller's is about to be written, as its own in-place operations do: a backward
// pass that saved the old values then fails instead of using the new ones.
void announce_write(const Tensor& tensor, Where where);

// What the caller gets for a result made by allocate_like.
nb::object to_caller(const Tensor& like, nb::object result, Where where);

// At least `bytes` of memory for one run, aligned to 256, for the lifetime of this object or of the thread.
class Workspace {
 public:
  // `given` is the caller's `workspace=`, or null.
  void prepare(size_t bytes, PyObject* given, const Tensor& like, Where where, Stream& stream);
  void* data() const { return data_; }
  size_t size() const { return size_; }
  const Tensor& tensor() const { return tensor_; }  // not present for the CPU's own

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  nb::object owner_;
  Tensor tensor_;
};

// What a workspace needs beyond the library's bound so that any allocator's memory will do.
size_t workspace_slack(Device device, size_t bytes);

}  // namespace flashcute::python
