"""The C API through ctypes, for tests: nothing of the Python package but the library's path is used here."""

from __future__ import annotations

import ctypes
import json
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint32, c_uint64, c_void_p

import flashcute

SUCCESS, INTERNAL_ERROR, NOT_IMPLEMENTED, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED = range(6)
DEVICE_NOT_FOUND, DEVICE_ARCHITECTURE_NOT_SUPPORTED = 6, 8
BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES, INSUFFICIENT_WORKSPACE = 10, 11, 12, 13

CPU, NVIDIA = 0, 1
DTYPES = {
    "bool": 2, "int8": 3, "int16": 4, "int32": 5, "int64": 6, "uint8": 7, "uint16": 8, "uint32": 9, "uint64": 10,
    "float16": 12, "float32": 13, "float64": 14, "bfloat16": 19,
}  # fmt: skip
BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2, "sm80": 3, "sm90": 4}


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("has_scale", c_int32),
        ("scale", c_float),
        ("causal", c_int32),
        ("alignment", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("softcap", c_float),
        ("dropout_p", c_float),
        ("max_seqlen_q", c_int64),
        ("max_seqlen_k", c_int64),
        ("min_alignment", c_uint32),
        ("backend", c_int32),
        ("checked", c_int32),
        ("lse", c_void_p),
        ("dense_mask", c_void_p),
        ("bias", c_void_p),
        ("alibi_slopes", c_void_p),
        ("sinks", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_k", c_void_p),
        ("dropout_state", c_void_p),
        ("block_mask", c_void_p),
        ("probs", c_void_p),
    ]

    def __init__(self, **values):
        super().__init__(
            **{
                "struct_size": ctypes.sizeof(Options),
                "window_left": -1,
                "window_right": -1,
                "min_alignment": 16,
                **values,
            }
        )


class Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lse", c_void_p),
        ("dense_mask", c_void_p),
        ("bias", c_void_p),
        ("alibi_slopes", c_void_p),
        ("sinks", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_k", c_void_p),
        ("dropout_state", c_void_p),
        ("seed", c_uint64),
        ("offset", c_uint64),
        ("block_mask", c_void_p),
        ("probs", c_void_p),
    ]

    def __init__(self, **values):
        super().__init__(**{"struct_size": ctypes.sizeof(Buffers), **values})


OPTIONAL_TENSORS = [name for name, _ in Buffers._fields_ if name not in ("struct_size", "seed", "offset")]


def load():
    library = ctypes.CDLL(str(flashcute.get_library()))
    library.flashcuteGetVersion.restype = c_char_p
    library.flashcuteGetLastErrorMessage.restype = c_char_p
    pointers = {
        "CreateHandle": [c_void_p, c_int, c_int],
        "DestroyHandle": [c_void_p],
        "CreateTensorDescriptor": [c_void_p, c_size_t, c_void_p, c_void_p, c_int],
        "DestroyTensorDescriptor": [c_void_p],
        "CreateFlashAttentionDescriptor": [c_void_p] * 8,
        "GetFlashAttentionWorkspaceSize": [c_void_p, c_void_p],
        "FlashAttention": [c_void_p, c_void_p, c_size_t] + [c_void_p] * 7,
        "DestroyFlashAttentionDescriptor": [c_void_p],
        "MergeStates": [c_void_p] * 14,
        "GetPlan": [c_void_p, c_void_p, c_void_p],
        "GetInfo": [c_void_p, c_void_p],
        "SetNumThreads": [c_int],
    }
    for name, arguments in pointers.items():
        function = getattr(library, "flashcute" + name)
        function.argtypes = arguments
        function.restype = c_int
    return library


lib = load()


def last_error() -> str:
    return lib.flashcuteGetLastErrorMessage().decode()


def exception_of(status: int) -> type[Exception]:
    for name in dir(flashcute):
        kind = getattr(flashcute, name)
        is_error = isinstance(kind, type) and issubclass(kind, flashcute.Error) and kind is not flashcute.Error
        if is_error and kind.status == status:
            return kind
    raise AssertionError(f"no exception of flashcute has status {status}: {last_error()}")


def check(status: int) -> None:
    """The statuses as the exceptions that Python raises, so that a test can expect the same from every path."""
    if status != SUCCESS:
        message = last_error()
        assert message, f"status {status} without a message"
        kind = exception_of(status)
        try:
            error = kind(message)
        except TypeError:  # an exception whose constructor wants the status
            error = kind(message, status)
        raise error


class Handle:
    def __init__(self, device: int = CPU, index: int = 0):
        self.value = c_void_p()
        check(lib.flashcuteCreateHandle(byref(self.value), device, index))

    def __del__(self):
        if getattr(self, "value", None):
            lib.flashcuteDestroyHandle(self.value)


_handles: dict[tuple[int, int], Handle] = {}


def handle(device: int = CPU, index: int = 0):
    key = (device, index)
    if key not in _handles:
        _handles[key] = Handle(device, index)
    return _handles[key].value


class Tensor:
    """A tensor descriptor; strides in elements, None = contiguous."""

    def __init__(self, shape, strides, dtype):
        ndim = len(shape)
        self.value = c_void_p()
        shape_array = (c_size_t * max(1, ndim))(*shape)
        stride_array = None if strides is None else (c_ssize_t * max(1, ndim))(*strides)
        code = DTYPES[dtype] if isinstance(dtype, str) else dtype
        check(lib.flashcuteCreateTensorDescriptor(byref(self.value), ndim, shape_array, stride_array, code))

    def __del__(self):
        if getattr(self, "value", None):
            lib.flashcuteDestroyTensorDescriptor(self.value)


class Attention:
    """A flash-attention descriptor. Tensors may be Tensor or None."""

    def __init__(self, out, q, k, v, mask=None, options=None, device=CPU, index=0):
        self.value = c_void_p()
        raw = [None if t is None else t.value for t in (out, q, k, v, mask)]
        pointer = None if options is None else ctypes.addressof(options)
        check(
            lib.flashcuteCreateFlashAttentionDescriptor(
                handle(device, index), byref(self.value), *raw, c_void_p(pointer)
            )
        )

    def __del__(self):
        if getattr(self, "value", None):
            lib.flashcuteDestroyFlashAttentionDescriptor(self.value)

    @property
    def workspace_size(self) -> int:
        size = c_size_t(0)
        check(lib.flashcuteGetFlashAttentionWorkspaceSize(self.value, byref(size)))
        return size.value

    @property
    def plan(self) -> dict:
        return json.loads(_text(lambda room, length: lib.flashcuteGetPlan(self.value, room, length)))

    def run(self, workspace, workspace_size, out, q, k, v, mask=None, buffers=None, stream=None):
        pointer = None if buffers is None else ctypes.addressof(buffers)
        check(
            lib.flashcuteFlashAttention(
                self.value, workspace, workspace_size, out, q, k, v, mask, c_void_p(pointer), stream
            )
        )


def _text(call) -> str:
    length = c_size_t(0)
    check(call(None, byref(length)))
    room = ctypes.create_string_buffer(length.value)
    check(call(room, byref(length)))
    return room.value.decode()


def info() -> dict:
    return json.loads(_text(lib.flashcuteGetInfo))
