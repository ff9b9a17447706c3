// The Python-visible calls.
#pragma once

#include "errors.h"

namespace flashcute::python {

void add_attention(nb::module_& module);
void add_descriptor(nb::module_& module);
void add_merge(nb::module_& module);
void add_device_buffer(nb::module_& module);

// A builtin that takes a vectorcall, as a member of the flashcute package. The definition must live for ever.
void add_builtin(nb::module_& module, PyMethodDef& definition);

}  // namespace flashcute::python
