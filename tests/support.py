"""Shared by the tests: tensors with guard bands and any strides, and one way to run a problem through every path.

A path is how the library is called: "functional" (flashcute.attention), "descriptor" (flashcute.AttentionDescriptor)
or "c" (the C API through ctypes). A kind is whose tensors are handed over: "numpy" or "torch".
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, field

import numpy as np
import pytest

import flashcute
from flashcute import reference

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

PATHS = ("functional", "descriptor", "c")
FLOATS = ("float32", "float16", "bfloat16")
GUARD = 64  # elements before and after every tensor
_POISON = {1: 0x55, 2: 0x7FD5, 4: 0x7FC5A5A5, 8: 0x7FF8A5A5A5A5A5A5}  # a NaN, as float16, bfloat16 and float32 too

# relative to the largest value, for closed forms
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


@functools.cache
def no_cuda_reason() -> str:
    """Why nothing can run on a GPU here; empty where it can."""
    if torch is None:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    tiny = torch.zeros((1, 1, 8, 64), dtype=torch.float16, device="cuda")
    try:
        flashcute.attention(tiny, tiny, tiny)
    except (flashcute.UnsupportedDeviceError, flashcute.UnsupportedArchitectureError) as error:
        return str(error)
    except flashcute.Error:
        pass  # a broken GPU path must fail tests, not skip them
    return ""


def skip_without_cuda() -> None:
    if no_cuda_reason():
        pytest.skip(no_cuda_reason())


def storage(name: str) -> np.dtype:
    return np.dtype("uint16") if name == "bfloat16" else np.dtype(name)


def encode(values, name: str) -> np.ndarray:
    """Values rounded to a type, as that type's storage (uint16 for bfloat16)."""
    if name == "bfloat16":
        return reference.to_bfloat16_bits(np.asarray(values, dtype=np.float32)).reshape(np.shape(values))
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(name)


def decode(bits: np.ndarray, name: str) -> np.ndarray:
    return reference.from_bfloat16_bits(bits) if name == "bfloat16" else bits


class Strided:
    """A tensor inside a larger buffer whose every other element holds a known NaN pattern."""

    def __init__(self, shape, name, strides=None, offset=0, tail=GUARD):
        self.shape, self.name = tuple(int(n) for n in shape), name
        if strides is None:
            strides = contiguous_strides(self.shape)
        self.strides = tuple(int(n) for n in strides)
        assert all(s >= 0 for s in self.strides)
        # the guard keeps the first element as aligned as the buffer, so that `offset` alone decides
        self.offset = GUARD + offset
        reach = 0 if 0 in self.shape else 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        dtype = storage(name)
        size = self.offset + reach + tail
        room = np.empty(size * dtype.itemsize + 256, dtype=np.uint8)
        start = -room.ctypes.data % 256
        self.buffer = room[start : start + size * dtype.itemsize].view(dtype)
        self.pattern = np.array(_POISON[dtype.itemsize], dtype=f"uint{8 * dtype.itemsize}").view(dtype)[()]
        self.poison()

    def poison(self) -> None:
        self.bits(self.buffer)[:] = self.bits(np.full(1, self.pattern))[0]

    @staticmethod
    def bits(x: np.ndarray) -> np.ndarray:
        return x.view(f"uint{8 * x.dtype.itemsize}")

    def _over(self, flat: np.ndarray) -> np.ndarray:
        size = flat.dtype.itemsize
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, [s * size for s in self.strides])

    @property
    def raw(self) -> np.ndarray:
        return self._over(self.buffer)

    def fill(self, values) -> Strided:
        self.raw[...] = encode(values, self.name)
        return self

    @property
    def values(self) -> np.ndarray:
        return decode(np.ascontiguousarray(self.raw), self.name)

    def untouched(self) -> np.ndarray:
        """Boolean, one for each element: does it still hold the pattern?"""
        return np.ascontiguousarray(self._over(self.bits(self.buffer)) == self.bits(np.full(1, self.pattern))[0])

    def guard_fault(self) -> str:
        inside = np.zeros(self.buffer.shape, dtype=bool)
        self._over(inside)[...] = True
        hit = (self.bits(self.buffer) != self.bits(np.full(1, self.pattern))[0]) & ~inside
        if not hit.any():
            return ""
        at = np.flatnonzero(hit)
        return f"wrote outside the tensor at {len(at)} places, the first {at[0] - self.offset} elements from its start"

    @property
    def alignment(self) -> int:
        size = self.buffer.dtype.itemsize
        return math.gcd(256, self.offset * size)

    # -- as a framework's tensor

    def numpy(self) -> np.ndarray:
        if self.name != "bfloat16":
            return self.raw
        return self._over(self.buffer.view(ml_dtypes.bfloat16))

    def torch(self, device="cpu"):
        """A view of the buffer on the CPU, a copy of the whole buffer elsewhere (fetch() brings it back)."""
        flat = torch_flat(self.buffer, self.name)
        self.base = flat.to(device)
        return torch.as_strided(self.base, self.shape, self.strides, self.offset)

    def place(self, kind: str, device: str = "cpu"):
        if kind == "numpy" and self.name == "bfloat16" and ml_dtypes is None:
            kind = "torch"  # NumPy has no bfloat16 of its own
        return self.numpy() if kind == "numpy" else self.torch(device)

    def fetch(self) -> None:
        base = getattr(self, "base", None)
        if base is not None and base.device.type != "cpu":
            back = base.view(torch.int16) if self.name == "bfloat16" else base
            self.bits(self.buffer)[:] = self.bits(back.cpu().numpy())


def torch_flat(buffer: np.ndarray, name: str):
    if torch is None:
        pytest.skip("PyTorch is not installed")
    if name == "bfloat16":
        return torch.from_numpy(buffer.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(buffer)


def contiguous_strides(shape) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return tuple(reversed(strides))


def tensor(values, name: str) -> Strided:
    values = np.asarray(values)
    return Strided(values.shape, name).fill(values)


# The options that are tensors; each is held as a Strided
TENSOR_OPTIONS = ("mask", "block_mask", "bias", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k")


@dataclass
class Problem:
    """Inputs and options of one call, with room for its results. Shapes are in the layout of the options."""

    q: Strided
    k: Strided
    v: Strided
    options: dict = field(default_factory=dict)  # as for flashcute.attention; tensors as Strided
    out: Strided | None = None  # None: the library allocates
    return_lse: bool = True
    return_probs: bool = False

    @property
    def name(self) -> str:
        return self.q.name

    @property
    def packed(self) -> bool:
        return "cu_seqlens_q" in self.options

    @property
    def layout(self) -> str:
        return self.options.get("layout", "bhsd")

    @property
    def heads_first(self) -> bool:
        return self.layout in ("bhsd", "hsd")

    @property
    def lse_shape(self) -> tuple[int, ...]:
        lead = self.q.shape[:-1]
        return lead if self.heads_first else (*lead[:-2], lead[-1], lead[-2])

    @property
    def probs_shape(self) -> tuple[int, ...]:
        return (*self.lse_shape, self.k.shape[-2 if self.heads_first else -3])

    def reference_options(self) -> dict:
        return {k: v.values if isinstance(v, Strided) else v for k, v in self.options.items() if k != "checked"}

    def judge(self, out, lse, probs=None) -> reference.Verdict:
        values = (x.values for x in (self.q, self.k, self.v))
        return reference.judge(out, lse, *values, probs=probs, dtype=self.name, **self.reference_options())

    def expected(self) -> reference.Result:
        return reference.attention(self.q.values, self.k.values, self.v.values, **self.reference_options())


@dataclass
class Outcome:
    out: np.ndarray  # float32 or float64 values
    lse: np.ndarray | None
    faults: list[str]  # guard bands hit
    probs: np.ndarray | None = None


def run(problem: Problem, path: str = "functional", kind: str = "numpy", device: str = "cpu", **extra) -> Outcome:
    """Runs a problem through one path. `extra` goes to the call (backend, checked, stream, ...)."""
    if device != "cpu" and "backend" not in problem.options:
        extra.setdefault("backend", os.environ.get("FLASHCUTE_TEST_BACKEND", "auto"))
    if path == "c":
        return _run_c(problem, device, **extra)
    place = functools.partial(Strided.place, kind=kind, device=device)
    tensors = {key: value for key, value in problem.options.items() if isinstance(value, Strided)}
    placed = {key: place(value) for key, value in tensors.items()}
    scalars = {key: value for key, value in problem.options.items() if key not in tensors}
    q, k, v = place(problem.q), place(problem.k), place(problem.v)
    out = None if problem.out is None else place(problem.out)
    faults = []
    wanted = {"return_lse": problem.return_lse, "return_probs": problem.return_probs}
    rooms: dict[str, Strided] = {}
    if path == "functional":
        result = flashcute.attention(q, k, v, out=out, **wanted, **placed, **scalars, **extra)
    else:
        desc = flashcute.AttentionDescriptor(q, k, v, out=out, **wanted, **placed, **scalars, **extra)
        late = {key: scalars[key] for key in ("seed", "offset") if key in scalars}
        if problem.return_lse:
            rooms["lse"] = Strided(problem.lse_shape, "float32")
        if problem.return_probs:
            rooms["probs"] = Strided(problem.probs_shape, "float32")
        result = desc.run(q, k, v, out=out, **{key: place(x) for key, x in rooms.items()}, **placed, **late)
    names = ["out", *(key for key in ("lse", "probs") if wanted[f"return_{key}"])]
    if isinstance(result, tuple) != (len(names) > 1):
        faults.append(f"a {type(result).__name__} came back where {', '.join(names)} were asked for")
    results = dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))
    if problem.out is None:
        out_values = to_values(results["out"])
    else:
        problem.out.fetch()
        out_values = problem.out.values
        faults.append(problem.out.guard_fault())
    for key, room in rooms.items():
        room.fetch()
        faults.append(f"{key}: {room.guard_fault()}" if room.guard_fault() else "")
    lse_values, probs_values = (
        rooms[key].values if key in rooms else to_values(results[key]) if key in results else None
        for key in ("lse", "probs")
    )
    return Outcome(out_values, lse_values, [f for f in faults if f], probs_values)


def to_values(x) -> np.ndarray:
    if torch is not None and isinstance(x, torch.Tensor):
        return x.detach().float().cpu().numpy()
    return np.asarray(x).astype(np.float32)


def _canonical(t: Strided, heads_first: bool):
    shape, strides = list(t.shape), list(t.strides)
    if not heads_first:
        for x in (shape, strides):
            x[-3], x[-2] = x[-2], x[-3]
    return shape, strides


def _run_c(problem: Problem, device: str, backend="auto", checked=None, stream=None) -> Outcome:
    import capi

    scalars = problem.options
    on_gpu = device != "cpu"

    def place(t: Strided):
        if on_gpu:
            view = t.torch(device)
            return view.data_ptr() if 0 not in t.shape else None
        return t.buffer.ctypes.data + t.offset * t.buffer.dtype.itemsize if 0 not in t.shape else None

    def describe(t: Strided, heads_first=True):
        return capi.Tensor(*_canonical(t, heads_first), t.name)

    head_first = problem.heads_first
    out = problem.out
    if out is None:
        out = Strided((*problem.q.shape[:-1], problem.v.shape[-1]), problem.name)
    lse = Strided(problem.lse_shape, "float32") if problem.return_lse else None
    probs = Strided(problem.probs_shape, "float32") if problem.return_probs else None
    optional = {k: v for k, v in scalars.items() if isinstance(v, Strided)}
    mask = optional.pop("mask", None)
    if mask is not None and len(mask.shape) == 4:
        optional["dense_mask"], mask = mask, None
    if lse is not None:
        optional["lse"] = lse
    if probs is not None:
        optional["probs"] = probs
    declared = {k: describe(v) for k, v in optional.items()}
    window = scalars.get("window", (-1, -1))
    main = {"out": out, "q": problem.q, "k": problem.k, "v": problem.v}
    options = capi.Options(
        has_scale=int(scalars.get("scale") is not None),
        scale=scalars.get("scale") or 0.0,
        causal=int(bool(scalars.get("causal", False))),
        alignment=int(scalars.get("alignment", "bottom_right") == "top_left"),
        window_left=window[0],
        window_right=window[1],
        softcap=scalars.get("softcap", 0.0),
        dropout_p=scalars.get("dropout_p", 0.0),
        max_seqlen_q=scalars.get("max_seqlen_q") or 0,
        max_seqlen_k=scalars.get("max_seqlen_k") or 0,
        min_alignment=min(16, *(t.alignment for t in main.values())),
        backend=capi.BACKENDS[backend],
        checked=int(bool(checked)),
        **{k: v.value for k, v in declared.items()},
    )
    desc = capi.Attention(
        *(describe(t, head_first) for t in main.values()),
        None if mask is None else describe(mask),
        options,
        device=capi.NVIDIA if on_gpu else capi.CPU,
    )
    buffers = capi.Buffers(
        seed=scalars.get("seed") or 0, offset=scalars.get("offset") or 0, **{k: place(v) for k, v in optional.items()}
    )
    pointers = [place(t) for t in main.values()]
    size = desc.workspace_size
    aligned = Workspace(size, device)
    desc.run(aligned.pointer, size, *pointers, None if mask is None else place(mask), buffers, stream=stream)
    if on_gpu:
        torch.cuda.synchronize()
    faults = [aligned.fault()]
    for name, t in (("out", out), ("lse", lse), ("probs", probs)):
        if t is not None:
            t.fetch()
            if t.guard_fault():
                faults.append(f"{name}: {t.guard_fault()}")
    lse_values, probs_values = (None if t is None else t.values for t in (lse, probs))
    return Outcome(out.values, lse_values, [f for f in faults if f], probs_values)


class Workspace:
    """Workspace of exactly the bytes asked for, 256-byte aligned, with a guard behind it."""

    TAIL = 512

    def __init__(self, size: int, device: str):
        self.size = size
        if device == "cpu":
            self.room = np.full(size + self.TAIL + 256, 0xA5, dtype=np.uint8)
            self.start = -self.room.ctypes.data % 256
            self.pointer = self.room.ctypes.data + self.start
        else:
            self.room = torch.full((size + self.TAIL,), 0xA5, dtype=torch.uint8, device=device)
            self.start = 0
            self.pointer = self.room.data_ptr()

    def fault(self) -> str:
        room = self.room if isinstance(self.room, np.ndarray) else self.room.cpu().numpy()
        guard = room[self.start + self.size :]
        return "" if (guard == 0xA5).all() else "wrote beyond the workspace"


def compute(q, k, v, path="functional", device="cpu", dtype="float32", kind=None, options=None, **extra):
    """Runs q, k, v (values, or Strided) with guarded outputs and returns (out, lse) as float values.

    What no GPU kernel does yet is skipped, with the kernel's reason.
    """
    if device != "cpu":
        skip_without_cuda()
    kind = kind or ("numpy" if device == "cpu" and (dtype != "bfloat16" or ml_dtypes is not None) else "torch")
    options = dict(options or {})
    q, k, v = (x if isinstance(x, Strided) else tensor(x, dtype) for x in (q, k, v))
    out = Strided((*q.shape[:-1], v.shape[-1]), q.name)
    problem = Problem(q, k, v, options, out)
    try:
        outcome = run(problem, path, kind, device, **extra)
    except flashcute.NotImplementedByKernelError as error:
        if device == "cpu":
            raise
        pytest.skip(str(error))
    assert not outcome.faults, outcome.faults
    return outcome.out, outcome.lse


def ints(values, name="int32") -> Strided:
    return tensor(np.asarray(values, dtype=name), name)


def ramp(*shape) -> np.ndarray:
    """shape (..., keys, channels): value j in every channel of key j."""
    return np.broadcast_to(np.arange(shape[-2], dtype=np.float64)[:, None], shape)


def cases(*, paths=PATHS, devices=("cpu", "cuda"), dtypes=FLOATS):
    """(device, dtype, path) of every test that runs everywhere; float32 has no GPU kernels."""
    return [
        pytest.param(
            device, dtype, path, id=f"{device}-{dtype}-{path}", marks=[pytest.mark.gpu] if device == "cuda" else []
        )
        for device in devices
        for dtype in dtypes
        for path in paths
        if not (device == "cuda" and dtype == "float32")
    ]


def close(got, want, dtype="float32", scale=None) -> None:
    """Values agree to the type's precision, relative to the largest expected value; kinds of infinities too."""
    got, want = np.broadcast_arrays(np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    scale = scale or max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=TOLERANCE[dtype] * scale)


def close_lse(got, want) -> None:
    close(got, want, scale=1e-4 / TOLERANCE["float32"])
