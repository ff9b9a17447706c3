// Which way a launch goes and with which context's function, on a CUDA that only keeps count.
#include "cuda/common/driver_launch.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "cuda/common/launch.h"

namespace {

// Context n + 1 is device n's own; a program may make others current. 0: none yet. The device is cudart's, which a
// context that the driver was given goes before.
int current_context = 1, current_device = 0;
std::vector<int> contexts_below;  // of the thread's stack
std::set<int> opened;             // devices
std::set<int> gone;               // contexts
int generation = 0;               // of contexts: those that a reset opens again have new numbers
bool driver_is_old = false;
int runtime_launches = 0, driver_launches = 0, functions_found = 0;
int launched_in = 0;                // the context of the last launch
cudaError_t pending = cudaSuccess;  // cudart's last error
bool launches_fail = false;
int failures = 0;

int device_of(int context) {
  return (context - 1) % 100;
}

void expect(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "expected that %s\n", what);
  ++failures;
}

CUresult context_of_thread(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<size_t>(current_context));
  return CUDA_SUCCESS;
}

CUresult number_of(CUcontext context, unsigned long long* number) {
  *number = reinterpret_cast<size_t>(context) + 1000u * static_cast<size_t>(generation);
  return CUDA_SUCCESS;
}

CUresult device_of_number(CUdevice* device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}

CUresult retain_primary(CUcontext* context, CUdevice device) {
  opened.insert(device);
  gone.erase(device + 1);
  *context = reinterpret_cast<CUcontext>(static_cast<size_t>(device + 1));
  return CUDA_SUCCESS;
}

CUresult push(CUcontext context) {
  const int number = static_cast<int>(reinterpret_cast<size_t>(context));
  if (gone.count(number) != 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  contexts_below.push_back(current_context);
  current_context = number;
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<size_t>(current_context));
  current_context = contexts_below.back();
  contexts_below.pop_back();
  return CUDA_SUCCESS;
}

CUresult launch_kernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       CUstream, void**, void**) {
  if (launches_fail) return CUDA_ERROR_INVALID_HANDLE;
  const int context = static_cast<int>(reinterpret_cast<size_t>(function));
  expect(context == current_context, "a function is launched in its own context");
  ++driver_launches;
  launched_in = context;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = current_context != 0 ? device_of(current_context) : current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  opened.insert(device);
  current_device = device;
  current_context = device + 1;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = pending;
  pending = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorOfThisTest";
}
const char* cudaGetErrorString(cudaError_t) {
  return "asked for";
}

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  if (current_context == 0) {
    opened.insert(current_device);
    current_context = current_device + 1;
  }
  if (launches_fail) return pending = cudaErrorInvalidResourceHandle;
  ++runtime_launches;
  launched_in = current_context;
  return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void*) {
  ++functions_found;
  *function = reinterpret_cast<cudaFunction_t>(static_cast<size_t>(current_context));
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (strcmp(name, "cuLaunchKernel") == 0) *entry = reinterpret_cast<void*>(&launch_kernel);
  if (strcmp(name, "cuCtxGetCurrent") == 0) *entry = reinterpret_cast<void*>(&context_of_thread);
  if (strcmp(name, "cuCtxGetId") == 0) *entry = reinterpret_cast<void*>(&number_of);
  if (strcmp(name, "cuDeviceGet") == 0) *entry = reinterpret_cast<void*>(&device_of_number);
  if (strcmp(name, "cuDevicePrimaryCtxRetain") == 0) *entry = reinterpret_cast<void*>(&retain_primary);
  if (strcmp(name, "cuCtxPushCurrent") == 0) *entry = reinterpret_cast<void*>(&push);
  if (strcmp(name, "cuCtxPopCurrent") == 0) *entry = reinterpret_cast<void*>(&pop);
  *found = driver_is_old ? cudaDriverEntryPointVersionNotSufficent : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}

namespace {

struct Counts {
  int runtime = runtime_launches, driver = driver_launches, found = functions_found;
};

void be_in(int context) {
  current_context = context;
  current_device = device_of(context == 0 ? 1 : context);
}

int device_now() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

void launch(flashcute::cuda::DriverKernel& kernel, int device, int times = 1) {
  for (int i = 0; i < times; ++i) {
    int parameters = 0;
    const int device_before = device_now(), context_before = current_context;
    {
      const flashcute::cuda::DeviceGuard guard(device);
      kernel.launch({1, 32}, &parameters, nullptr);
    }
    expect(driver_is_old ? device_of(launched_in) == device : launched_in == device + 1,
           "a launch reaches its device's primary context");
    expect(device_now() == device_before, "the current device stays");
    expect(current_context == context_before || driver_is_old, "and so does the context");
    expect(contexts_below.empty(), "nothing stays on the stack of contexts");
  }
}

void the_second_launch_in_a_context_is_the_drivers() {
  flashcute::cuda::DriverKernel kernel("", 0);
  for (int context : {1, 2}) {
    be_in(context);
    const Counts before;
    launch(kernel, device_of(context), 5);
    expect(runtime_launches - before.runtime == 1, "the first launch goes through cudart");
    expect(driver_launches - before.driver == 4, "the others go to the driver");
  }
}

// Another library's context of the same device has other memory and other streams.
void another_librarys_context_stays_current() {
  flashcute::cuda::DriverKernel kernel("", 0);
  be_in(102);
  launch(kernel, 1, 2);
  expect(current_context == 102, "the thread's own context is current again");
}

void a_thread_without_a_context_gets_one() {
  flashcute::cuda::DriverKernel kernel("", 0);
  be_in(0);
  const Counts before;
  launch(kernel, 0, 3);
  expect(runtime_launches - before.runtime == 1 && driver_launches - before.driver == 2, "its second launch is fast");
  expect(current_context == 0, "the thread has none afterwards, as before");
}

// A function is remembered once, however often another device is launched on, and takes no room from others.
void another_device_is_remembered_once() {
  flashcute::cuda::DriverKernel kernel("", 0);
  be_in(1);
  const Counts before;
  launch(kernel, 1, 1000);
  expect(runtime_launches - before.runtime == 1, "the first launch for another device goes through cudart");
  expect(driver_launches - before.driver == 999, "the others go to the driver, in that device's context");
  expect(functions_found - before.found == 1, "its function is looked up once");
  launch(kernel, 0, 2);
  expect(driver_launches - before.driver == 1000, "the thread's own device has room");
  be_in(2);
  launch(kernel, 1);
  expect(driver_launches - before.driver == 1001, "the other device's function is known");
}

// Since CUDA 12 cudaSetDevice opens a context, which costs hundreds of megabytes, also on the way back.
void a_device_that_is_not_used_is_not_opened() {
  flashcute::cuda::DriverKernel kernel("", 0);
  current_context = current_device = 0;
  opened.clear();
  launch(kernel, 2, 3);
  expect(opened == std::set<int>{2}, "work for device 2 opens device 2 alone");
  expect(current_context == 0, "the thread has no context, as before");
  {
    const flashcute::cuda::DeviceGuard other(3), same(3);
    expect(device_now() == 3 && contexts_below.size() == 1, "a guard inside another finds its context current");
  }
  expect(opened == std::set<int>({2, 3}) && current_context == 0, "a guard alone is no different");
}

// cudaDeviceReset destroys what was retained.
void a_context_that_is_gone_is_opened_again() {
  be_in(1);
  {
    const flashcute::cuda::DeviceGuard guard(5);
  }
  gone.insert(6);
  const flashcute::cuda::DeviceGuard guard(5);
  expect(device_now() == 5, "a guard finds the device's new context");
}

void contexts_that_come_and_go_do_not_pile_up() {
  flashcute::cuda::DriverKernel kernel("", 0);
  const Counts before;
  be_in(1);
  for (int i = 0; i < 1000; ++i) {
    ++generation;
    launch(kernel, 0);
  }
  expect(functions_found - before.found == 64, "64 contexts are remembered");
  expect(runtime_launches - before.runtime == 1000, "and the others work");
}

void a_failure_is_told_and_leaves_nothing_behind() {
  flashcute::cuda::DriverKernel kernel("", 0);
  for (int launches_before = 0; launches_before < 2; ++launches_before) {
    be_in(1);
    launch(kernel, 0, launches_before);
    launches_fail = true;
    std::string told;
    try {
      launch(kernel, 0);
    } catch (const flashcute::Error& error) {
      told = error.what();
    }
    launches_fail = false;
    expect(told == "expected the attention kernel's launch to succeed, given cudaErrorOfThisTest: asked for",
           "a failure has CUDA's own text");
    expect(pending == cudaSuccess, "no error is left behind");
  }
}

// What an older driver lacks is done by cudart.
int with_an_old_driver() {
  driver_is_old = true;
  flashcute::cuda::DriverKernel kernel("", 0);
  be_in(1);
  const Counts before;
  launch(kernel, 1, 3);
  launch(kernel, 0, 3);
  expect(runtime_launches - before.runtime == 6 && driver_launches == before.driver, "cudart makes every launch");
  return failures != 0;
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) return with_an_old_driver();  // what the driver has is asked once in a process
  the_second_launch_in_a_context_is_the_drivers();
  another_librarys_context_stays_current();
  a_thread_without_a_context_gets_one();
  another_device_is_remembered_once();
  a_device_that_is_not_used_is_not_opened();
  a_context_that_is_gone_is_opened_again();
  contexts_that_come_and_go_do_not_pile_up();
  a_failure_is_told_and_leaves_nothing_behind();
  return failures != 0;
}
