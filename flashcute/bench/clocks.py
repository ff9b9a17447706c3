"""Timing in turns. One round calls every contestant once, and each round begins with another, so that clocks, heat,
neighbours and the call before hit all alike."""

from __future__ import annotations

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
