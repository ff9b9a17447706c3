/* The C API as a C11 program sees it: every status of every call, and attention problems with known answers. */
#include "harness.h"

int main(void) {
  CHECK(strcmp(flashcuteGetLastErrorMessage(), "") == 0);
  OK(CreateHandle, (&cpu_handle, FLASHCUTE_DEVICE_CPU, 0));
  const flashcuteStatus_t status = flashcuteCreateHandle(&gpu_handle, FLASHCUTE_DEVICE_NVIDIA, 0);
  if (status == FLASHCUTE_STATUS_SUCCESS) {
    printf("GPU 0 takes part.\n");
  } else {
    CHECK(gpu_handle == NULL);
    printf("no GPU takes part: %s\n", flashcuteGetLastErrorMessage());
  }
  test_objects();
  test_create();
  test_run();
  test_results();
  test_concurrency();
  free_tensors();
  if (gpu_handle != NULL) OK(DestroyHandle, (gpu_handle));
  OK(DestroyHandle, (cpu_handle));

  const int missing = print_coverage();
  printf("%d checks, %d failures, %d listed statuses never provoked\n", checks(), failures(), missing);
  return failures() != 0 || missing != 0;
}
