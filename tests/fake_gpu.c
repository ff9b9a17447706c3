/* Stands before libflashcute.so (LD_PRELOAD) and pretends to be a GPU: what would be enqueued is told on stderr, one
 * line each, "work NAME STREAM", "wait WAITER SIGNALLER" or "finish STREAM". Memory is the host's and nothing computes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashcute/flashcute.h"

static int some_object;

static flashcuteStatus_t work(const char* name, void* stream) {
  fprintf(stderr, "work %s %#zx\n", name, (size_t)stream);
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteCreateHandle(flashcuteHandle_t* handle, flashcuteDevice_t device, int device_id) {
  (void)device, (void)device_id;
  *handle = (flashcuteHandle_t)&some_object;
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteCreateFlashAttentionDescriptor(
    flashcuteHandle_t handle, flashcuteFlashAttentionDescriptor_t* desc, flashcuteTensorDescriptor_t out,
    flashcuteTensorDescriptor_t q, flashcuteTensorDescriptor_t k, flashcuteTensorDescriptor_t v,
    flashcuteTensorDescriptor_t mask, const flashcuteAttentionOptions_t* options) {
  (void)handle, (void)out, (void)q, (void)k, (void)v, (void)mask, (void)options;
  *desc = (flashcuteFlashAttentionDescriptor_t)&some_object;
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteGetFlashAttentionWorkspaceSize(flashcuteFlashAttentionDescriptor_t desc, size_t* size) {
  (void)desc;
  *size = getenv("FAKE_WORKSPACE") ? 1024 : 0;
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteDestroyFlashAttentionDescriptor(flashcuteFlashAttentionDescriptor_t desc) {
  (void)desc;
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteFlashAttention(flashcuteFlashAttentionDescriptor_t desc, void* workspace,
                                          size_t workspace_size, void* out, const void* q, const void* k, const void* v,
                                          const void* mask, const flashcuteAttentionBuffers_t* buffers, void* stream) {
  (void)desc, (void)workspace, (void)workspace_size, (void)out, (void)q, (void)k, (void)v, (void)mask, (void)buffers;
  return work("kernel", stream);
}

flashcuteStatus_t flashcuteMergeStates(flashcuteHandle_t handle, flashcuteTensorDescriptor_t out_desc, void* out,
                                       flashcuteTensorDescriptor_t lse_desc, float* lse,
                                       flashcuteTensorDescriptor_t out_a_desc, const void* out_a,
                                       flashcuteTensorDescriptor_t lse_a_desc, const float* lse_a,
                                       flashcuteTensorDescriptor_t out_b_desc, const void* out_b,
                                       flashcuteTensorDescriptor_t lse_b_desc, const float* lse_b, void* stream) {
  (void)handle, (void)out_desc, (void)out, (void)lse_desc, (void)lse, (void)out_a_desc, (void)out_a, (void)lse_a_desc;
  (void)lse_a, (void)out_b_desc, (void)out_b, (void)lse_b_desc, (void)lse_b;
  return work("kernel", stream);
}

/* FAKE_CAPTURE: streams that are captured into one graph, as text. */
static int captured(void* stream) {
  const char* streams = getenv("FAKE_CAPTURE");
  char number[32];
  snprintf(number, sizeof number, "%#zx", (size_t)stream);
  return streams != NULL && strstr(streams, number) != NULL;
}

flashcuteStatus_t flashcuteStreamIsCapturing(flashcuteHandle_t handle, void* stream, int* capturing) {
  (void)handle;
  *capturing = captured(stream);
  return FLASHCUTE_STATUS_SUCCESS;
}

/* As the header says; a stream that waits for a captured one joins the capture, which a graph must not be left with. */
flashcuteStatus_t flashcuteStreamWait(flashcuteHandle_t handle, void* waiter, void* signaller) {
  (void)handle;
  if (captured(waiter) && !captured(signaller)) return FLASHCUTE_STATUS_SUCCESS;
  const char* verb = captured(signaller) && !captured(waiter) ? "join" : "wait";
  fprintf(stderr, "%s %#zx %#zx\n", verb, (size_t)waiter, (size_t)signaller);
  return FLASHCUTE_STATUS_SUCCESS;
}

flashcuteStatus_t flashcuteSynchronize(flashcuteHandle_t handle, void* stream) {
  (void)handle;
  fprintf(stderr, "finish %#zx\n", (size_t)stream);
  return FLASHCUTE_STATUS_SUCCESS;
}
