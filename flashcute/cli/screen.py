"""What both commands print with."""

from __future__ import annotations

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


def why_no_cuda(info: dict[str, Any]) -> str:
    return str(info["build"]["cuda_description"]).removeprefix("no CUDA kernels: ")


def notes(info: dict[str, Any]) -> list[str]:
    """Sentences about what a user might miss: a GPU that this build cannot use."""
    found = info["gpus_of_the_driver"]
    if found and not info["build"]["cuda"]:
        gpus = "A GPU is" if found == 1 else f"{found} GPUs are"
        return [
            f"{gpus} present, but this build of flashcute has no CUDA kernels ({why_no_cuda(info)}). Put an nvcc on "
            "PATH and install it again with FLASHCUTE_CUDA=on, which fails with the reason where it cannot."
        ]
    return [
        f"{device_label(device)} ({device['name']}) cannot be used: {device['reason']}"
        for device in info["devices"]
        if not device["usable"]
    ]


def print_notes(to: Console, sentences: list[str]) -> None:
    for sentence in sentences:
        to.print(f"Note: {sentence}", style="yellow")
