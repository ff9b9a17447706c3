/* What the C tests share: expectations that record which (call, status) pairs were provoked, and tensors that free
 * themselves at the end. */
#ifndef FLASHCUTE_TESTS_HARNESS_H
#define FLASHCUTE_TESTS_HARNESS_H

#include <flashcute/flashcute.h>
#include <flashcute/testing.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* EXPECT(BAD_PARAM, "device_id", CreateHandle, (&handle, FLASHCUTE_DEVICE_CPU, -1)): the status, and a message that
 * names the function and holds the word. */
#define EXPECT(status, word, call, arguments) \
  expect_status(__FILE__, __LINE__, "flashcute" #call, flashcute##call arguments, FLASHCUTE_STATUS_##status, word)
#define OK(call, arguments) EXPECT(SUCCESS, NULL, call, arguments)
#define CHECK(condition) expect_true(__FILE__, __LINE__, #condition, (condition) ? 1 : 0)

/* TENSOR(F16, 2, 3, 4): contiguous. STRIDED(F16, LIST(2, 3), LIST(1, 2)). */
#define LIST(...) __VA_ARGS__
#define COUNT(type, ...) (sizeof((type[]){__VA_ARGS__}) / sizeof(type))
#define TENSOR(dtype, ...) \
  make_tensor(FLASHCUTE_DTYPE_##dtype, COUNT(size_t, __VA_ARGS__), (size_t[]){__VA_ARGS__}, NULL)
#define STRIDED(dtype, shape, strides) \
  make_tensor(FLASHCUTE_DTYPE_##dtype, COUNT(size_t, shape), (size_t[]){shape}, (ptrdiff_t[]){strides})

int expect_status(const char* file, int line, const char* call, flashcuteStatus_t got, flashcuteStatus_t want,
                  const char* word);
int expect_true(const char* file, int line, const char* condition, int holds);
flashcuteTensorDescriptor_t make_tensor(flashcuteDtype_t dtype, size_t ndim, const size_t* shape,
                                        const ptrdiff_t* strides);
void free_tensors(void);

int failures(void);
int checks(void);
/* Prints the table of calls and statuses; the number of listed pairs that were never provoked. */
int print_coverage(void);

/* Memory that is no object of the library's. */
void* garbage(void);

/* The CPU; and the GPU, or NULL where there is none. */
extern flashcuteHandle_t cpu_handle, gpu_handle;

void test_objects(void);
void test_create(void);
void test_run(void);
void test_results(void);
void test_concurrency(void);

#endif
