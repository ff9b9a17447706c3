"""Host time of a call on tiny CUDA tensors: what Python pays before the GPU has anything to do.

    python benchmarks/bench_host.py

Every figure is the median over batches of the mean time of a call in a batch; the GPU's queue is drained between
batches, outside the clock, so that no call waits for room in it. Contenders are interleaved, batch by batch.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashcute

LIMITS = {"flashcute.attention": 10.0, "AttentionDescriptor.run, out given": 3.0}  # microseconds


def contenders(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
    out = torch.empty_like(q)
    add = torch.ones(16, device="cuda")
    descriptor = flashcute.AttentionDescriptor(q, k, v)
    workspace = torch.empty(max(descriptor.workspace_size, 1), device="cuda", dtype=torch.uint8)
    stream = torch.cuda.current_stream().cuda_stream
    yield "flashcute.attention", lambda: flashcute.attention(q, k, v)
    yield "flashcute.attention, causal, lse", lambda: flashcute.attention(q, k, v, causal=True, return_lse=True)
    yield "flashcute.attention, out given", lambda: flashcute.attention(q, k, v, out=out)
    yield "AttentionDescriptor.run", lambda: descriptor.run(q, k, v)
    yield "AttentionDescriptor.run, out given", lambda: descriptor.run(q, k, v, out=out, workspace=workspace)
    yield "AttentionDescriptor.run, out and stream given", lambda: descriptor.run(q, k, v, out=out, stream=stream)
    yield "torch SDPA, FA2 backend", lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    yield "torch.empty_like", lambda: torch.empty_like(q)
    yield "torch.add, in place", lambda: add.add_(1.0)


def measure(calls: dict[str, Callable[[], Any]], batches: int, calls_in_batch: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(100):
            call()
    torch.cuda.synchronize()
    gc.disable()
    for _ in range(batches):
        for name, call in calls.items():
            call()  # its code and data come back into the caches
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls_in_batch):
                call()
            times[name].append((time.perf_counter() - start) / calls_in_batch * 1e6)
            torch.cuda.synchronize()
    gc.enable()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--calls", type=int, default=100, help="calls in a batch; the queue holds about 1000")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_host.py measures calls on CUDA tensors, and PyTorch finds no CUDA device.")
    shape = (1, 2, 16, 64)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {shape} bfloat16")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))
        times = measure(dict(contenders(shape, torch.bfloat16)), options.batches, options.calls)
    print(f"{'call':<48}{'median':>9}{'best':>9}  µs")
    for name, values in times.items():
        limit = f"  (at most {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"{name:<48}{statistics.median(values):>9.2f}{min(values):>9.2f}{limit}")


if __name__ == "__main__":
    main()
