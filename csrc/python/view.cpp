// Names of dtypes and devices, and the arithmetic of views.
#include "tensor.h"

namespace flashcute::python {

namespace {

struct DtypeName {
  flashcuteDtype_t dtype;
  const char* name;
};
constexpr DtypeName kDtypes[] = {
    {FLASHCUTE_DTYPE_F16, "float16"}, {FLASHCUTE_DTYPE_BF16, "bfloat16"}, {FLASHCUTE_DTYPE_F32, "float32"},
    {FLASHCUTE_DTYPE_F64, "float64"}, {FLASHCUTE_DTYPE_BOOL, "bool"},     {FLASHCUTE_DTYPE_U8, "uint8"},
    {FLASHCUTE_DTYPE_U16, "uint16"},  {FLASHCUTE_DTYPE_U32, "uint32"},    {FLASHCUTE_DTYPE_U64, "uint64"},
    {FLASHCUTE_DTYPE_I8, "int8"},     {FLASHCUTE_DTYPE_I16, "int16"},     {FLASHCUTE_DTYPE_I32, "int32"},
    {FLASHCUTE_DTYPE_I64, "int64"},   {FLASHCUTE_DTYPE_BYTE, "byte"},
};

std::string list_text(const int64_t* values, int count) {
  std::string result = "(";
  for (int i = 0; i < count; ++i) result += text(i ? ", " : "", values[i]);
  return result + (count == 1 ? ",)" : ")");
}

}  // namespace

std::string name_of(Device device) {
  if (device.is_planning()) return "an architecture to plan for";
  return device.is_gpu() ? text("cuda:", device.id) : "cpu";
}

const char* name_of(flashcuteDtype_t dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unknown";
}

bool find_dtype(const std::string& name, flashcuteDtype_t& out) {
  for (const DtypeName& entry : kDtypes) {
    if (name == entry.name) {
      out = entry.dtype;
      return true;
    }
  }
  return false;
}

int64_t View::numel() const {
  int64_t count = 1;
  for (int i = 0; i < ndim; ++i) count *= shape[i];
  return count;
}

void View::make_contiguous() {
  uint64_t stride = 1;  // may wrap around for probs, which the library then refuses by their shape
  for (int i = ndim - 1; i >= 0; --i) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i] > 0 ? shape[i] : 1);
  }
}

bool View::same_geometry(const View& other) const {
  if (dtype != other.dtype || ndim != other.ndim) return false;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] != other.shape[i] || strides[i] != other.strides[i]) return false;
  }
  return true;
}

std::string shape_text(const View& view) {
  return list_text(view.shape, view.ndim);
}
std::string strides_text(const View& view) {
  return list_text(view.strides, view.ndim);
}

}  // namespace flashcute::python
