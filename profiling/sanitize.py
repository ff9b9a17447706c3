"""Runs the four tools of NVIDIA's compute-sanitizer over small problems of every GPU kernel and feature.

    python profiling/sanitize.py                        # all four, one to four minutes
    python profiling/sanitize.py --tool racecheck --output reports

Prints each tool's verdict and keeps its report. Exits with 1 on any finding or wrong result, with 2 where a tool could
not run. sanitize_problems.py has the problems, and says why their memory is not a framework's.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flashcute.cli import info as info_command
from flashcute.cli import screen

PROBLEMS = pathlib.Path(__file__).with_name("sanitize_problems.py")
# What cudaMalloc returns lies side by side; with room between, what is beyond an allocation is in no other.
TOOLS = {
    "memcheck": ("--padding", "1024", "--destroy-on-device-error", "kernel"),
    "racecheck": ("--racecheck-report", "analysis"),
    "initcheck": (),
    "synccheck": (),
}
_PLACES = ("/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer")
_STYLE = {"clean": "green", "FINDINGS": "bold red", "WRONG": "bold red", "did not run": "bold red"}
_PREFIX = "========= "
_SHOWN = 5  # findings and wrong results of each tool


@dataclass
class Verdict:
    """What came of one tool."""

    tool: str
    report: pathlib.Path
    findings: int | None = None  # None: the tool did not come to an end
    lines: list[str] = field(default_factory=list)  # the first findings, or why there are none
    account: dict[str, Any] = field(default_factory=dict)  # of sanitize_problems.py
    seconds: float = 0.0

    @property
    def word(self) -> str:
        if self.findings is None:
            return "did not run"
        if self.findings:
            return "FINDINGS"
        return "WRONG" if self.account.get("wrong") else "clean"


def findings(report: str) -> tuple[int | None, list[str]]:
    """How much a tool found, by its report's summaries, and the first lines of the findings. None without a summary."""
    counts = [
        int(count)
        for pattern in (r"ERROR SUMMARY: (\d+) error", r"RACECHECK SUMMARY: (\d+) hazard", r"LEAK SUMMARY: (\d+) byte")
        for count in re.findall(pattern, report)
    ]
    lines = [line.removeprefix(_PREFIX) for line in report.splitlines() if line.startswith(_PREFIX)]
    heads = [
        line
        for line in lines
        if not line.startswith((" ", "COMPUTE-SANITIZER")) and line.strip() and "SUMMARY" not in line
    ]
    return (sum(counts) if counts else None), heads[:_SHOWN]


def run_tool(tool: str, sanitizer: str, arguments: argparse.Namespace, device: str, folder: pathlib.Path) -> Verdict:
    report, account = folder / f"{tool}.txt", folder / f"{tool}.json"
    for stale in (report, account):
        stale.unlink(missing_ok=True)
    # Each has ports of its own to talk to its program by.
    port = str(49152 + 64 * list(TOOLS).index(tool))
    command = [
        sanitizer, "--tool", tool, *TOOLS[tool], "--port", port, "--log-file", str(report),
        sys.executable, str(PROBLEMS), "--device", device, "--backend", arguments.backend,
        "--seed", str(arguments.seed), "--every", str(arguments.every), "--account", str(account),
    ]  # fmt: skip
    if arguments.buckets:
        command += ["--buckets", *map(str, arguments.buckets)]
    started = time.perf_counter()
    verdict = Verdict(tool, report)
    try:
        ran = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        verdict.lines = [f"it was stopped after {arguments.timeout} s"]
        return verdict
    except OSError as error:
        verdict.lines = [f"cannot run {sanitizer}: {error.strerror}"]
        return verdict
    finally:
        verdict.seconds = time.perf_counter() - started
    text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    verdict.findings, verdict.lines = findings(text)
    if account.exists():
        verdict.account = json.loads(account.read_text(encoding="utf-8"))
    elif not verdict.findings:  # a clean report of a program that broke off says nothing
        verdict.findings = None
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing was printed").splitlines()[-1]
        verdict.lines = [*verdict.lines, f"the problems broke off with exit code {ran.returncode}: {said}"]
    return verdict


def find_sanitizer(given: str | None) -> str | None:
    if given is not None:
        return shutil.which(given)
    found = [
        shutil.which("compute-sanitizer"),
        *(place for pattern in _PLACES for place in sorted(glob.glob(pattern))[-1:]),
    ]
    return next((place for place in found if place), None)


def why_not(arguments: argparse.Namespace, chosen: dict[str, Any] | str, sanitizer: str | None) -> str:
    """Why nothing can run; empty where it can."""
    if isinstance(chosen, str):
        return f"this needs a GPU: {chosen}"
    if sanitizer is None and arguments.sanitizer is not None:
        return f"--sanitizer: expected the compute-sanitizer program, given {arguments.sanitizer}"
    if sanitizer is None:
        return (
            "the CUDA toolkit's program compute-sanitizer was not found: install it, put it on PATH, or give its place "
            "by --sanitizer"
        )
    return ""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", nargs="+", choices=list(TOOLS), default=list(TOOLS), help="all of them without it")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument(
        "--backend", default="auto", help="a family of kernels, such as sm80; default: what plans choose"
    )
    parser.add_argument("--output", default="sanitizer", help="the folder for the reports; default: %(default)s")
    parser.add_argument("--sanitizer", help="the compute-sanitizer program")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth problem")
    parser.add_argument(
        "--buckets", nargs="+", metavar="N", help="only problems of these head-dim buckets, such as 256"
    )
    parser.add_argument("--jobs", type=int, default=len(TOOLS), help="tools that run at a time; default: all")
    parser.add_argument("--timeout", type=int, default=900, metavar="SECONDS", help="for a tool; default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    facts = info_command.collect()
    chosen = screen.choose_device(facts, arguments.device if arguments.device.startswith("cuda") else "cuda")
    sanitizer = find_sanitizer(arguments.sanitizer)
    missing = why_not(arguments, chosen, sanitizer)
    if missing or isinstance(chosen, str) or sanitizer is None:
        screen.say(screen.console(stderr=True), f"sanitize.py: {missing}", "red")
        return 2
    folder = pathlib.Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    device = screen.device_label(chosen)
    # Most of the time is the host's, which instruments kernels: the tools run side by side.
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        tools = dict.fromkeys(arguments.tool)
        verdicts = list(pool.map(lambda tool: run_tool(tool, sanitizer, arguments, device, folder), tools))
    offered = [kernel["name"] for kernel in chosen["kernels"] if kernel["can_run"]]
    show(verdicts, f"flashcute {facts['version']} on device {device} ({chosen['name']})", offered)
    words = {verdict.word for verdict in verdicts}
    return 1 if words & {"FINDINGS", "WRONG"} else 2 if "did not run" in words else 0


def show(verdicts: Sequence[Verdict], title: str, offered: Sequence[str]) -> None:
    to = screen.console()
    screen.say(to, title, "bold")
    to.print()
    headings = ("tool", "verdict", "findings", "problems", "without a kernel", "kernels", "time", "report")
    to.print(screen.table(to, headings, [_cells(verdict, len(offered)) for verdict in verdicts]))
    to.print()
    for verdict in verdicts:
        style = _STYLE[verdict.word]
        lines = [*verdict.lines, *verdict.account.get("wrong", [])[:_SHOWN]] if verdict.word != "clean" else []
        for line in lines:
            screen.say(to, f"{verdict.tool}: {line}", style)
    launched = {name for verdict in verdicts for name in verdict.account.get("kernels", [])}
    idle = [name for name in offered if name not in launched]
    if launched and idle:
        screen.say(to, f"Never launched, since others serve the problems here: {', '.join(idle)}.", "dim")
    reasons = {reason.partition(": ")[2] for verdict in verdicts for reason in verdict.account.get("refused", [])}
    for reason in sorted(reasons):
        screen.say(to, f"Without a kernel: {reason}", "dim")


def _cells(verdict: Verdict, offered: int) -> list[str]:
    account = verdict.account
    return [
        verdict.tool,
        verdict.word,
        "" if verdict.findings is None else str(verdict.findings),
        f"{account['ran']} of {account['problems']}" if account else "",
        str(len(account["refused"])) if account else "",
        f"{len(account['kernels'])} of {offered}" if account else "",
        screen.time_text(verdict.seconds),
        str(verdict.report),
    ]


if __name__ == "__main__":
    sys.exit(main())
