#include "tensor.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "results.h"
#include "stream.h"

namespace flashcute::python {

namespace {

[[noreturn]] void unknown_dtype(Where where, const std::string& given) {
  fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, where,
       "expected float16, bfloat16 or float32 (of masks and lengths: bool or integers), given ", given);
}

flashcuteDtype_t integer_dtype(int bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? FLASHCUTE_DTYPE_I8 : FLASHCUTE_DTYPE_U8;
    case 2:
      return is_signed ? FLASHCUTE_DTYPE_I16 : FLASHCUTE_DTYPE_U16;
    case 4:
      return is_signed ? FLASHCUTE_DTYPE_I32 : FLASHCUTE_DTYPE_U32;
    default:
      return is_signed ? FLASHCUTE_DTYPE_I64 : FLASHCUTE_DTYPE_U64;
  }
}

flashcuteDtype_t dtype_of(dlpack::DataType type, Where where) {
  const bool whole = type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
  if (type.lanes == 1) {
    if ((type.code == dlpack::kInt || type.code == dlpack::kUInt) && whole) {
      return integer_dtype(type.bits / 8, type.code == dlpack::kInt);
    }
    if (type.code == dlpack::kBool && type.bits == 8) return FLASHCUTE_DTYPE_BOOL;
    if (type.code == dlpack::kBfloat && type.bits == 16) return FLASHCUTE_DTYPE_BF16;
    if (type.code == dlpack::kFloat && type.bits == 16) return FLASHCUTE_DTYPE_F16;
    if (type.code == dlpack::kFloat && type.bits == 32) return FLASHCUTE_DTYPE_F32;
    if (type.code == dlpack::kFloat && type.bits == 64) return FLASHCUTE_DTYPE_F64;
  }
  static constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string code = type.code < 7 ? kCodes[type.code]
                           : type.code <= 14 && type.bits == 8
                               ? "float8 of DLPack code " + std::to_string(type.code) + ", "
                               : "DLPack code " + std::to_string(type.code) + ", bits ";
  unknown_dtype(where, text(code, int(type.bits), type.lanes == 1 ? "" : text(" with ", type.lanes, " lanes")));
}

Device device_of(dlpack::Device device, Where where) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return {FLASHCUTE_DEVICE_CPU, 0};
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return {FLASHCUTE_DEVICE_NVIDIA, device.id};
    default:
      fail(FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED, where,
           "expected a tensor of the CPU or of a CUDA device, given ", "one of DLPack device type ", device.type);
  }
}

// The struct-module letter of a buffer that NumPy exports.
flashcuteDtype_t dtype_of_format(const char* format, Py_ssize_t itemsize, PyObject* array, Where where) {
  if (!format) return FLASHCUTE_DTYPE_U8;
  const char order = *format;
  if (order != '\0' && std::strchr("@=<>!", order)) ++format;
  const bool foreign_order = (order == '>' || order == '!') && itemsize > 1;
  if (!foreign_order && format[0] != '\0' && format[1] == '\0') {
    switch (format[0]) {
      case '?':
        return FLASHCUTE_DTYPE_BOOL;
      case 'b':
      case 'h':
      case 'i':
      case 'l':
      case 'q':
        return integer_dtype(static_cast<int>(itemsize), true);
      case 'B':
      case 'H':
      case 'I':
      case 'L':
      case 'Q':
        return integer_dtype(static_cast<int>(itemsize), false);
      case 'e':
        return FLASHCUTE_DTYPE_F16;
      case 'f':
        return FLASHCUTE_DTYPE_F32;
      case 'd':
        return FLASHCUTE_DTYPE_F64;
      default:
        break;
    }
  }
  const std::string given = str_of(nb::object(nb::borrow(array).attr("dtype")));
  unknown_dtype(where, foreign_order ? given + ", not of this machine's byte order" : given);
}

// The stream that the producer makes wait for its work; none where that is captured into a graph and must not wait.
nb::int_ waiting_stream(Device device, void* stream, Where where) {
  constexpr int kNoStream = -1;  // DLPack's number
  try {
    if (is_capturing(device, stream, where.function)) return nb::int_(kNoStream);
  } catch (const StatusError&) {  // no such GPU here, which others say better
  }
  return nb::int_(stream_number(stream));
}

nb::object call_dlpack(PyObject* x, bool on_gpu, nb::handle stream, bool versioned) {
  nb::dict keywords;
  if (on_gpu) keywords["stream"] = stream;
  if (versioned) keywords["max_version"] = nb::make_tuple(dlpack::kMajorVersion, dlpack::kMinorVersion);
  return nb::borrow(x).attr("__dlpack__")(**keywords);
}

// What Python's half of the package knows of x, which cannot be read: "" or the rest of a sentence.
std::string hint_of(const char* function, PyObject* x, Where where) {
  const nb::object module = nb::steal(PyImport_ImportModule("flashcute._refusals"));
  if (!module.is_valid()) throw nb::python_error();
  return str_of(module.attr(function)(nb::borrow(x), where.argument));
}

void gather_axis(const View& view, int axis, const char* source, char*& target) {
  const auto size = static_cast<size_t>(size_of(view.dtype));
  if (axis == view.ndim) {
    std::memcpy(target, source, size);
    target += size;
    return;
  }
  const int64_t step = view.strides[axis] * static_cast<int64_t>(size);
  for (int64_t i = 0; i < view.shape[axis]; ++i) gather_axis(view, axis + 1, source + i * step, target);
}

// Points the view of a tensor in host memory to a contiguous copy, which lives as long as the object returned.
nb::object gather(View& view) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = static_cast<size_t>(view.numel() * size_of(view.dtype));
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  if (!memory) throw std::bad_alloc();
  nb::object owner =
      nb::steal(PyCapsule_New(memory, nullptr, [](PyObject* self) { std::free(PyCapsule_GetPointer(self, nullptr)); }));
  if (!owner.is_valid()) {
    std::free(memory);
    throw nb::python_error();
  }
  char* target = static_cast<char*>(memory);
  gather_axis(view, 0, static_cast<const char*>(view.data), target);
  view.data = memory;
  view.make_contiguous();
  return owner;
}

}  // namespace

void Tensor::release() {
  switch (owner_) {
    case Owner::kNone:
      break;
    case Owner::kManaged: {
      auto* tensor = static_cast<dlpack::Managed*>(managed_);
      if (tensor->deleter) tensor->deleter(tensor);
      break;
    }
    case Owner::kVersioned: {
      auto* tensor = static_cast<dlpack::ManagedVersioned*>(managed_);
      if (tensor->deleter) tensor->deleter(tensor);
      break;
    }
    case Owner::kBuffer:
      PyBuffer_Release(&buffer_);
      break;
  }
  owner_ = Owner::kNone;
  object_ = nullptr;
}

void Tensor::import(PyObject* x, Where where, Use use, Stream& stream, bool geometry_only) {
  producer_ = find_producer(x);
  if (!producer_) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a tensor that speaks DLPack, given ", type_name(x),
         hint_of("not_a_tensor", x, where));
  }
  use_ = use;
  if (written() && producer_->immutable) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a tensor that can be written, given ", type_name(x),
         ", which is immutable");
  }
  object_ = x;
  try {
    read(x, where, stream);
  } catch (const StatusError&) {
    const std::string hint = hint_of("without_memory", x, where);
    if (hint.empty()) throw;
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a tensor with memory that can be read, given ", hint);
  }
  if (written() && read_only_) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a writable tensor, given a read-only one");
  }
  if (usable() && !lazily_negated()) return;
  if (written()) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where,
         "expected aligned elements with strides that are multiples of their size, since it is written in place");
  }
  if (geometry_only) {
    view.make_contiguous();
    return;
  }
  if (!view.device.is_gpu() &&
      (producer_->kind == ProducerKind::kOther || producer_->kind == ProducerKind::kExchange)) {
    copy_ = gather(view);
    release();
    object_ = x;
    return;
  }
  copy_ = contiguous_copy(x, *producer_, where);
  const Producer* producer = producer_;
  release();
  object_ = x;
  producer_ = producer;
  read(copy_.ptr(), where, stream);
  if (!usable()) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where, "expected strides (…, 1), given ", strides_text(view), ", which ",
         type_name(x), " could not make contiguous");
  }
}

void Tensor::read(PyObject* x, Where where, Stream& stream) {
  read_only_ = odd_strides_ = false;
  if (producer_->api) {
    read_exchange(x, where);
    if (view.device.is_gpu() && !stream.known) resolve_stream(stream, *producer_, view.device.id, where);
  } else if (producer_->kind == ProducerKind::kNumpy) {
    read_numpy(x, where);
  } else {
    read_dlpack(x, where, stream);
  }
}

void Tensor::read_exchange(PyObject* x, Where where) {
  const dlpack::ExchangeApi& api = *producer_->api;
  if (api.view) {
    dlpack::Tensor tensor;
    if (api.view(x, &tensor) != 0) {
      fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "% cannot be exported", x);
    }
    fill(tensor, where);
    return;
  }
  dlpack::ManagedVersioned* managed = nullptr;
  if (api.export_managed(x, &managed) != 0) {
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "% cannot be exported", x);
  }
  managed_ = managed;
  owner_ = Owner::kVersioned;
  read_only_ = managed->flags & dlpack::kReadOnly;
  fill(managed->tensor, where);
}

void Tensor::read_numpy(PyObject* x, Where where) {
  bool is_bfloat16 = false;
  if (PyObject_GetBuffer(x, &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    // NumPy exports no buffer of a dtype that it does not know. The one of ml_dtypes is two bytes, read as such.
    const std::string dtype = str_of(nb::object(nb::borrow(x).attr("dtype")));
    if (dtype != "bfloat16") unknown_dtype(where, dtype);
    helper_ = nb::borrow(x).attr("view")("uint16");
    is_bfloat16 = true;
    if (PyObject_GetBuffer(helper_.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  }
  owner_ = Owner::kBuffer;
  read_only_ = buffer_.readonly != 0;
  if (buffer_.ndim > kMaxDims) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected at most ", kMaxDims, " axes, given ", buffer_.ndim);
  }
  view.dtype = is_bfloat16 ? FLASHCUTE_DTYPE_BF16 : dtype_of_format(buffer_.format, buffer_.itemsize, x, where);
  view.device = Device{};
  view.data = buffer_.buf;
  view.ndim = buffer_.ndim;
  for (int i = 0; i < buffer_.ndim; ++i) {
    view.shape[i] = buffer_.shape[i];
    odd_strides_ |= buffer_.strides[i] % buffer_.itemsize != 0 && buffer_.shape[i] > 1;
    view.strides[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  settle(where);
}

void Tensor::read_dlpack(PyObject* x, Where where, Stream& stream) {
  dlpack::Device device{};
  {
    const nb::object pair = nb::steal(PyObject_CallMethod(x, "__dlpack_device__", nullptr));
    if (!pair.is_valid()) {
      fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "%.__dlpack_device__ failed", x);
    }
    if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected __dlpack_device__ to return a pair, given ",
           type_name(pair.ptr()));
    }
    device.type = static_cast<int32_t>(PyLong_AsLong(PyTuple_GetItem(pair.ptr(), 0)));
    device.id = static_cast<int32_t>(PyLong_AsLong(PyTuple_GetItem(pair.ptr(), 1)));
    if (PyErr_Occurred()) {
      fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "%.__dlpack_device__ failed", x);
    }
  }
  const bool on_gpu = device_of(device, where).is_gpu();
  if (on_gpu && !stream.known) resolve_stream(stream, *producer_, device.id, where);

  // Without the exchange API PyTorch exports no parameter, also where its gradient is not wanted.
  if (producer_->kind == ProducerKind::kTorch) {
    helper_ = nb::borrow(x).attr("detach")();
    x = helper_.ptr();
  }
  nb::object capsule, waiting;
  if (on_gpu) waiting = waiting_stream(device_of(device, where), stream.handle, where);
  try {
    try {
      capsule = call_dlpack(x, on_gpu, waiting, true);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = call_dlpack(x, on_gpu, waiting, false);  // a producer from before DLPack 1.0
    }
  } catch (nb::python_error& error) {
    error.restore();
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "%.__dlpack__ failed", x);
  }
  take_capsule(capsule.ptr(), where, type_name(x));
}

void Tensor::take_capsule(PyObject* capsule, Where where, const std::string& type) {
  if (!PyCapsule_CheckExact(capsule)) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected ", type, ".__dlpack__ to return a capsule, given ",
         type_name(capsule));
  }
  const char* name = PyCapsule_GetName(capsule);
  if (PyErr_Occurred()) PyErr_Clear();
  if (name && std::strcmp(name, "dltensor_versioned") == 0) {
    managed_ = PyCapsule_GetPointer(capsule, name);
    if (!managed_ || PyCapsule_SetName(capsule, "used_dltensor_versioned") != 0) throw nb::python_error();
    owner_ = Owner::kVersioned;
    const auto* managed = static_cast<dlpack::ManagedVersioned*>(managed_);
    if (managed->version.major != dlpack::kMajorVersion) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected DLPack version 1, given ", managed->version.major);
    }
    read_only_ = managed->flags & dlpack::kReadOnly;
    fill(managed->tensor, where);
  } else if (name && std::strcmp(name, "dltensor") == 0) {
    managed_ = PyCapsule_GetPointer(capsule, name);
    if (!managed_ || PyCapsule_SetName(capsule, "used_dltensor") != 0) throw nb::python_error();
    owner_ = Owner::kManaged;
    fill(static_cast<dlpack::Managed*>(managed_)->tensor, where);
  } else {
    const bool used = name && std::strncmp(name, "used_", 5) == 0;
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a fresh DLPack capsule of ", type, ", given one ",
         used ? "that was consumed before" : text("named '", name ? name : "", "'"));
  }
}

void Tensor::fill(const dlpack::Tensor& tensor, Where where) {
  view.device = device_of(tensor.device, where);
  view.dtype = dtype_of(tensor.dtype, where);
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected at most ", kMaxDims, " axes, given ", tensor.ndim);
  }
  if (tensor.ndim > 0 && !tensor.shape) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected a shape, given a null pointer");
  }
  view.ndim = tensor.ndim;
  for (int i = 0; i < tensor.ndim; ++i) view.shape[i] = tensor.shape[i];
  if (tensor.strides) {
    for (int i = 0; i < tensor.ndim; ++i) view.strides[i] = tensor.strides[i];
  } else {
    view.make_contiguous();
  }
  view.data = tensor.data ? static_cast<char*>(tensor.data) + tensor.byte_offset : nullptr;
  settle(where);
}

void Tensor::settle(Where where) {
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 16;
  int64_t count = 1, reach = 0;
  bool empty = false;
  for (int i = view.ndim - 1; i >= 0; --i) {
    const int64_t length = view.shape[i];
    if (length < 0) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected lengths of at least 0, given ", shape_text(view));
    }
    if (length <= 1) {
      view.strides[i] = count;  // never stepped over: any value will do, so take one that compares equal
      empty |= length == 0;
      continue;
    }
    if (__builtin_mul_overflow(count, length, &count) || count > kLimit) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected fewer than 2**59 elements, given ", shape_text(view));
    }
    if (__builtin_mul_overflow(view.strides[i], length, &reach) || reach > kLimit || reach < -kLimit) {
      if (producer_->kind == ProducerKind::kCupy) {  // exports negative strides as huge ones: copy
        odd_strides_ = true;
        continue;
      }
      fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where, "expected strides that stay within the address space, given ",
           strides_text(view));
    }
  }
  if (empty) {
    view.make_contiguous();
    odd_strides_ = false;
  } else if (!view.data) {
    fail(FLASHCUTE_STATUS_NULL_POINTER, where, "expected memory behind a tensor of shape ", shape_text(view),
         ", given a null pointer");
  }
}

// PyTorch may hold the imaginary part of a conjugate as memory of the opposite sign, and exports that memory as it is.
// Such views step over two elements, so only where no stride gives them away must the tensor be asked.
bool Tensor::lazily_negated() const {
  if (producer_->kind != ProducerKind::kTorch) return false;
  if (use_ != Use::kScores && view.ndim > 0 && view.shape[view.ndim - 1] != 1) return false;
  const nb::object negated = nb::steal(PyObject_CallMethod(object_, "is_neg", nullptr));
  if (!negated.is_valid()) throw nb::python_error();
  return negated.ptr() == Py_True;
}

bool Tensor::usable() const {
  if (odd_strides_ || (reinterpret_cast<uintptr_t>(view.data) & static_cast<unsigned>(size_of(view.dtype) - 1)) != 0) {
    return false;
  }
  if (written()) return true;  // the library says what is wrong with the rest
  for (int i = 0; i < view.ndim; ++i) {
    if (view.strides[i] < 0) return false;
  }
  const bool rows = use_ == Use::kRows || (use_ == Use::kMask && view.ndim <= 2);
  return !rows || view.ndim == 0 || view.strides[view.ndim - 1] == 1;
}

}  // namespace flashcute::python
