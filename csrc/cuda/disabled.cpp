// The CUDA half of a build without CUDA kernels: knows why there are none, and says so wherever a GPU is asked for.
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/error.h"

#ifndef FLASHCUTE_CUDA_REASON
#error "csrc/cuda/CMakeLists.txt defines FLASHCUTE_CUDA_REASON"
#endif

namespace flashcute::cuda {
namespace {

[[noreturn]] void refuse(const char* function) {
  throw Error(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED, std::string(function) +
                                                              "(device): expected a build with CUDA kernels, given one "
                                                              "without (" FLASHCUTE_CUDA_REASON ").");
}

}  // namespace

bool compiled() {
  return false;
}

std::string build_description() {
  return "no CUDA kernels: " FLASHCUTE_CUDA_REASON;
}

const std::vector<KernelInfo>& kernels() {
  static const std::vector<KernelInfo> none;
  return none;
}

int device_count() {
  return 0;
}

const DeviceFacts& device_facts(int) {
  refuse("device_facts");
}

void merge(const MergeProblem&, int, void*) {
  refuse("merge");
}

void check_lengths(const Problem&, const Buffers&, void*) {
  refuse("check_lengths");
}

void* allocate(int, size_t) {
  refuse("allocate");
}

void release(int, void*) {
  refuse("release");
}

void copy_to_device(int, void*, const void*, size_t, void*) {
  refuse("copy_to_device");
}

void copy_to_host(int, void*, const void*, size_t, void*) {
  refuse("copy_to_host");
}

void synchronize(int, void*) {
  refuse("synchronize");
}

bool stream_is_capturing(int, void*) {
  refuse("stream_is_capturing");
}

void stream_wait(int, void*, void*) {
  refuse("stream_wait");
}

void begin_range(const char*) noexcept {}

void end_range() noexcept {}

}  // namespace flashcute::cuda
