#include "harness.h"

enum { kMaxTensors = 4096 };

flashcuteHandle_t cpu_handle, gpu_handle;

static flashcuteTensorDescriptor_t tensors[kMaxTensors];
static int tensor_count, failure_count, check_count;

/* Every status that the header lists for a call, as bits. */
#define S(status) (1u << FLASHCUTE_STATUS_##status)
static struct {
  const char* call;
  unsigned listed, provoked;
} coverage[] = {
    {"flashcuteCreateHandle",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(DEVICE_TYPE_NOT_SUPPORTED) | S(DEVICE_NOT_FOUND) |
         S(DEVICE_ARCHITECTURE_NOT_SUPPORTED) | S(INTERNAL_ERROR),
     0},
    {"flashcuteCreatePlanningHandle",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(DEVICE_TYPE_NOT_SUPPORTED) | S(DEVICE_ARCHITECTURE_NOT_SUPPORTED) |
         S(INTERNAL_ERROR),
     0},
    {"flashcuteDestroyHandle", S(SUCCESS) | S(BAD_PARAM) | S(DEVICE_TYPE_NOT_SUPPORTED), 0},
    {"flashcuteCreateTensorDescriptor",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(BAD_TENSOR_SHAPE) | S(BAD_TENSOR_DTYPE) | S(INTERNAL_ERROR), 0},
    {"flashcuteDestroyTensorDescriptor", S(SUCCESS) | S(BAD_PARAM), 0},
    {"flashcuteCreateFlashAttentionDescriptor",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(BAD_TENSOR_SHAPE) | S(BAD_TENSOR_DTYPE) | S(BAD_TENSOR_STRIDES) |
         S(DEVICE_TYPE_NOT_SUPPORTED) | S(DEVICE_ARCHITECTURE_NOT_SUPPORTED) | S(NOT_IMPLEMENTED) | S(INTERNAL_ERROR),
     0},
    {"flashcuteGetFlashAttentionWorkspaceSize", S(SUCCESS) | S(BAD_PARAM) | S(DEVICE_TYPE_NOT_SUPPORTED), 0},
    {"flashcuteFlashAttention",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(INSUFFICIENT_WORKSPACE) | S(DEVICE_TYPE_NOT_SUPPORTED) |
         S(INTERNAL_ERROR),
     0},
    {"flashcuteDestroyFlashAttentionDescriptor", S(SUCCESS) | S(BAD_PARAM) | S(DEVICE_TYPE_NOT_SUPPORTED), 0},
    {"flashcuteMergeStates",
     S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(BAD_TENSOR_SHAPE) | S(BAD_TENSOR_DTYPE) | S(BAD_TENSOR_STRIDES) |
         S(DEVICE_TYPE_NOT_SUPPORTED) | S(INTERNAL_ERROR),
     0},
#define MEMORY_CALL(call) \
  {call, S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(DEVICE_TYPE_NOT_SUPPORTED) | S(INTERNAL_ERROR), 0}
    MEMORY_CALL("flashcuteAllocate"),
    MEMORY_CALL("flashcuteRelease"),
    MEMORY_CALL("flashcuteCopyToDevice"),
    MEMORY_CALL("flashcuteCopyToHost"),
    MEMORY_CALL("flashcuteSynchronize"),
    MEMORY_CALL("flashcuteStreamWait"),
    MEMORY_CALL("flashcuteStreamIsCapturing"),
    {"flashcuteGetPlan", S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(DEVICE_TYPE_NOT_SUPPORTED) | S(INTERNAL_ERROR),
     0},
    {"flashcuteGetInfo", S(SUCCESS) | S(BAD_PARAM) | S(NULL_POINTER) | S(INTERNAL_ERROR), 0},
    {"flashcuteSetNumThreads", S(SUCCESS) | S(BAD_PARAM), 0},
    {"flashcuteInjectFault", S(SUCCESS) | S(BAD_PARAM), 0},
};

static const char* const kStatusNames[] = {"SUCCESS",
                                           "INTERNAL_ERROR",
                                           "NOT_IMPLEMENTED",
                                           "BAD_PARAM",
                                           "NULL_POINTER",
                                           "DEVICE_TYPE_NOT_SUPPORTED",
                                           "DEVICE_NOT_FOUND",
                                           "7",
                                           "DEVICE_ARCHITECTURE_NOT_SUPPORTED",
                                           "9",
                                           "BAD_TENSOR_DTYPE",
                                           "BAD_TENSOR_SHAPE",
                                           "BAD_TENSOR_STRIDES",
                                           "INSUFFICIENT_WORKSPACE"};
enum { kStatuses = sizeof kStatusNames / sizeof kStatusNames[0], kCalls = sizeof coverage / sizeof coverage[0] };

static const char* status_name(flashcuteStatus_t status) {
  return (unsigned)status < kStatuses ? kStatusNames[status] : "unknown status";
}

int expect_status(const char* file, int line, const char* call, flashcuteStatus_t got, flashcuteStatus_t want,
                  const char* word) {
  const char* message = flashcuteGetLastErrorMessage();
  int good = got == want, listed = 0;
  ++check_count;
  for (int i = 0; i < kCalls; ++i) {
    if (strcmp(coverage[i].call, call) != 0) continue;
    listed = (coverage[i].listed >> got) & 1;
    coverage[i].provoked |= 1u << got;
  }
  if (!good) {
    printf("%s:%d: %s returned %s, expected %s; %s\n", file, line, call, status_name(got), status_name(want), message);
  } else if (!listed) {
    printf("%s:%d: %s returned %s, which the header does not list\n", file, line, call, status_name(got));
    good = 0;
  } else if (got != FLASHCUTE_STATUS_SUCCESS) {
    const int named = strncmp(message, call, strlen(call)) == 0 && (word == NULL || strstr(message, word) != NULL);
    const int reasons = got == FLASHCUTE_STATUS_NOT_IMPLEMENTED || got == FLASHCUTE_STATUS_INTERNAL_ERROR;
    const int complete = reasons || (strstr(message, "expected") != NULL && strstr(message, "given") != NULL);
    if (!named || !complete) {
      printf("%s:%d: %s: message \"%s\" lacks %s\n", file, line, call, message,
             !named ? word != NULL ? word : "the function" : "expected or given");
      good = 0;
    }
  }
  failure_count += !good;
  return good;
}

int expect_true(const char* file, int line, const char* condition, int holds) {
  ++check_count;
  if (!holds) {
    printf("%s:%d: not true: %s\n", file, line, condition);
    ++failure_count;
  }
  return holds;
}

flashcuteTensorDescriptor_t make_tensor(flashcuteDtype_t dtype, size_t ndim, const size_t* shape,
                                        const ptrdiff_t* strides) {
  flashcuteTensorDescriptor_t desc = NULL;
  OK(CreateTensorDescriptor, (&desc, ndim, shape, strides, dtype));
  CHECK(desc != NULL);
  if (tensor_count < kMaxTensors) tensors[tensor_count++] = desc;
  CHECK(tensor_count < kMaxTensors);
  return desc;
}

void free_tensors(void) {
  while (tensor_count > 0) OK(DestroyTensorDescriptor, (tensors[--tensor_count]));
}

int failures(void) {
  return failure_count;
}
int checks(void) {
  return check_count;
}

int print_coverage(void) {
  int missing = 0;
  printf("%-42s %-34s %s\n", "call", "status", "provoked");
  for (int i = 0; i < kCalls; ++i) {
    for (int status = 0; status < kStatuses; ++status) {
      if (((coverage[i].listed >> status) & 1) == 0) continue;
      const int provoked = (coverage[i].provoked >> status) & 1;
      printf("%-42s %-34s %s\n", coverage[i].call, kStatusNames[status], provoked ? "yes" : "NO");
      missing += !provoked;
    }
  }
  return missing;
}

void* garbage(void) {
  static uint64_t zeros[512];
  return zeros;
}
