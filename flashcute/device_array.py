"""DeviceArray: an array in memory of flashcute's own, for machines that have a GPU and no framework.

It is what `flashcute check` computes with. It has no arithmetic: fill it from NumPy, pass it to attention(), read the
result back with numpy(). Any consumer of DLPack can take it too.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ._core import DeviceBuffer
from .descriptors import DTYPE_SIZES, dtype_name, parse_device

_LEGACY_STREAM = 1
_DLPACK_CPU, _DLPACK_CUDA = 1, 2


def _round_to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to the bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could carry a NaN to infinity
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    result: np.ndarray[Any, Any] = np.where(is_nan, quiet, rounded).astype(np.uint16)
    return result


class DeviceArray:
    """A contiguous array on "cpu" or "cuda:N", made on one CUDA stream: the legacy default unless another is given."""

    __slots__ = ("__weakref__", "_buffer", "device", "dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: object, device: object = "cuda:0", *, stream: int = 0) -> None:
        """Not initialised."""
        is_gpu, number = parse_device(device)
        self.shape = tuple(int(length) for length in shape)
        self.dtype = dtype_name(dtype)
        self.device = f"cuda:{number}" if is_gpu else "cpu"
        self._buffer = DeviceBuffer(prod(self.shape) * DTYPE_SIZES[self.dtype], is_gpu, number, stream)

    @classmethod
    def from_numpy(cls, array: Any, device: object = "cuda:0", dtype: object = None) -> "DeviceArray":
        """Copies an array, converted to dtype where one is given. "bfloat16" rounds to nearest, without ml_dtypes."""
        array = np.asarray(array)
        name = dtype_name(array.dtype if dtype is None else dtype)
        if name == "bfloat16":
            is_bfloat16 = array.dtype.name == "bfloat16"
            array = array.view(np.uint16) if is_bfloat16 else _round_to_bfloat16(array)
        result = cls(array.shape, name, device)
        host_dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
        result._buffer.copy_from(np.ascontiguousarray(array, dtype=host_dtype).reshape(-1).view(np.uint8))
        return result

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory. bfloat16, which NumPy lacks, comes as float32 of the same values."""
        is_bfloat16 = self.dtype == "bfloat16"
        host = np.empty(self.shape, dtype=np.uint16 if is_bfloat16 else self.dtype)
        self._buffer.copy_to(host.reshape(-1).view(np.uint8))
        return (host.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else host

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def synchronize(self) -> None:
        """Waits until the content is there."""
        self._buffer.synchronize()

    def __dlpack_device__(self) -> tuple[int, int]:
        is_gpu, number = parse_device(self.device)
        return (_DLPACK_CUDA, number) if is_gpu else (_DLPACK_CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a DeviceArray is exported in place, without a copy")
        versioned = max_version is not None and max_version[0] >= 1
        return self._buffer.dlpack(self.shape, self.dtype, _LEGACY_STREAM if stream is None else stream, versioned)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"
