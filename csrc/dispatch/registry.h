// Every compiled kernel, and why one cannot do a problem.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"

namespace flashcute {

const char* name_of(Family family);            // "cpu", "sm80", "sm90"
const char* name_of(MaskClass mask);           // "any", "full", "banded"
const char* name_of(DeviceType device);        // "cpu", "nvidia"
MaskClass mask_class(const Problem& problem);  // kFull or kBanded

// The kernels of this build, of both backends, in the order in which the backends list them.
const std::vector<const KernelInfo*>& all_kernels();

// Why a kernel can run nothing on that device ("needs compute capability 9.0, the device has 8.0"), or "".
std::string device_refusal(const KernelInfo& kernel, const DeviceFacts& facts);

// Why a kernel cannot run the problem on that device, or "".
std::string refusal(const KernelInfo& kernel, const Problem& problem, const DeviceFacts& facts);

// What each kernel of the problem's device answers.
struct Candidate {
  const KernelInfo* kernel = nullptr;
  std::string refusal;  // "" = can do it
};
std::vector<Candidate> candidates(const Problem& problem, const DeviceFacts& facts);

// Throws NOT_IMPLEMENTED with the reasons, kernels of one reason together.
[[noreturn]] void throw_not_implemented(const std::vector<Candidate>& candidates, const Problem& problem);

}  // namespace flashcute
