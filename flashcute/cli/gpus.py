"""GPUs that this machine has, whether or not this build can use them."""

from __future__ import annotations

import ctypes


def count() -> int:
    """How many GPUs the NVIDIA driver offers; 0 without a driver. Asks libcuda, and creates no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        found = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(found)) != 0:
            return 0
        return found.value
    except (OSError, AttributeError):
        return 0
