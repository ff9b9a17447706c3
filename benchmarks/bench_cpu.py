"""`flashcute bench forward` on the CPU beside PyTorch's attention, with the flags of docs/perf-log.md.

python benchmarks/bench_cpu.py                          # the grid of docs/perf-log.md
python benchmarks/bench_cpu.py --dtype bfloat16 --seq 2048 --head-dim 80 96
"""

from __future__ import annotations

import argparse
import sys

from flashcute.cli import main as flashcute

DTYPES = ("float32", "bfloat16", "float16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", "--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seq", "--seqs", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--head-dim", "--dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--heads-k", type=int, help="key heads; default: as many as --heads")
    parser.add_argument("--mask", "--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runs", type=int, help="timed runs of each; default: about a second's worth")
    arguments = parser.parse_args()
    command = ["bench", "forward", "--device", "cpu", "--dtypes", *arguments.dtype, "--masks", *arguments.mask]
    command += ["--seqs", *map(str, arguments.seq), "--dims", *map(str, arguments.head_dim)]
    for flag, value in (
        ("--batch", arguments.batch),
        ("--heads", arguments.heads),
        ("--heads-k", arguments.heads_k),
        ("--threads", arguments.threads),
        ("--rounds", arguments.runs),
    ):
        if value is not None:
            command += [flag, str(value)]
    return flashcute(command)


if __name__ == "__main__":
    sys.exit(main())
