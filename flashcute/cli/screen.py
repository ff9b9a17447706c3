"""What both commands print with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

_PIPED_COLUMNS = 160
_LINES = "    \n    \n ── \n    \n    \n    \n    \n    \n"  # in rich's notation
GAP = 2  # blanks between the columns of a table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would exit with 1, which is the code of a miss: flashcute.cli.main knows better."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console of COLUMNS columns, or as wide as the terminal; a file or pipe is wide enough to cut little."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(stderr=stderr, width=_columns(stream), highlight=False, markup=False, emoji=False)


def _columns(stream: Any) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and 0 < int(columns) < 10000:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PIPED_COLUMNS
    except (AttributeError, OSError, ValueError):
        return _PIPED_COLUMNS


def plain(to: Console, text: str) -> str:
    """The text, spelled in ASCII where the console can show nothing else."""
    return text.replace("µ", "u").encode("ascii", "replace").decode() if to.options.ascii_only else text


def say(to: Console, sentence: str, style: str = "") -> None:
    """A sentence, folded where the console's width is someone's choice, on one line for other pipes and files."""
    folded = to.is_terminal or bool(os.environ.get("COLUMNS"))
    to.print(plain(to, sentence), style=style, soft_wrap=not folded)


def empty_table(to: Console) -> Table:
    """No lines but one under the headings."""
    lines = box.Box(_LINES.replace("─", "-"), ascii=True) if to.options.ascii_only else box.Box(_LINES)
    return Table(box=lines, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[int, int]:
    """Of the columns that are not empty, by their number."""
    return {
        i: max(cell_len(line) for row in [headings, *rows] for line in row[i].split("\n"))
        for i in range(len(headings))
        if any(row[i] for row in rows)
    }


def fits(to: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of these would show every column."""
    widths = _widths(headings, rows)
    return sum(widths.values()) + GAP * (len(widths) - 1) <= to.width


def table(to: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns in order of importance, under a heading each or all under none.

    Empty ones are left out, and the last ones where the console is too narrow.
    """
    widths = _widths(headings, rows)
    shown = list(widths)
    while len(shown) > 2 and sum(widths[i] for i in shown) + GAP * (len(shown) - 1) > to.width:
        shown.pop()
    made = empty_table(to)
    made.show_header = any(headings)
    for i in shown:
        made.add_column(headings[i], overflow="fold")
    for row in rows:
        made.add_row(*(plain(to, row[i]) for i in shown))
    return made


def device_label(device: dict[str, Any]) -> str:
    return "cpu" if device["type"] == "cpu" else f"cuda:{device['id']}"


def choose_device(info: dict[str, Any], device: str) -> dict[str, Any] | str:
    """The device called auto, cpu, cuda or cuda:N, or a sentence that says why there is none."""
    kind, colon, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (
        colon and not (kind == "cuda" and number.isascii() and number.isdigit())
    ):
        return f"--device: expected auto, cpu, cuda or cuda:N, given {device}"
    usable = [entry for entry in info["devices"] if entry["usable"] and any(k["can_run"] for k in entry["kernels"])]
    gpus = [entry for entry in usable if entry["type"] != "cpu" and (not colon or entry["id"] == int(number))]
    if kind != "cpu" and gpus:
        return dict(gpus[0])
    if kind == "cuda":
        return f"--device {device}: {why_no_gpu(info) or 'no such GPU of this machine can be used'}"
    return dict(next(entry for entry in usable if entry["type"] == "cpu"))


def head_dims(kernel: dict[str, Any]) -> str:
    """The buckets of a kernel, or of a plan: of q and k, and of v where it has its own."""
    return "/".join(map(str, dict.fromkeys((kernel["head_dim"], kernel["head_dim_v"]))))


def time_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def with_prefix(value: float, unit: str) -> str:
    """ "1.37 TFLOP/s" of 1.37e12."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:#.3g}".rstrip(".") + f" {prefix}{unit}"
    return f"{value:.3g} {unit}"


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
        say(to, f"Note: {sentence}", "yellow")
