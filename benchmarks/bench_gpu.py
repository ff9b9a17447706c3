"""`flashcute bench forward` on a GPU beside PyTorch's FlashAttention-2, with the flags of docs/perf-log.md.

python benchmarks/bench_gpu.py --seqs 2048 4096 8192 16384 --dims 64 128
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from flashcute.cli import main as flashcute


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", "--seq", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", "--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--masks", "--mask", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", help="also write the run to this file")
    arguments = parser.parse_args()
    command = ["bench", "forward", "--device", "cuda", "--peers", "SDPA-FA2", "--dtypes", arguments.dtype]
    command += ["--rounds", str(arguments.rounds), "--masks", *arguments.masks]
    for name in ("seqs", "dims"):
        command += [f"--{name}", *map(str, getattr(arguments, name))]
    with tempfile.TemporaryDirectory() as folder:
        code = flashcute([*command, "--output", folder])
        if arguments.json and code != 2:
            written = pathlib.Path(folder, "bench-forward-cuda.json").read_text(encoding="utf-8")
            pathlib.Path(arguments.json).write_text(written, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
