/* The C API from start to end on the CPU: causal attention with grouped query heads and the log-sum-exp.
 *
 * The queries are zero, so every visible key weighs the same, and the value row of key j is j everywhere. Row i must
 * then be the mean of the keys that it sees, and its log-sum-exp the logarithm of their number, which main() checks. */
#include <flashcute/flashcute.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBatch = 2, kHeadsQ = 4, kHeadsK = 2, kSeqQ = 5, kSeqK = 7, kHeadDim = 64 };

static int failed(const char* call, flashcuteStatus_t status) {
  if (status == FLASHCUTE_STATUS_SUCCESS) return 0;
  fprintf(stderr, "%s: status %d: %s\n", call, (int)status, flashcuteGetLastErrorMessage());
  return 1;
}
#define TRY(call) \
  if (failed(#call, call)) return EXIT_FAILURE

int main(void) {
  const size_t shape_q[] = {kBatch, kHeadsQ, kSeqQ, kHeadDim};
  const size_t shape_k[] = {kBatch, kHeadsK, kSeqK, kHeadDim};
  const size_t shape_lse[] = {kBatch, kHeadsQ, kSeqQ};
  static float q[kBatch * kHeadsQ * kSeqQ * kHeadDim], out[kBatch * kHeadsQ * kSeqQ * kHeadDim];
  static float k[kBatch * kHeadsK * kSeqK * kHeadDim], v[kBatch * kHeadsK * kSeqK * kHeadDim];
  static float lse[kBatch * kHeadsQ * kSeqQ];
  for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); ++i) {
    k[i] = 1.0f;
    v[i] = (float)(i / kHeadDim % kSeqK);
  }

  flashcuteHandle_t handle;
  TRY(flashcuteCreateHandle(&handle, FLASHCUTE_DEVICE_CPU, 0));

  /* NULL strides: contiguous. The attention descriptor keeps nothing of these. */
  flashcuteTensorDescriptor_t q_desc, k_desc, lse_desc;
  TRY(flashcuteCreateTensorDescriptor(&q_desc, 4, shape_q, NULL, FLASHCUTE_DTYPE_F32));
  TRY(flashcuteCreateTensorDescriptor(&k_desc, 4, shape_k, NULL, FLASHCUTE_DTYPE_F32));
  TRY(flashcuteCreateTensorDescriptor(&lse_desc, 3, shape_lse, NULL, FLASHCUTE_DTYPE_F32));

  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  options.lse = lse_desc;
  options.min_alignment = sizeof(float); /* what these arrays promise */
  flashcuteFlashAttentionDescriptor_t attention;
  TRY(flashcuteCreateFlashAttentionDescriptor(handle, &attention, q_desc, q_desc, k_desc, k_desc, NULL, &options));
  TRY(flashcuteDestroyTensorDescriptor(lse_desc));
  TRY(flashcuteDestroyTensorDescriptor(k_desc));
  TRY(flashcuteDestroyTensorDescriptor(q_desc));

  size_t workspace_size;
  TRY(flashcuteGetFlashAttentionWorkspaceSize(attention, &workspace_size));
  void* workspace = NULL;
  if (workspace_size != 0) TRY(flashcuteAllocate(handle, &workspace, workspace_size));

  flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  buffers.lse = lse;
  TRY(flashcuteFlashAttention(attention, workspace, workspace_size, out, q, k, v, NULL, &buffers, NULL));

  if (workspace != NULL) TRY(flashcuteRelease(handle, workspace));
  TRY(flashcuteDestroyFlashAttentionDescriptor(attention));
  TRY(flashcuteDestroyHandle(handle));

  printf("flashcute %s\nrow  mean of visible keys  log-sum-exp\n", flashcuteGetVersion());
  int wrong = 0;
  for (int row = 0; row < kBatch * kHeadsQ * kSeqQ; ++row) {
    const int visible = row % kSeqQ + 1 + (kSeqK - kSeqQ); /* causal, aligned to the bottom right */
    const float* got = out + (size_t)row * kHeadDim;
    for (int d = 0; d < kHeadDim; ++d) wrong += !(fabsf(got[d] - 0.5f * (float)(visible - 1)) <= 1e-5f);
    wrong += !(fabsf(lse[row] - logf((float)visible)) <= 1e-5f);
    if (row < kSeqQ) printf("%3d  %20.4f  %11.4f\n", row, got[0], lse[row]);
  }
  if (wrong) {
    printf("%d values are wrong\n", wrong);
    return EXIT_FAILURE;
  }
  puts("all rows agree");
  return EXIT_SUCCESS;
}
