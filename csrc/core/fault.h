// Faults that tests ask for (flashcute/testing.h). One relaxed load where a fault can act.
#pragma once

#include <atomic>
#include <new>

#include "flashcute/testing.h"

namespace flashcute {

inline std::atomic<int> g_fault{FLASHCUTE_FAULT_NONE};

inline bool fault_is(flashcuteFault_t fault) {
  return g_fault.load(std::memory_order_relaxed) == fault;
}

// Stands before each allocation of a call.
inline void may_run_out_of_memory() {
  if (fault_is(FLASHCUTE_FAULT_OUT_OF_MEMORY)) throw std::bad_alloc();
}

}  // namespace flashcute
