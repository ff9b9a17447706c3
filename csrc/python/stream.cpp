#include "stream.h"

#include <pthread.h>

#include <map>

#include "arguments.h"

namespace flashcute::python {

namespace {

bool gpu_used = false;
bool forked_after_gpu = false;

void after_fork_in_child() {
  forked_after_gpu = gpu_used;
}

// By device id. Guarded by the GIL, kept to the end of the process.
std::map<int, flashcuteHandle_t>& gpu_handles() {
  static auto* handles = new std::map<int, flashcuteHandle_t>;
  return *handles;
}

void* normalise(uint64_t number) {
  return number <= 1 ? nullptr : reinterpret_cast<void*>(number);
}

}  // namespace

uint64_t stream_number(void* handle) {
  return handle ? reinterpret_cast<uintptr_t>(handle) : 1;
}

Stream parse_stream(Where where, PyObject* value) {
  if (!value) return {};
  nb::object number;
  if (PyLong_Check(value)) {
    number = nb::borrow(value);
  } else if (PyObject_HasAttrString(value, "__cuda_stream__")) {
    const nb::object method = nb::borrow(value).attr("__cuda_stream__");
    const nb::object pair = PyCallable_Check(method.ptr()) ? method() : method;  // a tuple in early drafts
    if (PyTuple_Check(pair.ptr()) && PyTuple_Size(pair.ptr()) == 2) number = nb::borrow(PyTuple_GetItem(pair.ptr(), 1));
  } else if (PyObject_HasAttrString(value, "cuda_stream")) {
    number = nb::borrow(value).attr("cuda_stream");
  } else if (PyObject_HasAttrString(value, "ptr")) {
    number = nb::borrow(value).attr("ptr");
  }
  if (!number.is_valid() || !PyIndex_Check(number.ptr())) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where,
         "expected an int or an object with __cuda_stream__, cuda_stream or ptr, given ", type_name(value));
  }
  return {normalise(parse_u64(where, number.ptr())), true, true};
}

void* current_stream(const Producer& producer, int device_id, Where where) {
  if (producer.api) {
    void* stream = nullptr;
    if (producer.api->current_stream(dlpack::kCuda, device_id, &stream) != 0) {
      fail_from_python(FLASHCUTE_STATUS_INTERNAL_ERROR, where, "no current stream", Py_None);
    }
    return normalise(reinterpret_cast<uintptr_t>(stream));
  }
  if (producer.kind == ProducerKind::kTorch) {
    const nb::object stream = nb::module_::import_("torch.cuda").attr("current_stream")(device_id);
    return normalise(parse_u64(where, nb::object(stream.attr("cuda_stream")).ptr()));
  }
  if (producer.kind == ProducerKind::kCupy) {
    const nb::object number = nb::module_::import_("flashcute._producers").attr("cupy_stream")(device_id);
    return normalise(parse_u64(where, number.ptr()));
  }
  return nullptr;
}

void resolve_stream(Stream& stream, const Producer& producer, int device_id, Where where) {
  refuse_after_fork({FLASHCUTE_DEVICE_NVIDIA, device_id});
  stream.handle = current_stream(producer, device_id, where);
  stream.known = true;
}

void refuse_after_fork(Device device) {
  if (!device.is_gpu() || !forked_after_gpu) return;
  throw StatusError(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                    "flashcute: this process was forked after its parent had used CUDA, which cannot work in both: "
                    "start processes that use the GPU with the 'spawn' method");
}

void note_gpu_use() {
  if (gpu_used) return;
  gpu_used = true;
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

flashcuteHandle_t handle_of(Device device, const char* function) {
  static flashcuteHandle_t cpu = nullptr;
  if (!device.is_planning()) refuse_after_fork(device);
  flashcuteHandle_t& handle = device.is_gpu() ? gpu_handles()[device.id] : cpu;
  if (!handle) {
    check(flashcuteCreateHandle(&handle, device.type, device.id), function);
    if (device.is_gpu()) note_gpu_use();
  }
  return handle;
}

bool is_capturing(Device device, void* stream, const char* function) {
  int capturing = 0;
  check(flashcuteStreamIsCapturing(handle_of(device, function), stream, &capturing), function);
  return capturing != 0;
}

int add_architecture(const std::string& name, int capability, int multiprocessors, size_t shared_memory_per_block,
                     size_t shared_memory_per_multiprocessor, size_t l2_bytes) {
  flashcuteArchitecture_t architecture = FLASHCUTE_ARCHITECTURE_INIT;
  architecture.name = name.c_str();
  architecture.capability = capability;
  architecture.multiprocessors = multiprocessors;
  architecture.shared_memory_per_block = shared_memory_per_block;
  architecture.shared_memory_per_multiprocessor = shared_memory_per_multiprocessor;
  architecture.l2_bytes = l2_bytes;
  flashcuteHandle_t handle = nullptr;
  check(flashcuteCreatePlanningHandle(&handle, &architecture), "TensorDescriptor");
  const auto& known = gpu_handles();
  const int id = known.empty() || known.begin()->first >= 0 ? -1 : known.begin()->first - 1;
  gpu_handles()[id] = handle;
  return id;
}

}  // namespace flashcute::python
