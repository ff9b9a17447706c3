"""flashcute's build backend: scikit-build-core's, with what a build of several minutes needs around it.

It fetches CUTLASS, and where it was asked for CUDA also nvcc, only when the build will use them (`requirements`); keeps
the objects and the headers that they depend on below build/, so that a second or interrupted build goes on where the
first one stopped (`folders`); and shows how far the compilation is, and logs it (`progress`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from scikit_build_core import build as skbuild
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from flashcute_backend import folders, progress, requirements
from flashcute_backend.options import Options

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, str | list[str]]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    return [*skbuild.get_requires_for_build_wheel(config_settings), *requirements.missing(Options(config_settings))]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return [*skbuild.get_requires_for_build_editable(config_settings), *requirements.missing(Options(config_settings))]


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return _build(skbuild.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return _build(skbuild.build_editable, wheel_directory, config_settings, metadata_directory)


def _build(
    hook: Callable[[str, Settings | None, str | None], str],
    wheel_directory: str,
    config_settings: Settings | None,
    metadata_directory: str | None,
) -> str:
    start = time.monotonic()
    options = Options(config_settings)
    with folders.build_folder(options) as folder, progress.Log(folder) as log:
        # CMake and scikit-build-core read these in this process and its children, which end with the build.
        os.environ.update(requirements.provide(options, folders.trees(options, folder)))
        os.environ["NINJA_STATUS"] = progress.NINJA_STATUS
        if not options.build_dir:
            os.environ["SKBUILD_BUILD_DIR"] = str(folder)
        name = hook(wheel_directory, config_settings, metadata_directory)
        size = Path(wheel_directory, name).stat().st_size / 1e6
        log.say(f"built {name}, {size:.2f} MB, in {time.monotonic() - start:.0f} s")
    return name
