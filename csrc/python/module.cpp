// flashcute._core: the C API under Python's conventions. Importing it touches no driver and no GPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "attention.h"
#include "plan_cache.h"
#include "stream.h"

namespace {

using flashcute::python::check;

nb::object info() {
  size_t length = 0;
  check(flashcuteGetInfo(nullptr, &length), "info");
  std::string json(length, '\0');
  check(flashcuteGetInfo(json.data(), &length), "info");
  const nb::object facts = nb::module_::import_("json").attr("loads")(json.c_str());
  if (nb::cast<int>(facts["gpu"]["count"]) > 0) flashcute::python::note_gpu_use();
  return facts;
}

int get_num_threads() {
  const int count = flashcuteGetNumThreads();
  if (count == 0) check(FLASHCUTE_STATUS_BAD_PARAM, "get_num_threads");
  return count;
}

void set_num_threads(int n) {
  check(flashcuteSetNumThreads(n), "set_num_threads");
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The compiled half of flashcute.";
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void*) {
        try {
          std::rethrow_exception(error);
        } catch (const flashcute::python::StatusError&) {
          flashcute::python::set_python_error();
        }
      },
      nullptr);
  flashcute::python::add_attention(module);
  flashcute::python::add_descriptor(module);
  flashcute::python::add_merge(module);
  flashcute::python::add_device_buffer(module);
  module.def(
      "set_num_threads", set_num_threads, nb::arg("n"),
      "Sets how many threads the CPU backend uses. FLASHCUTE_NUM_THREADS or OMP_NUM_THREADS sets the start value.");
  module.def("get_num_threads", get_num_threads, "How many threads the CPU backend uses.");
  module.def("info", info, nb::sig("def info() -> dict[str, typing.Any]"),
             "Version, build options, compiled kernels and devices, as the C API's flashcuteGetInfo tells them.");
  module.def("add_architecture", flashcute::python::add_architecture, nb::arg("name"), nb::arg("capability"),
             nb::arg("multiprocessors"), nb::arg("shared_memory_per_block"),
             nb::arg("shared_memory_per_multiprocessor"), nb::arg("l2_bytes"),
             "The id of a GPU device that descriptors can be planned for, without such a GPU.");
  module.def("version", flashcuteGetVersion, "The version of the library.");
  module.def("plan_cache_size", flashcute::python::plan_cache_size, "How many plans attention() keeps.");
  module.def("clear_plan_cache", flashcute::python::clear_plan_cache, "Drops the plans that attention() keeps.");
}
