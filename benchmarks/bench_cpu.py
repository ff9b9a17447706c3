"""CPU attention against PyTorch's scaled_dot_product_attention, with equal threads, interleaved run by run.

    python benchmarks/bench_cpu.py                          # the grid of README and docs/perf-log.md
    python benchmarks/bench_cpu.py --dtype bfloat16 --seq 2048 --head-dim 80 96

Work counted: 4 * B * H * S * S * D, half of it for causal. Each result is compared with PyTorch's, and one head of it
with float64. Needs torch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import flashcute
from flashcute import reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Largest difference between two right results of normally distributed inputs, several roundings of the type wide.
AGREEMENT = {"float32": 1e-4, "bfloat16": 6e-2, "float16": 8e-3}

SETTLE = 0.02  # seconds before each call: PyTorch's idle threads spin for milliseconds on the other's cores


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seq", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--heads-k", type=int, default=None, help="key heads; default: as many as --heads")
    parser.add_argument("--mask", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--threads", type=int, default=flashcute.get_num_threads())
    parser.add_argument("--runs", type=int, default=None, help="timed runs of each; default: about a second's worth")
    return parser.parse_args()


def seconds(call) -> float:
    time.sleep(SETTLE)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls, runs: int | None) -> list[list[float]]:
    """Times of each call, taken in turns after one untimed round."""
    slowest = max(seconds(call) for call in calls)
    rounds = runs or min(30, max(5, int(1.0 / (slowest * len(calls)))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            taken.append(seconds(call))
    return times


def check(out, want, q, k, v, causal: bool, name: str) -> str:
    """Empty when out agrees with PyTorch's result everywhere and with float64 in the last head."""
    difference = (out.float() - want.float()).abs().max().item()
    if not difference <= AGREEMENT[name]:
        return f"differs from PyTorch by {difference:.3g}"
    heads = [t[-1:, -1:].float().numpy().astype(np.float64) for t in (out, q, k, v)]
    verdict = reference.judge(heads[0], None, *heads[1:], dtype=name, causal=causal)
    return "" if verdict else verdict.message


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    flashcute.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    console = Console(width=None if sys.stdout.isatty() else 130)
    batch, heads = arguments.batch, arguments.heads
    heads_k = arguments.heads_k or heads
    table = Table(
        title=f"GFLOP/s, median (best); {arguments.threads} threads, batch {batch}, heads {heads}/{heads_k}, "
        f"torch {torch.__version__}, flashcute {flashcute.__version__}"
    )
    for title in ("dtype", "seq", "head dim", "mask"):
        table.add_column(title)
    for title in ("flashcute", "torch", "ratio", "ratio of bests"):
        table.add_column(title, justify="right")
    table.add_column("check")

    wrong = 0
    status = console.status("")
    status.start()
    for name in arguments.dtype:
        for seq in arguments.seq:
            for depth in arguments.head_dim:
                q = torch.randn(batch, heads, seq, depth).to(DTYPES[name])
                k, v = (torch.randn(batch, heads_k, seq, depth).to(DTYPES[name]) for _ in range(2))
                for mask in arguments.mask:
                    status.update(f"{name}, seq {seq}, head dim {depth}, {mask}")
                    causal = mask == "causal"
                    out = torch.empty_like(q)

                    def ours(q=q, k=k, v=v, out=out, causal=causal):
                        return flashcute.attention(q, k, v, out=out, causal=causal)

                    def theirs(q=q, k=k, v=v, causal=causal):
                        return torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, is_causal=causal, enable_gqa=heads_k != heads
                        )

                    a, b = interleaved([ours, theirs], arguments.runs)
                    message = check(out, theirs(), q, k, v, causal, name)
                    wrong += bool(message)
                    work = 4e-9 * batch * heads * seq * seq * depth / (2 if causal else 1)
                    rates = [f"{work / statistics.median(t):.0f} ({work / min(t):.0f})" for t in (a, b)]
                    ratios = [f"{statistics.median(b) / statistics.median(a):.2f}", f"{min(b) / min(a):.2f}"]
                    verdict = "[red]" + message if message else "[green]agrees"
                    table.add_row(name, str(seq), str(depth), mask, *rates, *ratios, verdict)
    status.stop()
    console.print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
