#include "call.h"

#include <limits>

#include "unlocked.h"

namespace flashcute::python {

namespace {

struct TensorArg {
  Slot slot;
  Arg arg;
  Use use;
};
constexpr TensorArg kOptionalTensors[] = {
    {kBlockMask, kArgBlockMask, Use::kScores}, {kBias, kArgBias, Use::kScores},
    {kAlibi, kArgAlibiSlopes, Use::kRows},     {kSinks, kArgSinks, Use::kRows},
    {kCuSeqlensQ, kArgCuSeqlensQ, Use::kRows}, {kCuSeqlensK, kArgCuSeqlensK, Use::kRows},
    {kSequsedK, kArgSequsedK, Use::kRows},
};

// The tangent of a dual tensor would be lost as silently as a gradient, and grad mode does not switch it off.
bool in_forward_ad() {
  static PyObject* variables = nullptr;  // the module's dict, which is looked into faster than its attributes
  if (!variables) {
    variables = Py_NewRef(PyModule_GetDict(nb::module_::import_("torch.autograd.forward_ad").ptr()));
  }
  static PyObject* name = PyUnicode_InternFromString("_current_level");
  PyObject* level = PyDict_GetItemWithError(variables, name);
  if (!level && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, name);
  if (!level) throw nb::python_error();
  return PyLong_AsLong(level) >= 0;
}

bool has_tangent(PyObject* x) {
  const nb::object dual = nb::module_::import_("torch.autograd.forward_ad").attr("unpack_dual")(nb::borrow(x));
  return !nb::object(dual.attr("tangent")).is_none();
}

// TensorFlow's eager tapes and accumulators.
bool is_on_tape(PyObject* x) {
  return nb::cast<bool>(nb::module_::import_("flashcute._refusals").attr("is_on_tape")(nb::borrow(x)));
}

bool in_grad_mode() {
  static PyObject* is_grad_enabled = nullptr;
  if (!is_grad_enabled) {
    is_grad_enabled = nb::object(nb::module_::import_("torch").attr("is_grad_enabled")).release().ptr();
  }
  const nb::object enabled = nb::steal(PyObject_CallNoArgs(is_grad_enabled));
  if (!enabled.is_valid()) throw nb::python_error();
  return enabled.ptr() != Py_False;
}

}  // namespace

void GradGuard::check(PyObject* x, const Producer& producer, Where where) {
  if (producer.tensorflow && is_on_tape(x)) {
    fail(FLASHCUTE_STATUS_NOT_IMPLEMENTED, where,
         "expected a tensor that no GradientTape or ForwardAccumulator watches, given a watched one; the backward pass "
         "is not in this release: call under tape.stop_recording() or pass tensorflow.stop_gradient(",
         where.argument, ")");
  }
  if (producer.kind != ProducerKind::kTorch) return;
  if (!asked_) {
    backward_ = in_grad_mode();
    forward_ = in_forward_ad();
    asked_ = true;
  }
  if (forward_ && has_tangent(x)) {
    fail(
        FLASHCUTE_STATUS_NOT_IMPLEMENTED, where,
        "expected a tensor without a tangent, given one of forward-mode differentiation, which is not in this release");
  }
  if (!backward_) return;
  static PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  const nb::object flag = nb::steal(PyObject_GetAttr(x, requires_grad));
  if (!flag.is_valid()) throw nb::python_error();
  if (flag.ptr() != Py_True) return;
  fail(FLASHCUTE_STATUS_NOT_IMPLEMENTED, where,
       "expected a tensor that needs no gradient, given one with requires_grad=True; the backward pass is not in this "
       "release: call under torch.no_grad() or pass ",
       where.argument, ".detach()");
}

bool is_tensor_seed(PyObject* value) {
  return value && !PyLong_Check(value) && find_producer(value);
}

Slot mask_slot(const View& mask, bool packed, Where where) {
  if (mask.ndim == 1 || (mask.ndim == 2 && !packed)) return kKeyMask;
  if (mask.ndim == 4 && !packed) return kDenseMask;
  fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where,
       packed ? "expected (total_k,) with cu_seqlens"
              : "expected (seq_k,) or (batch, seq_k) for keys, or four axes broadcastable to (batch, heads_q, seq_q, "
                "seq_k) for pairs",
       ", given ", shape_text(mask));
}

View out_geometry(const View& q, const View& v, Where where) {
  if (q.ndim != 3 && q.ndim != 4) {
    fail(FLASHCUTE_STATUS_BAD_TENSOR_SHAPE, where, "expected three or four axes, given ", shape_text(q));
  }
  View out = q;
  if (v.ndim == q.ndim) out.shape[out.ndim - 1] = v.shape[v.ndim - 1];  // otherwise the library refuses v
  out.make_contiguous();
  return out;
}

View lse_geometry(const View& q, const Options& options) {
  View lse = q;
  lse.ndim = q.ndim - 1;
  lse.dtype = FLASHCUTE_DTYPE_F32;
  if (options.rows_first()) std::swap(lse.shape[lse.ndim - 2], lse.shape[lse.ndim - 1]);
  lse.make_contiguous();
  return lse;
}

View probs_geometry(const View& q, const View& k, const Options& options) {
  View probs = lse_geometry(q, options);
  const int rows = options.rows_first() ? k.ndim - 3 : k.ndim - 2;
  probs.shape[probs.ndim++] = k.ndim == q.ndim ? k.shape[rows] : 0;  // otherwise the library refuses k
  probs.make_contiguous();
  return probs;
}

void Call::read(Slot slot, Arg arg, Use use) {
  PyObject* x = arguments_[arg];
  Tensor& tensor = tensors_.add(slot);
  tensor.import(x, where(arg), use, stream_);
  if (slot != kQ && tensor.view.device != device()) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where(arg), "expected a tensor on q's device (", name_of(device()),
         "), given one on ", name_of(tensor.view.device));
  }
  grad_.check(x, tensor.producer(), where(arg));
}

void Call::read_inputs() {
  if (arguments_[kArgStream]) stream_ = parse_stream(where(kArgStream), arguments_[kArgStream]);
  read(kQ, kArgQ, Use::kRows);
  refuse_after_fork(device());
  read(kK, kArgK, Use::kRows);
  read(kV, kArgV, Use::kRows);
  for (const TensorArg& optional : kOptionalTensors) {
    if (arguments_[optional.arg]) read(optional.slot, optional.arg, optional.use);
  }
  if (arguments_[kArgMask]) {
    read(kKeyMask, kArgMask, Use::kMask);
    dense_mask_ = mask_slot(tensors_[kKeyMask].view, packed(), where(kArgMask)) == kDenseMask;
  }
  if (is_tensor_seed(arguments_[kArgSeed])) {
    read(kDropoutState, kArgSeed, Use::kRows);
    // PyTorch has few uint64 operations, so the same 16 bytes are taken as int64[2] and uint32[4] too.
    View& state = tensors_[kDropoutState].view;
    if (state.dtype == FLASHCUTE_DTYPE_I64) state.dtype = FLASHCUTE_DTYPE_U64;
    const bool words = state.dtype == FLASHCUTE_DTYPE_U32 && state.ndim == 1 && state.shape[0] == 4;
    if (words && state.strides[0] == 1 && reinterpret_cast<uintptr_t>(state.data) % sizeof(uint64_t) == 0) {
      state.dtype = FLASHCUTE_DTYPE_U64;
      state.shape[0] = 2;
    }
  }
}

void Call::bind_result(Slot slot, Arg arg, const View& geometry, double unset, nb::object& result) {
  if (PyObject* given = arguments_[arg]) {
    read(slot, arg, Use::kWritten);
    result = nb::borrow(given);
    return;
  }
  result = allocate_like(tensors_[kQ], geometry, where(arg), stream_);
  Tensor& tensor = tensors_.add(slot);
  tensor.import(result.ptr(), where(arg), Use::kMade, stream_);
  if (packed()) fill(tensor, unset, where(arg), stream_);  // rows of no member
}

void Call::bind_results(const View& out, const View* lse) {
  bind_result(kOut, kArgOut, out, 0.0, out_);
  if (lse) bind_result(kLse, kArgLse, *lse, -std::numeric_limits<double>::infinity(), lse_);
}

void Call::bind_probs(const View& probs) {
  bind_result(kProbs, kArgProbs, probs, 0.0, probs_);
}

void Call::bind_seed(const Options& options, bool has_default, uint64_t default_seed, uint64_t default_offset) {
  if (tensors_.has(kDropoutState)) {
    if (arguments_[kArgOffset] && parse_u64(where(kArgOffset), arguments_[kArgOffset]) != 0) {
      fail(FLASHCUTE_STATUS_BAD_PARAM, where(kArgOffset), "expected 0 beside a seed tensor, which holds the offset");
    }
    return;
  }
  seed_ = default_seed;
  offset_ = default_offset;
  if (PyObject* seed = arguments_[kArgSeed]) {
    seed_ = parse_u64(where(kArgSeed), seed);
    offset_ = 0;
  } else if (options.dropout_p > 0.0f && !has_default) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where(kArgSeed),
         "expected an int or a uint64 tensor (seed, offset) with dropout_p > 0, given None");
  }
  if (arguments_[kArgOffset]) offset_ = parse_u64(where(kArgOffset), arguments_[kArgOffset]);
}

Views Call::views() const {
  Views views{};
  tensors_.for_each([&](Slot slot, const Tensor& tensor) { views[slot] = &tensor.view; });
  if (dense_mask_) std::swap(views[kKeyMask], views[kDenseMask]);
  return views;
}

uint32_t Call::alignment() const {
  uintptr_t bits = 16;
  for (Slot slot : {kQ, kK, kV, kOut}) {
    const View& view = tensors_[slot].view;
    if (view.numel() != 0) bits |= reinterpret_cast<uintptr_t>(view.data);
  }
  return static_cast<uint32_t>(bits & -bits);
}

PyObject* Call::run(const Plan& plan, const Options& options) {
  Workspace workspace;
  if (plan.workspace() != 0 || arguments_[kArgWorkspace]) {
    workspace.prepare(plan.workspace(), arguments_[kArgWorkspace], tensors_[kQ], where(kArgWorkspace), stream_);
  }
  flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  buffers.lse = static_cast<float*>(data_of(kLse));
  if (dense_mask_) buffers.dense_mask = data_of(kKeyMask);
  buffers.bias = data_of(kBias);
  buffers.alibi_slopes = static_cast<const float*>(data_of(kAlibi));
  buffers.sinks = data_of(kSinks);
  buffers.cu_seqlens_q = static_cast<const int32_t*>(data_of(kCuSeqlensQ));
  buffers.cu_seqlens_k = static_cast<const int32_t*>(data_of(kCuSeqlensK));
  buffers.seqused_k = static_cast<const int32_t*>(data_of(kSequsedK));
  buffers.dropout_state = static_cast<const uint64_t*>(data_of(kDropoutState));
  buffers.seed = seed_;
  buffers.offset = offset_;
  buffers.block_mask = data_of(kBlockMask);
  buffers.probs = static_cast<float*>(data_of(kProbs));

  StreamOrder order(function_, device(), stream_);
  tensors_.for_each([&](Slot, const Tensor& tensor) { order.add(tensor); });
  order.add_workspace(workspace.tensor());
  order.before_work();

  if (arguments_[kArgOut]) announce_write(tensors_[kOut], where(kArgOut));
  if (lse_.is_valid() && arguments_[kArgLse]) announce_write(tensors_[kLse], where(kArgLse));
  if (probs_.is_valid() && arguments_[kArgProbs]) announce_write(tensors_[kProbs], where(kArgProbs));

  flashcuteStatus_t status;
  {
    const Unlocked unlocked;
    status = flashcuteFlashAttention(plan.descriptor(), workspace.data(), workspace.size(), tensors_[kOut].view.data,
                                     tensors_[kQ].view.data, tensors_[kK].view.data, tensors_[kV].view.data,
                                     dense_mask_ ? nullptr : data_of(kKeyMask), &buffers, stream_.handle);
  }
  check(status, function_);

  order.after_work();

  if (tensors_[kOut].made_here()) out_ = to_caller(tensors_[kQ], std::move(out_), where(kArgOut));
  if (!options.return_lse && !options.return_probs) return out_.release().ptr();
  if (options.return_lse && tensors_[kLse].made_here()) {
    lse_ = to_caller(tensors_[kQ], std::move(lse_), where(kArgLse));
  }
  if (!options.return_probs) return nb::make_tuple(out_, lse_).release().ptr();
  if (tensors_[kProbs].made_here()) probs_ = to_caller(tensors_[kQ], std::move(probs_), where(kArgProbs));
  if (!options.return_lse) return nb::make_tuple(out_, probs_).release().ptr();
  return nb::make_tuple(out_, lse_, probs_).release().ptr();
}

}  // namespace flashcute::python
