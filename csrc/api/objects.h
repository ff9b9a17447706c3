// What the opaque handles of the C API point to. Each begins with a magic number: a destroyed object, one of another
// kind or plain garbage is then told apart before anything else of it is read.
#pragma once

#include <cstdint>

#include "api/validate.h"
#include "core/kernel.h"
#include "core/plan.h"

namespace flashcute {

constexpr uint64_t kDeadMagic = 0x6465616466636474u;

template <uint64_t kMagic>
struct Tagged {
  uint64_t magic = kMagic;
  bool alive() const { return magic == kMagic; }
  ~Tagged() { *const_cast<volatile uint64_t*>(&magic) = kDeadMagic; }  // volatile: the store must outlive the object
};

}  // namespace flashcute

struct flashcuteHandle : flashcute::Tagged<0x66635f68616e646cu> {
  flashcute::DeviceFacts facts;
};

struct flashcuteTensorDescriptor : flashcute::Tagged<0x66635f74656e736fu> {
  flashcute::TensorView view;
};

struct flashcuteFlashAttentionDescriptor : flashcute::Tagged<0x66635f6174746e64u> {
  flashcute::Problem problem;
  flashcute::Plan plan;
  flashcute::RunContract contract;
  flashcute::DeviceFacts facts;
};
