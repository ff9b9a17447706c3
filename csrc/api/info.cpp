// The JSON texts: what a plan is and why, and what this build can do on this machine.
#include <algorithm>
#include <cstring>
#include <string>

#include "api/check.h"
#include "api/firewall.h"
#include "api/json.h"
#include "core/backend.h"
#include "dispatch/devices.h"
#include "dispatch/heuristics.h"

#define FC_STRING_(x) #x
#define FC_STRING(x) FC_STRING_(x)
#define FC_VERSION \
  FC_STRING(FLASHCUTE_VERSION_MAJOR) "." FC_STRING(FLASHCUTE_VERSION_MINOR) "." FC_STRING(FLASHCUTE_VERSION_PATCH)

namespace flashcute {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "gcc " __VERSION__;
#else
constexpr const char* kCompiler = "unknown";
#endif

// Hands a text to the caller by the header's length rule.
void deliver(const std::string& text, char* json, size_t* length) {
  const size_t needed = text.size() + 1;
  const size_t room = *length;
  *length = needed;
  if (json == nullptr) return;
  if (room < needed) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, "length", std::to_string(needed) + " bytes of room", std::to_string(room));
  }
  std::memcpy(json, text.c_str(), needed);
}

void add_device(JsonWriter& json, const DeviceFacts& facts) {
  json.add("type", name_of(facts.type)).add("id", facts.id).add("name", facts.name);
  if (facts.type == DeviceType::kNvidia) {
    json.add("capability", capability_text(facts.capability))
        .add("multiprocessors", facts.multiprocessors)
        .add("shared_memory_per_block", facts.shared_memory_per_block)
        .add("shared_memory_per_multiprocessor", facts.shared_memory_per_multiprocessor)
        .add("l2_bytes", facts.l2_bytes)
        .add("clock_khz", facts.clock_khz)
        .add("memory_bytes_per_second", facts.memory_bytes_per_second);
  }
}

void add_kernel(JsonWriter& json, const KernelInfo& kernel) {
  json.add("name", kernel.name)
      .add("family", name_of(kernel.family))
      .add("device", name_of(kernel.device))
      .add("head_dim", kernel.head_dim)
      .add("head_dim_v", kernel.head_dim_v)
      .add("dtype", name_of(kernel.dtype))
      .add("mask_class", name_of(kernel.mask))
      .add("block_m", kernel.block_m)
      .add("block_n", kernel.block_n)
      .add("stages", kernel.stages)
      .add("threads", kernel.threads)
      .add("min_blocks", kernel.min_blocks)
      .add("shared_memory", kernel.shared_memory)
      .add("min_capability", kernel.min_capability);
}

// What each kernel says to a device, all problems apart.
void add_kernels_on(JsonWriter& json, const DeviceFacts& facts) {
  json.begin_array("kernels");
  for (const KernelInfo* kernel : all_kernels()) {
    const std::string reason = device_refusal(*kernel, facts);
    json.begin_object().add("name", kernel->name).add("can_run", reason.empty()).add("reason", reason).end_object();
  }
  json.end_array();
}

// Fills the facts of the GPU facts.id, and says why it cannot be used, or "".
std::string why_unusable(DeviceFacts& facts) {
  try {
    facts = device_facts(DeviceType::kNvidia, facts.id);
    require_supported(facts);
    return "";
  } catch (const Error& error) {
    const std::string reason = error.what();
    // No call was made here, so neither its argument nor what was expected of it are of interest.
    for (const std::string& lead : {"given " + std::to_string(facts.id) + ": ", std::string("): ")}) {
      const size_t at = reason.find(lead);
      if (reason.rfind('(', 0) == 0 && at != std::string::npos) return reason.substr(at + lead.size());
    }
    return reason;
  }
}

// One line on why no GPU can be used, "" where one can.
std::string why_no_gpu() {
  DeviceFacts first;
  return why_unusable(first);
}

void add_devices(JsonWriter& json) {
  json.begin_array("devices");
  const DeviceFacts cpu_facts = device_facts(DeviceType::kCpu, 0);
  json.begin_object();
  add_device(json, cpu_facts);
  json.add("usable", true).add("reason", "");
  add_kernels_on(json, cpu_facts);
  json.end_object();
  const int count = gpu_count();
  for (int id = 0; id < count; ++id) {
    DeviceFacts facts;
    facts.type = DeviceType::kNvidia;
    facts.id = id;
    facts.name = "NVIDIA GPU";
    const std::string reason = why_unusable(facts);
    json.begin_object();
    add_device(json, facts);
    json.add("usable", reason.empty()).add("reason", reason);
    add_kernels_on(json, facts);
    json.end_object();
  }
  json.end_array();
}

std::string info_text() {
  JsonWriter json;
  json.begin_object().add("version", FC_VERSION);
  json.begin_object("build")
      .add("compiler", kCompiler)
      .add("type", FLASHCUTE_BUILD_TYPE)
      .add("cuda", cuda::compiled())
      .add("cuda_description", cuda::build_description())
      .end_object();
  json.begin_object("cpu").add("isa", cpu::isa_name()).add("threads", cpu::num_threads()).end_object();
  json.begin_object("gpu").add("count", gpu_count()).add("reason", why_no_gpu()).end_object();
  json.begin_array("kernels");
  for (const KernelInfo* kernel : all_kernels()) {
    json.begin_object();
    add_kernel(json, *kernel);
    json.end_object();
  }
  json.end_array();
  add_devices(json);
  return json.end_object().str();
}

void add_problem(JsonWriter& json, const Problem& problem) {
  json.begin_object("problem")
      .add("dtype", name_of(problem.dtype))
      .add("batch", problem.batch)
      .add("heads_q", problem.heads_q)
      .add("heads_k", problem.heads_k)
      .add("seq_q", problem.seq_q)
      .add("seq_k", problem.seq_k)
      .add("head_dim", problem.head_dim)
      .add("head_dim_v", problem.head_dim_v)
      .add("packed", problem.packed())
      .add("scale", static_cast<double>(problem.scale))
      .add("window_left", problem.band.left)
      .add("window_right", problem.band.right)
      .add("alignment", problem.band.alignment == Alignment::kBottomRight ? "bottom_right" : "top_left")
      .end_object();
}

// CTAs that a multiprocessor holds: of a device, what it says; of a mere architecture, what the kernel was compiled
// for, as far as shared memory goes. Its registers are then known to be bounded by that, and no more.
void add_occupancy(JsonWriter& json, const flashcuteFlashAttentionDescriptor& desc) {
  constexpr size_t kReserved = 1024;  // bytes of shared memory of each CTA that the driver takes
  const KernelInfo& kernel = *desc.plan.kernel;
  KernelResources resources;
  if (desc.facts.planning) {
    const size_t fitting = desc.facts.shared_memory_per_multiprocessor / (desc.plan.shared_memory + kReserved);
    resources.blocks_per_multiprocessor = static_cast<int>(std::min<size_t>(fitting, size_t(kernel.min_blocks)));
  } else {
    resources = kernel.resources(desc.facts.id);
    json.add("registers", resources.registers).add("local_memory", resources.local_memory);
  }
  const int64_t at_once = int64_t{resources.blocks_per_multiprocessor} * desc.facts.multiprocessors;
  json.add("min_blocks", kernel.min_blocks)
      .add("blocks_per_multiprocessor", resources.blocks_per_multiprocessor)
      .add("waves", at_once > 0 ? static_cast<double>(desc.plan.grid) / static_cast<double>(at_once) : 0.0);
}

std::string plan_text(const flashcuteFlashAttentionDescriptor& desc) {
  const Plan& plan = desc.plan;
  const KernelInfo& kernel = *plan.kernel;
  JsonWriter json;
  json.begin_object().add("kernel", kernel.name).add("family", name_of(kernel.family));
  json.begin_object("device");
  add_device(json, desc.facts);
  json.end_object();
  json.add("mask_class", name_of(mask_class(desc.problem)))
      .add("head_dim", kernel.head_dim)
      .add("head_dim_v", kernel.head_dim_v)
      .add("block_m", plan.block_m)
      .add("block_n", plan.block_n)
      .add("stages", kernel.stages)
      .add("threads", plan.threads)
      .add("grid", plan.grid)
      .add("shared_memory", plan.shared_memory)
      .add("workspace", plan.workspace)
      .add("scratch", plan.scratch_size);
  if (desc.facts.type == DeviceType::kNvidia) add_occupancy(json, desc);
  const struct {
    const char* name;
    const Staging* staging;
  } tensors[] = {{"q", &plan.q}, {"k", &plan.k}, {"v", &plan.v}};
  json.begin_array("staged");
  for (const auto& tensor : tensors) {
    if (tensor.staging->size != 0) json.add(nullptr, tensor.name);
  }
  json.end_array();
  add_problem(json, desc.problem);
  json.begin_array("passed_over");
  for (const Candidate& candidate : candidates(desc.problem, desc.facts)) {
    if (candidate.kernel == plan.kernel) continue;
    const std::string reason = candidate.refusal.empty() ? passed_over(*candidate.kernel, kernel) : candidate.refusal;
    json.begin_object().add("kernel", candidate.kernel->name).add("reason", reason).end_object();
  }
  json.end_array();
  return json.end_object().str();
}

}  // namespace
}  // namespace flashcute

using namespace flashcute;

flashcuteStatus_t flashcuteGetPlan(flashcuteFlashAttentionDescriptor_t desc, char* json, size_t* length) {
  return guarded(__func__, [&] {
    const auto& planned = require_device(desc, "desc");
    require(length, "length");
    may_run_out_of_memory();
    deliver(plan_text(planned), json, length);
  });
}

flashcuteStatus_t flashcuteGetInfo(char* json, size_t* length) {
  return guarded(__func__, [&] {
    require(length, "length");
    may_run_out_of_memory();
    deliver(info_text(), json, length);
  });
}

const char* flashcuteGetVersion(void) {
  return FC_VERSION;
}
