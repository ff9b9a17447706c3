// The two backends as dispatch sees them. cpu/ and cuda/ define these; a CPU-only build links cuda/disabled.cpp,
// which answers for the missing half.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"

namespace flashcute {

namespace cpu {
const std::vector<KernelInfo>& kernels();
void merge(const MergeProblem&);
void check_lengths(const Problem&,
                   const Buffers&);  // options.checked: throws Error(BAD_PARAM) that names the bad entry
void set_num_threads(int n);
int num_threads();
const char* isa_name();  // "avx512_bf16", "avx512", "avx2", "generic": what this machine will run
}  // namespace cpu

namespace cuda {
bool compiled();                  // were CUDA kernels built
std::string build_description();  // "CUDA 13.0, CUTLASS 4.2.0, archs 80;90" or why there is none
const std::vector<KernelInfo>& kernels();
int device_count();  // 0 without a driver; opens no context
// Throws Error: DEVICE_NOT_FOUND (no driver, no such device; the text says which), DEVICE_TYPE_NOT_SUPPORTED (not
// compiled).
const DeviceFacts& device_facts(int id);
void merge(const MergeProblem&, int device_id, void* stream);
void check_lengths(const Problem&, const Buffers&, void* stream);  // synchronises the stream
void* allocate(int device_id, size_t bytes);
void release(int device_id, void* memory);
void copy_to_device(int device_id, void* device, const void* host, size_t bytes, void* stream);
void copy_to_host(int device_id, void* host, const void* device, size_t bytes, void* stream);
void synchronize(int device_id, void* stream);
bool stream_is_capturing(int device_id, void* stream);  // into a graph
void stream_wait(int device_id, void* waiter, void* signaller);
// Ranges on a profiler's timeline (NVTX domain "flashcute"), nested on each thread. Nothing without a profiler.
void begin_range(const char* name) noexcept;
void end_range() noexcept;
}  // namespace cuda

}  // namespace flashcute
