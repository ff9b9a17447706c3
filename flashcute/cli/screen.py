"""What both commands print with."""

from __future__ import annotations

import re
import shutil
import sys
from typing import Any

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none (a file, a pipe) wide enough to cut nothing."""
    stream = sys.stderr if stderr else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 160
    return Console(stderr=stderr, width=width, highlight=False, markup=False)


def device_label(device: dict[str, Any]) -> str:
    return "cpu" if device["type"] == "cpu" else f"cuda:{device['id']}"


def why_no_gpu(info: dict[str, Any]) -> str:
    """Why this build uses no GPU here, "" where it uses one."""
    if not info["build"]["cuda"]:
        why = str(info["build"]["cuda_description"]).removeprefix("no CUDA kernels: ")
        return f"this build of flashcute has no CUDA kernels ({why})"
    return without_argument(info["gpu"]["reason"])


def without_argument(reason: str) -> str:
    """The library's sentence without the name of the argument that it starts with."""
    return re.sub(r"^\([a-z_]+\): ", "", reason)


def notes(info: dict[str, Any]) -> list[str]:
    """Sentences about what a user might miss: a GPU that this build, or any, cannot use."""
    idle = [device for device in info["devices"] if not device["usable"]]
    if idle and not info["build"]["cuda"]:
        here = "A GPU is" if len(idle) == 1 else f"{len(idle)} GPUs are"
        return [
            f"{here} present, but {why_no_gpu(info)}. Put an nvcc on PATH and install flashcute again with "
            "FLASHCUTE_CUDA=on, which fails with the reason where it cannot."
        ]
    return [
        f"{device_label(device)} ({device['name']}) is present and cannot be used: {without_argument(device['reason'])}"
        for device in idle
    ]


def print_notes(to: Console, sentences: list[str]) -> None:
    for sentence in sentences:
        to.print(f"Note: {sentence}", style="yellow")
