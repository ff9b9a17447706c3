"""TensorDescriptor: a tensor without its memory, for planning a problem before its data exist."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._core import AttentionDescriptor
from .architectures import find_architecture
from .errors import BadDtypeError, BadParamError, BadShapeError, BadStridesError, Error

DTYPE_SIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}

_MOST_BYTES = 2**63 - 1


def dtype_name(dtype: object) -> str:
    """The name of a dtype given as a string or as any framework's dtype."""
    if isinstance(dtype, str):
        name = dtype
    else:
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).rpartition(".")[2]
    if name not in DTYPE_SIZES:
        raise BadDtypeError(
            f"flashcute.TensorDescriptor(dtype): expected one of {', '.join(DTYPE_SIZES)}, given {name}"
        )
    return name


def parse_device(device: object) -> tuple[bool, int]:
    """(is a GPU, number) of "cpu", "cuda", "cuda:1" or a device object that prints as one of them."""
    kind, colon, number = str(device).partition(":")
    numbered = number.isascii() and number.isdigit() and len(number) < 10  # fits C's int
    if kind in ("cpu", "cuda") and (not colon or numbered):
        return kind == "cuda", int(number or 0) if kind == "cuda" else 0
    raise BadParamError(f"flashcute.TensorDescriptor(device): expected 'cpu' or 'cuda:N', given {device!r}")


def _integers(values: object, argument: str, error: type[Error]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)  # type: ignore[attr-defined]
    except TypeError:
        raise error(
            f"flashcute.TensorDescriptor({argument}): expected a sequence of integers, given {values!r}"
        ) from None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    stride = 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(length, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class TensorDescriptor:
    """Shape, strides (in elements; None is contiguous), dtype and device of a tensor.

    AttentionDescriptor takes these in place of tensors, and assumes memory aligned to 16 bytes for them. The device may
    also be a GPU that this machine lacks, by the name of a card or an architecture ("a100", "h100", "sm_90", ...): the
    descriptor then has a plan and cannot run.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        dtype = dtype_name(self.dtype)
        shape = _integers(self.shape, "shape", BadShapeError)
        if any(length < 0 for length in shape):
            raise BadShapeError(f"flashcute.TensorDescriptor(shape): expected lengths of at least 0, given {shape}")
        most = _MOST_BYTES // DTYPE_SIZES[dtype]
        # Lengths of 0 count as 1: the strides of the other axes have to be numbers all the same.
        if math.prod(max(length, 1) for length in shape) > most:
            raise BadShapeError(
                f"flashcute.TensorDescriptor(shape): expected fewer than 2**63 bytes of {dtype}, given {shape}"
            )
        if self.strides is None:
            strides = contiguous_strides(shape)
        else:
            strides = _integers(self.strides, "strides", BadStridesError)
        if len(strides) != len(shape):
            raise BadStridesError(
                f"flashcute.TensorDescriptor(strides): expected {len(shape)} strides, as many as axes, given {strides}"
            )
        span = sum(max(length - 1, 0) * abs(stride) for length, stride in zip(shape, strides, strict=True))
        if span >= most or any(abs(stride) > most for stride in strides):
            raise BadStridesError(
                f"flashcute.TensorDescriptor(strides): expected a span of fewer than 2**63 bytes, given {strides}"
            )
        architecture = find_architecture(str(self.device))
        if architecture is not None:
            device = architecture.key
        else:
            is_gpu, number = parse_device(self.device)
            device = f"cuda:{number}" if is_gpu else "cpu"
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "device", device)

    @property
    def _native(self) -> tuple[tuple[int, ...], tuple[int, ...], str, bool, int, int]:
        """What the compiled half reads. The last is an address of the memory's alignment, 0 for any that is enough."""
        assert self.strides is not None
        architecture = find_architecture(self.device)
        device = parse_device(self.device) if architecture is None else (True, architecture.device_id())
        return (self.shape, self.strides, self.dtype, *device, 0)


@dataclass(frozen=True)
class AlignedTensorDescriptor(TensorDescriptor):
    """One that also says how its memory is aligned, for the copy of a descriptor made from such tensors."""

    alignment: int = 0  # bytes, a power of two; 0: 16 or more

    @property
    def _native(self) -> tuple[tuple[int, ...], tuple[int, ...], str, bool, int, int]:
        return (*super()._native[:-1], self.alignment)


def restore(arguments: dict[str, Any]) -> AttentionDescriptor:
    """A descriptor that was copied or pickled, by the arguments of its constructor."""
    return AttentionDescriptor(**arguments)
