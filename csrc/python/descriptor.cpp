// flashcute.AttentionDescriptor: everything but the pointers checked and planned once, then run many times.
#include <structmember.h>

#include <cstddef>
#include <vector>

#include "attention.h"
#include "call.h"

namespace flashcute::python {

namespace {

constexpr const char* kCreate = "AttentionDescriptor";
constexpr const char* kRun = "AttentionDescriptor.run";

struct SlotArg {
  Slot slot;
  Arg arg;
};
constexpr SlotArg kSlotArgs[] = {{kQ, kArgQ},
                                 {kK, kArgK},
                                 {kV, kArgV},
                                 {kOut, kArgOut},
                                 {kLse, kArgLse},
                                 {kProbs, kArgProbs},
                                 {kKeyMask, kArgMask},
                                 {kDenseMask, kArgMask},
                                 {kBlockMask, kArgBlockMask},
                                 {kBias, kArgBias},
                                 {kAlibi, kArgAlibiSlopes},
                                 {kSinks, kArgSinks},
                                 {kCuSeqlensQ, kArgCuSeqlensQ},
                                 {kCuSeqlensK, kArgCuSeqlensK},
                                 {kSequsedK, kArgSequsedK},
                                 {kDropoutState, kArgSeed}};

struct State {
  Options options;
  std::unique_ptr<const Plan> plan;
  View views[kSlotCount];
  bool declared[kSlotCount] = {};
  bool has_seed = false;
  uint64_t seed = 0, offset = 0;
  uint32_t min_alignment = 16;
  std::string device;  // as a TensorDescriptor names it
};

struct Object {
  PyObject_HEAD State* state;
  PyObject* weak_references;
};

State& state_of(PyObject* self) {
  return *reinterpret_cast<Object*>(self)->state;
}

// A flashcute.TensorDescriptor as its `_native` tuple: (shape, strides, dtype name, is GPU, device id, an address that
// is aligned as the tensor's memory is).
bool read_tensor_descriptor(PyObject* x, Where where, Use use, View& view) {
  static PyObject* type = nullptr;
  if (!type) type = nb::object(nb::module_::import_("flashcute.descriptors").attr("TensorDescriptor")).release().ptr();
  if (PyObject_IsInstance(x, type) != 1) return false;
  const nb::tuple native = nb::borrow(x).attr("_native");
  const nb::tuple shape = native[0], strides = native[1];
  view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(native[5]));
  view.ndim = static_cast<int32_t>(shape.size());
  if (view.ndim > kMaxDims) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected at most ", kMaxDims, " axes, given ", view.ndim);
  }
  if (!find_dtype(nb::cast<nb::str>(native[2]).c_str(), view.dtype)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, where, "unknown dtype ", nb::cast<nb::str>(native[2]).c_str());
  }
  view.device.type = nb::cast<bool>(native[3]) ? FLASHCUTE_DEVICE_NVIDIA : FLASHCUTE_DEVICE_CPU;
  view.device.id = nb::cast<int32_t>(native[4]);
  View contiguous = view;
  bool copied = false, empty = false;
  for (int i = 0; i < view.ndim; ++i) {
    contiguous.shape[i] = view.shape[i] = nb::cast<int64_t>(shape[i]);
    view.strides[i] = nb::cast<int64_t>(strides[i]);
    empty |= view.shape[i] == 0;
  }
  contiguous.make_contiguous();
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] <= 1 || empty) view.strides[i] = contiguous.strides[i];
    copied |= view.strides[i] < 0;
  }
  const bool rows = use == Use::kRows || (use == Use::kMask && view.ndim <= 2);
  copied |= rows && view.ndim > 0 && view.strides[view.ndim - 1] != 1;
  if (copied && use != Use::kWritten) view = contiguous;  // as a run's copy will be
  return true;
}

void read_geometry(PyObject* x, Where where, Use use, Stream& stream, GradGuard& grad, View& view) {
  if (read_tensor_descriptor(x, where, use, view)) return;
  Tensor tensor;
  tensor.import(x, where, use, stream, true);
  grad.check(x, tensor.producer(), where);
  view = tensor.view;
}

void create(State& state, const Arguments& arguments) {
  state.options = parse_options(kCreate, arguments);
  const Options& options = state.options;
  Stream stream;
  GradGuard grad;
  Views views{};
  uintptr_t bits = 16;
  const auto declare = [&](Slot slot) {
    state.declared[slot] = true;
    views[slot] = &state.views[slot];
    if (slot <= kOut && state.views[slot].numel() != 0) bits |= reinterpret_cast<uintptr_t>(state.views[slot].data);
  };
  for (const auto [slot, arg] : kSlotArgs) {
    PyObject* x = arguments[arg];
    if (!x || slot == kDenseMask) continue;  // lse and probs are a run's alone
    const Where where{kCreate, name_of(arg)};
    if (slot == kDropoutState) {
      View probe;
      if (!is_tensor_seed(x) && !read_tensor_descriptor(x, where, Use::kRows, probe)) continue;
    }
    const Use use = slot == kOut                          ? Use::kWritten
                    : slot == kKeyMask                    ? Use::kMask
                    : slot == kBias || slot == kBlockMask ? Use::kScores
                                                          : Use::kRows;
    View view;
    read_geometry(x, where, use, stream, grad, view);
    if (slot == kQ) {
      state.device =
          view.device.is_planning() ? str_of(nb::object(nb::borrow(x).attr("device"))) : name_of(view.device);
    }
    if (slot != kQ && view.device != state.views[kQ].device) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a tensor on q's device (", name_of(state.views[kQ].device),
           "), given one on ", name_of(view.device));
    }
    if (slot == kDropoutState && view.dtype == FLASHCUTE_DTYPE_I64) view.dtype = FLASHCUTE_DTYPE_U64;
    const Slot target = slot == kKeyMask ? mask_slot(view, options.packed, where) : slot;
    state.views[target] = view;
    declare(target);
  }
  if (!state.declared[kOut]) {
    state.views[kOut] = out_geometry(state.views[kQ], state.views[kV], {kCreate, "q"});
    state.views[kOut].data = nullptr;
    declare(kOut);
  }
  if (options.return_lse) {
    state.views[kLse] = lse_geometry(state.views[kQ], options);
    declare(kLse);
  }
  if (options.return_probs) {
    state.views[kProbs] = probs_geometry(state.views[kQ], state.views[kK], options);
    declare(kProbs);
  }
  if (arguments[kArgSeed] && !state.declared[kDropoutState]) {
    state.has_seed = true;
    state.seed = parse_u64({kCreate, "seed"}, arguments[kArgSeed]);
  }
  if (arguments[kArgOffset]) state.offset = parse_u64({kCreate, "offset"}, arguments[kArgOffset]);
  state.min_alignment = static_cast<uint32_t>(bits & -bits);
  state.plan = std::make_unique<const Plan>(kCreate, state.views[kQ].device, options, views, state.min_alignment);
  if (state.offset != 0 && state.declared[kDropoutState]) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, {kCreate, "offset"}, "expected 0 beside a seed tensor, which holds the offset");
  }
}

[[noreturn]] void refuse(const State& state, int slot, const View& given) {
  Arg arg = kArgQ;
  for (const SlotArg& pair : kSlotArgs) {
    if (pair.slot == slot) arg = pair.arg;
  }
  const Where where{kRun, name_of(arg)};
  if (!state.declared[slot]) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected none, as the descriptor was made without it");
  }
  const View& expected = state.views[slot];
  if (given.dtype != expected.dtype) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_DTYPE, where, "expected dtype ", name_of(expected.dtype), ", given ",
         name_of(given.dtype));
  }
  if (shape_text(given) != shape_text(expected)) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected shape ", shape_text(expected), ", given ",
         shape_text(given));
  }
  fail(FLASHCUTE_STATUS_BAD_TENSOR_STRIDES, where, "expected strides ", strides_text(expected), ", given ",
       strides_text(given));
}

void compare(const State& state, const Views& views) {
  for (int slot = 0; slot < kSlotCount; ++slot) {
    const View* view = views[slot];
    if (view && !(state.declared[slot] && view->same_geometry(state.views[slot]))) refuse(state, slot, *view);
  }
}

PyObject* run(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* keyword_names) {
  try {
    const State& state = state_of(self);
    Arguments arguments;
    parse_arguments(kRun, kRunArgs, values, PyVectorcall_NARGS(static_cast<size_t>(count)), keyword_names, arguments);
    if (arguments[kArgLse] && !state.declared[kLse]) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, {kRun, "lse"}, "expected none, as the descriptor was made without return_lse");
    }
    if (arguments[kArgProbs] && !state.declared[kProbs]) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, {kRun, "probs"},
           "expected none, as the descriptor was made without return_probs");
    }
    Call call(kRun, arguments);
    call.read_inputs();
    if (call.device() != state.plan->device()) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, {kRun, "q"}, "expected a tensor on the descriptor's device, ",
           name_of(state.plan->device()), ", given one on ", name_of(call.device()));
    }
    call.bind_seed(state.options, state.has_seed || state.declared[kDropoutState], state.seed, state.offset);
    call.bind_results(state.views[kOut], state.declared[kLse] ? &state.views[kLse] : nullptr);
    if (state.declared[kProbs]) call.bind_probs(state.views[kProbs]);
    compare(state, call.views());
    return call.run(*state.plan, state.options);  // the caller keeps `self` alive, and it the plan
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// (restore, (the arguments of an equal descriptor,)): copy and pickle call restore, which plans again.
PyObject* reduce(PyObject* self, PyObject*) {
  try {
    const State& state = state_of(self);
    const Options& options = state.options;
    const nb::module_ descriptors = nb::module_::import_("flashcute.descriptors");
    nb::dict arguments;
    const auto set = [&](Arg arg, nb::object value) { arguments[name_of(arg)] = std::move(value); };
    for (const auto [slot, arg] : kSlotArgs) {
      if (!state.declared[slot] || slot == kLse || slot == kProbs) continue;
      const View& view = state.views[slot];
      nb::list shape, strides;
      for (int i = 0; i < view.ndim; ++i) {
        shape.append(view.shape[i]);
        strides.append(view.strides[i]);
      }
      set(arg, descriptors.attr("AlignedTensorDescriptor")(shape, strides, name_of(view.dtype), state.device.c_str(),
                                                           slot == kQ ? state.min_alignment : 0));
    }
    if (options.has_scale) set(kArgScale, nb::float_(double{options.scale}));
    set(kArgCausal, nb::bool_(options.causal));
    set(kArgAlignment, nb::str(kAlignments[options.alignment]));
    set(kArgWindow, nb::make_tuple(options.window_left, options.window_right));
    set(kArgSoftcap, nb::float_(double{options.softcap}));
    set(kArgDropoutP, nb::float_(double{options.dropout_p}));
    if (state.has_seed) set(kArgSeed, nb::int_(state.seed));
    set(kArgOffset, nb::int_(state.offset));
    if (options.max_seqlen_q != 0) set(kArgMaxSeqlenQ, nb::int_(options.max_seqlen_q));
    if (options.max_seqlen_k != 0) set(kArgMaxSeqlenK, nb::int_(options.max_seqlen_k));
    set(kArgLayout, nb::str(kLayouts[static_cast<int>(options.layout)]));
    set(kArgReturnLse, nb::bool_(options.return_lse));
    set(kArgReturnProbs, nb::bool_(options.return_probs));
    set(kArgBackend, nb::str(kBackends[options.backend]));
    set(kArgChecked, nb::bool_(options.checked));
    return nb::make_tuple(descriptors.attr("restore"), nb::make_tuple(arguments)).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* make(PyTypeObject* type, PyObject* positional, PyObject* keywords) {
  try {
    std::vector<PyObject*> values;
    const Py_ssize_t count = PyTuple_Size(positional);
    for (Py_ssize_t i = 0; i < count; ++i) values.push_back(PyTuple_GetItem(positional, i));
    nb::list names;
    if (keywords) {
      PyObject *name, *value;
      Py_ssize_t at = 0;
      while (PyDict_Next(keywords, &at, &name, &value)) {
        names.append(nb::borrow(name));
        values.push_back(value);
      }
    }
    const nb::tuple name_tuple(names);
    Arguments arguments;
    parse_arguments(kCreate, kCreationArgs, values.data(), count, name_tuple.ptr(), arguments);
    auto state = std::make_unique<State>();
    create(*state, arguments);
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* self = allocate(type, 0);
    if (self) reinterpret_cast<Object*>(self)->state = state.release();
    return self;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (reinterpret_cast<Object*>(self)->weak_references) PyObject_ClearWeakRefs(self);
  delete reinterpret_cast<Object*>(self)->state;
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* workspace_size(PyObject* self, void*) {
  const Plan& plan = *state_of(self).plan;
  return PyLong_FromSize_t(plan.workspace() + workspace_slack(plan.device(), plan.workspace()));
}

PyObject* plan(PyObject* self, void*) {
  try {
    const flashcuteFlashAttentionDescriptor_t descriptor = state_of(self).plan->descriptor();
    size_t length = 0;
    check(flashcuteGetPlan(descriptor, nullptr, &length), "AttentionDescriptor.plan");
    std::string json(length, '\0');
    check(flashcuteGetPlan(descriptor, json.data(), &length), "AttentionDescriptor.plan");
    return nb::object(nb::module_::import_("json").attr("loads")(json.c_str())).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

constexpr const char* kDescriptorDoc =
    "AttentionDescriptor(q, k, v, *, out=None, scale=None, causal=False, alignment='bottom_right', window=(-1, -1), "
    "mask=None, block_mask=None, bias=None, softcap=0.0, alibi_slopes=None, sinks=None, dropout_p=0.0, seed=None, "
    "offset=0, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None, "
    "layout=None, return_lse=False, return_probs=False, backend='auto', checked=None)\n"
    "--\n\n"
    R"(An attention problem without its data: checked and planned once, run many times.

The arguments are those of attention(), as tensors or as TensorDescriptors; only their shapes, strides, dtypes, device
and alignment matter, and no tensor is kept. An optional tensor given here must be given at each run (a mask of keys
may be left out), and one not given here must not. Copies and unpickled descriptors are planned again, where they are
made.
)";

constexpr const char* kRunDoc =
    "run($self, q, k, v, *, out=None, lse=None, probs=None, mask=None, block_mask=None, bias=None, alibi_slopes=None, "
    "sinks=None, seed=None, offset=0, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, workspace=None, "
    "stream=None)\n"
    "--\n\n"
    R"(Computes attention of tensors like those that the descriptor was made for: `out`, or the tuple of out, lse and probs
with what it was made for by return_lse and return_probs. out, lse, probs and workspace are allocated where they are not
given.
)";

}  // namespace

void add_descriptor(nb::module_& module) {
  static PyMethodDef methods[] = {
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&run)), METH_FASTCALL | METH_KEYWORDS, kRunDoc},
      {"__reduce__", reduce, METH_NOARGS, "How copy and pickle make an equal descriptor."},
      {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef members[] = {
      {"__weaklistoffset__", T_PYSSIZET, offsetof(Object, weak_references), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef properties[] = {
      {"workspace_size", workspace_size, nullptr, "Bytes that `workspace=` of run() needs, for every run.", nullptr},
      {"plan", plan, nullptr, "How the problem will be run, as a dict.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_getset, properties},
                                {Py_tp_doc, const_cast<char*>(kDescriptorDoc)},
                                {0, nullptr}};
  static PyType_Spec spec = {"flashcute.AttentionDescriptor", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};
  const nb::object type = nb::steal(PyType_FromSpec(&spec));
  if (!type.is_valid()) throw nb::python_error();
  module.attr("AttentionDescriptor") = type;
}

}  // namespace flashcute::python
