// Problem + device facts -> plan. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "dispatch/registry.h"

namespace flashcute {

// True when no output element exists: nothing is launched then.
inline bool nothing_to_compute(const Problem& problem) {
  return problem.batch == 0 || problem.seq_q == 0 || problem.lengths.total_q == 0;
}

// Of those that do not refuse: the least work, by head_dim bucket and family, then one for the problem's mask
// class alone before one for any, then one that the problem favours, then the first listed. nullptr if all refuse.
const KernelInfo* choose(const std::vector<Candidate>&, const Problem&, const DeviceFacts&);

// One clause on why `chosen` was taken instead of `other`, which could have done it too.
std::string passed_over(const KernelInfo& other, const KernelInfo& chosen);

// Throws NOT_IMPLEMENTED when every kernel refuses.
Plan make_plan(const Problem& problem, const DeviceFacts& facts);

}  // namespace flashcute
