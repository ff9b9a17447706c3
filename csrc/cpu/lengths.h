// Members of a batch: where each one's rows start and how many there are. Lengths held in memory are not trusted.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace flashcute::cpu {

struct Member {
  int64_t start_q = 0, len_q = 0, start_k = 0, len_k = 0;
};

// Clamped into the tensors.
Member member_of(const Problem&, const Buffers&, int64_t batch);

}  // namespace flashcute::cpu
