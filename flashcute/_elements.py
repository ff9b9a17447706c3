"""Element types of the oracle. bfloat16 is the type of that name from ml_dtypes where that package is installed;
without it a caller holds the 16 bits of each element in uint16 and converts here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def dtype_name(x: Array) -> str:
    """The name of an array's element type: "float32", "float16", "bfloat16", ..."""
    return str(x.dtype.name)


def from_bfloat16_bits(bits: Array) -> npt.NDArray[np.float32]:
    """The values of bfloat16 elements whose bits are held in a uint16 array."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16_bits(x: Array) -> npt.NDArray[np.uint16]:
    """Rounds float32 values to bfloat16 (to nearest, ties to even) and returns their bits."""
    values = np.ascontiguousarray(x, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN could carry it into infinity
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def to_float(x: Any, compute: npt.DTypeLike = np.float64) -> Array:
    """Any float or integer array, ml_dtypes' bfloat16 included, as an array of `compute`."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return np.asarray(x).astype(compute)


def round_to(x: Array, dtype: str) -> Array:
    """The values of x after rounding to the type called `dtype`, in x's own type."""
    x = np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bfloat16":
            return from_bfloat16_bits(to_bfloat16_bits(x)).astype(x.dtype)
        if dtype in ("float16", "float32", "float64"):
            return x.astype(dtype).astype(x.dtype)
    raise ValueError(f"round_to(dtype): expected float64, float32, float16 or bfloat16, given {dtype!r}")
