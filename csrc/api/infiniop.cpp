// InfiniOP's names over flashcute's own calls.
#include "flashcute/infiniop.h"

#include <cstdint>
#include <string>

#include "api/check.h"
#include "api/firewall.h"

namespace {

constexpr size_t kWorkspaceAlignment = 256;

struct CurrentDevice {
  flashcuteDevice_t type = FLASHCUTE_DEVICE_CPU;
  int id = 0;
};
thread_local CurrentDevice t_device;

infiniStatus_t as_infini(flashcuteStatus_t status) {
  return static_cast<infiniStatus_t>(status);
}

}  // namespace

infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id) {
  return as_infini(flashcute::guarded(__func__, [&] {
    const int64_t value = flashcute::raw_value(device);
    if (value != INFINI_DEVICE_CPU && value != INFINI_DEVICE_NVIDIA) {
      flashcute::fail(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device",
                      "INFINI_DEVICE_CPU (0) or INFINI_DEVICE_NVIDIA (1)", flashcute::text(value));
    }
    if (device_id < 0) {
      flashcute::fail(FLASHCUTE_STATUS_BAD_PARAM, "device_id", "0 or more",
                      flashcute::text(static_cast<int64_t>(device_id)));
    }
    t_device = {static_cast<flashcuteDevice_t>(device), device_id};
  }));
}

infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr) {
  return as_infini(flashcuteCreateHandle(handle_ptr, t_device.type, t_device.id));
}

infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle) {
  return as_infini(flashcuteDestroyHandle(handle));
}

infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim, const size_t* shape,
                                              const ptrdiff_t* strides, infiniDtype_t dtype) {
  return as_infini(
      flashcuteCreateTensorDescriptor(desc_ptr, ndim, shape, strides, static_cast<flashcuteDtype_t>(dtype)));
}

infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc) {
  return as_infini(flashcuteDestroyTensorDescriptor(desc));
}

infiniStatus_t infiniopCreateFlashAttentionDescriptor(
    infiniopHandle_t handle, infiniopFlashAttentionDescriptor_t* desc_ptr, infiniopTensorDescriptor_t out_desc,
    infiniopTensorDescriptor_t q_desc, infiniopTensorDescriptor_t k_desc, infiniopTensorDescriptor_t v_desc,
    infiniopTensorDescriptor_t mask_desc) {
  // InfiniOP promises no alignment. On the CPU it makes no difference; a GPU plan would stage every tensor for it, so
  // there the usual 16 bytes of every allocator are asked for, and a run with less says so.
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  const bool on_cpu = handle != nullptr && handle->alive() && handle->facts.type == flashcute::DeviceType::kCpu;
  if (on_cpu && q_desc != nullptr && q_desc->alive()) {
    options.min_alignment = static_cast<uint32_t>(flashcute::size_of(q_desc->view.dtype));
  }
  return as_infini(
      flashcuteCreateFlashAttentionDescriptor(handle, desc_ptr, out_desc, q_desc, k_desc, v_desc, mask_desc, &options));
}

infiniStatus_t infiniopGetFlashAttentionWorkspaceSize(infiniopFlashAttentionDescriptor_t desc, size_t* size) {
  const flashcuteStatus_t status = flashcuteGetFlashAttentionWorkspaceSize(desc, size);
  if (status == FLASHCUTE_STATUS_SUCCESS && *size != 0) *size += kWorkspaceAlignment - 1;
  return as_infini(status);
}

infiniStatus_t infiniopFlashAttention(infiniopFlashAttentionDescriptor_t desc, void* workspace, size_t workspace_size,
                                      void* out, const void* q, const void* k, const void* v, const void* mask,
                                      void* stream) {
  size_t needed = 0;
  if (infiniopGetFlashAttentionWorkspaceSize(desc, &needed) == INFINI_STATUS_SUCCESS && workspace_size < needed) {
    // Also where this pointer's alignment would leave enough: another's would not.
    return as_infini(flashcute::guarded(__func__, [&] {
      flashcute::fail(FLASHCUTE_STATUS_INSUFFICIENT_WORKSPACE, "workspace_size",
                      std::to_string(needed) + " bytes (infiniopGetFlashAttentionWorkspaceSize)",
                      std::to_string(workspace_size));
    }));
  }
  const size_t skipped = -reinterpret_cast<uintptr_t>(workspace) & (kWorkspaceAlignment - 1);
  if (workspace != nullptr && skipped <= workspace_size) {
    workspace = static_cast<char*>(workspace) + skipped;
    workspace_size -= skipped;
  }
  return as_infini(flashcuteFlashAttention(desc, workspace, workspace_size, out, q, k, v, mask, nullptr, stream));
}

infiniStatus_t infiniopDestroyFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc) {
  return as_infini(flashcuteDestroyFlashAttentionDescriptor(desc));
}

infiniStatus_t infiniopDestoryFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc) {
  return as_infini(flashcuteDestroyFlashAttentionDescriptor(desc));
}
