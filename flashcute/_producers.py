"""What the compiled half leaves to each framework's own means. Not on the hot path, and imports none by itself."""

import importlib
import sys
from enum import IntEnum
from typing import Any

import numpy as np

from .device_array import DeviceArray


class Kind(IntEnum):
    """ProducerKind of the compiled half, in its order."""

    TORCH = 0
    NUMPY = 1
    CUPY = 2
    DEVICE_ARRAY = 3
    EXCHANGE = 4
    OTHER = 5


def contiguous(x: Any, kind: int) -> Any:
    """A contiguous, aligned copy of x made by its framework."""
    if kind == Kind.TORCH:
        return x.resolve_neg().contiguous()
    if kind == Kind.NUMPY:
        return np.array(x, order="C", copy=True, subok=False)
    if kind == Kind.CUPY:
        with x.device:
            return importlib.import_module("cupy").ascontiguousarray(x)
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if hasattr(x, "__array_namespace__"):
        namespace = x.__array_namespace__()
        # Reshaping alone may return a view with the same steps.
        return namespace.reshape(namespace.concat((namespace.reshape(x, (-1,)),)), x.shape)
    raise TypeError(f"no way is known to make a {type(x).__name__} contiguous")


def cupy_empty(shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    """A CuPy array on the device of `like`, from CuPy's own pool."""
    cupy = importlib.import_module("cupy")
    with like.device:
        return cupy.empty(shape, dtype=like.dtype if str(like.dtype) == dtype else dtype)


def cupy_fill(x: Any, value: float) -> None:
    with x.device:
        x.fill(value)


def cupy_stream(device_id: int) -> int:
    """The stream on which CuPy works on a device. CuPy before 13 tells only that of the current device."""
    cuda = importlib.import_module("cupy").cuda
    with cuda.Device(device_id):
        return int(cuda.get_current_stream().ptr)


def device_empty(shape: tuple[int, ...], dtype: str, device: str, stream: int) -> DeviceArray:
    return DeviceArray(shape, dtype, device, stream=stream)


def to_framework(like: Any, array: DeviceArray) -> Any:
    """The array as one of like's framework, on like's device, through that framework's from_dlpack."""
    module = type(like).__module__.partition(".")[0]
    if module == "tensorflow":
        tensorflow = sys.modules["tensorflow"]
        result = tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())
        if result.device == like.device:
            return result
        with tensorflow.device(like.device):
            return tensorflow.identity(result)
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(module)
    from_dlpack = getattr(namespace, "from_dlpack", None)
    if from_dlpack is not None:
        return _on_device_of(like, from_dlpack(array), namespace)
    # A producer that takes no tensors back: NumPy's arrays are what everyone reads.
    return array.numpy() if array.device == "cpu" and array.dtype != "bfloat16" else array


def _on_device_of(like: Any, result: Any, namespace: Any) -> Any:
    """DLPack knows one CPU device; a framework may have several, and puts what it imports on the first."""
    device = getattr(like, "device", None)
    if device is None or getattr(result, "device", None) == device:
        return result
    if hasattr(result, "to_device"):
        return result.to_device(device)
    return namespace.asarray(result, device=device)
