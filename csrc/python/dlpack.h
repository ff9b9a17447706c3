// DLPack 1.3 as this module reads and writes it: the structures that cross the boundary, laid out as the standard has
// them, and nothing more.
#pragma once

#include <cstdint>

namespace flashcute::python::dlpack {

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr uint32_t kMinorVersion = 3;

struct Version {
  uint32_t major, minor;
};

enum DeviceCode : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct Device {
  int32_t type;  // DeviceCode, or one that flashcute does not know
  int32_t id;
};

enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kOpaque = 3, kBfloat = 4, kComplex = 5, kBool = 6 };

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};

struct Managed {  // capsule "dltensor", before 1.0
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);  // may be null
};

inline constexpr uint64_t kReadOnly = 1;

struct ManagedVersioned {  // capsule "dltensor_versioned"; a foreign major version guarantees only the first three
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// Capsule "dlpack_exchange_api" at type(tensor).__dlpack_c_exchange_api__. Every function returns 0, or −1 with a
// Python error set (the allocator reports through set_error instead). None of them synchronises.
struct ExchangeHeader {
  Version version;
  ExchangeHeader* older;
};

struct ExchangeApi {
  ExchangeHeader header;
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*export_managed)(void* object, ManagedVersioned** out);
  int (*import_managed)(ManagedVersioned* tensor, void** out_object);  // takes the tensor over
  int (*view)(void* object, Tensor* out);                              // borrowed from the object; may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 64 && sizeof(ManagedVersioned) == 80);
static_assert(sizeof(ExchangeApi) == 56);

}  // namespace flashcute::python::dlpack
