"""Host time of a call on tiny CUDA tensors: what Python pays before the GPU has anything to do.

Every figure is the median over batches of the mean time of a call in a batch; the GPU's queue is drained between
batches, outside the clock, so that no call waits for room in it. Contestants are interleaved, batch by batch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashcute
from flashcute.bench.record import Row, Run, Times

SHAPE = (1, 2, 16, 64)


def contestants(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    q, k, v = (torch.randn(SHAPE, device=device, dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    add = torch.ones(16, device=device)
    descriptor = flashcute.AttentionDescriptor(q, k, v)
    workspace = torch.empty(max(descriptor.workspace_size, 1), device=device, dtype=torch.uint8)
    yield "flashcute.attention", lambda: flashcute.attention(q, k, v)
    yield "flashcute.attention, causal, lse", lambda: flashcute.attention(q, k, v, causal=True, return_lse=True)
    yield "flashcute.attention, out given", lambda: flashcute.attention(q, k, v, out=out)
    yield "AttentionDescriptor.run", lambda: descriptor.run(q, k, v)
    yield "AttentionDescriptor.run, out given", lambda: descriptor.run(q, k, v, out=out, workspace=workspace)
    if q.is_cuda:
        stream = torch.cuda.current_stream().cuda_stream
        yield "AttentionDescriptor.run, out and stream given", lambda: descriptor.run(q, k, v, out=out, stream=stream)
        sdpa = "torch SDPA, FA2 backend"
    else:
        sdpa = "torch SDPA"
    yield sdpa, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    yield "torch.empty_like", lambda: torch.empty_like(q)
    yield "torch.add, in place", lambda: add.add_(1.0)


def measure(run: Run, *, batches: int, calls: int, step: Callable[[str], None]) -> None:
    """Fills run.rows; `eager` of a row is the time of one call. At most about 1000 calls fit into a GPU's queue."""
    gpu = run.device.startswith("cuda")
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    step("calls")
    if not gpu:  # a second thread on the one core that is left below would only wait
        torch.set_num_threads(1)
        flashcute.set_num_threads(1)
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(affinity)})
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if gpu else contextlib.nullcontext():
            times = _times(dict(contestants(run.device)), batches, calls, synchronize)
    finally:
        os.sched_setaffinity(0, affinity)
    facts = {"dtype": "bfloat16", "shape": list(SHAPE), "x": 0, "panel": "host", "label": ""}
    for name, values in times.items():
        run.rows.append(Row(run.id, facts, name, "ok", eager=Times.of(values)))


def _times(
    calls: dict[str, Callable[[], Any]], batches: int, calls_in_batch: int, synchronize: Callable[[], None]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(100):
            call()
    synchronize()
    gc.disable()
    try:
        for _ in range(batches):
            for name, call in calls.items():
                call()  # its code and data come back into the caches
                synchronize()
                start = time.perf_counter()
                for _ in range(calls_in_batch):
                    call()
                times[name].append((time.perf_counter() - start) / calls_in_batch)
                synchronize()
    finally:
        gc.enable()
    return times
