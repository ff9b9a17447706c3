"""The flags of `bench`, `explain` and `profile`. Imports no rich and no NumPy, so that `--help` is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from flashcute.workloads import distributions

OPTIONAL_TENSORS = ("mask", "dense_mask", "block_mask", "bias", "alibi_slopes", "sinks", "seqused_k")
BATCH, SEQ = 1, 4096  # of `explain` and `profile`
BACKENDS = ("cpu", "cuda", "sm80", "sm90")


def whole(least: int) -> Callable[[str], int]:
    """The argparse type of integers of at least that."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, given {text!r}")
        return int(text)

    return parse


def _window(text: str) -> tuple[int, int]:
    try:
        left, right = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected LEFT,RIGHT, such as 255,0, given {text!r}") from None
    return left, right


def _distribution(text: str) -> str:
    try:
        return distributions.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def joined(argv: Sequence[str]) -> list[str]:
    """The arguments with `--window -1,0` as `--window=-1,0`: argparse takes what begins with a minus for an option."""
    result: list[str] = []
    for word in argv:
        after = len(result) > 0 and len(result[-1]) > 2 and "--window".startswith(result[-1])
        if after and re.fullmatch(r"-\d+,[+-]?\d+", word):
            result[-1] += f"={word}"
        else:
            result.append(word)
    return result


def _add_backend(parser: Any) -> None:
    parser.add_argument(
        "--backend", choices=BACKENDS, help="a family of kernels, or all those of a device (default: the fastest)"
    )


def add_problem(parser: argparse.ArgumentParser) -> None:
    of = parser.add_argument_group("problem")
    of.add_argument("--batch", type=whole(0), default=BATCH, metavar="N", help=f"(default {BATCH})")
    of.add_argument("--heads", type=whole(1), default=16, metavar="N", help="of q (default 16)")
    of.add_argument("--heads-k", type=whole(1), metavar="N", help="of k and v (default: as many as of q)")
    of.add_argument(
        "--seq", "--seqs", type=whole(0), default=SEQ, metavar="N", help=f"length of q, k and v (default {SEQ})"
    )
    of.add_argument("--seq-q", type=whole(0), metavar="N", help="length of q alone")
    of.add_argument("--seq-k", type=whole(0), metavar="N", help="length of k and v alone")
    of.add_argument(
        "--lengths",
        type=whole(0),
        nargs="+",
        metavar="N",
        help="packed: the length of each member, in place of --batch and --seq",
    )
    of.add_argument("--head-dim", "--dims", type=whole(1), default=128, metavar="N", help="of q and k (default 128)")
    of.add_argument("--head-dim-v", "--dim-v", type=whole(1), metavar="N", help="of v and out (default: that of q)")
    of.add_argument("--dtype", "--dtypes", choices=("float16", "bfloat16", "float32"), default="bfloat16")
    of.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd", help="order of the axes (default bhsd)")
    of.add_argument("--causal", action="store_true")
    of.add_argument("--alignment", choices=("bottom_right", "top_left"), default="bottom_right")
    of.add_argument(
        "--window",
        type=_window,
        metavar="LEFT,RIGHT",
        help="keys seen beside the diagonal, -1: unbounded (--window -1,16)",
    )
    of.add_argument("--softcap", type=float, metavar="X")
    of.add_argument("--dropout", type=float, metavar="P")
    _add_backend(of)
    of.add_argument("--lse", action="store_true", help="the log-sum-exp is asked for too")
    of.add_argument("--probs", action="store_true", help="the weights are asked for too")
    of.add_argument(
        "--with", dest="tensors", choices=OPTIONAL_TENSORS, nargs="+", default=[], metavar="TENSOR",
        help=f"optional tensors: {', '.join(OPTIONAL_TENSORS)}",
    )  # fmt: skip


def add_parsers(commands: Any) -> None:
    _add_bench(commands)
    _add_explain(commands)
    _add_profile(commands)


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="how a problem would be run, why so, and what it costs at the least",
        description="Tells the plan of one problem (kernel, tiles, grid, waves, memory), why other kernels were passed "
        "over, and the roofline: the time that its operations, exponentials and bytes need on the device. Nothing is "
        "run, so that --arch works without a GPU.",
    )
    on = parser.add_mutually_exclusive_group()
    on.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N")
    on.add_argument(
        "--arch", metavar="NAME", help="a GPU that need not be here: a100, a10, l40s, h100, h200, sm_80, ..."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_problem(parser)


BENCH_MODES = ("forward", "decode", "varlen", "features", "memory", "host")
BENCH_DTYPES = ("float16", "bfloat16", "float32")


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="speed and memory beside whatever other libraries are installed",
        description="Measures attention beside the libraries that are installed, in turns, run by run, so that clocks "
        "and heat hit all alike. GPU: replays of a CUDA graph and eager calls, L2 overwritten before each. Every "
        "result is compared with float64 first; a wrong one gets no figure. forward, varlen, features: FLOP/s; decode: "
        "B/s; memory: peak bytes beside textbook attention; host: what a call costs before the device has work to do.",
    )
    parser.add_argument(
        "mode", nargs="?", choices=BENCH_MODES, default="forward", help="what to measure (default forward)"
    )
    parser.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N")
    parser.add_argument("--seqs", "--seq", type=whole(1), nargs="+", metavar="N", help="lengths; decode: of the keys")
    parser.add_argument("--dims", "--head-dim", type=whole(1), nargs="+", metavar="N", help="head dims")
    parser.add_argument(
        "--dim-v", "--head-dim-v", type=whole(1), metavar="N", help="head dim of v and out (default: as of q)"
    )
    parser.add_argument("--masks", choices=("full", "causal"), nargs="+", help="default: both")
    parser.add_argument(
        "--dtypes", "--dtype", choices=BENCH_DTYPES, nargs="+", help="default: GPU bfloat16, CPU float32 and bfloat16"
    )
    parser.add_argument("--batch", type=whole(1), metavar="N", help="default: GPU --tokens / length, CPU and memory 1")
    parser.add_argument("--tokens", type=whole(1), metavar="N", help="batch x length where --batch is not given")
    parser.add_argument("--heads", type=whole(1), metavar="N", help="of q (default: GPU 2048 / head dim, CPU 8)")
    parser.add_argument(
        "--heads-k", type=whole(1), metavar="N", help="of k and v (default: as of q; decode: a quarter)"
    )
    parser.add_argument(
        "--lengths", choices=("uniform", "equal", "zipf"),
        help="varlen: of the members, up to one of --seqs: uniform from a sixteenth of it (default), all equal, or "
        "Zipf's with exponent 1.2, no less than 16",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=_distribution, nargs="+", metavar="NAME",
        help="forward: distributions of the scores beside normal, the default: "
        f"{', '.join(distributions.NAMES[1:])}, or wide and a factor of q",
    )  # fmt: skip
    parser.add_argument(
        "--peers", nargs="*", metavar="NAME", help="which libraries beside flashcute (default: all found)"
    )
    parser.add_argument(
        "--rounds", type=whole(1), metavar="N", help="timed runs of each (default: GPU 30, CPU 1 s worth)"
    )
    parser.add_argument(
        "--load", choices=("rested", "sustained"), default="rested",
        help="GPU: sustained calls each library without a pause for --span seconds in each turn (default rested)",
    )  # fmt: skip
    parser.add_argument("--span", type=float, default=0.3, metavar="S", help="of --load sustained (default 0.3)")
    parser.add_argument("--calls", type=whole(1), default=100, metavar="N", help="host: calls in a round (default 100)")
    _add_backend(parser)
    parser.add_argument("--threads", type=whole(1), metavar="N", help="CPU: of every library")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the inputs (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--output", metavar="DIR", help="also write the run there as JSON, and its plots as PNG")
    parser.add_argument(
        "--from", dest="saved", nargs="+", metavar="FILE", help="show runs saved by --output, measure nothing"
    )


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="one kernel under Nsight Compute, and a digest of its report",
        description="Runs one problem under Nsight Compute (ncu), skipping warm-up launches, with the clocks left "
        "alone, keeps the report, and prints a digest beside the roofline. With --report it digests reports that "
        "exist, two of them side by side.",
    )
    parser.add_argument("--output", metavar="FILE", help="the report to write (default: flashcute-KERNEL.ncu-rep)")
    parser.add_argument("--force", action="store_true", help="overwrite a report of that name")
    parser.add_argument(
        "--compare", metavar="FILE", help="an earlier report (.ncu-rep, or its raw page as .csv) to set beside"
    )
    parser.add_argument("--report", nargs="+", metavar="FILE", help="digest one report, or compare two; runs nothing")
    parser.add_argument(
        "--warmup", type=whole(0), default=3, metavar="N", help="launches before the profiled one (default 3)"
    )
    parser.add_argument("--kernel", default="attention_kernel", metavar="REGEX", help="of the kernel's function name")
    parser.add_argument(
        "--set", dest="sections", choices=("digest", "full"), default="digest", help="full: all sections of ncu"
    )
    parser.add_argument("--ncu", metavar="FILE", help="the ncu program (default: from PATH or a CUDA toolkit)")
    parser.add_argument("--device", default="auto", help="auto, cuda or cuda:N")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_problem(parser)
