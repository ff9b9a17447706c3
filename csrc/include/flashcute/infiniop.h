/* The names of InfiniOP's FlashAttention, for programs written against its documentation: include this header in place
 * of InfiniOP's, link libflashcute, and they run unchanged. Handles and descriptors are flashcute's own, so the calls
 * of flashcute.h take them too, and flashcuteGetLastErrorMessage() explains a status that is not INFINI_STATUS_SUCCESS.
 */
#ifndef FLASHCUTE_INFINIOP_H
#define FLASHCUTE_INFINIOP_H

#include "flashcute/flashcute.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  INFINI_STATUS_SUCCESS = 0,
  INFINI_STATUS_INTERNAL_ERROR = 1,
  INFINI_STATUS_NOT_IMPLEMENTED = 2,
  INFINI_STATUS_BAD_PARAM = 3,
  INFINI_STATUS_NULL_POINTER = 4,
  INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
  INFINI_STATUS_DEVICE_NOT_FOUND = 6,
  INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
  INFINI_STATUS_BAD_TENSOR_DTYPE = 10,
  INFINI_STATUS_BAD_TENSOR_SHAPE = 11,
  INFINI_STATUS_BAD_TENSOR_STRIDES = 12,
  INFINI_STATUS_INSUFFICIENT_WORKSPACE = 13
} infiniStatus_t;

typedef enum { INFINI_DEVICE_CPU = 0, INFINI_DEVICE_NVIDIA = 1 } infiniDevice_t;

typedef enum {
  INFINI_DTYPE_BYTE = 1,
  INFINI_DTYPE_BOOL = 2,
  INFINI_DTYPE_I8 = 3,
  INFINI_DTYPE_I16 = 4,
  INFINI_DTYPE_I32 = 5,
  INFINI_DTYPE_I64 = 6,
  INFINI_DTYPE_U8 = 7,
  INFINI_DTYPE_U16 = 8,
  INFINI_DTYPE_U32 = 9,
  INFINI_DTYPE_U64 = 10,
  INFINI_DTYPE_F16 = 12,
  INFINI_DTYPE_F32 = 13,
  INFINI_DTYPE_F64 = 14,
  INFINI_DTYPE_BF16 = 19
} infiniDtype_t;

typedef struct flashcuteHandle* infiniopHandle_t;
typedef struct flashcuteTensorDescriptor* infiniopTensorDescriptor_t;
typedef struct flashcuteFlashAttentionDescriptor* infiniopFlashAttentionDescriptor_t;

/* The device of the handles that this thread creates from now on; the CPU at first. */
FLASHCUTE_API infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);

FLASHCUTE_API infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr);
FLASHCUTE_API infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

FLASHCUTE_API infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim,
                                                            const size_t* shape, const ptrdiff_t* strides,
                                                            infiniDtype_t dtype);
FLASHCUTE_API infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

FLASHCUTE_API infiniStatus_t infiniopCreateFlashAttentionDescriptor(
    infiniopHandle_t handle, infiniopFlashAttentionDescriptor_t* desc_ptr, infiniopTensorDescriptor_t out_desc,
    infiniopTensorDescriptor_t q_desc, infiniopTensorDescriptor_t k_desc, infiniopTensorDescriptor_t v_desc,
    infiniopTensorDescriptor_t mask_desc);
/* Large enough for a workspace of any alignment, such as malloc's. On a GPU out, q, k and v are aligned to 16 bytes, as
 * every allocator gives them; a run with less is INFINI_STATUS_BAD_PARAM. */
FLASHCUTE_API infiniStatus_t infiniopGetFlashAttentionWorkspaceSize(infiniopFlashAttentionDescriptor_t desc,
                                                                    size_t* size);
FLASHCUTE_API infiniStatus_t infiniopFlashAttention(infiniopFlashAttentionDescriptor_t desc, void* workspace,
                                                    size_t workspace_size, void* out, const void* q, const void* k,
                                                    const void* v, const void* mask, void* stream);
FLASHCUTE_API infiniStatus_t infiniopDestroyFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc);
/* The spelling that InfiniOP's documentation prints. */
FLASHCUTE_API infiniStatus_t infiniopDestoryFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc);

#ifdef __cplusplus
}
#endif
#endif
