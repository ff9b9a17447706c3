// The sm80 family as the registry sees it: what it refuses, how it plans. One truth for all its kernels.
#pragma once

#include <string>

#include "core/kernel.h"

namespace flashcute::cuda::sm80 {

std::string refuse(const KernelInfo&, const Problem&, const DeviceFacts&);
bool favoured(const KernelInfo&, const Problem&, const DeviceFacts&);
void plan(const KernelInfo&, const Problem&, const DeviceFacts&, Plan&);

}  // namespace flashcute::cuda::sm80
