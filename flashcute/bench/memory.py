"""Peak memory of a call beside textbook attention, over the length: linear against quadratic."""

from __future__ import annotations

import ctypes
import errno
import pathlib
from collections.abc import Callable
from typing import Any

import torch

import flashcute
from flashcute.bench.clocks import no_memory
from flashcute.bench.problems import DTYPES, Inputs, Problem, draw
from flashcute.bench.record import Row, Run

PLAIN = "textbook"

_PLAIN_LIMIT = {"cuda": 16 << 30, "cpu": 1 << 30}  # bytes of its score matrix, above which it is left out
_M_MMAP_THRESHOLD = -3  # of <malloc.h>
_STATUS, _CLEAR = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


class CannotMeasureError(Exception):
    """One sentence on why the system does not tell."""


def plain_attention(inputs: Inputs) -> torch.Tensor:
    """softmax(scale QKᵀ + mask) V, as a textbook has it, in the type of its inputs."""
    case = inputs.problem.case
    group = case.heads[0] // case.heads[1]
    k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (inputs.k, inputs.v))
    scores = (inputs.q @ k.transpose(-1, -2)) * case.head_dim[0] ** -0.5
    if case.options.get("causal"):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(
            1 + case.seq[1] - case.seq[0]
        )
        scores.masked_fill_(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def measure(run: Run, problems: list[Problem], *, seed: int, step: Callable[[str], None]) -> None:
    gpu = run.device.startswith("cuda")
    peak = _gpu_peak if gpu else _cpu_peak
    for problem in problems:
        case = problem.case
        step(f"{problem.panel}, {problem.x}")
        try:
            inputs = draw(problem, run.device, seed)
        except RuntimeError as error:
            if not no_memory(error):
                raise
            run.rows += [
                Row(run.id, problem.facts(), name, "no", "the device has too little memory for the inputs")
                for name in ("flashcute", PLAIN)
            ]
            continue

        def ours(inputs: Inputs = inputs) -> object:
            return flashcute.attention(inputs.q, inputs.k, inputs.v, **inputs.problem.case.options)

        def textbook(inputs: Inputs = inputs) -> object:
            return plain_attention(inputs)

        for name, call in (("flashcute", ours), (PLAIN, textbook)):
            scores = case.batch * case.heads[0] * case.seq[0] * case.seq[1] * DTYPES[case.dtype].itemsize
            row: dict[str, Any] = {"run": run.id, "problem": problem.facts(), "library": name}
            if name == PLAIN and scores > _PLAIN_LIMIT[run.device.partition(":")[0]]:
                reason = f"its scores alone would take {scores / 2**30:.0f} GiB"
                run.rows.append(Row(**row, status="no", reason=reason))
                continue
            try:
                run.rows.append(Row(**row, status="ok", peak_bytes=float(peak(call))))
            except RuntimeError as error:
                if not no_memory(error):
                    raise
                run.rows.append(Row(**row, status="no", reason="the device has too little memory for it"))
        del inputs


def _gpu_peak(call: Callable[[], object]) -> int:
    """Bytes above those of the inputs, the result included, as PyTorch's allocator counts them."""
    call()  # libraries' own workspaces are no part of one call
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def _give_back_free_memory() -> None:
    """Lets each large array come from the system and go back to it, so that what is free counts as neither."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
        libc.malloc_trim(0)


def _cpu_peak(call: Callable[[], object]) -> int:
    """Bytes of resident memory above those before the call, the result included."""
    _give_back_free_memory()
    try:
        _CLEAR.write_text("5")  # the high-water mark comes down to what is resident now
        before = _resident("VmRSS")
        result = call()
        after = _resident("VmHWM")
        del result
        return max(0, after - before)
    except OSError as error:
        raise CannotMeasureError(
            f"the peak memory of a CPU call is read from /proc/self, which fails here ({error.strerror})"
        ) from None


def _resident(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(errno.ENODATA, f"no {name}")
