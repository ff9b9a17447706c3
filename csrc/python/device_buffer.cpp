// Memory of the library's own allocator, which Python can hand to any consumer of DLPack: what DeviceArray stands on.
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>

#include "attention.h"
#include "stream.h"
#include "unlocked.h"

namespace flashcute::python {

namespace {

constexpr const char* kClass = "DeviceBuffer";

struct Memory {
  Device device;
  flashcuteHandle_t handle = nullptr;
  void* data = nullptr;
  size_t bytes = 0;
  ~Memory() {
    if (data) flashcuteRelease(handle, data);
  }
};

// The exported tensor with all that it points to; one allocation, freed by its deleter without the GIL.
template <class Managed>
struct Export {
  Managed managed{};
  int64_t shape[kMaxDims];
  int64_t strides[kMaxDims];
  std::shared_ptr<Memory> memory;
};

template <class Managed>
PyObject* export_capsule(const std::shared_ptr<Memory>& memory, const View& view, dlpack::DataType dtype,
                         const char* name) {
  auto exported = std::make_unique<Export<Managed>>();
  exported->memory = memory;
  std::memcpy(exported->shape, view.shape, sizeof view.shape);
  std::memcpy(exported->strides, view.strides, sizeof view.strides);
  dlpack::Tensor& tensor = exported->managed.tensor;
  tensor.data = memory->data;
  tensor.device = {memory->device.is_gpu() ? dlpack::kCuda : dlpack::kCpu, memory->device.id};
  tensor.ndim = view.ndim;
  tensor.dtype = dtype;
  tensor.shape = exported->shape;
  tensor.strides = exported->strides;
  exported->managed.context = exported.get();
  exported->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->context); };
  if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>) {
    exported->managed.version = {dlpack::kMajorVersion, dlpack::kMinorVersion};
  }
  PyObject* capsule = PyCapsule_New(&exported->managed, name, [](PyObject* self) {
    const char* own = std::is_same_v<Managed, dlpack::ManagedVersioned> ? "dltensor_versioned" : "dltensor";
    if (!PyCapsule_IsValid(self, own)) return;  // consumed: its new owner deletes it
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(self, own));
    managed->deleter(managed);
  });
  if (!capsule) throw nb::python_error();
  exported.release();
  return capsule;
}

dlpack::DataType dlpack_dtype(const std::string& name, Where where) {
  flashcuteDtype_t dtype;
  if (!find_dtype(name, dtype)) fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, where, "unknown dtype ", name);
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  if (name == "bool") return {dlpack::kBool, bits, 1};
  if (name == "bfloat16") return {dlpack::kBfloat, bits, 1};
  if (name[0] == 'f') return {dlpack::kFloat, bits, 1};
  return {name[0] == 'u' ? dlpack::kUInt : dlpack::kInt, bits, 1};
}

class HostBuffer {
 public:
  HostBuffer(nb::handle object, bool writable, size_t bytes, Where where) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0) {
      throw nb::python_error();
    }
    if (static_cast<size_t>(buffer_.len) != bytes) {
      const Py_ssize_t given = buffer_.len;
      PyBuffer_Release(&buffer_);
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected ", bytes, " contiguous bytes, given ", given);
    }
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() { PyBuffer_Release(&buffer_); }
  void* data() const { return buffer_.buf; }

 private:
  Py_buffer buffer_;
};

class DeviceBuffer {
 public:
  DeviceBuffer(size_t bytes, bool gpu, int id, uint64_t stream) : memory_(std::make_shared<Memory>()) {
    memory_->device = {gpu ? FLASHCUTE_DEVICE_NVIDIA : FLASHCUTE_DEVICE_CPU, id};
    memory_->handle = handle_of(memory_->device, kClass);
    memory_->bytes = bytes;
    stream_ = stream <= 1 ? nullptr : reinterpret_cast<void*>(stream);
    if (bytes != 0) check(flashcuteAllocate(memory_->handle, &memory_->data, bytes), kClass);
  }

  size_t bytes() const { return memory_->bytes; }
  uintptr_t pointer() const { return reinterpret_cast<uintptr_t>(memory_->data); }

  void copy_from(nb::handle source) {
    const HostBuffer host(source, false, memory_->bytes, {"DeviceBuffer.copy_from", "source"});
    if (memory_->bytes == 0) return;
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteCopyToDevice(memory_->handle, memory_->data, host.data(), memory_->bytes, stream_);
      if (status == FLASHCUTE_STATUS_SUCCESS) status = flashcuteSynchronize(memory_->handle, stream_);
    }
    check(status, "DeviceBuffer.copy_from");
  }

  void copy_to(nb::handle target) const {
    const HostBuffer host(target, true, memory_->bytes, {"DeviceBuffer.copy_to", "target"});
    if (memory_->bytes == 0) return;
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteCopyToHost(memory_->handle, host.data(), memory_->data, memory_->bytes, stream_);
      if (status == FLASHCUTE_STATUS_SUCCESS) status = flashcuteSynchronize(memory_->handle, stream_);
    }
    check(status, "DeviceBuffer.copy_to");
  }

  void synchronize() const {
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteSynchronize(memory_->handle, stream_);
    }
    check(status, "DeviceBuffer.synchronize");
  }

  // `consumer`: the stream that will read the memory, or None where it needs no wait.
  nb::object dlpack(const nb::tuple& shape, const std::string& dtype, nb::handle consumer, bool versioned) const {
    View view{};
    view.ndim = static_cast<int32_t>(shape.size());
    if (view.ndim > kMaxDims) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, {"DeviceBuffer.dlpack", "shape"}, "expected at most ", kMaxDims, " axes");
    }
    for (int i = 0; i < view.ndim; ++i) view.shape[i] = nb::cast<int64_t>(shape[i]);
    view.make_contiguous();
    const dlpack::DataType type = dlpack_dtype(dtype, {"DeviceBuffer.dlpack", "dtype"});
    if (memory_->device.is_gpu() && !consumer.is_none()) {
      const int64_t number = nb::cast<int64_t>(consumer);
      void* waiter = number <= 1 ? nullptr : reinterpret_cast<void*>(number);
      if (number >= 0 && waiter != stream_) {
        check(flashcuteStreamWait(memory_->handle, waiter, stream_), "DeviceBuffer.dlpack");
      }
    }
    return nb::steal(versioned ? export_capsule<dlpack::ManagedVersioned>(memory_, view, type, "dltensor_versioned")
                               : export_capsule<dlpack::Managed>(memory_, view, type, "dltensor"));
  }

 private:
  std::shared_ptr<Memory> memory_;
  void* stream_ = nullptr;  // on which its content is made
};

}  // namespace

void add_device_buffer(nb::module_& module) {
  nb::class_<DeviceBuffer>(module, "DeviceBuffer", "Memory from the library's allocator. See DeviceArray.")
      .def(nb::init<size_t, bool, int, uint64_t>(), nb::arg("nbytes"), nb::arg("gpu"), nb::arg("device_id") = 0,
           nb::arg("stream") = 0)
      .def_prop_ro("nbytes", &DeviceBuffer::bytes)
      .def_prop_ro("ptr", &DeviceBuffer::pointer)
      .def("copy_from", &DeviceBuffer::copy_from, nb::arg("source"), "Copies from a contiguous host buffer.",
           nb::sig("def copy_from(self, source: object) -> None"))
      .def("copy_to", &DeviceBuffer::copy_to, nb::arg("target"), "Copies to a contiguous host buffer.",
           nb::sig("def copy_to(self, target: object) -> None"))
      .def("synchronize", &DeviceBuffer::synchronize, "Waits for the work that makes the content.")
      .def("dlpack", &DeviceBuffer::dlpack, nb::arg("shape"), nb::arg("dtype"), nb::arg("consumer").none(),
           nb::arg("versioned"), "A DLPack capsule of a contiguous tensor in this memory.",
           nb::sig("def dlpack(self, shape: tuple[int, ...], dtype: str, consumer: int | None, versioned: bool) -> "
                   "object"));
}

}  // namespace flashcute::python
