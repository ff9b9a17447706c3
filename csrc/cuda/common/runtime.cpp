// Devices, memory and streams: the parts of the CUDA half that compute nothing.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/backend.h"
#include "cuda/common/launch.h"

namespace flashcute::cuda {
namespace {

[[noreturn]] void throw_not_found(const std::string& given) {
  throw Error(FLASHCUTE_STATUS_DEVICE_NOT_FOUND, "(device_id): expected an NVIDIA GPU of this machine, given " + given);
}

int attribute(cudaDeviceAttr which, int id) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, id), "cudaDeviceGetAttribute");
  return value;
}

DeviceFacts read_facts(int id) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw_not_found(std::to_string(id) + ": no NVIDIA driver that can open one (" + cudaGetErrorString(error) + ")");
  }
  if (id < 0 || id >= count) {
    throw_not_found(std::to_string(id) + ": no such device, there are " + std::to_string(count));
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, id), "cudaGetDeviceProperties");
  DeviceFacts facts;
  facts.type = DeviceType::kNvidia;
  facts.id = id;
  facts.name = properties.name;
  facts.capability = 10 * properties.major + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.shared_memory_per_block = size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, id));
  facts.shared_memory_per_multiprocessor = properties.sharedMemPerMultiprocessor;
  facts.l2_bytes = size_t(properties.l2CacheSize);
  facts.clock_khz = attribute(cudaDevAttrClockRate, id);
  // Two transfers a clock, and the bus's width in bits.
  facts.memory_bytes_per_second = size_t(attribute(cudaDevAttrMemoryClockRate, id)) * 1000 * 2 *
                                  size_t(attribute(cudaDevAttrGlobalMemoryBusWidth, id)) / 8;
  return facts;
}

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

void copy(int device_id, void* target, const void* source, size_t bytes, cudaMemcpyKind kind, void* stream) {
  if (bytes == 0) return;
  DeviceGuard guard(device_id);
  check(cudaMemcpyAsync(target, source, bytes, kind, stream_of(stream)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

// The number of the capture into a graph that a stream is part of.
std::optional<unsigned long long> capture_of(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream_of(stream), &status, &id);
  if (error ==
      cudaErrorStreamCaptureImplicit) {  // the legacy stream's answer while a stream that it blocks is captured
    cudaGetLastError();
    return std::nullopt;
  }
  check(error, "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return std::nullopt;
  return id;
}

std::vector<int32_t> fetch(const Problem& problem, const int32_t* lengths, int64_t count, void* stream) {
  std::vector<int32_t> host(lengths == nullptr ? 0 : size_t(count));
  copy_to_host(problem.device_id, host.data(), lengths, host.size() * sizeof(int32_t), stream);
  return host;
}

}  // namespace

bool compiled() {
  return true;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

const DeviceFacts& device_facts(int id) {
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;  // a map's nodes stay where they are
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(id);
  return found != known.end() ? found->second : known.emplace(id, read_facts(id)).first->second;
}

// The lengths are checked where they can be read; the rules are the CPU backend's.
void check_lengths(const Problem& problem, const Buffers& buffers, void* stream) {
  const bool any = buffers.cu_seqlens_q != nullptr || buffers.cu_seqlens_k != nullptr || buffers.seqused_k != nullptr;
  if (any && stream_is_capturing(problem.device_id, stream)) {
    throw Error(FLASHCUTE_STATUS_BAD_PARAM,
                "(checked): expected a stream that is not captured into a graph, since lengths are read on the host, "
                "given one that is");
  }
  const std::vector<int32_t> cu_q = fetch(problem, buffers.cu_seqlens_q, problem.batch + 1, stream);
  const std::vector<int32_t> cu_k = fetch(problem, buffers.cu_seqlens_k, problem.batch + 1, stream);
  const std::vector<int32_t> used_k = fetch(problem, buffers.seqused_k, problem.batch, stream);
  Buffers host = buffers;
  if (host.cu_seqlens_q != nullptr) host.cu_seqlens_q = cu_q.data();
  if (host.cu_seqlens_k != nullptr) host.cu_seqlens_k = cu_k.data();
  if (host.seqused_k != nullptr) host.seqused_k = used_k.data();
  cpu::check_lengths(problem, host);
}

void* allocate(int device_id, size_t bytes) {
  DeviceGuard guard(device_id);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes != 0 ? bytes : 1), "cudaMalloc");
  return memory;
}

void release(int device_id, void* memory) {
  if (memory == nullptr) return;
  DeviceGuard guard(device_id);
  check(cudaFree(memory), "cudaFree");
}

void copy_to_device(int device_id, void* device, const void* host, size_t bytes, void* stream) {
  copy(device_id, device, host, bytes, cudaMemcpyHostToDevice, stream);
}

void copy_to_host(int device_id, void* host, const void* device, size_t bytes, void* stream) {
  copy(device_id, host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

void synchronize(int device_id, void* stream) {
  DeviceGuard guard(device_id);
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

bool stream_is_capturing(int device_id, void* stream) {
  DeviceGuard guard(device_id);
  return capture_of(stream).has_value();
}

// A stream that is captured must not wait for one that is not. Nor need it: what is enqueued is not run, and whoever
// launches the graph sees to it that its inputs are there. The other way round, the waiter joins the capture.
void stream_wait(int device_id, void* waiter, void* signaller) {
  if (waiter == signaller) return;
  DeviceGuard guard(device_id);
  const std::optional<unsigned long long> capture = capture_of(waiter);
  if (capture && capture != capture_of(signaller)) return;
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)> owner(event, &cudaEventDestroy);
  check(cudaEventRecord(event, stream_of(signaller)), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_of(waiter), event, 0), "cudaStreamWaitEvent");
}

}  // namespace flashcute::cuda
