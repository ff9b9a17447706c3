"""Timing in turns. One round calls every contestant once, and each round begins with another, so that clocks, heat,
neighbours and the call before hit all alike."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_cuda: Any = torch.cuda  # whose classes have no types

Call = Callable[[], object]

_FLUSHED_BYTES = 256 << 20  # more than any L2 holds
_SETTLE = 0.02  # seconds before each call: PyTorch's idle threads spin for milliseconds on the other's cores


def no_memory(error: RuntimeError) -> bool:
    """Whether PyTorch says that an array did not fit: the CPU's allocator has no exception of its own."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Contestant:
    """A call, and what is to be done, outside of the clock, before it."""

    call: Call
    before: Call = _nothing


def replayed(contestant: Contestant) -> Contestant:
    """The call as the replay of a CUDA graph."""
    contestant.before()
    side = _cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            contestant.call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        contestant.call()
    return Contestant(graph.replay)


def _turned(contestants: dict[str, Contestant], turn: int) -> list[tuple[str, Contestant]]:
    entries = list(contestants.items())
    first = turn % len(entries)
    return entries[first:] + entries[:first]


def gpu_seconds(contestants: dict[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """Times of each call by events on the current stream, L2 overwritten before each call."""
    flush = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant.before()
        contestant.call()
    for turn in range(rounds):
        for name, contestant in _turned(contestants, turn):
            contestant.before()
            flush.zero_()
            pair = (_cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True))
            pair[0].record()
            contestant.call()
            pair[1].record()
            events[name].append(pair)
        torch.cuda.synchronize()
    return {name: [1e-3 * a.elapsed_time(b) for a, b in pairs] for name, pairs in events.items()}


@dataclass(frozen=True)
class Sustained:
    """One library's share of a turn under load."""

    seconds: float  # of a call, on average
    megahertz: float | None  # of the multiprocessors; None where the driver does not tell
    watts: float | None


def sustained(contestants: dict[str, Contestant], rounds: int, span: float, gpu: str) -> dict[str, list[Sustained]]:
    """Each contestant in turn is called for `span` seconds without a pause, so that clocks settle where the power limit
    holds them. L2 is left alone. One turn before the first is not kept.

    gpu: the index or UUID by which nvidia-smi knows the GPU.
    """
    found: dict[str, list[Sustained]] = {name: [] for name in contestants}
    with Telemetry(gpu) as telemetry:
        for turn in range(rounds + 1):
            for name, contestant in _turned(contestants, turn):
                measured = _one_span(contestant, span, telemetry)
                if turn > 0:
                    found[name].append(measured)
    return found


def _one_span(contestant: Contestant, span: float, telemetry: Telemetry) -> Sustained:
    contestant.before()
    first, last = (_cuda.Event(enable_timing=True) for _ in range(2))
    calls = 0
    first.record()
    begun = time.monotonic()
    while time.monotonic() - begun < span:
        for _ in range(8):
            contestant.call()
        calls += 8
        last.record()
        if calls % 64 == 0:
            last.synchronize()  # the queue stays short, so that the span is the device's
    torch.cuda.synchronize()
    ended = time.monotonic()
    return Sustained(1e-3 * first.elapsed_time(last) / calls, *telemetry.between(begun + span / 3, ended))


class Telemetry:
    """A GPU's clock and power, sampled by nvidia-smi while a with block runs. Empty where there is none."""

    _MILLISECONDS = 50

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._process: subprocess.Popen[str] | None = None
        self._samples: list[tuple[float, float, float]] = []  # time, MHz, watts

    def __enter__(self) -> Telemetry:
        command = [
            "nvidia-smi", "-i", self._gpu, "--query-gpu=clocks.sm,power.draw.instant",
            "--format=csv,noheader,nounits", "-lms", str(self._MILLISECONDS),
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
            )
        except OSError:
            return self
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _read(self) -> None:
        assert self._process is not None
        for line in self._process.stdout or ():
            try:
                megahertz, watts = (float(word) for word in line.split(","))
            except ValueError:
                continue
            self._samples.append((time.monotonic(), megahertz, watts))

    def between(self, begin: float, end: float) -> tuple[float | None, float | None]:
        """The medians of the clock and of the power."""
        inside = [sample for sample in list(self._samples) if begin <= sample[0] <= end]
        if not inside:
            return None, None
        return statistics.median(x[1] for x in inside), statistics.median(x[2] for x in inside)


def cpu_seconds(contestants: dict[str, Contestant], rounds: int | None) -> dict[str, list[float]]:
    """Times of each call by the host's clock, after one untimed round. Without `rounds`: about a second's worth."""

    def seconds(contestant: Contestant) -> float:
        contestant.before()
        time.sleep(_SETTLE)
        start = time.perf_counter()
        contestant.call()
        return time.perf_counter() - start

    slowest = max(seconds(contestant) for contestant in contestants.values())
    rounds = rounds or min(30, max(5, int(1.0 / (slowest * len(contestants)))))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name, contestant in _turned(contestants, turn):
            times[name].append(seconds(contestant))
    return times
