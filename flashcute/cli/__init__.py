"""The command line: ``flashcute check`` and ``flashcute info``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashcute", description="Exact attention on GPUs and CPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser(
        "check",
        help="compute attention on this machine's best device and compare with float64",
        description="Computes attention over a spread of shapes, types and features on one device of this machine and "
        "compares each result with textbook attention in float64. Exits with 1 on any miss.",
    )
    check.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto: a GPU where there is one"
    )
    check.add_argument("--quick", action="store_true", help="a few small problems only")
    check.add_argument("--seed", type=int, help="of the random inputs; fresh ones are drawn without it")
    check.add_argument("--json", action="store_true", help="print one JSON object instead of a table")

    info = commands.add_parser(
        "info",
        help="version, build, devices, and which kernels can run here",
        description="Tells the version, how it was built, the devices of this machine, and for each compiled kernel "
        "why it can or cannot run here.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the return value is the exit code."""
    arguments = _parser().parse_args(argv)
    # The commands import rich and the library, which `--help` and a mistyped command can do without.
    if arguments.command == "check":
        from flashcute.cli import check

        return check.run(arguments.device, arguments.quick, arguments.seed, arguments.json)
    from flashcute.cli import info

    return info.run(arguments.json)
