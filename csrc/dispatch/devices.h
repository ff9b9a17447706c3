// Facts of devices: what the backends report, with the faults of flashcute/testing.h laid over it.
#pragma once

#include <string>

#include "core/kernel.h"

namespace flashcute {

constexpr int kOldestCapability = 80;  // the sm80 family is the oldest there is

std::string capability_text(int capability);  // 80 -> "8.0"

// Throws DEVICE_NOT_FOUND or DEVICE_TYPE_NOT_SUPPORTED.
DeviceFacts device_facts(DeviceType type, int id);

// The facts of a handle made earlier, which a fault may have changed since.
DeviceFacts refreshed(const DeviceFacts& facts);

// GPUs that this build can count. Without CUDA kernels the driver stays shut and the device files are counted, so that
// the user can be told what the build leaves idle.
int gpu_count();

// Throws DEVICE_ARCHITECTURE_NOT_SUPPORTED for a GPU that no kernel family can run on.
void require_supported(const DeviceFacts& facts);

}  // namespace flashcute
