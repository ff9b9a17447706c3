"""Producers of no framework in particular: arrays of the array API standard and bare DLPack objects. Results come
back on the device of the inputs, and what the kernels cannot read in place is copied, whatever its strides."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import types

import capsules
import numpy as np
import pytest
import support

import flashcute
from flashcute import _producers

torch = support.torch
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment}, cwd=os.path.dirname(__file__),
    )  # fmt: skip


# -- where results are


JAX = """
    import jax, jax.numpy as jnp, numpy as np
    import flashcute
    first, second = jax.devices("cpu")
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((1, 2, 9, 16)).astype("float32") for _ in range(3)]
    want = flashcute.attention(*x, return_lse=True, return_probs=True)
    for device in (first, second):
        q, k, v = (jax.device_put(a, device) for a in x)
        made = flashcute.AttentionDescriptor(q, k, v, return_lse=True, return_probs=True)
        out, lse, probs = results = flashcute.attention(q, k, v, return_lse=True, return_probs=True)
        for result in (*results, *made.run(q, k, v), *flashcute.merge_states(out, lse, out, lse)):
            assert result.devices() == {device}, (result.devices(), device)
            assert isinstance(result, jax.Array)
            (result + q.sum()).block_until_ready()  # no transfer between devices
        for got, expected in zip(results, want, strict=True):
            assert np.array_equal(np.asarray(got), expected)
        half = [a.astype(jnp.bfloat16) for a in (q, k, v)]
        assert flashcute.attention(*half).devices() == {device}
        assert flashcute.attention(*half).dtype == jnp.bfloat16
    mixed = flashcute.attention(jax.device_put(x[0], second), jax.device_put(x[1], first), x[2])
    assert mixed.devices() == {second}
    print("fine")
"""


def test_results_are_on_the_inputs_device_of_jax():
    pytest.importorskip("jax")
    ran = python(JAX, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


class Standard:
    """An array as the array API standard describes it, over PyTorch's memory, on one of a namespace's devices."""

    def __init__(self, base, namespace, device):
        self.base, self.namespace, self.device = base, namespace, device
        self.shape = tuple(base.shape)

    def __array_namespace__(self, api_version=None):
        return self.namespace

    def __dlpack__(self, **arguments):
        return self.base.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.base.__dlpack_device__()


class Movable(Standard):
    def to_device(self, device, stream=None):
        return type(self)(self.base.clone(), self.namespace, device)


def standard(kind):
    """A namespace whose from_dlpack puts all arrays on its first device."""
    namespace = types.SimpleNamespace(kind=kind)
    namespace.from_dlpack = lambda x: kind(torch.from_dlpack(x), namespace, "first")
    namespace.asarray = lambda x, device=None: kind(x.base.clone(), namespace, device or x.device)
    namespace.reshape = lambda x, shape: kind(x.base.reshape(shape), namespace, x.device)
    namespace.concat = lambda arrays: kind(torch.cat([x.base for x in arrays]), namespace, arrays[0].device)
    return namespace


def tensors(device, dtype="float16", shape=(1, 2, 70, 64)):
    if device != "cpu":
        support.skip_without_cuda()
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator).to(device, getattr(torch, dtype)) for _ in range(3)]


DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@needs_torch
@DEVICES
@pytest.mark.parametrize("kind", [Standard, Movable])
@pytest.mark.parametrize("place", ["first", "second"])
def test_results_are_on_the_inputs_device_of_the_array_api(device, kind, place):
    namespace = standard(kind)
    plain = tensors(device)
    q, k, v = (kind(x, namespace, place) for x in plain)
    want = flashcute.attention(*plain, return_lse=True)
    results = flashcute.attention(q, k, v, return_lse=True)
    descriptor = flashcute.AttentionDescriptor(q, k, v, return_lse=True)
    for got in (results, descriptor.run(q, k, v)):
        for mine, theirs in zip(got, want, strict=True):
            assert isinstance(mine, kind)
            assert mine.device == place
            assert torch.equal(mine.base, theirs)
    for result in flashcute.merge_states(*results, *results):
        assert result.device == place


# -- what is copied


def steps(base):
    """Views of one shape that differ in how their last axis lies in memory, by name."""
    batch, heads, rows, channels = base.shape
    wide = torch.zeros(batch, heads, rows, 3 * channels, dtype=base.dtype, device=base.device)
    every_third = wide[..., 1::3]
    turned = torch.empty(batch, heads, channels, rows, dtype=base.dtype, device=base.device).mT
    for view in (every_third, turned):
        view.copy_(base)
    return {"strided": every_third, "transposed": turned}


@needs_torch
@DEVICES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("which", range(3))
def test_strided_arrays_of_the_array_api_are_copied(device, dtype, which):
    if device != "cpu" and dtype == "float32":
        pytest.skip("no GPU kernel computes float32")
    namespace = standard(Standard)
    plain = tensors(device, dtype)
    want = flashcute.attention(*plain)
    for view in steps(plain[which]).values():
        arrays = [Standard(x, namespace, "first") for x in plain]
        arrays[which] = Standard(view, namespace, "first")
        assert torch.equal(flashcute.attention(*arrays).base, want)
        assert torch.equal(flashcute.AttentionDescriptor(*arrays).run(*arrays).base, want)
        out = torch.empty_like(want)
        with pytest.raises(flashcute.BadStridesError, match=r"\(out\)"):
            flashcute.attention(*arrays, out=Standard(steps(out)["strided"], namespace, "first"))


def bare(x, dtype=(capsules.FLOAT, 32, 1)):
    """An object that is nothing but __dlpack__, with the strides of an array."""
    origin = x.__array_interface__["data"][0]
    strides = [step // x.itemsize for step in x.strides]
    return capsules.Producer(x, data=origin, strides=strides, dtype=dtype)


FLIPS = list(itertools.product([1, -1], repeat=4))


@pytest.mark.parametrize("flips", FLIPS, ids=lambda flips: "".join("+-"[step < 0] for step in flips))
@pytest.mark.parametrize("which", range(3))
def test_flipped_axes_of_bare_producers_are_copied(which, flips, rng):
    arrays = [rng.standard_normal((2, 3, 9, 16)).astype("float32") for _ in range(3)]
    want = flashcute.attention(*arrays)
    out = np.zeros_like(want)
    given = list(arrays)
    index = tuple(slice(None, None, step) for step in flips)
    given[which] = bare(np.ascontiguousarray(arrays[which][index])[index])
    flashcute.attention(*given, out=out)
    assert np.array_equal(out, want)
    out[...] = 0
    descriptor = flashcute.AttentionDescriptor(*given)
    descriptor.run(*given, out=out)
    assert np.array_equal(out, want)


def test_all_sizes_and_places_of_elements_are_copied(rng):
    """Masks and biases of every width, backwards, and values that lie at odd addresses."""
    q, k, v = (rng.standard_normal((2, 3, 9, 16)).astype("float32") for _ in range(3))
    out = np.zeros_like(q)
    for bits in (8, 16, 32, 64):
        mask = (rng.random((2, 1, 9, 9)) < 0.7).astype(f"int{bits}")
        back = np.ascontiguousarray(mask[..., ::-1])[..., ::-1]
        flashcute.attention(q, k, v, mask=bare(back, (capsules.INT, bits, 1)), out=out)
        assert np.array_equal(out, flashcute.attention(q, k, v, mask=mask))
    keys = rng.random((2, 18)) < 0.7
    flashcute.attention(q, k, v, mask=bare(keys[:, ::2], (capsules.BOOL, 8, 1)), out=out)
    assert np.array_equal(out, flashcute.attention(q, k, v, mask=np.ascontiguousarray(keys[:, ::2])))
    bytes_ = np.zeros(k.nbytes + 1, np.uint8)
    bytes_[1:] = k.view(np.uint8).ravel()
    odd = capsules.Producer(bytes_, shape=k.shape, byte_offset=1)
    flashcute.attention(q, odd, v, out=out)
    assert np.array_equal(out, flashcute.attention(q, k, v))


def test_the_copy_through_a_namespace_is_contiguous():
    """Flattening alone leaves a view of every second element as it is."""
    if not hasattr(np.ndarray, "__array_namespace__"):
        pytest.skip("a NumPy from before the standard")
    base = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    for view in (base[..., ::2], base[..., ::-1], base.T, base[::-1, :, :4], base[:, :, :0]):
        copy = _producers.contiguous(view, _producers.Kind.OTHER)
        assert copy.flags.c_contiguous
        assert np.array_equal(copy, view)
        assert not np.shares_memory(copy, base)
