"""Hand-made DLPack producers: capsules with every field set as a test likes."""

from __future__ import annotations

import ctypes

import numpy as np

INT, UINT, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6
CPU, CUDA = 1, 2


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor, the unversioned one."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1.x."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class ExchangeApi(ctypes.Structure):
    """DLPack's C functions of one framework; the three that hand memory over are never called here."""

    VIEW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
    CURRENT_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t))
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export_managed", ctypes.c_void_p),
        ("import_managed", ctypes.c_void_p),
        ("view", VIEW),
        ("current_stream", CURRENT_STREAM),
    ]


def exchange_api(view, current_stream):
    """A capsule for __dlpack_c_exchange_api__. `view(x, tensor)` fills a DLTensor, `current_stream(id)` is a number."""

    def write_view(x, tensor):
        view(x, tensor[0])
        return 0

    def write_stream(device_type, device_id, stream):
        stream[0] = current_stream(device_id)
        return 0

    api = ExchangeApi(
        1, 3, None, 1, 1, 1, view=ExchangeApi.VIEW(write_view), current_stream=ExchangeApi.CURRENT_STREAM(write_stream)
    )
    _kept[ctypes.addressof(api)] = (api,)
    return _new(ctypes.addressof(api), b"dlpack_exchange_api", None)


_kept: dict[int, tuple] = {}
deleted: list[int] = []
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}


@DELETER
def _delete(pointer):
    deleted.append(pointer)
    _kept.pop(pointer, None)


def capsule(array: np.ndarray | None, *, shape=None, strides="contiguous", dtype=None, device=(CPU, 0), byte_offset=0,
            versioned=False, flags=0, major=1, data=None):  # fmt: skip
    """A capsule over an array's memory, its fields overridden. strides None is a null pointer."""
    shape = array.shape if shape is None else shape
    if isinstance(strides, str):
        strides, step = [], 1
        for n in reversed(shape):
            strides.insert(0, step)
            step *= max(1, n)
    shape_room = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    stride_room = None if strides is None else (ctypes.c_int64 * max(1, len(strides)))(*strides)
    managed = Versioned() if versioned else Managed()
    t = managed.tensor
    t.data = array.ctypes.data if data is None and array is not None else data
    t.device = Device(*device)
    t.ndim = len(shape)
    t.dtype = DataType(*(dtype or (FLOAT, 32, 1)))
    t.shape = ctypes.addressof(shape_room)
    t.strides = None if stride_room is None else ctypes.addressof(stride_room)
    t.byte_offset = byte_offset
    managed.deleter = _delete
    if versioned:
        managed.major, managed.minor, managed.flags = major, 0, flags
    address = ctypes.addressof(managed)
    _kept[address] = (managed, shape_room, stride_room, array)
    return _new(address, _NAMES[versioned], None)


class Producer:
    """An object that is nothing but __dlpack__."""

    def __init__(self, array=None, **fields):
        self.array, self.fields = array, fields
        self.calls: list[dict] = []

    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        if self.fields.get("versioned") and arguments.get("max_version") is None:
            raise BufferError("only versioned capsules")
        return capsule(self.array, **self.fields)

    def __dlpack_device__(self):
        return self.fields.get("device", (CPU, 0))


class Same:
    """Hands out one capsule again and again."""

    def __init__(self, array):
        self.capsule = capsule(array)

    def __dlpack__(self, **arguments):
        return self.capsule

    def __dlpack_device__(self):
        return (CPU, 0)
