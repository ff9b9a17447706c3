"""The wheels that a build takes headers and nvcc from, and the copies of them that are kept."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flashcute_backend import folders
from flashcute_backend.options import Options

CUTLASS = "4.2.0.0"
# 13.0 and not the newest: its PTX is what the oldest driver for CUDA 13, 580, still compiles.
NVCC = "13.0.88"
CUDA_WHEELS = [
    f"nvidia-cuda-nvcc=={NVCC}",
    f"nvidia-cuda-crt=={NVCC}",
    f"nvidia-nvvm=={NVCC}",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]


def missing(options: Options) -> list[str]:
    """What pip must bring into the build's environment: nothing that the build will not use, nothing twice."""
    trees = folders.trees(options, None)
    result = []
    if options.cuda and not options.cutlass_dir and not (trees / f"cutlass-{CUTLASS}").is_dir():
        result.append(f"nvidia-cutlass=={CUTLASS}")
    if options.fetch_nvcc and not (trees / f"cuda-{NVCC}").is_dir():
        result += CUDA_WHEELS
    return result


def provide(options: Options, trees: Path) -> dict[str, str]:
    """Variables for CMake: where the headers and nvcc are, at paths that stay.

    pip's isolated environment has another path in every build, and an object whose headers moved is out of date.
    """
    result = {}
    if not options.nanobind_dir and (kept := _tree(trees, "nanobind", "nanobind", None, _package("nanobind"))):
        result["FLASHCUTE_NANOBIND_DIR"] = str(kept)
    if not options.cuda:
        return result
    if not options.cutlass_dir:
        include = [path / "source" / "include" for path in _package("cutlass_library")]
        if kept := _tree(trees, "cutlass", "nvidia-cutlass", CUTLASS, include):
            result["FLASHCUTE_CUTLASS_DIR"] = str(kept)
    if options.fetch_nvcc:
        toolkits = [path / "cu13" for path in _package("nvidia") if (path / "cu13" / "bin" / "nvcc").is_file()]
        if kept := _tree(trees, "cuda", "nvidia-cuda-nvcc", NVCC, toolkits):
            result["CUDACXX"] = str(kept / "bin" / "nvcc")
    return result


def _package(name: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return [Path(path) for path in (spec.submodule_search_locations or [])] if spec else []


def _tree(trees: Path, name: str, wheel: str, pinned: str | None, sources: list[Path]) -> Path | None:
    """The kept copy of a wheel's folder, made where it is not there yet; None where there is neither."""
    sources = [source for source in sources if source.is_dir()]
    try:
        version = importlib.metadata.version(wheel) if sources else pinned
    except importlib.metadata.PackageNotFoundError:
        version = pinned
    kept = trees / f"{name}-{version}"
    if not kept.is_dir() and sources:
        # Under another name at first, so that a folder of that name is always complete.
        with tempfile.TemporaryDirectory(dir=trees, prefix=".") as temporary:
            copy = Path(temporary, name)
            shutil.copytree(sources[0], copy, copy_function=_link_or_copy, ignore=_unneeded)
            if (copy / "lib").is_dir() and not (copy / "lib64").exists():
                (copy / "lib64").symlink_to("lib")  # where nvcc looks
            try:
                copy.rename(kept)
            except OSError:  # another build was first
                if not kept.is_dir():
                    raise
    return kept if kept.is_dir() else None


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _unneeded(folder: str, names: list[str]) -> Iterator[str]:
    """Byte code, and the shared libraries of CUDA: nvcc needs none, and there may be gigabytes."""
    return (name for name in names if name == "__pycache__" or (Path(folder).name == "lib" and ".so" in name))
