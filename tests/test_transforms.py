"""Tensors whose values a call cannot have, or whose gradient it would lose: those of a framework's transforms, those
without values, in parts, compressed or deleted. Each is refused by argument, with what it is and what to do instead."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import support

import flashcute

torch = support.torch
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SHAPE, SCORES = (1, 2, 9, 16), (1, 2, 9, 9)
ARGUMENTS = ("q", "k", "v", "bias", "out")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(device="cpu"):
    if device != "cpu":
        support.skip_without_cuda()
    generator = torch.Generator().manual_seed(3)
    made = {n: torch.randn(SHAPE, generator=generator).to(device, torch.float16) for n in ("q", "k", "v", "out")}
    made["bias"] = torch.randn(SCORES, generator=generator).to(device, torch.float16)
    return made


def functional(**given):
    return flashcute.attention(**given)


def descriptor(**given):
    flashcute.AttentionDescriptor(**given)


def run(**given):
    device = "cuda" if any(x.is_cuda for x in given.values()) else "cpu"
    rows, pairs = (flashcute.TensorDescriptor(shape, dtype="float16", device=device) for shape in (SHAPE, SCORES))
    flashcute.AttentionDescriptor(rows, rows, rows, out=rows, bias=pairs).run(**given)


def refused(call, given, name, *words):
    """The call is refused by argument, and the error has all those words."""
    with pytest.raises(flashcute.BadParamError) as caught:
        call(**given)
    message = str(caught.value)
    assert f"({name}): expected" in message
    for word in words:
        assert word in message, message
    assert "\n" not in message


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", [functional, descriptor, run])
@pytest.mark.parametrize("name", ARGUMENTS)
class TestTransformsOfPyTorch:
    def test_vmap(self, device, call, name):
        given = tensors(device)

        def inside(x):
            refused(call, {**given, name: x}, name, "torch.func.vmap", "outside", "batch")
            return x

        torch.vmap(inside)(torch.stack([given[name]] * 3))

    def test_grad_and_vjp(self, device, call, name):
        given = tensors(device)

        def inside(x):
            refused(call, {**given, name: x}, name, "torch.func.grad or vjp", "detach()")
            return x.sum()

        torch.func.grad(inside)(given[name])
        torch.func.vjp(inside, given[name])
        with torch.no_grad():
            torch.func.grad(inside)(given[name])

    def test_jvp(self, device, call, name):
        given = tensors(device)

        def inside(x):
            refused(call, {**given, name: x}, name, "torch.func.jvp", "detach()")
            return x

        torch.func.jvp(inside, (given[name],), (given[name],))

    def test_functionalize(self, device, call, name):
        given = tensors(device)

        def inside(x):
            refused(call, {**given, name: x}, name, "torch.func.functionalize", "outside")
            return x

        torch.func.functionalize(inside)(given[name])

    def test_fake_tensors(self, device, call, name):
        from torch._subclasses.fake_tensor import FakeTensorMode

        given = tensors(device)
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(given[name])
        refused(call, {**given, name: fake}, name, "FakeTensor", "no values", "outside")


@needs_torch
@pytest.mark.parametrize("call", [functional, descriptor, run])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_tensors_without_values_here(call, name):
    given = tensors()
    freed = given[name].clone()
    freed.untyped_storage().resize_(0)
    refused(call, {**given, name: freed}, name, "freed", "resized to 0")
    refused(call, {**given, name: torch.empty_like(given[name], device="meta")}, name, "meta", "no values")


@needs_torch
@pytest.mark.parametrize("call", [functional, descriptor, run])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_compressed_tensors(call, name):
    given = tensors()
    refused(call, {**given, name: given[name].to_sparse()}, name, "torch.sparse_coo", f"{name}.to_dense()")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(given[name].float(), 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([given[name][0, 0]] * 2)
    refused(call, {**given, name: quantized}, name, f"{name}.dequantize()")
    refused(call, {**given, name: nested}, name, "nested", f"{name}.values()")


@needs_torch
def test_a_call_of_plain_tensors_works_inside_of_vmap():
    given = tensors()
    want = flashcute.attention(**{**given, "out": None})
    got = torch.vmap(lambda x: x + flashcute.attention(**{**given, "out": None}), in_dims=0)(torch.zeros(3, *SHAPE))
    assert torch.equal(got[1], want.float())


DTENSOR = """
    import flashcute, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for placement in (Replicate(), Shard(1)):
        for name in ("q", "k", "v", "out", "bias"):
            x = {n: torch.randn(1, 2, 9, 16) for n in ("q", "k", "v", "out")} | {"bias": torch.randn(1, 2, 9, 9)}
            whole = {**x, name: distribute_tensor(x[name], mesh, [placement])}
            for call in (flashcute.attention, flashcute.AttentionDescriptor,
                         lambda **given: flashcute.AttentionDescriptor(**x).run(**given)):
                try:
                    call(**whole)
                except flashcute.BadParamError as error:
                    assert f"({name}): expected" in str(error), error
                    assert "DTensor" in str(error) and f"{name}.to_local()" in str(error), error
                else:
                    raise AssertionError(name)
            want = flashcute.attention(**{**x, "out": None})
            got = flashcute.attention(**{**whole, name: whole[name].to_local(), "out": None})
            assert torch.equal(got, want)
    dist.destroy_process_group()
    print("fine")
"""


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment}, cwd=os.path.dirname(__file__),
    )  # fmt: skip


@needs_torch
def test_distributed_tensors():
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without its distributed part")
    ran = python(DTENSOR)
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


# -- JAX


def test_deleted_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    for name in ("q", "k", "v", "bias"):
        given = {n: jnp.ones(SHAPE) for n in "qkv"} | {"bias": jnp.ones((1, 2, 9, 9))}
        given[name].delete()
        with pytest.raises(flashcute.BadParamError, match=rf"\({name}\): expected .* deleted or donated"):
            flashcute.attention(**given)
        with pytest.raises(flashcute.BadParamError, match=rf"\({name}\): expected .* deleted or donated"):
            flashcute.AttentionDescriptor(**given)


@pytest.mark.parametrize(("transform", "word"), [("jit", "jit"), ("grad", "grad"), ("vmap", "vmap"), ("jvp", "jvp")])
def test_transforms_of_jax(transform, word):
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones(SHAPE)

    def inside(q):
        with pytest.raises(flashcute.BadParamError, match=rf"\(k\): expected .*Tracer, a value of JAX's [^:]*{word}"):
            flashcute.attention(x, q, x)
        return q.sum()

    if transform == "jvp":
        jax.jvp(inside, (x,), (x,))
    elif transform == "vmap":
        jax.vmap(inside)(x[None])
    else:
        getattr(jax, transform)(inside)(x)


def test_sparse_arrays_and_masked_arrays():
    x = np.ones(SHAPE, np.float32)
    with pytest.raises(flashcute.BadParamError, match=r"\(k\): expected .*MaskedArray.* mask would be lost: pass k"):
        flashcute.attention(x, np.ma.masked_array(x), x)
    sparse = pytest.importorskip("jax.experimental.sparse")
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(flashcute.BadParamError, match=r"\(k\): expected .*BCOO, a sparse array: pass k\.todense\(\)"):
        flashcute.attention(x, sparse.BCOO.fromdense(jnp.asarray(x)), x)


# -- TensorFlow: itself where it is installed, and a stand-in that has what is asked of it

STAND_IN = """
    import sys, types
    import numpy as np
    import capsules, flashcute
    watched = set()
    tape = types.ModuleType("tensorflow.python._pywrap_tfe")
    tape.TFE_Py_TapeSetPossibleGradientTypes = lambda tensors: int(any(id(x) in watched for x in tensors))
    sys.modules["tensorflow.python._pywrap_tfe"] = tape
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.experimental = types.SimpleNamespace(
        dlpack=types.SimpleNamespace(from_dlpack=lambda capsule: Result("first"))
    )
    moved = []
    class Scope:
        def __init__(self, device):
            self.device = device
        def __enter__(self):
            moved.append(self.device)
        def __exit__(self, *error):
            pass
    tensorflow.device = Scope
    tensorflow.identity = lambda x: Result(moved[-1])
    sys.modules["tensorflow"] = tensorflow
    class Result:
        def __init__(self, device):
            self.device = device
    Tensor = type("EagerTensor", (capsules.Producer,), {"__module__": "tensorflow.python.framework.ops"})
    def tensor(shape=(1, 2, 9, 16), device="first"):
        x = Tensor(np.ones(shape, np.float32))
        x.device = device
        return x
    given = {n: tensor() for n in "qkv"} | {"bias": tensor((1, 2, 9, 9))}
    assert flashcute.attention(**given).device == "first" and not moved
    given["q"].device = "second"
    assert flashcute.attention(**given).device == "second"
    for name, x in given.items():
        watched = {id(x)}
        for call in (flashcute.attention, flashcute.AttentionDescriptor,
                     lambda **given: flashcute.AttentionDescriptor(**others).run(**given)):
            others = {**given, name: tensor((1, 2, 9, 9)) if name == "bias" else tensor()}
            try:
                call(**given)
            except flashcute.NotImplementedByKernelError as error:
                assert f"({name}): expected" in str(error) and "GradientTape" in str(error), error
                assert "stop_recording()" in str(error), error
            else:
                raise AssertionError(name)
    print("fine")
"""


def test_tensors_on_a_tape_of_a_tensorflow_stand_in():
    ran = python(STAND_IN)
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


def test_tensors_on_a_tape_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    x, other = (tf.ones(SHAPE) for _ in range(2))
    want = flashcute.attention(other, other, other).numpy()
    with tf.GradientTape() as tape:
        tape.watch(x)
        for given in ((x, other, other), (other, x, other), (other, other, x * 2)):
            with pytest.raises(flashcute.NotImplementedByKernelError, match=r"\([qkv]\): expected .*GradientTape"):
                flashcute.attention(*given)
        assert (flashcute.attention(other, other, other).numpy() == want).all()
        assert (flashcute.attention(tf.stop_gradient(x), other, other).numpy() == want).all()
        with tape.stop_recording():
            assert (flashcute.attention(x, other, other).numpy() == want).all()
    with tf.autodiff.ForwardAccumulator(x, x), pytest.raises(flashcute.Error, match=r"\(k\): .*ForwardAccumulator"):
        flashcute.attention(other, x, other)
    with pytest.raises(flashcute.Error, match=r"\(q\): .*SymbolicTensor.* tf\.function"):
        tf.function(lambda q: flashcute.attention(q, q, q), autograph=False)(x)
