"""What options such as -ffast-math take away, in this process or in this build: subnormal numbers, NaN and infinity."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

import flashcute
from flashcute.device_array import DeviceArray

_HINT = "-ffast-math does that"
# Subnormal numbers of each type, where its products keep them: vdpbf16ps flushes bfloat16's.
_TINY = {"float32": 1e-40, "float16": 2.0**-24}


def faults(device: str) -> list[str]:
    """A sentence for each thing that is lost; none where arithmetic is what results rely on."""
    found = []
    if not (np.array([2.0**-126], dtype=np.float32) * np.float32(0.25)).any():
        found.append(
            "this process flushes subnormal numbers to zero, as a library in it asked for when it was loaded: "
            f"{_HINT} to those that are linked with it"
        )
    for dtype in ("float32", "float16", "bfloat16") if device == "cpu" else ("float16", "bfloat16"):
        found += [f"{dtype} attention on {device} {what}; {_HINT}" for what in _of_library(device, dtype)]
    return found


def results(device: str, dtype: str, q: float, v: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """out and lse of two rows over three keys of the value v; the first row of q is 0, the second q."""
    rows = np.zeros((1, 1, 2, 64), dtype=np.float32)
    rows[:, :, 1] = q
    keys = np.zeros((1, 1, 3, 64), dtype=np.float32)
    arrays = (DeviceArray.from_numpy(x, device, dtype) for x in (rows, keys, np.full_like(keys, v)))
    out, lse = flashcute.attention(*arrays, return_lse=True)
    return out.numpy().astype(np.float32), lse.numpy()


def _of_library(device: str, dtype: str) -> list[str]:
    found = []
    tiny = _TINY.get(dtype)
    if tiny is not None:
        out, _ = results(device, dtype, 0.0, tiny)
        if not np.allclose(out.astype(np.float64), tiny, rtol=0.01, atol=0.0):
            found.append(f"gives {float(out.flat[0]):g} for the mean of values that are all {tiny:g}")
    out, lse = results(device, dtype, math.nan, 1.0)
    if not (np.isnan(out[0, 0, 1]).all() and np.isnan(lse[0, 0, 1])):
        found.append("loses the NaN of a row of q")
    if not np.array_equal(out[0, 0, 0], np.ones(64)):
        found.append("spreads the NaN of a row of q to another row")
    out, _ = results(device, dtype, 0.0, math.inf)
    if not np.isposinf(out).all():
        found.append("loses infinite values")
    return found
