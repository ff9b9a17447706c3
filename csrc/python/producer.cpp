// Which framework made a tensor: decided once for each type.
#include <string>
#include <unordered_map>

#include "tensor.h"

namespace flashcute::python {

namespace {

constexpr size_t kMaxCachedTypes = 128;  // types made on the fly must not pile up

nb::object attribute(PyObject* object, const char* name) {
  nb::object value = nb::steal(PyObject_GetAttrString(object, name));
  if (!value.is_valid()) PyErr_Clear();
  return value;
}

// Without importing anything: a tensor of a module exists only when that module is loaded.
bool is_subclass(PyObject* type, const char* module, const char* name) {
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  PyObject* loaded = PyDict_GetItemString(modules.ptr(), module);
  if (!loaded) return false;
  const nb::object base = attribute(loaded, name);
  if (!base.is_valid() || !PyType_Check(base.ptr())) return false;
  const int result = PyObject_IsSubclass(type, base.ptr());
  if (result < 0) PyErr_Clear();
  return result > 0;
}

const dlpack::ExchangeApi* find_exchange_api(PyObject* type) {
  const nb::object capsule = attribute(type, "__dlpack_c_exchange_api__");
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* header = static_cast<const dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header && header->version.major > dlpack::kMajorVersion) header = header->older;
  if (!header || header->version.major != dlpack::kMajorVersion) return nullptr;
  auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  if (!api->allocate || !api->export_managed || !api->import_managed || !api->current_stream) return nullptr;
  return api;
}

bool classify(PyObject* type, Producer& out) {
  out.api = find_exchange_api(type);
  if (is_subclass(type, "torch", "Tensor")) {
    out.kind = ProducerKind::kTorch;
  } else if (is_subclass(type, "numpy", "ndarray")) {
    if (is_subclass(type, "numpy.ma", "MaskedArray")) return false;  // its mask would be lost
    out.kind = ProducerKind::kNumpy;
  } else if (is_subclass(type, "cupy", "ndarray")) {
    out.kind = ProducerKind::kCupy;
  } else if (is_subclass(type, "flashcute.device_array", "DeviceArray")) {
    out.kind = ProducerKind::kDeviceArray;
  } else if (out.api) {
    out.kind = ProducerKind::kExchange;
  } else {
    if (!attribute(type, "__dlpack__").is_valid() || !attribute(type, "__dlpack_device__").is_valid()) return false;
    out.kind = ProducerKind::kOther;
    const nb::object module = attribute(type, "__module__");
    const std::string name = module.is_valid() ? str_of(module) : "";
    const std::string root = name.substr(0, name.find('.'));
    out.tensorflow = root == "tensorflow";
    out.immutable = root == "jax" || root == "jaxlib" || out.tensorflow;
  }
  return true;
}

struct KnownType {
  Producer producer;
  nb::object type;  // held, so that its address is not used again
};

}  // namespace

const Producer* find_producer(PyObject* x) {
  static auto* cache =
      new std::unordered_map<PyTypeObject*, KnownType>;  // guarded by the GIL, lives as long as the process
  static PyTypeObject* last_type = nullptr;
  static const Producer* last_producer = nullptr;

  PyTypeObject* type = Py_TYPE(x);
  if (type == last_type) return last_producer;
  auto found = cache->find(type);
  if (found == cache->end()) {
    Producer producer;
    if (!classify(reinterpret_cast<PyObject*>(type), producer)) return nullptr;
    // Old entries stay: a call in progress may still point into them. Unknown types beyond the limit share theirs.
    if (cache->size() >= kMaxCachedTypes) {
      static Producer overflow[3];
      if (producer.kind == ProducerKind::kOther) {
        Producer& shared = overflow[producer.immutable + producer.tensorflow];
        shared = producer;
        return &shared;
      }
    }
    found = cache->emplace(type, KnownType{producer, nb::borrow(reinterpret_cast<PyObject*>(type))}).first;
  }
  last_type = type;
  last_producer = &found->second.producer;
  return last_producer;
}

}  // namespace flashcute::python
