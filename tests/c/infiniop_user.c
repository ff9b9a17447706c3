/* A program as written for InfiniOP: only its names, one header. */
#include <flashcute/infiniop.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(INFINI_STATUS_SUCCESS == 0, "");
_Static_assert(INFINI_STATUS_INTERNAL_ERROR == 1, "");
_Static_assert(INFINI_STATUS_NOT_IMPLEMENTED == 2, "");
_Static_assert(INFINI_STATUS_BAD_PARAM == 3, "");
_Static_assert(INFINI_STATUS_NULL_POINTER == 4, "");
_Static_assert(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED == 5, "");
_Static_assert(INFINI_STATUS_DEVICE_NOT_FOUND == 6, "");
_Static_assert(INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED == 8, "");
_Static_assert(INFINI_STATUS_BAD_TENSOR_DTYPE == 10, "");
_Static_assert(INFINI_STATUS_BAD_TENSOR_SHAPE == 11, "");
_Static_assert(INFINI_STATUS_BAD_TENSOR_STRIDES == 12, "");
_Static_assert(INFINI_STATUS_INSUFFICIENT_WORKSPACE == 13, "");
_Static_assert(INFINI_DEVICE_CPU == 0 && INFINI_DEVICE_NVIDIA == 1, "");
_Static_assert(INFINI_DTYPE_BYTE == 1 && INFINI_DTYPE_BOOL == 2, "");
_Static_assert(INFINI_DTYPE_I8 == 3 && INFINI_DTYPE_I16 == 4 && INFINI_DTYPE_I32 == 5 && INFINI_DTYPE_I64 == 6, "");
_Static_assert(INFINI_DTYPE_U8 == 7 && INFINI_DTYPE_U16 == 8 && INFINI_DTYPE_U32 == 9 && INFINI_DTYPE_U64 == 10, "");
_Static_assert(INFINI_DTYPE_F16 == 12 && INFINI_DTYPE_F32 == 13 && INFINI_DTYPE_F64 == 14, "");
_Static_assert(INFINI_DTYPE_BF16 == 19, "");
/* flashcute's own values are the same, as the wrappers cast between them */
_Static_assert((int)INFINI_STATUS_INSUFFICIENT_WORKSPACE == (int)FLASHCUTE_STATUS_INSUFFICIENT_WORKSPACE, "");
_Static_assert((int)INFINI_DTYPE_BF16 == (int)FLASHCUTE_DTYPE_BF16, "");

static int failed;

#define CHECK(condition)                                                                                   \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      printf("%s:%d: not true: %s; %s\n", __FILE__, __LINE__, #condition, flashcuteGetLastErrorMessage()); \
      failed = 1;                                                                                          \
    }                                                                                                      \
  } while (0)
#define OK(call) CHECK((call) == INFINI_STATUS_SUCCESS)

enum { kHeads = 2, kSeqQ = 3, kSeqK = 5, kDim = 4 };

/* q = 0 and v[j] = j: each output is the mean index of the keys that take part. */
static void attend(infiniopHandle_t handle, const int* mask, size_t skew, double expected) {
  const size_t q_shape[4] = {1, kHeads, kSeqQ, kDim}, k_shape[4] = {1, kHeads, kSeqK, kDim}, mask_shape[2] = {1, kSeqK};
  const ptrdiff_t q_strides[4] = {kHeads * kSeqQ * kDim, kSeqQ * kDim, kDim, 1};
  infiniopTensorDescriptor_t q_desc, k_desc, mask_desc = NULL;
  infiniopFlashAttentionDescriptor_t desc;
  size_t workspace_size = 0;
  float *q = calloc(kHeads * kSeqQ * kDim, sizeof *q), *out = calloc(kHeads * kSeqQ * kDim + skew, sizeof *out);
  float *k = calloc(kHeads * kSeqK * kDim, sizeof *k), *v = calloc(kHeads * kSeqK * kDim, sizeof *v);
  for (int i = 0; i < kHeads * kSeqK * kDim; ++i) v[i] = (float)(i / kDim % kSeqK);

  OK(infiniopCreateTensorDescriptor(&q_desc, 4, q_shape, q_strides, INFINI_DTYPE_F32));
  OK(infiniopCreateTensorDescriptor(&k_desc, 4, k_shape, NULL, INFINI_DTYPE_F32));
  if (mask != NULL) OK(infiniopCreateTensorDescriptor(&mask_desc, 2, mask_shape, NULL, INFINI_DTYPE_I32));
  OK(infiniopCreateFlashAttentionDescriptor(handle, &desc, q_desc, q_desc, k_desc, k_desc, mask_desc));
  OK(infiniopGetFlashAttentionWorkspaceSize(desc, &workspace_size));
  char* workspace = malloc(workspace_size + 1); /* of whatever alignment */
  OK(infiniopFlashAttention(desc, workspace + 1, workspace_size, out + skew, q, k, v, mask, NULL));
  for (int i = 0; i < kHeads * kSeqQ * kDim; ++i) CHECK(fabs(out[skew + i] - expected) < 1e-6);
  if (workspace_size > 0) {
    CHECK(infiniopFlashAttention(desc, workspace, 1, out + skew, q, k, v, mask, NULL) ==
          INFINI_STATUS_INSUFFICIENT_WORKSPACE);
    for (size_t skew_of_workspace = 0; skew_of_workspace < 2; ++skew_of_workspace) {
      CHECK(infiniopFlashAttention(desc, workspace + skew_of_workspace, workspace_size - 1, out + skew, q, k, v, mask,
                                   NULL) == INFINI_STATUS_INSUFFICIENT_WORKSPACE);
    }
    CHECK(infiniopFlashAttention(desc, NULL, 0, out + skew, q, k, v, mask, NULL) ==
          INFINI_STATUS_INSUFFICIENT_WORKSPACE);
  }
  OK(infiniopFlashAttention(desc, workspace, workspace_size, out + skew, q, k, v, NULL, NULL)); /* no mask */
  for (int i = 0; i < kHeads * kSeqQ * kDim; ++i) CHECK(fabs(out[skew + i] - 2.0) < 1e-6);
  CHECK(infiniopFlashAttention(desc, workspace, workspace_size, out, NULL, k, v, mask, NULL) ==
        INFINI_STATUS_NULL_POINTER);
  OK(mask != NULL ? infiniopDestroyFlashAttentionDescriptor(desc) : infiniopDestoryFlashAttentionDescriptor(desc));
  if (mask_desc != NULL) OK(infiniopDestroyTensorDescriptor(mask_desc));
  OK(infiniopDestroyTensorDescriptor(k_desc));
  OK(infiniopDestroyTensorDescriptor(q_desc));
  free(workspace);
  free(q);
  free(k);
  free(v);
  free(out);
}

static void refuse(infiniopHandle_t handle) {
  const size_t shape[3] = {2, 3, 4}, odd[3] = {3, 3, 4}, matrix[2] = {3, 4};
  const ptrdiff_t backwards[3] = {12, -4, 1};
  infiniopTensorDescriptor_t good, three_heads, halves, reversed, flat;
  infiniopFlashAttentionDescriptor_t desc = NULL;
  OK(infiniopCreateTensorDescriptor(&good, 3, shape, NULL, INFINI_DTYPE_F32));
  OK(infiniopCreateTensorDescriptor(&three_heads, 3, odd, NULL, INFINI_DTYPE_F32));
  OK(infiniopCreateTensorDescriptor(&halves, 3, shape, NULL, INFINI_DTYPE_BF16));
  OK(infiniopCreateTensorDescriptor(&reversed, 3, shape, backwards, INFINI_DTYPE_F32));
  OK(infiniopCreateTensorDescriptor(&flat, 2, matrix, NULL, INFINI_DTYPE_F32));
#define CREATE(out, q, k, v) infiniopCreateFlashAttentionDescriptor(handle, &desc, out, q, k, v, NULL)
  CHECK(CREATE(three_heads, three_heads, good, good) == INFINI_STATUS_BAD_TENSOR_SHAPE);
  CHECK(CREATE(flat, flat, flat, flat) == INFINI_STATUS_BAD_TENSOR_SHAPE);
  CHECK(CREATE(good, good, halves, good) == INFINI_STATUS_BAD_TENSOR_DTYPE);
  CHECK(CREATE(good, good, reversed, good) == INFINI_STATUS_BAD_TENSOR_STRIDES);
  CHECK(CREATE(good, NULL, good, good) == INFINI_STATUS_NULL_POINTER);
#undef CREATE
  CHECK(infiniopCreateFlashAttentionDescriptor(NULL, &desc, good, good, good, good, NULL) ==
        INFINI_STATUS_NULL_POINTER);
  infiniopTensorDescriptor_t shapeless;
  CHECK(infiniopCreateTensorDescriptor(&shapeless, 3, NULL, NULL, INFINI_DTYPE_F32) == INFINI_STATUS_NULL_POINTER);
  OK(infiniopDestroyTensorDescriptor(good));
  OK(infiniopDestroyTensorDescriptor(three_heads));
  OK(infiniopDestroyTensorDescriptor(halves));
  OK(infiniopDestroyTensorDescriptor(reversed));
  OK(infiniopDestroyTensorDescriptor(flat));
}

int main(void) {
  infiniopHandle_t handle;
  const int odd[kSeqK] = {0, 1, 0, -7, 0}, none[kSeqK] = {0};
  OK(infiniopCreateHandle(&handle)); /* the CPU, before any device was set */
  attend(handle, NULL, 0, 2.0);
  attend(handle, odd, 0, 2.0); /* keys 1 and 3 */
  attend(handle, none, 1, 0.0);
  refuse(handle);
  OK(infiniopDestroyHandle(handle));

  CHECK(infinirtSetDevice((infiniDevice_t)5, 0) == INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  CHECK(infinirtSetDevice(INFINI_DEVICE_CPU, -1) == INFINI_STATUS_BAD_PARAM);
  OK(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0));
  const infiniStatus_t status = infiniopCreateHandle(&handle);
  CHECK(status == INFINI_STATUS_SUCCESS || status == INFINI_STATUS_DEVICE_NOT_FOUND ||
        status == INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED || status == INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED);
  if (status == INFINI_STATUS_SUCCESS) OK(infiniopDestroyHandle(handle));
  OK(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  OK(infiniopCreateHandle(&handle));
  OK(infiniopDestroyHandle(handle));
  printf("%s\n", failed ? "FAILED" : "passed");
  return failed;
}
