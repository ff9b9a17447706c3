/* One descriptor from many threads, each with its own workspace, failing calls among the good ones. */
#include <pthread.h>

#include "harness.h"

enum { kThreads = 8, kCalls = 200, kRows = 37, kHeads = 4, kDim = 32, kElements = kHeads * kRows * kDim };

static flashcuteFlashAttentionDescriptor_t desc_;
static size_t workspace_size_;
static float q_[kElements], k_[kElements], v_[kElements], serial_[kElements];

static void* work(void* argument) {
  const int id = *(const int*)argument;
  void *wrong = NULL, *workspace = NULL, *out = NULL;
  if (flashcuteAllocate(cpu_handle, &workspace, workspace_size_) != FLASHCUTE_STATUS_SUCCESS) return argument;
  if (flashcuteAllocate(cpu_handle, &out, sizeof serial_) != FLASHCUTE_STATUS_SUCCESS) return argument;
  for (int i = 0; i < kCalls && wrong == NULL; ++i) {
    if ((i + id) % 5 == 0) {
      if (flashcuteFlashAttention(desc_, workspace, workspace_size_, out, NULL, k_, v_, NULL, NULL, NULL) !=
              FLASHCUTE_STATUS_NULL_POINTER ||
          strstr(flashcuteGetLastErrorMessage(), "(q)") == NULL) {
        wrong = argument;
      }
      continue;
    }
    memset(out, 0xff, sizeof serial_);
    if (flashcuteFlashAttention(desc_, workspace, workspace_size_, out, q_, k_, v_, NULL, NULL, NULL) !=
            FLASHCUTE_STATUS_SUCCESS ||
        memcmp(out, serial_, sizeof serial_) != 0) {
      wrong = argument;
    }
  }
  flashcuteRelease(cpu_handle, workspace);
  flashcuteRelease(cpu_handle, out);
  return wrong;
}

void test_concurrency(void) {
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  options.min_alignment = 4;
  const flashcuteTensorDescriptor_t tensor = TENSOR(F32, kHeads, kRows, kDim);
  OK(CreateFlashAttentionDescriptor, (cpu_handle, &desc_, tensor, tensor, tensor, tensor, NULL, &options));
  OK(GetFlashAttentionWorkspaceSize, (desc_, &workspace_size_));
  for (int i = 0; i < kElements; ++i) {
    q_[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    k_[i] = (float)(i * 53 % 97) / 48.0f - 1.0f;
    v_[i] = (float)(i * 29 % 89) / 44.0f - 1.0f;
  }
  void* workspace = NULL;
  OK(Allocate, (cpu_handle, &workspace, workspace_size_));
  OK(FlashAttention, (desc_, workspace, workspace_size_, serial_, q_, k_, v_, NULL, NULL, NULL));
  OK(Release, (cpu_handle, workspace));

  pthread_t threads[kThreads];
  int ids[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    ids[i] = i;
    CHECK(pthread_create(&threads[i], NULL, work, &ids[i]) == 0);
  }
  for (int i = 0; i < kThreads; ++i) {
    void* wrong = NULL;
    CHECK(pthread_join(threads[i], &wrong) == 0);
    CHECK(wrong == NULL);
  }
  OK(DestroyFlashAttentionDescriptor, (desc_));
}
