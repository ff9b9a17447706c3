"""PyTorch and CuPy as far as flashcute sees them, for a GPU that is not there: fake_gpu.c's other half.

What a framework enqueues, waits for and frees is told on stderr in fake_gpu.c's words. The arrays lie in host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types

import capsules
import numpy as np

CODES = {"i": capsules.INT, "u": capsules.UINT, "f": capsules.FLOAT}
TORCH_STREAM, CUPY_STREAM, CUPY_STREAM_1, EXCHANGE_STREAM, UNKNOWN_STREAM = 0x100, 0x200, 0x210, 0x500, 0x600


def tell(*words):
    print(*(f"{word:#x}" if isinstance(word, int) else word for word in words), file=sys.stderr, flush=True)


class Array:
    """`name` is told when the array is filled and when its memory goes back to its framework."""

    device_id = 0

    def __init__(self, memory, name=None, device_id=0):
        self.memory, self.name, self.device_id = memory, name, device_id
        self.shape, self.ctypes, self.dtype = memory.shape, memory.ctypes, memory.dtype
        if name:
            tell("work", f"fill:{name}", self.stream())

    def __del__(self):
        if self.name:
            tell("work", f"free:{self.name}", self.stream())

    def strides(self):
        return [step // self.memory.itemsize for step in self.memory.strides]

    def dlpack_dtype(self):
        return (CODES[self.dtype.kind], 8 * self.memory.itemsize, 1)

    def __dlpack_device__(self):
        return (capsules.CUDA, self.device_id)

    def __dlpack__(self, *, stream, max_version=None):
        if stream != -1:
            tell("wait", stream, self.stream())
        device = self.__dlpack_device__()
        return capsules.capsule(self, strides=self.strides(), dtype=self.dlpack_dtype(), device=device)


def view(x, tensor):
    ndim = len(x.shape)
    x.room = (ctypes.c_int64 * (2 * ndim))(*x.shape, *x.strides())
    tensor.data = x.ctypes.data
    tensor.device = capsules.Device(*x.__dlpack_device__())
    tensor.ndim = ndim
    tensor.dtype = capsules.DataType(*x.dlpack_dtype())
    tensor.shape = ctypes.addressof(x.room)
    tensor.strides = tensor.shape + 8 * ndim
    tensor.byte_offset = 0


class Torch(Array):
    requires_grad = False

    @property
    def device(self):
        return f"cuda:{self.device_id}"

    def stream(self):
        return TORCH_STREAM

    def detach(self):
        alias = Torch(self.memory, device_id=self.device_id)
        alias.base = self
        return alias

    def is_neg(self):
        return False

    def resolve_neg(self):
        return self

    def contiguous(self):
        return Torch(np.ascontiguousarray(self.memory), f"copy-of-{self.name}")

    def fill_(self, value):
        tell("work", "fill:result", self.stream())


class Cupy(Array):
    def stream(self):
        return (CUPY_STREAM, CUPY_STREAM_1)[self.device_id]

    @property
    def device(self):
        return on_device(self.device_id)


class Exchange(Array):
    """Of a framework with the C exchange API, which hands nothing over by itself."""

    __dlpack_c_exchange_api__ = capsules.exchange_api(view, lambda device_id: EXCHANGE_STREAM)

    def stream(self):
        return EXCHANGE_STREAM

    def contiguous(self):
        return Exchange(np.ascontiguousarray(self.memory), f"copy-of-{self.name}")


class Unknown(Array):
    """Of a framework whose streams nobody knows, and which does not follow ours."""

    def stream(self):
        return UNKNOWN_STREAM


current_device = 0


@contextlib.contextmanager
def on_device(number):
    global current_device
    before, current_device = current_device, number
    yield
    current_device = before


def module(name, **contents):
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(contents)
    return made


def stream(**numbers):
    return types.SimpleNamespace(**numbers)


def install():
    counter = iter(range(1000))
    torch = module(
        "torch",
        Tensor=Torch,
        float32=np.float32,
        uint8=np.uint8,
        is_grad_enabled=lambda: False,
        empty=lambda shape, dtype, device: Torch(aligned(shape, dtype), f"made-{next(counter)}"),
        empty_like=lambda x: Torch(aligned(x.shape, x.dtype), f"made-{next(counter)}"),
    )
    torch.cuda = module("torch.cuda", current_stream=lambda device: stream(cuda_stream=TORCH_STREAM))
    torch._C = module("torch._C", _increment_version=lambda tensors: None)
    torch.autograd = module("torch.autograd")
    torch.autograd.graph = module("torch.autograd.graph", increment_version=lambda tensor: None)
    torch.autograd.forward_ad = module("torch.autograd.forward_ad", _current_level=-1)

    def ascontiguousarray(x):
        assert current_device == x.device_id
        return Cupy(np.ascontiguousarray(x.memory), f"copy-of-{x.name}", x.device_id)

    cupy = module("cupy", ndarray=Cupy, ascontiguousarray=ascontiguousarray)
    cupy.cuda = module(
        "cupy.cuda",
        Device=on_device,
        get_current_stream=lambda: stream(ptr=(CUPY_STREAM, CUPY_STREAM_1)[current_device]),
    )


def aligned(shape, dtype):
    """Memory of a 256-byte alignment, as a GPU's allocators give."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(count + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + count].view(dtype).reshape(shape)


def filled(kind, name, shape=(1, 2, 8, 64), dtype="float16", device_id=0, contiguous=True):
    """A new array, whose last axis is not contiguous on demand."""
    memory = aligned(shape, dtype) if contiguous else aligned((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    return kind(memory, name, device_id)
