#include "results.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "stream.h"

namespace flashcute::python {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kKeptWorkspace = size_t{64} << 20;  // bytes that a thread keeps for its next CPU run

nb::object producers_module() {
  return nb::module_::import_("flashcute._producers");
}

nb::object shape_tuple(const View& view) {
  nb::object tuple = nb::steal(PyTuple_New(view.ndim));
  if (!tuple.is_valid()) throw nb::python_error();
  for (int i = 0; i < view.ndim; ++i) {
    PyObject* length = PyLong_FromLongLong(view.shape[i]);
    if (!length) throw nb::python_error();
    PyTuple_SetItem(tuple.ptr(), i, length);
  }
  return tuple;
}

// Names and functions of one framework, looked up once and kept. Not in an initialised static: its guard would be held
// while the import lets go of the GIL, and the next thread would wait for it with the GIL.
struct Allocator {
  PyObject* empty = nullptr;
  PyObject* empty_like = nullptr;
  PyObject* float32 = nullptr;
  PyObject* uint8 = nullptr;
  PyObject* dtype_name = nullptr;
  PyObject* device_name = nullptr;
  PyObject* keywords = nullptr;  // ("dtype", "device") or ("dtype",)

  Allocator(const char* module_name, bool with_device) {
    const nb::object module = nb::module_::import_(module_name);
    empty = nb::object(module.attr("empty")).release().ptr();
    empty_like = nb::object(module.attr("empty_like")).release().ptr();
    float32 = nb::object(module.attr("float32")).release().ptr();
    uint8 = nb::object(module.attr("uint8")).release().ptr();
    dtype_name = PyUnicode_InternFromString("dtype");
    device_name = PyUnicode_InternFromString("device");
    keywords = with_device ? PyTuple_Pack(2, dtype_name, device_name) : PyTuple_Pack(1, dtype_name);
  }

  nb::object make(PyObject* like, flashcuteDtype_t like_dtype, const View& geometry, bool with_device) const {
    const nb::object shape = shape_tuple(geometry);
    nb::object dtype, device;
    if (geometry.dtype == like_dtype) {
      dtype = nb::steal(PyObject_GetAttr(like, dtype_name));
    } else {
      dtype = nb::borrow(geometry.dtype == FLASHCUTE_DTYPE_F32 ? float32 : uint8);
    }
    if (with_device) device = nb::steal(PyObject_GetAttr(like, device_name));
    if (!dtype.is_valid() || (with_device && !device.is_valid())) throw nb::python_error();
    PyObject* arguments[4] = {nullptr, shape.ptr(), dtype.ptr(), device.ptr()};
    const nb::object result =
        nb::steal(PyObject_Vectorcall(empty, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords));
    if (!result.is_valid()) throw nb::python_error();
    return result;
  }
};

bool is_contiguous(const View& view) {
  View contiguous = view;
  contiguous.make_contiguous();
  return view.same_geometry(contiguous);
}

bool same_shape(const View& a, const View& b) {
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
  }
  return a.ndim == b.ndim && a.dtype == b.dtype;
}

nb::object torch_empty(const Tensor& like, const View& geometry) {
  static const Allocator* torch = nullptr;
  if (!torch) torch = new Allocator("torch", true);
  // empty_like keeps the strides of its model, so it serves where those are contiguous. It costs half of empty().
  if (!like.copied() && same_shape(like.view, geometry) && is_contiguous(like.view)) {
    PyObject* arguments[2] = {nullptr, like.object()};
    nb::object result =
        nb::steal(PyObject_Vectorcall(torch->empty_like, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    if (!result.is_valid()) throw nb::python_error();
    return result;
  }
  return torch->make(like.object(), like.view.dtype, geometry, true);
}

struct ExchangeError {
  std::string message;
};

void set_exchange_error(void* context, const char* kind, const char* message) {
  static_cast<ExchangeError*>(context)->message = text(kind ? kind : "", ": ", message ? message : "");
}

nb::object exchange_empty(const Tensor& like, const View& geometry, Where where) {
  const dlpack::ExchangeApi& api = *like.producer().api;
  dlpack::DataType dtype{dlpack::kFloat, static_cast<uint8_t>(8 * size_of(geometry.dtype)), 1};
  if (geometry.dtype == FLASHCUTE_DTYPE_BF16) dtype.code = dlpack::kBfloat;
  if (geometry.dtype == FLASHCUTE_DTYPE_U8) dtype.code = dlpack::kUInt;
  View copy = geometry;
  copy.make_contiguous();
  dlpack::Tensor prototype{};
  prototype.device = {like.view.device.is_gpu() ? dlpack::kCuda : dlpack::kCpu, like.view.device.id};
  prototype.ndim = copy.ndim;
  prototype.dtype = dtype;
  prototype.shape = copy.shape;
  prototype.strides = copy.strides;
  dlpack::ManagedVersioned* managed = nullptr;
  ExchangeError error;
  if (api.allocate(&prototype, &managed, &error, set_exchange_error) != 0 || !managed) {
    PyErr_Clear();
    fail(FLASHCUTE_STATUS_INTERNAL_ERROR, where, type_name(like.object()), " could not be allocated: ", error.message);
  }
  void* object = nullptr;
  if (api.import_managed(managed, &object) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

struct ThreadWorkspace {
  void* memory = nullptr;
  size_t size = 0;
  ~ThreadWorkspace() { std::free(memory); }

  void* reserve(size_t bytes) {
    // Shrinks again once a large run is over, so that one long sequence does not stay in memory for good.
    if (bytes > size || (size > kKeptWorkspace && bytes <= kKeptWorkspace)) {
      std::free(memory);
      size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory = std::aligned_alloc(kAlignment, size);
      if (!memory) {
        size = 0;
        throw std::bad_alloc();
      }
    }
    return memory;
  }
};

}  // namespace

nb::object contiguous_copy(PyObject* x, const Producer& producer, Where where) {
  const nb::object copy =
      nb::steal(PyObject_CallMethod(producers_module().ptr(), "contiguous", "Oi", x, static_cast<int>(producer.kind)));
  if (!copy.is_valid()) {
    fail_from_python(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where, "% cannot be copied", x);
  }
  return copy;
}

nb::object allocate_like(const Tensor& like, const View& geometry, Where where, const Stream& stream) {
  switch (like.producer().kind) {
    case ProducerKind::kTorch:
      return torch_empty(like, geometry);
    case ProducerKind::kNumpy: {
      static const Allocator* numpy = nullptr;
      if (!numpy) numpy = new Allocator("numpy", false);
      return numpy->make(like.object(), like.view.dtype, geometry, false);
    }
    case ProducerKind::kExchange:
      return exchange_empty(like, geometry, where);
    case ProducerKind::kCupy:
      return producers_module().attr("cupy_empty")(shape_tuple(geometry), name_of(geometry.dtype),
                                                   nb::borrow(like.object()));
    case ProducerKind::kDeviceArray:
    case ProducerKind::kOther:
      break;
  }
  return producers_module().attr("device_empty")(shape_tuple(geometry), name_of(geometry.dtype),
                                                 name_of(like.view.device).c_str(), stream_number(stream.handle));
}

void fill(const Tensor& tensor, double value, Where where, const Stream& stream) {
  const View& view = tensor.view;
  const size_t count = static_cast<size_t>(view.numel());
  if (count == 0) return;
  const ProducerKind kind = tensor.producer().kind;
  if (view.device.is_gpu() && (kind == ProducerKind::kTorch || kind == ProducerKind::kCupy)) {
    const bool torch = kind == ProducerKind::kTorch;
    const nb::object done =
        nb::steal(torch ? PyObject_CallMethod(tensor.object(), "fill_", "d", value)
                        : PyObject_CallMethod(producers_module().ptr(), "cupy_fill", "Od", tensor.object(), value));
    if (!done.is_valid()) {
      fail_from_python(FLASHCUTE_STATUS_INTERNAL_ERROR, where, "% cannot be filled", tensor.object());
    }
    return;
  }
  const size_t bytes = count * static_cast<size_t>(size_of(view.dtype));
  std::vector<char> staged(view.device.is_gpu() ? bytes : 0);
  void* host = view.device.is_gpu() ? staged.data() : view.data;
  if (value == 0) {
    std::memset(host, 0, bytes);
  } else {
    std::fill_n(static_cast<float*>(host), count, static_cast<float>(value));  // the LSE alone
  }
  if (view.device.is_gpu()) {
    check(flashcuteCopyToDevice(handle_of(view.device, where.function), view.data, host, bytes, stream.handle),
          where.function);
  }
}

void announce_write(const Tensor& tensor, Where where) {
  if (tensor.producer().kind != ProducerKind::kTorch) return;
  // torch.autograd.graph.increment_version, less its Python frame, which takes longer than all the rest. Before PyTorch
  // 2.5 the function beneath took no tuple.
  static PyObject* beneath = nullptr;
  static PyObject* increment_version = nullptr;
  if (!increment_version) {
    const nb::module_ graph = nb::module_::import_("torch.autograd.graph");
    const nb::object found = nb::getattr(nb::module_::import_("torch._C"), "_increment_version", nb::none());
    beneath = nb::object(found).release().ptr();
    increment_version = nb::object(graph.attr("increment_version")).release().ptr();
  }
  if (beneath != Py_None) {
    const nb::object tuple = nb::steal(PyTuple_Pack(1, tensor.object()));
    if (nb::steal(PyObject_CallFunctionObjArgs(beneath, tuple.ptr(), nullptr)).is_valid()) return;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
      fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "% cannot be written in place", tensor.object());
    }
    PyErr_Clear();
    beneath = Py_None;
  }
  if (!nb::steal(PyObject_CallFunctionObjArgs(increment_version, tensor.object(), nullptr)).is_valid()) {
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "% cannot be written in place", tensor.object());
  }
}

nb::object to_caller(const Tensor& like, nb::object result, Where where) {
  if (like.producer().kind != ProducerKind::kOther) return result;
  const nb::object converted =
      nb::steal(PyObject_CallMethod(producers_module().ptr(), "to_framework", "OO", like.object(), result.ptr()));
  if (!converted.is_valid()) {
    fail_from_python(FLASHCUTE_STATUS_INTERNAL_ERROR, where, "%'s from_dlpack refused the result", like.object());
  }
  return converted;
}

size_t workspace_slack(Device device, size_t bytes) {
  return bytes != 0 && !device.is_gpu() ? kAlignment : 0;
}

void Workspace::prepare(size_t bytes, PyObject* given, const Tensor& like, Where where, Stream& stream) {
  if (given) {
    tensor_.import(given, where, Use::kWritten, stream);
    View contiguous = tensor_.view;
    contiguous.make_contiguous();
    if (!contiguous.same_geometry(tensor_.view)) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where, "expected contiguous memory, given strides ",
           strides_text(tensor_.view));
    }
    if (tensor_.view.device != like.view.device) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected memory on q's device (", name_of(like.view.device), "), given ",
           name_of(tensor_.view.device));
    }
    const size_t have = static_cast<size_t>(tensor_.view.numel()) * static_cast<size_t>(size_of(tensor_.view.dtype));
    const size_t need = bytes + workspace_slack(like.view.device, bytes);
    if (have < need) {
      fail(FLASHCUTE_STATUS_INSUFFICIENT_WORKSPACE, where, "expected at least ", need, " bytes, given ", have);
    }
    const size_t skip = (kAlignment - reinterpret_cast<uintptr_t>(tensor_.view.data) % kAlignment) % kAlignment;
    if (bytes != 0 && have - bytes < skip) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected memory aligned to ", kAlignment, " bytes");
    }
    data_ = bytes != 0 ? static_cast<char*>(tensor_.view.data) + skip : nullptr;
    size_ = bytes != 0 ? have - skip : 0;
    return;
  }
  if (bytes == 0) return;
  size_ = bytes;
  if (!like.view.device.is_gpu()) {
    static thread_local ThreadWorkspace workspace;
    data_ = workspace.reserve(bytes);
    return;
  }
  View geometry{};
  geometry.dtype = FLASHCUTE_DTYPE_U8;
  geometry.ndim = 1;
  geometry.shape[0] = static_cast<int64_t>(bytes);
  geometry.strides[0] = 1;
  owner_ = allocate_like(like, geometry, where, stream);
  tensor_.import(owner_.ptr(), where, Use::kMade, stream);
  data_ = tensor_.view.data;
  if (reinterpret_cast<uintptr_t>(data_) % kAlignment != 0) {
    fail(FLASHCUTE_STATUS_INTERNAL_ERROR, where, "the framework's allocator returned memory not aligned to 256 bytes");
  }
}

}  // namespace flashcute::python
