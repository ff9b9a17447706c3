"""Why a tensor cannot be read, and what to pass instead. Asked once a call has failed, and imports no framework."""

import contextlib
import sys
from typing import Any

_TRACERS = {  # of JAX, by the transform that made them
    "BatchTracer": "vmap",
    "DynamicJaxprTracer": "jit",
    "JVPTracer": "grad or jvp",
    "LinearizeTracer": "grad or jvp",
}
_TENSORFLOW = {
    "RaggedTensor": ", a ragged tensor: pass {0}.to_tensor(), or {0}.values packed, with cu_seqlens",
    "ResourceVariable": ", a variable: pass {0}.value()",
    "SparseTensor": ", a sparse tensor: pass tensorflow.sparse.to_dense({0})",
    "SymbolicTensor": ", a value of a graph without data: call outside of tf.function, or through tf.py_function",
}
_FUNCTIONS = {"Functionalize": "functionalize", "Grad": "grad or vjp", "Jvp": "jvp", "Vmap": "vmap"}  # of torch.func


def not_a_tensor(x: Any, argument: str) -> str:
    """The rest of "given <type>" for an object that is no DLPack producer; "" where there is no more to say."""
    name = type(x).__name__
    module = type(x).__module__.partition(".")[0]
    if name.endswith("Tracer"):
        return f", a value of JAX's {_TRACERS.get(name, 'transforms')} without data: call outside of jit, grad and vmap"
    if name == "MaskedArray":
        return f", whose mask would be lost: pass {argument}.filled(0), and what it hides by mask="
    if module == "tensorflow":
        return _TENSORFLOW.get(name, "").format(argument)
    if hasattr(type(x), "todense"):
        return f", a sparse array: pass {argument}.todense()"
    return ""


def without_memory(x: Any, argument: str) -> str:
    """What x is and what to do, where x has no one piece of memory to read; "" where it should have."""
    with contextlib.suppress(Exception):  # of a framework of another version: its own message will do
        module = type(x).__module__.partition(".")[0]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            return _torch(torch, x, argument)
        if module in ("jax", "jaxlib"):
            return _jax(x, argument)
    return ""


def _torch(torch: Any, x: Any, argument: str) -> str:
    found = _torch_function(torch, x) or _torch_subclass(x, argument)
    if found:
        return found
    if x.is_nested:
        return f"a nested tensor: pass {argument}.values() with cu_seqlens, or {argument}.to_padded_tensor(0)"
    if x.layout != torch.strided:
        return f"one of layout {x.layout}: pass {argument}.to_dense()"
    if x.is_quantized:
        return f"a quantized tensor: pass {argument}.dequantize()"
    if x.device.type == "meta":
        return "one on the meta device, which has no values: a TensorDescriptor plans without them"
    if x.numel() != 0 and x.untyped_storage().nbytes() == 0:
        return "one whose storage was freed (resized to 0 bytes, as FSDP does between uses): gather it first"
    return ""


def _torch_function(torch: Any, x: Any) -> str:
    functorch = torch._C._functorch
    function = ""
    if functorch.is_functorch_wrapped_tensor(x):
        level = functorch.maybe_get_level(x)
        for interpreter in functorch.get_interpreter_stack() or ():
            if interpreter.level() == level:
                function = _FUNCTIONS.get(interpreter.key().name, interpreter.key().name)
        function = function or ("vmap" if functorch.is_batchedtensor(x) else "grad, vjp or jvp")
    elif torch._is_functional_tensor(x):
        function = "functionalize"
    if not function:
        return ""
    result = f"one of torch.func.{function}, which has none of its own: call outside of it"
    if function == "vmap":
        return f"{result}, with the mapped axis as the batch"
    if function != "functionalize":
        return f"{result}, on detach()ed tensors, as the backward pass is not in this release"
    return result


def _torch_subclass(x: Any, argument: str) -> str:
    for base in type(x).__mro__:
        if base.__module__.startswith("torch.distributed") and base.__name__ == "DTensor":
            return f"a DTensor, which processes hold in parts: pass {argument}.to_local() or {argument}.full_tensor()"
        if base.__module__ == "torch._subclasses.fake_tensor":
            return "a FakeTensor, which has no values: call outside of FakeTensorMode, torch.compile and torch.export"
        if base.__module__ == "torch._subclasses.functional_tensor":
            return "a FunctionalTensor, which has no memory: call outside of torch.compile and torch.export"
    return ""


def _jax(x: Any, argument: str) -> str:
    if x.is_deleted():
        return (
            "an array that was deleted or donated to a jitted function: pass one that is alive, or a copy made before"
        )
    devices = len(x.sharding.device_set)
    if devices > 1:
        return (
            f"an array sharded over {devices} devices: pass {argument}.addressable_shards[i].data, "
            f"or jax.device_put({argument}, device)"
        )
    return ""


def is_on_tape(x: Any) -> bool:
    """Whether TensorFlow records what is done with x, for a gradient or a tangent."""
    tfe = sys.modules.get("tensorflow.python._pywrap_tfe") or sys.modules.get("tensorflow.python.pywrap_tfe")
    asks = getattr(tfe, "TFE_Py_TapeSetPossibleGradientTypes", None)
    return asks is not None and bool(asks([x]))
