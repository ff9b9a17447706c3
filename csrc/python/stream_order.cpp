#include "stream_order.h"

#include "unlocked.h"

namespace flashcute::python {

void StreamOrder::add(const Tensor& tensor) {
  if (!device_.is_gpu() || !tensor.present()) return;
  several_frameworks_ |= count_ != 0 && &tensor.producer() != &tensors_[0]->producer();
  must_finish_ |= tensor.borrowed_blindly();
  tensors_[count_++] = &tensor;
}

void StreamOrder::add_workspace(const Tensor& tensor) {
  workspace_ = &tensor;
  add(tensor);
}

template <class Use>
void StreamOrder::for_each_other_stream(bool made_only, Use use) const {
  if (!streams_may_differ()) return;
  void* last = stream_.handle;
  for (int i = 0; i < count_; ++i) {
    const Tensor& tensor = *tensors_[i];
    if ((made_only && !tensor.made_here()) || !tensor.producer().has_current_stream()) continue;
    void* theirs = current_stream(tensor.producer(), device_.id, {function_, "stream"});
    if (theirs == stream_.handle || theirs == last) continue;
    use(theirs);
    last = theirs;
  }
}

void StreamOrder::refuse_own_memory_in_capture() const {
  if (!streams_may_differ()) return;
  for (int i = 0; i < count_; ++i) {
    const Tensor& tensor = *tensors_[i];
    const bool own = tensor.copied() || (&tensor == workspace_ && tensor.made_here());
    if (!own || !tensor.producer().has_current_stream()) continue;
    void* theirs = current_stream(tensor.producer(), device_.id, {function_, "stream"});
    if (theirs == stream_.handle || !captured(stream_.handle) || captured(theirs)) continue;
    if (tensor.copied()) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, {function_, "stream"},
           "expected tensors that need no copy on a stream that is captured into a CUDA graph while their framework's "
           "current stream is not, since the graph would not repeat the copy, given one with a last axis that is not "
           "contiguous");
    }
    fail(
        FLASHCUTE_STATUS_BAD_PARAM, {function_, "workspace"},
        "expected one on a stream that is captured into a CUDA graph while the current stream of q's framework is not, "
        "since memory of this call would be reused under the graph, given None");
  }
}

void StreamOrder::before_work() {
  refuse_own_memory_in_capture();
  for_each_other_stream(false, [&](void* theirs) {
    check(flashcuteStreamWait(handle_of(device_, function_), stream_.handle, theirs), function_);
  });
}

void StreamOrder::after_work() {
  if (must_finish_) {
    if (captured(stream_.handle)) return;  // nothing runs yet
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteSynchronize(handle_of(device_, function_), stream_.handle);
    }
    check(status, function_);
    return;
  }
  // What was read goes back to its allocator, and what was written is read, where its framework works. A caller who
  // gave a stream took that over, but for what the call made.
  for_each_other_stream(stream_.given, [&](void* theirs) {
    if (captured(stream_.handle) && !captured(theirs)) return;  // it would be drawn into the capture
    check(flashcuteStreamWait(handle_of(device_, function_), theirs, stream_.handle), function_);
  });
}

}  // namespace flashcute::python
