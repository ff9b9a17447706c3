"""`flashcute bench host` on a GPU, with the flags of docs/perf-log.md.

python benchmarks/bench_host.py
"""

from __future__ import annotations

import argparse
import sys

from flashcute.cli import main as flashcute


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--calls", type=int, default=100, help="calls in a batch; the queue holds about 1000")
    arguments = parser.parse_args()
    sizes = ["--rounds", str(arguments.batches), "--calls", str(arguments.calls)]
    return flashcute(["bench", "host", "--device", "cuda", *sizes])


if __name__ == "__main__":
    sys.exit(main())
