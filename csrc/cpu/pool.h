// The CPU backend's threads: persistent workers, started when first needed and again after a fork.
#pragma once

#include <cstdint>

namespace flashcute::cpu {

// Calls work(context, slot, index) once for every index in [0, count), in order of index but at the same time, from at
// most `threads` threads with different slots in [0, threads). The caller is slot 0; when the workers serve somebody
// else it does everything. Rethrows the first exception.
void parallel_for(int threads, int64_t count, void (*work)(void* context, int slot, int64_t index), void* context);

}  // namespace flashcute::cpu
