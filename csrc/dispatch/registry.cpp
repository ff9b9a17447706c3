#include "dispatch/registry.h"

#include <algorithm>
#include <utility>

#include "core/backend.h"
#include "core/error.h"
#include "dispatch/devices.h"

namespace flashcute {
namespace {

bool backend_admits(flashcuteBackend_t backend, Family family) {
  switch (backend) {
    case FLASHCUTE_BACKEND_AUTO:
      return true;
    case FLASHCUTE_BACKEND_CPU:
      return family == Family::kCpu;
    case FLASHCUTE_BACKEND_CUDA:
      return family != Family::kCpu;
    case FLASHCUTE_BACKEND_SM80:
      return family == Family::kSm80;
    case FLASHCUTE_BACKEND_SM90:
      return family == Family::kSm90;
  }
  return false;
}

const char* backend_text(flashcuteBackend_t backend) {
  switch (backend) {
    case FLASHCUTE_BACKEND_AUTO:
      return "auto";
    case FLASHCUTE_BACKEND_CPU:
      return "cpu";
    case FLASHCUTE_BACKEND_CUDA:
      return "cuda";
    case FLASHCUTE_BACKEND_SM80:
      return "sm80";
    case FLASHCUTE_BACKEND_SM90:
      return "sm90";
  }
  return "unknown";
}

}  // namespace

const char* name_of(Family family) {
  switch (family) {
    case Family::kCpu:
      return "cpu";
    case Family::kSm80:
      return "sm80";
    case Family::kSm90:
      return "sm90";
  }
  return "unknown";
}

const char* name_of(MaskClass mask) {
  switch (mask) {
    case MaskClass::kAny:
      return "any";
    case MaskClass::kFull:
      return "full";
    case MaskClass::kBanded:
      return "banded";
  }
  return "unknown";
}

const char* name_of(DeviceType device) {
  return device == DeviceType::kNvidia ? "nvidia" : "cpu";
}

MaskClass mask_class(const Problem& problem) {
  return problem.band.bounded() ? MaskClass::kBanded : MaskClass::kFull;
}

const std::vector<const KernelInfo*>& all_kernels() {
  static const std::vector<const KernelInfo*> list = [] {
    std::vector<const KernelInfo*> kernels;
    for (const auto* backend : {&cpu::kernels(), &cuda::kernels()}) {
      for (const KernelInfo& kernel : *backend) kernels.push_back(&kernel);
    }
    return kernels;
  }();
  return list;
}

std::string device_refusal(const KernelInfo& kernel, const DeviceFacts& facts) {
  if (kernel.device != facts.type) {
    return std::string("runs on ") + name_of(kernel.device) + " devices only";
  }
  if (kernel.min_capability > facts.capability) {
    return "needs compute capability " + capability_text(kernel.min_capability) + ", the device has " +
           capability_text(facts.capability);
  }
  if (kernel.max_capability != 0 && kernel.max_capability < facts.capability) {
    return "needs compute capability " + capability_text(kernel.max_capability) + " at most, the device has " +
           capability_text(facts.capability);
  }
  if (kernel.shared_memory > facts.shared_memory_per_block && facts.type == DeviceType::kNvidia) {
    return "needs " + std::to_string(kernel.shared_memory) + " bytes of shared memory, the device has " +
           std::to_string(facts.shared_memory_per_block);
  }
  return "";
}

std::string refusal(const KernelInfo& kernel, const Problem& problem, const DeviceFacts& facts) {
  std::string reason = device_refusal(kernel, facts);
  if (!reason.empty()) return reason;
  if (!backend_admits(problem.backend, kernel.family)) {
    return std::string("backend ") + backend_text(problem.backend) + " excludes the " + name_of(kernel.family) +
           " family";
  }
  if (kernel.dtype != problem.dtype) {
    return std::string("dtype ") + name_of(problem.dtype) + " is not " + name_of(kernel.dtype);
  }
  if (problem.head_dim > kernel.head_dim) {
    return "head_dim " + std::to_string(problem.head_dim) + " is above " + std::to_string(kernel.head_dim);
  }
  if (problem.head_dim_v > kernel.head_dim_v) {
    return "head_dim of v " + std::to_string(problem.head_dim_v) + " is above " + std::to_string(kernel.head_dim_v);
  }
  if (kernel.mask != MaskClass::kAny && kernel.mask != mask_class(problem)) {
    return std::string("mask class ") + name_of(mask_class(problem)) + " is not " + name_of(kernel.mask);
  }
  return kernel.refuse != nullptr ? kernel.refuse(kernel, problem, facts) : "";
}

std::vector<Candidate> candidates(const Problem& problem, const DeviceFacts& facts) {
  std::vector<Candidate> list;
  for (const KernelInfo* kernel : all_kernels()) {
    if (kernel->device == problem.device) list.push_back({kernel, refusal(*kernel, problem, facts)});
  }
  return list;
}

void throw_not_implemented(const std::vector<Candidate>& candidates, const Problem& problem) {
  std::string message = std::string("no kernel can do this problem on the ") + name_of(problem.device) +
                        " device (backend " + backend_text(problem.backend) + ", " + name_of(problem.dtype) +
                        ", head_dim " + std::to_string(problem.head_dim) + ", mask class " +
                        name_of(mask_class(problem)) + ")";
  // The telling ones first: of kernels that are for such tensors at all, and of those the ones for the largest head
  // dims.
  std::vector<Candidate> ordered = candidates;
  std::stable_sort(ordered.begin(), ordered.end(), [&](const Candidate& a, const Candidate& b) {
    const auto rank = [&](const Candidate& c) {
      const bool meant = backend_admits(problem.backend, c.kernel->family) && c.kernel->dtype == problem.dtype;
      return std::make_pair(!meant, -c.kernel->head_dim);
    };
    return rank(a) < rank(b);
  });
  struct Reason {
    std::string text, kernel;
    int others;
  };
  std::vector<Reason> reasons;
  for (const Candidate& candidate : ordered) {
    const auto same = std::find_if(reasons.begin(), reasons.end(),
                                   [&](const Reason& reason) { return reason.text == candidate.refusal; });
    if (same == reasons.end()) {
      reasons.push_back({candidate.refusal, candidate.kernel->name, 0});
    } else {
      ++same->others;
    }
  }
  if (reasons.empty()) message += ": this build has no kernels for it (" + cuda::build_description() + ")";
  const char* separator = ": ";
  for (const auto& [text, kernel, others] : reasons) {
    message += separator + text + " (" + kernel;
    message += others == 0 ? ")" : " and " + std::to_string(others) + " more)";
    separator = "; ";
  }
  throw Error(FLASHCUTE_STATUS_NOT_IMPLEMENTED, message);
}

}  // namespace flashcute
