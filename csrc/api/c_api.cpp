// The life cycle of handles and descriptors, the run, and the error texts.
#include <memory>
#include <string>
#include <string_view>

#include "api/check.h"
#include "api/firewall.h"
#include "core/backend.h"
#include "dispatch/devices.h"
#include "dispatch/heuristics.h"

namespace flashcute {
namespace {

constexpr std::string_view kPrefix = "flashcute";  // of every function

thread_local std::string t_last_error;
thread_local bool t_message_lost = false;  // there was no memory for the text

AttentionViews views_of(flashcuteTensorDescriptor_t out, flashcuteTensorDescriptor_t q, flashcuteTensorDescriptor_t k,
                        flashcuteTensorDescriptor_t v, flashcuteTensorDescriptor_t mask,
                        const flashcuteAttentionOptions_t& options) {
  AttentionViews views;
  views.out = &view_of(out, "out");
  views.q = &view_of(q, "q");
  views.k = &view_of(k, "k");
  views.v = &view_of(v, "v");
  views.mask = optional_view(mask, "mask");
  views.optional.lse = optional_view(options.lse, "options->lse");
  views.optional.dense_mask = optional_view(options.dense_mask, "options->dense_mask");
  views.optional.bias = optional_view(options.bias, "options->bias");
  views.optional.alibi_slopes = optional_view(options.alibi_slopes, "options->alibi_slopes");
  views.optional.sinks = optional_view(options.sinks, "options->sinks");
  views.optional.cu_seqlens_q = optional_view(options.cu_seqlens_q, "options->cu_seqlens_q");
  views.optional.cu_seqlens_k = optional_view(options.cu_seqlens_k, "options->cu_seqlens_k");
  views.optional.seqused_k = optional_view(options.seqused_k, "options->seqused_k");
  views.optional.dropout_state = optional_view(options.dropout_state, "options->dropout_state");
  views.optional.block_mask = optional_view(options.block_mask, "options->block_mask");
  views.optional.probs = optional_view(options.probs, "options->probs");
  return views;
}

// What a profiler of GPU work shows around the body of a call. The CPU's needs none.
class Range {
 public:
  Range(const DeviceFacts& facts, const char* name) : begun_(facts.type == DeviceType::kNvidia) {
    if (begun_) cuda::begin_range(name);
  }
  ~Range() {
    if (begun_) cuda::end_range();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool begun_;
};

void require_workspace(const Plan& plan, const void* workspace, size_t size) {
  if (plan.workspace == 0) return;
  if (workspace == nullptr || size < plan.workspace) {
    fail(FLASHCUTE_STATUS_INSUFFICIENT_WORKSPACE, workspace == nullptr ? "workspace" : "workspace_size",
         std::to_string(plan.workspace) + " bytes (flashcuteGetFlashAttentionWorkspaceSize)",
         workspace == nullptr ? "NULL" : std::to_string(size));
  }
  if ((reinterpret_cast<uintptr_t>(workspace) & 255) != 0) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, "workspace", "a pointer aligned to 256 bytes",
         "one that is " + std::to_string(reinterpret_cast<uintptr_t>(workspace) & 255) + " bytes beyond");
  }
}

void check_lengths(const Problem& problem, const Buffers& buffers, void* stream) {
  if (problem.device == DeviceType::kNvidia) {
    cuda::check_lengths(problem, buffers, stream);
  } else {
    cpu::check_lengths(problem, buffers);
  }
}

}  // namespace

flashcuteStatus_t report(const char* function, flashcuteStatus_t status, const char* message) noexcept {
  t_message_lost = false;
  try {
    // Validators begin with "(argument)"; backends may name the function, without its prefix.
    const std::string text = message, name = function;
    const bool named = text.rfind(name.substr(kPrefix.size()) + "(", 0) == 0;
    t_last_error = named ? std::string(kPrefix) + text : name + (text.rfind('(', 0) == 0 ? "" : ": ") + text;
  } catch (...) {
    t_message_lost = true;
  }
  return status;
}

void throw_null(const char* argument, flashcuteStatus_t status) {
  fail(status, argument, "a pointer that is not NULL", "NULL");
}

void throw_dead(const char* argument) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, argument, "a living object of its type",
       "one that was destroyed, is of another type or was never created");
}

void throw_unknown_device(const char* argument) {
  fail(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED, argument,
       "an object of a device type that this build has (CPU, NVIDIA)", "one of another device type");
}

void throw_planning(const char* argument, const DeviceFacts& facts) {
  fail(FLASHCUTE_STATUS_BAD_PARAM, argument, "an object of a device of this machine",
       "one that only plans for " + facts.name);
}

}  // namespace flashcute

using namespace flashcute;

flashcuteStatus_t flashcuteCreateHandle(flashcuteHandle_t* handle, flashcuteDevice_t device, int device_id) {
  return guarded(__func__, [&] {
    require(handle, "handle") = nullptr;
    const auto type = static_cast<DeviceType>(raw_value(device));
    const bool known = type == DeviceType::kCpu || type == DeviceType::kNvidia;
    if (!known || fault_is(FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE)) {
      fail(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device",
           "FLASHCUTE_DEVICE_CPU (0) or FLASHCUTE_DEVICE_NVIDIA (1)", text(raw_value(device)));
    }
    if (device_id < 0) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, "device_id", "0 or more", text(static_cast<int64_t>(device_id)));
    }
    may_run_out_of_memory();
    auto created = std::make_unique<flashcuteHandle>();
    created->facts = device_facts(type, device_id);
    require_supported(created->facts);
    *handle = created.release();
  });
}

flashcuteStatus_t flashcuteCreatePlanningHandle(flashcuteHandle_t* handle,
                                                const flashcuteArchitecture_t* architecture) {
  return guarded(__func__, [&] {
    require(handle, "handle") = nullptr;
    const DeviceFacts facts = read_architecture(&require(architecture, "architecture"));
    if (fault_is(FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE)) throw_unknown_device("architecture");
    require_supported(facts);
    may_run_out_of_memory();
    auto created = std::make_unique<flashcuteHandle>();
    created->facts = facts;
    *handle = created.release();
  });
}

flashcuteStatus_t flashcuteDestroyHandle(flashcuteHandle_t handle) {
  return guarded(__func__, [&] {
    if (handle != nullptr) delete &require_device(handle, "handle");
  });
}

flashcuteStatus_t flashcuteCreateTensorDescriptor(flashcuteTensorDescriptor_t* desc, size_t ndim, const size_t* shape,
                                                  const ptrdiff_t* strides, flashcuteDtype_t dtype) {
  return guarded(__func__, [&] {
    require(desc, "desc") = nullptr;
    const TensorView view = make_view(ndim, shape, strides, dtype);
    may_run_out_of_memory();
    auto created = std::make_unique<flashcuteTensorDescriptor>();
    created->view = view;
    *desc = created.release();
  });
}

flashcuteStatus_t flashcuteDestroyTensorDescriptor(flashcuteTensorDescriptor_t desc) {
  return guarded(__func__, [&] {
    if (desc != nullptr) delete &require_alive(desc, "desc");
  });
}

flashcuteStatus_t flashcuteCreateFlashAttentionDescriptor(
    flashcuteHandle_t handle, flashcuteFlashAttentionDescriptor_t* desc, flashcuteTensorDescriptor_t out,
    flashcuteTensorDescriptor_t q, flashcuteTensorDescriptor_t k, flashcuteTensorDescriptor_t v,
    flashcuteTensorDescriptor_t mask, const flashcuteAttentionOptions_t* options) {
  return guarded(__func__, [&] {
    require(desc, "desc") = nullptr;
    const DeviceFacts facts = refreshed(require_device(handle, "handle").facts);
    require_supported(facts);
    const flashcuteAttentionOptions_t known = read_options(options);
    const AttentionViews views = views_of(out, q, k, v, mask, known);
    may_run_out_of_memory();
    const Range range(facts, "plan");
    auto created = std::make_unique<flashcuteFlashAttentionDescriptor>();
    created->facts = facts;
    created->problem = validate_attention(views, known, facts.type, facts.id);
    created->contract = make_contract(views, created->problem);
    created->plan = make_plan(created->problem, facts);
    *desc = created.release();
  });
}

flashcuteStatus_t flashcuteGetFlashAttentionWorkspaceSize(flashcuteFlashAttentionDescriptor_t desc,
                                                          size_t* workspace_size) {
  return guarded(__func__, [&] {
    auto& size = require(workspace_size, "workspace_size", FLASHCUTE_STATUS_BAD_PARAM);
    size = require_device(desc, "desc", FLASHCUTE_STATUS_BAD_PARAM).plan.workspace;
  });
}

flashcuteStatus_t flashcuteFlashAttention(flashcuteFlashAttentionDescriptor_t desc, void* workspace,
                                          size_t workspace_size, void* out, const void* q, const void* k, const void* v,
                                          const void* mask, const flashcuteAttentionBuffers_t* buffers, void* stream) {
  return guarded(__func__, [&] {
    const auto& run = require_device(desc, "desc");
    require_real(run.facts, "desc");
    const Buffers checked = validate_run(run.contract, run.problem, out, q, k, v, mask, buffers);
    require_workspace(run.plan, workspace, workspace_size);
    if (run.plan.workspace != 0) require_own_workspace(run.contract, checked, workspace, run.plan.workspace);
    if (run.problem.checked) check_lengths(run.problem, checked, stream);
    if (run.contract.nothing_to_compute) return;
    may_run_out_of_memory();
    may_fail_to_launch();
    const Range range(run.facts, run.plan.kernel->name);
    run.plan.kernel->run(run.problem, run.plan, checked, workspace, stream);
  });
}

flashcuteStatus_t flashcuteDestroyFlashAttentionDescriptor(flashcuteFlashAttentionDescriptor_t desc) {
  return guarded(__func__, [&] {
    if (desc != nullptr) delete &require_device(desc, "desc");
  });
}

const char* flashcuteGetLastErrorMessage(void) {
  return t_message_lost ? "flashcute: no memory for the error message" : t_last_error.c_str();
}

flashcuteStatus_t flashcuteInjectFault(flashcuteFault_t fault) {
  return guarded(__func__, [&] {
    const int64_t value = raw_value(fault);
    if (value < FLASHCUTE_FAULT_NONE || value > FLASHCUTE_FAULT_PRETENDED_GPU) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, "fault", "one of FLASHCUTE_FAULT_*", text(value));
    }
    g_fault.store(static_cast<int>(value), std::memory_order_relaxed);
  });
}
