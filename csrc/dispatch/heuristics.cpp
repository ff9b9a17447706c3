#include "dispatch/heuristics.h"

namespace flashcute {
namespace {

// What a kernel does for a problem, padded channels and all, relative to the others: on the GPU that both run on, the
// sm90 family computes 1.7 times as much in the same time as sm80 (docs/perf-log.md).
double effort(const KernelInfo& kernel) {
  return (kernel.head_dim + kernel.head_dim_v) / (kernel.family == Family::kSm90 ? 1.7 : 1.0);
}

bool is_favoured(const KernelInfo& kernel, const Problem& problem, const DeviceFacts& facts) {
  return kernel.favoured != nullptr && kernel.favoured(kernel, problem, facts);
}

bool better(const KernelInfo& a, const KernelInfo& b, const Problem& problem, const DeviceFacts& facts) {
  if (effort(a) < effort(b) || effort(b) < effort(a)) return effort(a) < effort(b);
  if (a.mask != b.mask) return a.mask != MaskClass::kAny;
  return is_favoured(a, problem, facts) && !is_favoured(b, problem, facts);
}

}  // namespace

const KernelInfo* choose(const std::vector<Candidate>& candidates, const Problem& problem, const DeviceFacts& facts) {
  const KernelInfo* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.refusal.empty()) continue;
    if (best == nullptr || better(*candidate.kernel, *best, problem, facts)) best = candidate.kernel;
  }
  return best;
}

std::string passed_over(const KernelInfo& other, const KernelInfo& chosen) {
  if (other.head_dim > chosen.head_dim) {
    return "could do it, but the bucket head_dim " + std::to_string(chosen.head_dim) + " fits closer";
  }
  if (other.family != chosen.family) {
    return std::string("could do it, but the ") + name_of(chosen.family) + " family is faster";
  }
  if (other.head_dim_v > chosen.head_dim_v) {
    return "could do it, but the bucket " + std::to_string(chosen.head_dim_v) + " of the head_dim of v fits closer";
  }
  if (other.mask == MaskClass::kAny && chosen.mask != MaskClass::kAny) {
    return std::string("could do it, but a kernel for mask class ") + name_of(chosen.mask) + " alone is faster";
  }
  if (chosen.short_keys > other.short_keys) {
    return std::string("could do it, but ") + chosen.name + " is faster for sequences as short as these";
  }
  if (other.short_keys > 0) return "could do it, but is for many short sequences";
  return std::string("could do it, but ") + chosen.name + " is listed first";
}

Plan make_plan(const Problem& problem, const DeviceFacts& facts) {
  const std::vector<Candidate> list = candidates(problem, facts);
  const KernelInfo* kernel = choose(list, problem, facts);
  if (kernel == nullptr) throw_not_implemented(list, problem);
  Plan plan;
  plan.kernel = kernel;
  plan.block_m = kernel->block_m;
  plan.block_n = kernel->block_n;
  plan.threads = kernel->threads;
  plan.shared_memory = kernel->shared_memory;
  if (!nothing_to_compute(problem)) kernel->plan(*kernel, problem, facts, plan);
  return plan;
}

}  // namespace flashcute
