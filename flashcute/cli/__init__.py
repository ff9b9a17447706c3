"""The command line: ``flashcute check``, ``info``, ``bench``, ``explain`` and ``profile``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import flashcute
from flashcute.cli import flags

__all__ = ["main"]

_USAGE = 2  # argparse's own code; 1 is a miss of `check`
_INTERRUPTED = 130  # a shell's codes for a program that SIGINT or SIGPIPE ended
_BROKEN_PIPE = 141


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 100):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, given {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashcute", description="Exact attention on GPUs and CPUs.")
    parser.add_argument("--version", action="version", version=f"flashcute {flashcute.__version__}")
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
    check.add_argument("--seed", type=_seed, help="of the random inputs; fresh ones are drawn without it")
    check.add_argument("--json", action="store_true", help="print one JSON object instead of a table")

    info = commands.add_parser(
        "info",
        help="version, build, devices, and which kernels can run here",
        description="Tells the version, how it was built, the devices of this machine, and for each compiled kernel "
        "why it can or cannot run here.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object instead of tables")

    flags.add_parsers(commands)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(flags.joined(sys.argv[1:] if argv is None else argv))
    # The commands import rich, which `--help` and a mistyped command can do without.
    if arguments.command == "check":
        from flashcute.cli import check

        return check.run(arguments.device, arguments.quick, arguments.seed, arguments.json)
    if arguments.command == "bench":
        from flashcute.cli import bench

        return bench.run(arguments)
    if arguments.command == "explain":
        from flashcute.cli import explain

        return explain.run(arguments)
    if arguments.command == "profile":
        from flashcute.cli import profile

        return profile.run(arguments)
    from flashcute.cli import info

    return info.run(arguments.json)


def _give_up_output() -> None:
    """Lets the interpreter's last flush, of what could not be written, succeed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the return value is the exit code."""
    if sys.stdout is None:  # closed by the caller, so that print() says nothing to nobody
        print("flashcute: cannot write the output: standard output is closed", file=sys.stderr)
        return _USAGE
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print("flashcute: the commands need rich, which is not installed: pip install rich", file=sys.stderr)
        return _USAGE
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _give_up_output()
        return _BROKEN_PIPE
    except OSError as error:
        _give_up_output()
        print(f"flashcute: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return _USAGE
    except flashcute.Error as error:
        print(f"flashcute: {error}", file=sys.stderr)
        return _USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
