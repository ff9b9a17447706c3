"""``flashcute profile``: one kernel under Nsight Compute, and a digest of the report."""

from __future__ import annotations

import argparse
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from typing import Any

import flashcute
from flashcute.cli import digest, explain, problem, screen
from flashcute.cli import info as info_command

# Where toolkits and Nsight Compute's own packages put it, newest last.
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SchedulerStats",
    "WarpStateStats",
    "InstructionStats",
    "LaunchStats",
    "Occupancy",
)
# Of the problem's flags, in the command line that the profiler is given.
_FLAGS = (
    "backend",
    "batch",
    "heads",
    "heads_k",
    "seq",
    "seq_q",
    "seq_k",
    "head_dim",
    "head_dim_v",
    "dtype",
    "layout",
    "alignment",
)
_REPORT, _RAW_PAGE, _EXPECTED = ".ncu-rep", ".csv", ".json"


class _StopError(Exception):
    """One sentence that ends the command."""


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.report:
            if arguments.compare:
                raise _StopError("--compare: expected without --report, which compares two reports itself")
            if len(arguments.report) > 2:
                raise _StopError(f"--report: expected one report, or two to compare, given {len(arguments.report)}")
            reports = [_read(pathlib.Path(name), arguments.ncu) for name in arguments.report]
        else:
            earlier = [_read(pathlib.Path(arguments.compare), arguments.ncu)] if arguments.compare else []
            reports = [*earlier, _profile(arguments)]
    except _StopError as stop:
        screen.say(screen.console(stderr=True), f"flashcute profile: {stop}", "red")
        return 2
    if arguments.json:
        print(json.dumps([digest.as_json(report) for report in reports], indent=2))
    else:
        digest.show(screen.console(), reports)
    return 0


def _profile(arguments: argparse.Namespace) -> digest.Report:
    case, tensors = problem.case_of(arguments)
    facts = info_command.collect()
    device = "cuda" if arguments.device == "auto" else arguments.device
    explained = explain.explain(case, tensors, facts, device, None, lse=arguments.lse)
    if isinstance(explained, str):
        raise _StopError(f"profiling needs a GPU: {explained}")
    if explained.plan is None or explained.device == "cpu":
        raise _StopError(explained.why_no_plan or f"--device: expected a GPU, given {arguments.device}")
    ncu = _find_ncu(arguments.ncu)
    name = f"flashcute-{explained.plan['kernel']}{_REPORT}"
    path = pathlib.Path(arguments.output or name).absolute()
    if path.suffix != _REPORT:
        raise _StopError(f"--output: expected a name that ends in {_REPORT}, given {path.name}")
    if path.exists() and not arguments.force:
        raise _StopError(f"--output: {path} exists; choose another name, or --force")
    output = _run_ncu(_command(ncu, arguments, explained.device, path))
    if not path.exists():
        raise _StopError(_why_no_report(output))
    path.with_suffix(_EXPECTED).write_text(json.dumps(explained.as_json(), indent=1) + "\n", encoding="utf-8")
    return _read(path, ncu)


def _command(ncu: str, arguments: argparse.Namespace, device: str, path: pathlib.Path) -> list[str]:
    if arguments.sections == "full":
        sections = ["--set", "full"]
    else:
        sections = [word for name in _SECTIONS for word in ("--section", name)]
    return [
        ncu, "--clock-control", "none", "--cache-control", "all", "--nvtx",
        "--kernel-name-base", "function", "--kernel-name", f"regex:{arguments.kernel}",
        "--launch-skip", str(arguments.warmup), "--launch-count", "1",
        *sections, "--force-overwrite", "--export", str(path),
        sys.executable, "-m", "flashcute.cli.launch", "--runs", str(arguments.warmup + 1), "--device", device,
        *_problem_words(arguments),
    ]  # fmt: skip


def _problem_words(arguments: argparse.Namespace) -> list[str]:
    words = []
    for name in _FLAGS:
        value = getattr(arguments, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("softcap", "dropout"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", repr(getattr(arguments, name))]
    if arguments.window is not None:
        words.append("--window={},{}".format(*arguments.window))
    words += [f"--{name}" for name in ("causal", "lse", "probs") if getattr(arguments, name)]
    if arguments.lengths:
        words += ["--lengths", *map(str, arguments.lengths)]
    if arguments.tensors:
        words += ["--with", *arguments.tensors]
    return words


def _run_ncu(command: list[str]) -> str:
    """What it printed. It runs elsewhere, so that the `flashcute` of a source tree is not found before the package."""
    package = str(pathlib.Path(flashcute.__file__).parent.parent)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        try:
            ran = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise _StopError(f"cannot run {command[0]}: {error.strerror}") from None
    return ran.stdout


def _why_no_report(output: str) -> str:
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): run as root, or have the "
            "driver's option NVreg_RestrictProfilingToAdminUsers set to 0"
        )
    if "No kernels were profiled" in output:
        return "no kernel of the run has a name that --kernel matches"
    complaints = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    last = (complaints or output.strip().splitlines() or ["it printed nothing"])[-1]
    return f"ncu wrote no report: {last.removeprefix('==ERROR==').strip()}"


def _find_ncu(given: str | None) -> str:
    if given is not None:
        if shutil.which(given) is None:
            raise _StopError(f"--ncu: expected the ncu program, given {given}")
        return given
    found = [shutil.which("ncu"), *(sorted(glob.glob(pattern))[-1:] for pattern in _PLACES)]
    for place in found:
        if place:
            return place if isinstance(place, str) else place[0]
    raise _StopError(
        "Nsight Compute's program ncu was not found: install it, put it on PATH, or give its place by --ncu"
    )


def _read(path: pathlib.Path, ncu: str | None) -> digest.Report:
    """A report, or its raw page as .csv; with what was expected of it, where that lies beside it."""
    if not path.exists():
        raise _StopError(f"there is no file {path}")
    if path.suffix == _RAW_PAGE:
        text = path.read_text(encoding="utf-8", errors="replace")
    else:
        text = _run_ncu(
            [_find_ncu(ncu), "--import", str(path.absolute()), "--csv", "--page", "raw", "--print-units", "base"]
        )
    try:
        report = digest.parse(text, path.name)
    except ValueError as error:
        raise _StopError(str(error)) from None
    return replace(report, expected=_expected(path.with_suffix(_EXPECTED)))


def _expected(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if _is_explanation(found) else None


def _is_explanation(found: Any) -> bool:
    """Whether the digest can read it: any file may lie there under that name."""
    try:
        roofline = found["roofline"]
        numbers = [
            roofline["seconds"] or 0.0,
            *(bound[key] for bound in roofline["bounds"] for key in ("amount", "seconds")),
        ]
        words = [bound[key] for bound in roofline["bounds"] for key in ("name", "unit")]
    except (KeyError, TypeError, IndexError):
        return False
    return all(isinstance(x, (int, float)) for x in numbers) and all(isinstance(word, str) for word in words)
