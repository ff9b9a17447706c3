// What the host sides of the kernel families share: tiles, refusals, and what the device makes of a kernel.
#pragma once

#include <string>

#include "core/kernel.h"

namespace flashcute::cuda {

// Tiles of query rows of all heads.
int64_t tiles_of(const KernelInfo&, const Problem&);

// What no kernel of either family can: features that its mask class lacks, sizes beyond its integers, elements at odd
// addresses. Empty where there is nothing.
std::string common_refusal(const KernelInfo&, const Problem&);

// kernel: the host symbol. shared_memory: bytes a CTA.
KernelResources resources_of(const void* kernel, int threads, size_t shared_memory, int device);

}  // namespace flashcute::cuda
