// The stream of a call among those of the frameworks that its tensors come from.
#pragma once

#include "stream.h"
#include "tensor_set.h"

namespace flashcute::python {

// Frameworks prepare, and later reuse, their memory on streams of their own. Where one of those may not be the call's
// (a stream was given, or the tensors are of several frameworks), the two wait for each other around the work. Where
// the call's stream is captured into a graph and theirs is not, neither can wait: the work runs when the graph is
// launched.
class StreamOrder {
 public:
  StreamOrder(const char* function, Device device, const Stream& stream)
      : function_(function), device_(device), stream_(stream) {}

  // Every tensor that the work reads or writes, none of them released before after_work().
  void add(const Tensor& tensor);
  void add_workspace(const Tensor& tensor);
  // The call's stream waits for what the frameworks have enqueued.
  void before_work();
  // What the work still uses is not reused before it is done.
  void after_work();

 private:
  bool streams_may_differ() const { return device_.is_gpu() && (stream_.given || several_frameworks_); }
  // use(stream) for the streams, other than the call's, on which frameworks of the tensors work; all of them, or those
  // whose memory the call made.
  template <class Use>
  void for_each_other_stream(bool made_only, Use use) const;

  bool captured(void* stream) const { return is_capturing(device_, stream, function_); }
  // A graph must not keep what the call made for itself in memory that a framework reuses once the call is over.
  void refuse_own_memory_in_capture() const;

  const char* function_;
  Device device_;
  const Stream& stream_;
  bool several_frameworks_ = false, must_finish_ = false;
  int count_ = 0;
  const Tensor* workspace_ = nullptr;
  const Tensor* tensors_[kSlotCount + 1];  // with the workspace
};

}  // namespace flashcute::python
