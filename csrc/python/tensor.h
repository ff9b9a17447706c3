// One tensor of a call: where it lies, what shape it has, and what keeps it alive until the call returns.
#pragma once

#include <cstdint>
#include <string>

#include "dlpack.h"
#include "errors.h"

namespace flashcute::python {

inline constexpr int kMaxDims = 8;

struct Device {
  flashcuteDevice_t type = FLASHCUTE_DEVICE_CPU;
  int32_t id = 0;
  bool is_gpu() const { return type == FLASHCUTE_DEVICE_NVIDIA; }
  bool is_planning() const { return id < 0; }  // of an architecture: add_architecture
  bool operator==(const Device& other) const { return type == other.type && id == other.id; }
  bool operator!=(const Device& other) const { return !(*this == other); }
};

std::string name_of(Device device);           // "cpu", "cuda:0"
const char* name_of(flashcuteDtype_t dtype);  // "float16"
bool find_dtype(const std::string& name, flashcuteDtype_t& out);

constexpr int size_of(flashcuteDtype_t dtype) {  // bytes of an element, a power of two
  switch (dtype) {
    case FLASHCUTE_DTYPE_F16:
    case FLASHCUTE_DTYPE_BF16:
    case FLASHCUTE_DTYPE_I16:
    case FLASHCUTE_DTYPE_U16:
      return 2;
    case FLASHCUTE_DTYPE_F32:
    case FLASHCUTE_DTYPE_I32:
    case FLASHCUTE_DTYPE_U32:
      return 4;
    case FLASHCUTE_DTYPE_F64:
    case FLASHCUTE_DTYPE_I64:
    case FLASHCUTE_DTYPE_U64:
      return 8;
    default:
      return 1;
  }
}

enum class ProducerKind : uint8_t { kTorch, kNumpy, kCupy, kDeviceArray, kExchange, kOther };

// What is known of a type of tensors.
struct Producer {
  ProducerKind kind = ProducerKind::kOther;
  const dlpack::ExchangeApi* api = nullptr;
  bool immutable = false;  // JAX, TensorFlow: no out=
  bool tensorflow = false;
  // Otherwise its work is done, or handed over by DLPack, when we get to see a tensor.
  bool has_current_stream() const { return api || kind == ProducerKind::kTorch || kind == ProducerKind::kCupy; }
};

// Null when x is no tensor of any kind. Cached by type.
const Producer* find_producer(PyObject* x);

// Geometry in the caller's axis order. Strides in elements; those of axes that never step are the contiguous ones, so
// that equal problems compare equal.
struct View {
  void* data;
  Device device;
  flashcuteDtype_t dtype;
  int32_t ndim;
  int64_t shape[kMaxDims];
  int64_t strides[kMaxDims];

  int64_t numel() const;
  bool same_geometry(const View& other) const;  // dtype, shape, strides
  void make_contiguous();
};

std::string shape_text(const View& view);  // "(2, 8, 128, 64)"
std::string strides_text(const View& view);

// How far a tensor that the kernels cannot take as it is may be replaced by a copy.
enum class Use : uint8_t {
  kRows,     // read; the last axis must be contiguous
  kScores,   // read; any non-negative strides
  kMask,     // kRows for one of up to two axes, else kScores
  kWritten,  // never copied, must be writable
  kMade,     // kWritten, in memory that this call had its framework allocate
};

// The stream of a call. Null means the legacy default stream, as in CUDA.
struct Stream {
  void* handle = nullptr;
  bool known = false;  // no GPU tensor has been seen yet when false
  bool given = false;  // by the caller, not taken from the framework
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { release(); }

  // Reads x in place. With `geometry_only` nothing is copied and the strides are those that a run would see.
  void import(PyObject* x, Where where, Use use, Stream& stream, bool geometry_only = false);
  void release();

  bool present() const { return object_ != nullptr; }
  PyObject* object() const { return object_; }  // what the caller gave, borrowed
  const Producer& producer() const { return *producer_; }
  bool copied() const { return copy_.is_valid(); }
  bool written() const { return use_ == Use::kWritten || use_ == Use::kMade; }
  bool made_here() const { return copied() || use_ == Use::kMade; }  // in memory that its framework gave for this call
  // Exported by a framework that does not know our stream's progress: its memory must outlast the work.
  bool borrowed_blindly() const { return view.device.is_gpu() && owner_ != Owner::kNone && !stream_ordered(); }

  View view;

 private:
  enum class Owner : uint8_t { kNone, kManaged, kVersioned, kBuffer };

  void read(PyObject* x, Where where, Stream& stream);
  void read_exchange(PyObject* x, Where where);
  void read_numpy(PyObject* x, Where where);
  void read_dlpack(PyObject* x, Where where, Stream& stream);
  void take_capsule(PyObject* capsule, Where where, const std::string& type);
  void fill(const dlpack::Tensor& tensor, Where where);
  void settle(Where where);  // checks sizes, fills in strides
  bool usable() const;
  bool lazily_negated() const;
  bool stream_ordered() const {
    return producer_->kind == ProducerKind::kTorch || producer_->kind == ProducerKind::kCupy ||
           producer_->kind == ProducerKind::kDeviceArray;
  }

  PyObject* object_ = nullptr;
  const Producer* producer_ = nullptr;
  nb::object copy_, helper_;
  Use use_ = Use::kRows;
  Owner owner_ = Owner::kNone;
  bool read_only_ = false;
  bool odd_strides_ = false;  // NumPy: byte strides that are no multiple of the element
  void* managed_ = nullptr;
  Py_buffer buffer_;
};

}  // namespace flashcute::python
