"""Where the C library of this installation lies, for programs that build against it."""

from pathlib import Path

from . import _core

# CMake installs beside the compiled module. An editable install leaves this file in the source tree, without either.
_PACKAGE = Path(_core.__file__).absolute().parent


def get_include() -> str:
    """The folder to put on a C compiler's include path: it holds flashcute/flashcute.h."""
    return str(_PACKAGE / "include")


def get_library() -> str:
    """The shared library, libflashcute.so.0."""
    return str(_PACKAGE / "lib" / "libflashcute.so.0")


def get_cmake_dir() -> str:
    """The folder to give CMake as flashcute_DIR, for find_package(flashcute)."""
    return str(_PACKAGE / "lib" / "cmake" / "flashcute")
