#include "stream_order.h"

#include "unlocked.h"

namespace flashcute::python {

void StreamOrder::add(const Tensor& tensor) {
  if (!device_.is_gpu() || !tensor.present()) return;
  several_frameworks_ |= count_ != 0 && &tensor.producer() != &tensors_[0]->producer();
  must_finish_ |= tensor.borrowed_blindly();
  tensors_[count_++] = &tensor;
}

bool StreamOrder::find_stream_of(const Tensor& tensor, void*& stream) const {
  if (!tensor.producer().has_current_stream()) return false;
  stream = current_stream(tensor.producer(), device_.id, {function_, "stream"});
  return true;
}

void StreamOrder::before_work() {
  if (!streams_may_differ()) return;
  void* last = stream_.handle;
  for (int i = 0; i < count_; ++i) {
    void* theirs = nullptr;
    if (!find_stream_of(*tensors_[i], theirs) || theirs == stream_.handle || theirs == last) continue;
    check(flashcuteStreamWait(handle_of(device_, function_), stream_.handle, theirs), function_);
    last = theirs;
  }
}

void StreamOrder::after_work() {
  if (must_finish_) {
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteSynchronize(handle_of(device_, function_), stream_.handle);
    }
    check(status, function_);
    return;
  }
  if (!streams_may_differ()) return;
  void* last = stream_.handle;
  for (int i = 0; i < count_; ++i) {
    const Tensor& tensor = *tensors_[i];
    // What was read goes back to its allocator, and what was written is read, where its framework works. A caller who
    // gave a stream took that over, but for what the call made.
    if (stream_.given && !tensor.made_here()) continue;
    void* theirs = nullptr;
    if (!find_stream_of(tensor, theirs) || theirs == stream_.handle || theirs == last) continue;
    check(flashcuteStreamWait(handle_of(device_, function_), theirs, stream_.handle), function_);
    last = theirs;
  }
}

}  // namespace flashcute::python
