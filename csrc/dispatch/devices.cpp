#include "dispatch/devices.h"

#include <unistd.h>

#include "core/backend.h"
#include "core/error.h"
#include "core/fault.h"

namespace flashcute {
namespace {

DeviceFacts pretended(const char* name, int capability, int multiprocessors, size_t shared_memory, size_t l2_bytes) {
  DeviceFacts facts;
  facts.type = DeviceType::kNvidia;
  facts.name = name;
  facts.capability = capability;
  facts.multiprocessors = multiprocessors;
  facts.shared_memory_per_block = shared_memory;
  facts.shared_memory_per_multiprocessor = shared_memory + 1024;  // the driver's own kilobyte
  facts.l2_bytes = l2_bytes;
  facts.planning = true;
  return facts;
}

DeviceFacts old_gpu() {
  return pretended("pretended GPU of capability 7.5", 75, 40, 64 << 10, 4 << 20);
}

DeviceFacts nvidia_facts(int id) {
  if (fault_is(FLASHCUTE_FAULT_NO_GPU)) {
    throw Error(FLASHCUTE_STATUS_DEVICE_NOT_FOUND,
                "(device_id): expected an NVIDIA GPU that the driver can open, given a machine without one");
  }
  if (id == 0 && fault_is(FLASHCUTE_FAULT_OLD_GPU)) return old_gpu();
  if (id == 0 && fault_is(FLASHCUTE_FAULT_PRETENDED_GPU)) {
    return pretended("pretended GPU of capability 8.0", 80, 108, 163 << 10, 40 << 20);
  }
  if (!cuda::compiled()) {
    throw Error(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "(device): expected a build with CUDA kernels for FLASHCUTE_DEVICE_NVIDIA, given one with " +
                    cuda::build_description() + "; rebuild with FLASHCUTE_CUDA=on");
  }
  return cuda::device_facts(id);
}

}  // namespace

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

DeviceFacts device_facts(DeviceType type, int id) {
  if (type == DeviceType::kNvidia) return nvidia_facts(id);
  if (id != 0) {
    throw Error(FLASHCUTE_STATUS_DEVICE_NOT_FOUND,
                "(device_id): expected 0, the only CPU device, given " + std::to_string(id));
  }
  DeviceFacts facts;
  facts.name = "CPU";
  return facts;
}

DeviceFacts refreshed(const DeviceFacts& facts) {
  const bool replaced = facts.type == DeviceType::kNvidia && facts.id == 0 && fault_is(FLASHCUTE_FAULT_OLD_GPU);
  return replaced ? old_gpu() : facts;
}

int gpu_count() {
  if (fault_is(FLASHCUTE_FAULT_NO_GPU)) return 0;
  if (fault_is(FLASHCUTE_FAULT_OLD_GPU) || fault_is(FLASHCUTE_FAULT_PRETENDED_GPU)) return 1;
  if (cuda::compiled()) return cuda::device_count();
  int count = 0;
  for (int id = 0; id < 64; ++id) count += access(("/dev/nvidia" + std::to_string(id)).c_str(), F_OK) == 0;
  return count;
}

void require_supported(const DeviceFacts& facts) {
  if (facts.type != DeviceType::kNvidia || facts.capability >= kOldestCapability) return;
  throw Error(FLASHCUTE_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED,
              "(device_id): expected a GPU of compute capability " + capability_text(kOldestCapability) +
                  " or newer, given " + facts.name + " of compute capability " + capability_text(facts.capability));
}

}  // namespace flashcute
