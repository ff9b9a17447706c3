// How many threads are worth starting.
#pragma once

#include <string>

namespace flashcute::cpu {

// CPUs that this process may run on at once: its affinity, bounded by the CPU quotas of the control groups (containers)
// around it, rounded up. root precedes /proc and /sys: empty but in tests.
int available_cpus(const std::string& root);

}  // namespace flashcute::cpu
