/* Handles, tensor descriptors, memory, threads, information, error texts. */
#include <pthread.h>

#include "harness.h"

static void test_handles(void) {
  flashcuteHandle_t handle = garbage();
  EXPECT(NULL_POINTER, "handle", CreateHandle, (NULL, FLASHCUTE_DEVICE_CPU, 0));
  EXPECT(BAD_PARAM, "device_id", CreateHandle, (&handle, FLASHCUTE_DEVICE_CPU, -1));
  CHECK(handle == NULL);
  EXPECT(BAD_PARAM, "device_id", CreateHandle, (&handle, FLASHCUTE_DEVICE_NVIDIA, -1));
  EXPECT(DEVICE_NOT_FOUND, "given 1", CreateHandle, (&handle, FLASHCUTE_DEVICE_CPU, 1));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "7", CreateHandle, (&handle, (flashcuteDevice_t)7, 0));
  if (gpu_handle == NULL) {
    const flashcuteStatus_t status = flashcuteCreateHandle(&handle, FLASHCUTE_DEVICE_NVIDIA, 0);
    CHECK(status == FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED || status == FLASHCUTE_STATUS_DEVICE_NOT_FOUND ||
          status == FLASHCUTE_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED);
  } else {
    EXPECT(DEVICE_NOT_FOUND, "999", CreateHandle, (&handle, FLASHCUTE_DEVICE_NVIDIA, 999));
  }

  OK(InjectFault, (FLASHCUTE_FAULT_NO_GPU));
  EXPECT(DEVICE_NOT_FOUND, "GPU", CreateHandle, (&handle, FLASHCUTE_DEVICE_NVIDIA, 0));
  OK(InjectFault, (FLASHCUTE_FAULT_OLD_GPU));
  EXPECT(DEVICE_ARCHITECTURE_NOT_SUPPORTED, "7.5", CreateHandle, (&handle, FLASHCUTE_DEVICE_NVIDIA, 0));
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", CreateHandle, (&handle, FLASHCUTE_DEVICE_CPU, 0));
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "device", CreateHandle, (&handle, FLASHCUTE_DEVICE_CPU, 0));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "handle", DestroyHandle, (cpu_handle));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  CHECK(handle == NULL);

  OK(DestroyHandle, (NULL));
  EXPECT(BAD_PARAM, "handle", DestroyHandle, (garbage()));
  EXPECT(BAD_PARAM, "handle", DestroyHandle, ((flashcuteHandle_t)(void*)TENSOR(F32, 4))); /* of another type */
  EXPECT(BAD_PARAM, "fault", InjectFault, ((flashcuteFault_t)99));
}

static flashcuteArchitecture_t an_a100(void) {
  flashcuteArchitecture_t architecture = FLASHCUTE_ARCHITECTURE_INIT;
  architecture.name = "an A100";
  architecture.capability = 80;
  architecture.multiprocessors = 108;
  architecture.shared_memory_per_block = 163 << 10;
  architecture.shared_memory_per_multiprocessor = 164 << 10;
  architecture.l2_bytes = 40 << 20;
  return architecture;
}

/* Handles that plan for a GPU which nobody has: no driver is asked, and nothing can run. */
static void test_planning(void) {
  static char json[200000];
  flashcuteHandle_t handle = garbage();
  flashcuteArchitecture_t card = an_a100();
  EXPECT(NULL_POINTER, "handle", CreatePlanningHandle, (NULL, &card));
  EXPECT(NULL_POINTER, "architecture", CreatePlanningHandle, (&handle, NULL));
  CHECK(handle == NULL);
#define WRONG(status, word, change)                               \
  do {                                                            \
    card = an_a100();                                             \
    change;                                                       \
    EXPECT(status, word, CreatePlanningHandle, (&handle, &card)); \
  } while (0)
  WRONG(BAD_PARAM, "architecture->struct_size", card.struct_size = 3);
  WRONG(BAD_PARAM, "architecture->capability", card.capability = 0);
  WRONG(BAD_PARAM, "architecture->multiprocessors", card.multiprocessors = 0);
  WRONG(BAD_PARAM, "architecture->shared_memory_per_block", card.shared_memory_per_multiprocessor = 1 << 10);
  WRONG(DEVICE_ARCHITECTURE_NOT_SUPPORTED, "7.5", card.capability = 75);
  card = an_a100();
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "architecture", CreatePlanningHandle, (&handle, &card));
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", CreatePlanningHandle, (&handle, &card));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  CHECK(handle == NULL);

  OK(CreatePlanningHandle, (&handle, &card));
  void* memory = NULL;
  EXPECT(BAD_PARAM, "an A100", Allocate, (handle, &memory, 16));
  EXPECT(BAD_PARAM, "an A100", Synchronize, (handle, NULL));
  const flashcuteTensorDescriptor_t q = TENSOR(BF16, 2, 4, 300, 64), lse = TENSOR(F32, 2, 4, 300);
  float one = 0.0f;
  EXPECT(BAD_PARAM, "an A100", MergeStates, (handle, q, &one, lse, &one, q, &one, lse, &one, q, &one, lse, &one, NULL));
  flashcuteFlashAttentionDescriptor_t desc = NULL;
  size_t length = sizeof json;
  OK(GetInfo, (json, &length));
  if (strstr(json, "\"family\": \"sm80\"") == NULL) {
    EXPECT(NOT_IMPLEMENTED, "no kernels", CreateFlashAttentionDescriptor, (handle, &desc, q, q, q, q, NULL, NULL));
  } else {
    OK(CreateFlashAttentionDescriptor, (handle, &desc, q, q, q, q, NULL, NULL));
    length = sizeof json;
    OK(GetPlan, (desc, json, &length));
    CHECK(strstr(json, "\"name\": \"an A100\"") != NULL && strstr(json, "\"grid\": 24") != NULL);
    CHECK(strstr(json, "\"waves\": 0.111") != NULL && strstr(json, "\"registers\"") == NULL);
    EXPECT(BAD_PARAM, "an A100", FlashAttention, (desc, NULL, 0, &one, &one, &one, &one, NULL, NULL, NULL));
    OK(DestroyFlashAttentionDescriptor, (desc));
  }
  OK(DestroyHandle, (handle));
}

static void test_tensors(void) {
  flashcuteTensorDescriptor_t desc = garbage();
  const size_t small[2] = {2, 3}, huge[2] = {(size_t)1 << 40, (size_t)1 << 40}, beyond[1] = {SIZE_MAX};
  const size_t empty[3] = {0, (size_t)1 << 40, (size_t)1 << 40}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  const ptrdiff_t far[2] = {PTRDIFF_MAX / 2, 1}, farther[2] = {PTRDIFF_MAX, 1};
  const ptrdiff_t lowest[2] = {PTRDIFF_MIN, PTRDIFF_MIN};
  EXPECT(NULL_POINTER, "desc", CreateTensorDescriptor, (NULL, 2, small, NULL, FLASHCUTE_DTYPE_F32));
  EXPECT(NULL_POINTER, "shape", CreateTensorDescriptor, (&desc, 2, NULL, NULL, FLASHCUTE_DTYPE_F32));
  CHECK(desc == NULL);
  EXPECT(BAD_PARAM, "ndim", CreateTensorDescriptor, (&desc, 9, nine, NULL, FLASHCUTE_DTYPE_F32));
  EXPECT(BAD_TENSOR_DTYPE, "11", CreateTensorDescriptor, (&desc, 2, small, NULL, (flashcuteDtype_t)11));
  EXPECT(BAD_TENSOR_DTYPE, "0", CreateTensorDescriptor, (&desc, 2, small, NULL, (flashcuteDtype_t)0));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 2, huge, NULL, FLASHCUTE_DTYPE_U8));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 1, beyond, NULL, FLASHCUTE_DTYPE_U8));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 3, empty, NULL, FLASHCUTE_DTYPE_U8));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 2, small, far, FLASHCUTE_DTYPE_F32));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 2, small, farther, FLASHCUTE_DTYPE_U8));
  EXPECT(BAD_TENSOR_SHAPE, "shape", CreateTensorDescriptor, (&desc, 2, small, lowest, FLASHCUTE_DTYPE_U8));
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", CreateTensorDescriptor, (&desc, 2, small, NULL, FLASHCUTE_DTYPE_F32));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  CHECK(desc == NULL);
  OK(CreateTensorDescriptor, (&desc, 0, NULL, NULL, FLASHCUTE_DTYPE_F32));
  OK(DestroyTensorDescriptor, (desc));
  OK(DestroyTensorDescriptor, (NULL));
  EXPECT(BAD_PARAM, "desc", DestroyTensorDescriptor, (garbage()));
  EXPECT(BAD_PARAM, "desc", DestroyTensorDescriptor, ((flashcuteTensorDescriptor_t)(void*)cpu_handle));
}

static void test_memory_on(flashcuteHandle_t handle) {
  const char text[] = "there and back";
  char copy[sizeof text] = "";
  void* memory = NULL;
  OK(Allocate, (handle, &memory, 1000));
  CHECK(memory != NULL && (uintptr_t)memory % 256 == 0);
  OK(CopyToDevice, (handle, memory, text, sizeof text, NULL));
  OK(CopyToHost, (handle, copy, memory, sizeof text, NULL));
  OK(Synchronize, (handle, NULL));
  OK(StreamWait, (handle, NULL, NULL));
  int capturing = -1;
  OK(StreamIsCapturing, (handle, NULL, &capturing));
  CHECK(capturing == 0);
  CHECK(memcmp(text, copy, sizeof text) == 0);
  OK(Release, (handle, memory));
  OK(Allocate, (handle, &memory, 0));
  OK(Release, (handle, NULL));
  OK(CopyToDevice, (handle, NULL, NULL, 0, NULL));
  OK(CopyToHost, (handle, NULL, NULL, 0, NULL));
  EXPECT(INTERNAL_ERROR, NULL, Allocate, (handle, &memory, SIZE_MAX / 2));
}

/* Each call, with whatever handle it takes. */
#define EXPECT_MEMORY_CALLS(status, word, handle)                         \
  do {                                                                    \
    void* memory_ = NULL;                                                 \
    char byte_[2] = "x";                                                  \
    int capturing_ = 0;                                                   \
    EXPECT(status, word, Allocate, (handle, &memory_, 16));               \
    EXPECT(status, word, Release, (handle, NULL));                        \
    EXPECT(status, word, CopyToDevice, (handle, byte_, "y", 1, NULL));    \
    EXPECT(status, word, CopyToHost, (handle, byte_, "y", 1, NULL));      \
    EXPECT(status, word, Synchronize, (handle, NULL));                    \
    EXPECT(status, word, StreamWait, (handle, NULL, NULL));               \
    EXPECT(status, word, StreamIsCapturing, (handle, NULL, &capturing_)); \
    CHECK(memory_ == NULL && byte_[0] == 'x');                            \
  } while (0)

static void test_memory(void) {
  char byte = 0;
  test_memory_on(cpu_handle);
  if (gpu_handle != NULL) test_memory_on(gpu_handle);
  EXPECT_MEMORY_CALLS(NULL_POINTER, "handle", NULL);
  EXPECT_MEMORY_CALLS(BAD_PARAM, "handle", garbage());
  EXPECT(NULL_POINTER, "memory", Allocate, (cpu_handle, NULL, 16));
  EXPECT(NULL_POINTER, "device", CopyToDevice, (cpu_handle, NULL, &byte, 1, NULL));
  EXPECT(NULL_POINTER, "host", CopyToDevice, (cpu_handle, &byte, NULL, 1, NULL));
  EXPECT(NULL_POINTER, "host", CopyToHost, (cpu_handle, NULL, &byte, 1, NULL));
  EXPECT(NULL_POINTER, "capturing", StreamIsCapturing, (cpu_handle, NULL, NULL));
  EXPECT(NULL_POINTER, "device", CopyToHost, (cpu_handle, &byte, NULL, 1, NULL));
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  EXPECT_MEMORY_CALLS(DEVICE_TYPE_NOT_SUPPORTED, "handle", cpu_handle);
  OK(InjectFault, (FLASHCUTE_FAULT_LAUNCH_FAILURE));
  EXPECT_MEMORY_CALLS(INTERNAL_ERROR, "launch", cpu_handle);
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
}

static void test_info(void) {
  size_t length = 0, tiny = 4;
  char small[4] = "abc";
  EXPECT(NULL_POINTER, "length", GetInfo, (small, NULL));
  OK(GetInfo, (NULL, &length));
  EXPECT(BAD_PARAM, "length", GetInfo, (small, &tiny));
  CHECK(tiny == length && strcmp(small, "abc") == 0);
  char* json = calloc(length, 1);
  OK(GetInfo, (json, &length));
  CHECK(strlen(json) + 1 == length);
  const char* const words[] = {"\"version\"", "\"compiler\"", "\"cuda\"",    "\"isa\"",
                               "\"kernels\"", "\"devices\"",  "\"can_run\"", "\"block_m\""};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) CHECK(strstr(json, words[i]) != NULL);
  CHECK(strstr(json, flashcuteGetVersion()) != NULL);
  free(json);
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", GetInfo, (NULL, &length));
  OK(InjectFault, (FLASHCUTE_FAULT_OLD_GPU)); /* a device that no kernel runs on has a reason */
  OK(GetInfo, (NULL, &length));
  json = calloc(length, 1);
  OK(GetInfo, (json, &length));
  CHECK(strstr(json, "\"usable\": false") != NULL && strstr(json, "7.5") != NULL);
  free(json);
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));

  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", FLASHCUTE_VERSION_MAJOR, FLASHCUTE_VERSION_MINOR,
           FLASHCUTE_VERSION_PATCH);
  CHECK(strcmp(flashcuteGetVersion(), version) == 0);
}

static void test_threads(void) {
  const int before = flashcuteGetNumThreads();
  CHECK(before >= 1);
  OK(SetNumThreads, (3));
  CHECK(flashcuteGetNumThreads() == 3);
  EXPECT(BAD_PARAM, "num_threads", SetNumThreads, (0));
  EXPECT(BAD_PARAM, "-5", SetNumThreads, (-5));
  CHECK(flashcuteGetNumThreads() == 3);
  OK(SetNumThreads, (before));
}

static void* fail_often(void* argument) {
  const int id = *(const int*)argument;
  char expected[32];
  snprintf(expected, sizeof expected, "given %d", id);
  for (int i = 0; i < 500; ++i) {
    flashcuteHandle_t handle;
    if (flashcuteCreateHandle(&handle, FLASHCUTE_DEVICE_CPU, id) != FLASHCUTE_STATUS_DEVICE_NOT_FOUND) return argument;
    if (strstr(flashcuteGetLastErrorMessage(), expected) == NULL) return argument;
  }
  return NULL;
}

static void test_messages_are_per_thread(void) {
  pthread_t threads[8];
  int ids[8];
  EXPECT(BAD_PARAM, "num_threads", SetNumThreads, (-1));
  for (int i = 0; i < 8; ++i) {
    ids[i] = 100 + i;
    CHECK(pthread_create(&threads[i], NULL, fail_often, &ids[i]) == 0);
  }
  for (int i = 0; i < 8; ++i) {
    void* wrong = NULL;
    CHECK(pthread_join(threads[i], &wrong) == 0);
    CHECK(wrong == NULL);
  }
  CHECK(strstr(flashcuteGetLastErrorMessage(), "flashcuteSetNumThreads(num_threads)") != NULL);
}

void test_objects(void) {
  test_handles();
  test_planning();
  test_tensors();
  test_memory();
  test_info();
  test_threads();
  test_messages_are_per_thread();
}
