"""Exact attention for CPUs and NVIDIA GPUs, over DLPack: the tensors of any framework in, the same framework's out.

    import flashcute
    out = flashcute.attention(q, k, v, causal=True)

Importing this package opens no GPU and needs no driver.
"""

try:
    from ._core import AttentionDescriptor, attention, get_num_threads, merge_states, set_num_threads, version
except ModuleNotFoundError as error:
    if error.name != f"{__name__}._core":
        raise
    raise ImportError(
        f"{__file__} is flashcute's unbuilt source tree: run `pip install .` in it and import flashcute from elsewhere."
    ) from None

from ._paths import get_cmake_dir, get_include, get_library
from .descriptors import TensorDescriptor
from .errors import (
    BadDtypeError,
    BadParamError,
    BadShapeError,
    BadStridesError,
    DeviceNotFoundError,
    Error,
    InsufficientWorkspaceError,
    InternalError,
    NotImplementedByKernelError,
    NullPointerError,
    UnsupportedArchitectureError,
    UnsupportedDeviceError,
)

__version__: str = version()

__all__ = [
    "AttentionDescriptor",
    "BadDtypeError",
    "BadParamError",
    "BadShapeError",
    "BadStridesError",
    "DeviceNotFoundError",
    "Error",
    "InsufficientWorkspaceError",
    "InternalError",
    "NotImplementedByKernelError",
    "NullPointerError",
    "TensorDescriptor",
    "UnsupportedArchitectureError",
    "UnsupportedDeviceError",
    "attention",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "get_num_threads",
    "merge_states",
    "set_num_threads",
]
