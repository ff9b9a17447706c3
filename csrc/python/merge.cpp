// flashcute.merge_states: two partial results over disjoint keys become one.
#include "attention.h"
#include "call.h"
#include "unlocked.h"

namespace flashcute::python {

namespace {

constexpr const char* kFunction = "merge_states";
constexpr const char* kNames[] = {"out_a", "lse_a", "out_b", "lse_b"};

PyObject* merge(PyObject*, PyObject* positional, PyObject* keywords) {
  static char* names[] = {const_cast<char*>("out_a"), const_cast<char*>("lse_a"),  const_cast<char*>("out_b"),
                          const_cast<char*>("lse_b"), const_cast<char*>("layout"), nullptr};
  PyObject* given[4];
  PyObject* layout_name = nullptr;
  if (!PyArg_ParseTupleAndKeywords(positional, keywords, "OOOO|$O:flashcute.merge_states", names, &given[0], &given[1],
                                   &given[2], &given[3], &layout_name)) {
    return nullptr;
  }
  try {
    Options options;
    if (layout_name) options.layout = parse_layout({kFunction, "layout"}, layout_name);
    const bool rows_first = options.rows_first();
    Stream stream;
    GradGuard grad;
    Tensor tensors[4];
    for (int i = 0; i < 4; ++i) {
      const Where where{kFunction, kNames[i]};
      tensors[i].import(given[i], where, i % 2 == 0 ? Use::kRows : Use::kScores, stream);
      grad.check(given[i], tensors[i].producer(), where);
      if (tensors[i].view.device != tensors[0].view.device) {
        fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a tensor on out_a's device, ",
             name_of(tensors[0].view.device), ", given one on ", name_of(tensors[i].view.device));
      }
    }
    const Tensor& like = tensors[0];
    if (like.view.ndim != 3 && like.view.ndim != 4) {
      fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, {kFunction, "out_a"}, "expected three or four axes, given ",
           shape_text(like.view));
    }
    const Device device = like.view.device;
    const flashcuteHandle_t handle = handle_of(device, kFunction);
    View out_view = like.view;
    out_view.make_contiguous();
    const View lse_view = lse_geometry(like.view, options);
    nb::object out = allocate_like(like, out_view, {kFunction, "out_a"}, stream);
    nb::object lse = allocate_like(like, lse_view, {kFunction, "lse_a"}, stream);
    Tensor results[2];
    results[0].import(out.ptr(), {kFunction, "out_a"}, Use::kMade, stream);
    results[1].import(lse.ptr(), {kFunction, "lse_a"}, Use::kMade, stream);

    const auto native = [&](const Tensor& tensor, bool is_out) {
      return NativeDescriptor(tensor.view, is_out && rows_first, kFunction);
    };
    const NativeDescriptor out_desc = native(results[0], true), lse_desc = native(results[1], false);
    const NativeDescriptor out_a = native(tensors[0], true), lse_a = native(tensors[1], false);
    const NativeDescriptor out_b = native(tensors[2], true), lse_b = native(tensors[3], false);
    StreamOrder order(kFunction, device, stream);
    for (const Tensor& tensor : tensors) order.add(tensor);
    for (const Tensor& tensor : results) order.add(tensor);
    order.before_work();
    flashcuteStatus_t status;
    {
      const Unlocked unlocked;
      status = flashcuteMergeStates(
          handle, out_desc.get(), results[0].view.data, lse_desc.get(), static_cast<float*>(results[1].view.data),
          out_a.get(), tensors[0].view.data, lse_a.get(), static_cast<const float*>(tensors[1].view.data), out_b.get(),
          tensors[2].view.data, lse_b.get(), static_cast<const float*>(tensors[3].view.data), stream.handle);
    }
    check(status, kFunction);
    order.after_work();
    out = to_caller(like, std::move(out), {kFunction, "out_a"});
    lse = to_caller(like, std::move(lse), {kFunction, "lse_a"});
    return nb::make_tuple(out, lse).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

constexpr const char* kDoc =
    "merge_states(out_a, lse_a, out_b, lse_b, *, layout='bhsd')\n"
    "--\n\n"
    R"(Joins the results of attention over two disjoint sets of keys: `(out, lse)`.

out_a and out_b have the shape of attention()'s out in `layout` (three axes: without batch), lse_a and lse_b that of its
lse. An lse of -inf or +inf marks an empty partial result.
)";

}  // namespace

void add_merge(nb::module_& module) {
  static PyMethodDef definition = {"merge_states", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&merge)),
                                   METH_VARARGS | METH_KEYWORDS, kDoc};
  add_builtin(module, definition);
}

}  // namespace flashcute::python
