#include "errors.h"

#include <cstring>
#include <new>

namespace flashcute::python {

namespace {

void raise(const StatusError& error) {
  const nb::object error_class =
      nb::module_::import_("flashcute.errors").attr("class_of_status")(static_cast<int>(error.status()));
  const nb::object exception = error_class(nb::str(error.what()));
  if (error.cause().is_valid()) PyException_SetCause(exception.ptr(), error.cause().inc_ref().ptr());
  PyErr_SetObject(error_class.ptr(), exception.ptr());
}

// What Python says in other words than the C API, after the name of the argument.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"a mask of pairs in options->dense_mask", "four axes for a mask of pairs (mask[None, None])"},
    {"dense_mask", "mask"},
    {"dropout_state", "seed"},
};

std::string utf8_or_nothing(PyObject* new_reference) {
  const nb::object held = nb::steal(new_reference);
  Py_ssize_t size = 0;
  const char* data = new_reference ? PyUnicode_AsUTF8AndSize(new_reference, &size) : nullptr;
  if (!data) PyErr_Clear();
  return data ? std::string(data, static_cast<size_t>(size)) : std::string();
}

}  // namespace

void fail_from_python(flashcuteStatus_t status, Where where, std::string what, PyObject* subject) {
  nb::python_error error;  // takes the error away first: nothing may be asked of Python while one is set
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
  const size_t at = what.find('%');
  if (at != std::string::npos) what.replace(at, 1, type_name(subject));
  const nb::object cause = nb::borrow(error.value());
  std::string reason = str_of(cause);
  // The first line says what happened; PyTorch adds its own call stack below it.
  reason.resize(std::min(reason.find('\n'), reason.size()));
  throw StatusError(status, text("flashcute.", where.function, '(', where.argument, "): ", what, ": ", reason), cause);
}

void fail_from_library(flashcuteStatus_t status, const char* function) {
  const std::string message = flashcuteGetLastErrorMessage();
  // "flashcuteVerbNoun(options->name): expected …" becomes "flashcute.attention(name): expected …".
  const size_t open = message.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
  if (message.rfind("flashcute", 0) != 0 || open == std::string::npos) throw StatusError(status, message);
  const size_t close = message.find("):");
  if (message[open] != '(' || close == std::string::npos) {  // "flashcuteVerbNoun: no kernel …"
    throw StatusError(status, text("flashcute.", function, message.substr(open)));
  }
  std::string argument = message.substr(open + 1, close - open - 1);
  for (const char* owner : {"options->", "buffers->"}) {
    if (argument.rfind(owner, 0) == 0) argument.erase(0, std::strlen(owner));
  }
  const size_t suffix = argument.rfind("_desc");
  if (suffix != std::string::npos && suffix + 5 == argument.size()) argument.resize(suffix);
  if (argument == "dense_mask") argument = "mask";
  if (argument == "dropout_state") argument = "seed";
  if (argument == "window_left" || argument == "window_right") argument = "window";
  if (argument == "probs" && !std::strchr(function, '.')) argument = "return_probs";  // only a run is given the tensor
  std::string reason = message.substr(close);
  for (const auto& [in_c, in_python] : kWords) {
    const size_t at = reason.find(in_c);
    if (at != std::string::npos) reason.replace(at, in_c.size(), in_python);
  }
  throw StatusError(status, text("flashcute.", function, '(', argument, reason));
}

void set_python_error() noexcept {
  try {
    try {
      throw;
    } catch (const StatusError& error) {
      raise(error);
    }
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const SignatureError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

std::string str_of(nb::handle x) {
  return utf8_or_nothing(PyObject_Str(x.ptr()));
}

std::string repr_of(nb::handle x) {
  return utf8_or_nothing(PyObject_Repr(x.ptr()));
}

std::string type_name(PyObject* x) {
  return utf8_or_nothing(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(x)), "__name__"));
}

}  // namespace flashcute::python
