// What a backend gives the registry: one KernelInfo for each compiled kernel.
#pragma once

#include <cstddef>
#include <string>

#include "core/plan.h"
#include "core/problem.h"

namespace flashcute {

enum class Family { kCpu, kSm80, kSm90 };
enum class MaskClass { kAny, kFull, kBanded };  // kAny: one kernel serves both
// kSmall: for devices of less shared memory. kShort: two CTAs to a multiprocessor, for short sequences. kValues128: for
// values of fewer channels than queries have, up to 128.
enum class TileKind { kUsual, kSmall, kShort, kValues128 };

// Facts of one device, read once and cached.
struct DeviceFacts {
  DeviceType type = DeviceType::kCpu;
  int id = 0;
  std::string name;
  int capability = 0;  // GPU: 10 * major + minor
  int multiprocessors = 0;
  size_t shared_memory_per_block = 0;  // the opt-in limit
  size_t shared_memory_per_multiprocessor = 0;
  size_t l2_bytes = 0;
  int clock_khz = 0;                   // the highest; 0 = not known
  size_t memory_bytes_per_second = 0;  // the peak; 0 = not known
  bool planning = false;               // no device stands behind these: plans can be made, nothing can run
};

// What the compiler and the device make of a kernel.
struct KernelResources {
  int registers = 0;        // of a thread
  size_t local_memory = 0;  // bytes of a thread
  int blocks_per_multiprocessor = 0;
};

struct KernelInfo {
  const char* name = "";  // "sm80_hd128_bfloat16_banded"
  Family family = Family::kCpu;
  DeviceType device = DeviceType::kCpu;
  int head_dim = 0, head_dim_v = 0;  // buckets: serves head dims up to these
  DType dtype = DType::kF32;
  MaskClass mask = MaskClass::kAny;
  int block_m = 0, block_n = 0, stages = 0, threads = 0;
  int min_blocks = 0;  // GPU: CTAs of a multiprocessor for which the registers of each are bounded
  int min_capability = 0;
  int max_capability = 0;  // 0: any later one will do
  size_t shared_memory = 0;
  int64_t short_keys = 0;  // keys up to which it is faster than its equals, on devices that it fits twice; 0: never

  // Empty when this kernel can run the problem on that device, otherwise one clause that says why not
  // ("head_dim 256 is above 128"). Must look at nothing but its arguments.
  std::string (*refuse)(const KernelInfo&, const Problem&, const DeviceFacts&) = nullptr;
  // Where given: does the problem want this kernel more than one that serves it equally closely? Pure.
  bool (*favoured)(const KernelInfo&, const Problem&, const DeviceFacts&) = nullptr;
  // Fills tile sizes, grid, staging and workspace of the plan. Pure.
  void (*plan)(const KernelInfo&, const Problem&, const DeviceFacts&, Plan&) = nullptr;
  // GPU: asks the device, which may load the kernel. Throws flashcute::Error.
  KernelResources (*resources)(int device_id) = nullptr;
  // Enqueues. Allocates nothing, does not synchronise. Throws flashcute::Error.
  void (*run)(const Problem&, const Plan&, const Buffers&, void* workspace, void* stream) = nullptr;
};

// Strided (batch, heads, rows, channels) operands of flashcuteMergeStates; lse strides without the channel.
struct MergeOperand {
  const void* out = nullptr;
  const float* lse = nullptr;
  Strides out_strides;
  Strides lse_strides;
};

struct MergeProblem {
  DType dtype = DType::kF32;
  int64_t batch = 0, heads = 0, rows = 0, head_dim = 0;
  MergeOperand a, b;
  MergeOperand result;  // written
};

}  // namespace flashcute
