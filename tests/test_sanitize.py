"""profiling/sanitize.py: how it reads the tools' reports, with a stand-in for compute-sanitizer; and its problems."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
import support

import flashcute
from flashcute.cli import info as info_command

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "profiling"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sanitize, problems = load("sanitize"), load("sanitize_problems")

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at attention_kernel(Params)+0x90
=========     by thread (3,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel+0x70 and Read access at kernel+0x90 [512 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNING = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at kernel+0x70 and Write access at kernel+0x70 [32 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
LEAK = """========= COMPUTE-SANITIZER
========= Leaked 64 bytes at 0x7f0000000000
=========
========= LEAK SUMMARY: 64 bytes leaked in 1 allocations
========= ERROR SUMMARY: 0 errors
"""
BROKEN = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
========= Error: couldn't find exit code.
"""


@pytest.mark.parametrize(
    ("report", "count", "first"),
    [
        (CLEAN, 0, None),
        (NO_RACE, 0, None),
        (OUT_OF_BOUNDS, 2, "Invalid __global__ write of size 2 bytes"),
        (
            RACE,
            1,
            "Error: Race reported between Write access at kernel+0x70 and Read access at kernel+0x90 [512 hazards]",
        ),
        (WARNING, 1, "Warning: Race reported"),
        (LEAK, 64, "Leaked 64 bytes"),
        (BROKEN, None, "Error: Target application terminated before first instrumented API call"),
        ("", None, None),
    ],
)
def test_the_findings_of_a_report(report, count, first):
    found, lines = sanitize.findings(report)
    assert found == count
    assert lines[0].startswith(first) if first else not lines, lines


STAND_IN = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
tool, report, account = (arguments[arguments.index(name) + 1] for name in ("--tool", "--log-file", "--account"))
told = json.loads(os.environ["TOLD"]).get(tool, {{}})
if "report" in told:
    open(report, "w").write(told["report"])
else:
    open(report, "w").write({NO_RACE!r} if tool == "racecheck" else {CLEAN!r})
if told.get("account", True):
    json.dump({{"problems": 9, "ran": 8, "kernels": ["sm80_a"], "refused": ["1 x 2: no kernel"],
               "wrong": told.get("wrong", [])}}, open(account, "w"))
else:
    sys.exit("ValueError: it fell over")
"""
GPU = {
    "type": "nvidia",
    "id": 0,
    "name": "a GPU",
    "usable": True,
    "kernels": [{"name": name, "can_run": name != "old"} for name in ("sm80_a", "sm80_b", "old")],
}


@pytest.fixture
def sanitized(tmp_path, monkeypatch, capsys):
    """Runs sanitize.py on a machine that has a GPU and a compute-sanitizer that says what it is told."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(STAND_IN)
    program.chmod(0o755)

    def run(*arguments, **told):
        facts = {**info_command.collect(), "devices": [GPU]}
        monkeypatch.setattr(info_command, "collect", lambda: facts)
        monkeypatch.setenv("TOLD", json.dumps(told))
        monkeypatch.setenv("COLUMNS", "200")
        code = sanitize.main(["--sanitizer", str(program), "--output", str(tmp_path / "reports"), *arguments])
        return code, capsys.readouterr().out

    return run


def test_four_clean_tools(sanitized, tmp_path):
    code, printed = sanitized()
    assert code == 0, printed
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        line = next(line for line in printed.splitlines() if line.startswith(tool))
        assert line.split()[:5] == [tool, "clean", "0", "8", "of"]
        assert "1 of 2" in line, "kernels that were launched, of those that can run here"
        assert (tmp_path / "reports" / f"{tool}.txt").exists()
    assert "Never launched, since others serve the problems here: sm80_b." in printed
    assert "Without a kernel: no kernel" in printed


@pytest.mark.parametrize(
    ("tool", "report"), [("memcheck", OUT_OF_BOUNDS), ("racecheck", RACE), ("racecheck", WARNING), ("initcheck", LEAK)]
)
def test_a_finding_fails_the_run(sanitized, tool, report):
    code, printed = sanitized(**{tool: {"report": report}})
    assert code == 1
    assert f"{tool}: {report.splitlines()[1].removeprefix('========= ')}" in printed
    assert sum(" clean " in line for line in printed.splitlines()) == 3


def test_a_finding_counts_though_the_program_broke_off(sanitized):
    code, printed = sanitized(memcheck={"report": OUT_OF_BOUNDS, "account": False})
    assert code == 1, printed


def test_a_wrong_result_fails_the_run(sanitized):
    code, printed = sanitized(synccheck={"wrong": ["2 x 3: out[0]: expected 1, given 2"]})
    assert code == 1
    assert "synccheck: 2 x 3: out[0]: expected 1, given 2" in printed


@pytest.mark.parametrize(
    ("told", "why"),
    [({"report": BROKEN}, "terminated before first instrumented"), ({"account": False}, "ValueError: it fell over")],
)
def test_a_tool_that_comes_to_no_end_is_no_clean_one(sanitized, told, why):
    code, printed = sanitized(initcheck=told)
    assert code == 2
    assert why in printed
    assert next(line for line in printed.splitlines() if line.startswith("initcheck")).split()[1:4] == [
        "did",
        "not",
        "run",
    ]


def test_one_tool_alone(sanitized):
    code, printed = sanitized("--tool", "racecheck", memcheck={"report": OUT_OF_BOUNDS})
    assert code == 0
    assert "memcheck" not in printed


def test_a_machine_without_a_gpu_is_told_so():
    if not support.no_cuda_reason():
        pytest.skip("this machine has a GPU")
    ran = subprocess.run([sys.executable, str(FOLDER / "sanitize.py")], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.startswith("sanitize.py: this needs a GPU: ")
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout


def test_a_machine_without_compute_sanitizer_is_told_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(info_command, "collect", lambda: {"build": {"cuda": True}, "devices": [GPU], "version": "1"})
    assert sanitize.main(["--sanitizer", "/nowhere/compute-sanitizer", "--output", str(tmp_path)]) == 2
    assert "--sanitizer: expected the compute-sanitizer program, given /nowhere" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitize, "_PLACES", ())
    assert sanitize.main(["--output", str(tmp_path)]) == 2
    assert "compute-sanitizer was not found" in capsys.readouterr().err


def test_the_problems_agree_with_float64_on_the_cpu(tmp_path):
    """So that what is wrong under a tool is the GPU's doing."""
    account = tmp_path / "account.json"
    assert problems.main(["--device", "cpu", "--every", "5", "--account", str(account)]) == 0
    told = json.loads(account.read_text())
    assert told["ran"] == told["problems"] > 60
    assert not told["refused"]
    assert not told["wrong"]


def test_the_problems_launch_every_kernel():
    """Of sm80's, on a GPU with much shared memory; the small tiles are for others."""
    facts = info_command.collect()
    if not facts["build"]["cuda"]:
        pytest.skip("this build has no CUDA kernels to plan for")
    compiled = {
        k["name"]
        for k in facts["kernels"]
        if k["name"].startswith("sm80") and not k["name"].endswith(("small", "short"))
    }
    planned = set()
    for problem in problems.problems():
        case = problem.case
        if case.packed or case.tensors or case.options.keys() & {"layout", "return_probs"}:
            continue
        of_q, of_k, of_v = (
            flashcute.TensorDescriptor((case.batch, heads, seq, dim), dtype=case.dtype, device="a100")
            for heads, seq, dim in (
                (case.heads[0], case.seq[0], case.head_dim[0]),
                (case.heads[1], case.seq[1], case.head_dim[0]),
                (case.heads[1], case.seq[1], case.head_dim[1]),
            )
        )
        planned.add(flashcute.AttentionDescriptor(of_q, of_k, of_v, **case.options).plan["kernel"])
    assert compiled <= planned, sorted(compiled - planned)


@pytest.mark.gpu
def test_the_problems_agree_with_float64_on_the_gpu(tmp_path):
    support.skip_without_cuda()
    account = tmp_path / "account.json"
    ran = subprocess.run(
        [sys.executable, str(FOLDER / "sanitize_problems.py"), "--account", str(account)],
        capture_output=True, text=True, timeout=300, env={**os.environ},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(account.read_text())
    assert not told["wrong"], told["wrong"][:5]
    assert told["ran"] + len(told["refused"]) == told["problems"]
