// flashcute.attention: the whole call, from keywords to result, without a Python frame.
#include "attention.h"

#include "call.h"

namespace flashcute::python {

namespace {

constexpr const char* kFunction = "attention";

PyObject* attention(PyObject*, PyObject* const* values, Py_ssize_t count, PyObject* keyword_names) {
  try {
    Arguments arguments;
    parse_arguments(kFunction, kFunctionArgs, values, PyVectorcall_NARGS(static_cast<size_t>(count)), keyword_names,
                    arguments);
    const Options options = parse_options(kFunction, arguments);
    Call call(kFunction, arguments);
    call.read_inputs();
    const View out = out_geometry(call[kQ], call[kV], {kFunction, "q"});
    const View lse = lse_geometry(call[kQ], options);
    call.bind_results(out, options.return_lse ? &lse : nullptr);
    Views views = call.views();
    View probs;
    if (options.return_probs) {
      probs = probs_geometry(call[kQ], call[kK], options);
      views[kProbs] = &probs;
    }
    const auto plan = find_plan(kFunction, call.device(), options, views, call.alignment());
    call.bind_seed(options, false, 0, 0);
    if (options.return_probs) call.bind_probs(probs);
    return call.run(*plan, options);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

constexpr const char* kAttentionDoc =
    "attention(q, k, v, *, out=None, scale=None, causal=False, alignment='bottom_right', window=(-1, -1), mask=None, "
    "block_mask=None, bias=None, softcap=0.0, alibi_slopes=None, sinks=None, dropout_p=0.0, seed=None, offset=0, "
    "cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None, layout=None, "
    "return_lse=False, return_probs=False, backend='auto', checked=None, workspace=None, stream=None)\n"
    "--\n\n"
    R"(Exact attention: softmax(scale * q @ k.T + ...) @ v, without the matrix of scores.

q, k and v are tensors that speak DLPack (NumPy, PyTorch, JAX, CuPy, ...), all on one device, which decides where the
work runs. The results are of q's kind: `out`, or `(out, lse)` with return_lse, `(out, probs)` with return_probs and
`(out, lse, probs)` with both.

q, k, v        (batch, heads, seq, head_dim) with layout 'bhsd', (batch, seq, heads, head_dim) with 'bshd'; three axes
               are one batch entry. With cu_seqlens they are packed: 'hsd' or 'shd'. layout=None is 'bhsd', with
               cu_seqlens 'hsd'. k and v may have fewer heads, of which q's are a multiple, and v its own head_dim.
out            written instead of a new tensor, and returned.
scale          None is 1 / sqrt(head_dim).
causal         row i sees the keys j <= i + seq_k - seq_q ('bottom_right') or j <= i (alignment='top_left').
window         (left, right) keys beside that diagonal, both inclusive; -1 is unbounded. causal means right = 0.
mask           bool or integer: (seq_k,) or (batch, seq_k) says which keys take part, four axes broadcastable to
               (batch, heads_q, seq_q, seq_k) which pairs: mask[None, None] of a (seq_q, seq_k) one, which would be
               taken for a mask of keys where seq_q equals batch. Packed: (total_k,).
block_mask     bool or integer (batch or 1, heads_q or 1, ceil(seq_q / 128), ceil(seq_k / 128)): which blocks of 128
               queries see which blocks of 128 keys, counted from row 0 and key 0 whatever the alignment. It narrows what
               the other masks and bounds leave, and blocks that it hides are skipped: they cost no time. Not packed.
bias           added to the scores: four axes broadcastable to (batch, heads_q, seq_q, seq_k), q's dtype or float32.
softcap        scores become softcap * tanh(scores / softcap); 0 is off.
alibi_slopes   (heads_q,) or (batch, heads_q) float32.
sinks          (heads_q,) float32 or q's dtype: a logit in each row's denominator that has no value.
dropout_p      needs seed: an int with offset, or a tensor (seed, offset) on the device: uint64[2], int64[2] or uint32[4].
cu_seqlens_q, cu_seqlens_k   (batch + 1,) int32: where each member of a packed batch starts. max_seqlen_q and
               max_seqlen_k bound their lengths; None is the total.
seqused_k      (batch,) int32: how many keys of each member are in use.
return_lse     also return the log of the denominator, float32 (batch, heads_q, seq_q), packed (heads_q, total_q).
return_probs   also return the weights that v's rows were multiplied by, the softmax after dropout: (batch, heads_q,
               seq_q, seq_k), without the batch where q has none, 0 where a row does not see a key. For tests: at most
               2**26 elements, not packed, and the call takes twice its time. They are float32 whatever q's dtype is, as
               lse is: a test then sees the errors of the weights themselves, not those of a rounding on the way out.
backend        'auto', 'cpu', 'cuda', 'sm80' or 'sm90'.
checked        True reads lengths on the device first and raises on a bad one. None asks FLASHCUTE_CHECKED.
workspace      memory to use instead of an allocation (see AttentionDescriptor.workspace_size).
stream         None is the framework's current stream; an int, or an object with __cuda_stream__, cuda_stream or ptr.
               Results allocated by the call are ready on the framework's current stream too.
)";

}  // namespace

void add_builtin(nb::module_& module, PyMethodDef& definition) {
  const nb::str name("flashcute");
  const nb::object function = nb::steal(PyCFunction_NewEx(&definition, nullptr, name.ptr()));
  if (!function.is_valid()) throw nb::python_error();
  module.attr(definition.ml_name) = function;
}

void add_attention(nb::module_& module) {
  static PyMethodDef definition = {"attention", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&attention)),
                                   METH_FASTCALL | METH_KEYWORDS, kAttentionDoc};
  add_builtin(module, definition);
}

}  // namespace flashcute::python
