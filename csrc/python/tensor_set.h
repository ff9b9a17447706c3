// The tensors of one call.
#pragma once

#include <new>

#include "tensor.h"

namespace flashcute::python {

enum Slot : int {
  kQ,
  kK,
  kV,
  kOut,
  kLse,
  kProbs,
  kKeyMask,
  kDenseMask,
  kBlockMask,
  kBias,
  kAlibi,
  kSinks,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSequsedK,
  kDropoutState,
  kSlotCount
};

// Most calls have four of them, and the rest is not even constructed.
class TensorSet {
 public:
  TensorSet() {}
  TensorSet(const TensorSet&) = delete;
  TensorSet& operator=(const TensorSet&) = delete;
  ~TensorSet() {
    for_each([](Slot, Tensor& tensor) { tensor.~Tensor(); });
  }

  bool has(Slot slot) const { return present_ >> slot & 1u; }
  Tensor& operator[](Slot slot) { return tensors_[slot]; }
  const Tensor& operator[](Slot slot) const { return tensors_[slot]; }

  Tensor& add(Slot slot) {
    Tensor* tensor = new (&tensors_[slot]) Tensor;
    present_ |= 1u << slot;
    return *tensor;
  }

  // use(slot, tensor) for each one there is, in the order of their slots.
  template <class Use>
  void for_each(Use&& use) {
    for (uint32_t rest = present_; rest != 0; rest &= rest - 1) {
      const int slot = __builtin_ctz(rest);
      use(static_cast<Slot>(slot), tensors_[slot]);
    }
  }
  template <class Use>
  void for_each(Use&& use) const {
    const_cast<TensorSet*>(this)->for_each([&](Slot slot, const Tensor& tensor) { use(slot, tensor); });
  }

 private:
  uint32_t present_ = 0;
  union {
    Tensor tensors_[kSlotCount];
  };
};

}  // namespace flashcute::python
