"""The command line: what it prints, and that it fails when something is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import support

import flashcute
from flashcute.cli import check as check_command
from flashcute.cli import info as info_command
from flashcute.cli import screen
from flashcute.cli.cases import cases

HERE = os.path.dirname(__file__)


def cli(*arguments, timeout=400, stdout=subprocess.PIPE, **environment):
    """Runs a command; an environment variable of None is one that is not set."""
    variables = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(
        [sys.executable, "-m", "flashcute", *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=timeout,
        env={name: value for name, value in variables.items() if value is not None}, cwd=HERE, encoding="utf-8",
    )  # fmt: skip


def python(*words):
    """Runs Python beside the tests, where no source tree stands before the package."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=HERE, timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def quick():
    ran = cli("check", "--quick", "--device", "cpu", "--seed", "1", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def find(entry, *words):
    """The value of the first key that contains one of the words."""
    for key, value in entry.items():
        if any(w in key.lower() for w in words):
            return value
    raise AssertionError(f"no {words} in {sorted(entry)}")


def test_check_compares_a_spread_of_problems(quick):
    rows = next(v for v in quick.values() if isinstance(v, list) and v and isinstance(v[0], dict))
    assert len(rows) >= 8
    assert {find(r, "dtype") for r in rows} == {"float32", "float16", "bfloat16"}
    for row in rows:
        assert find(row, "verdict") == "pass"
        assert find(row, "error") <= find(row, "allowed")
        assert find(row, "tflops") > 0
        assert "cpu" in find(row, "kernel")
    assert len({json.dumps(find(r, "error")) for r in rows}) > len(rows) // 2, "errors look made up"


def test_check_prints_a_table():
    ran = cli("check", "--quick", "--device", "cpu")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for word in ("shape", "device", "kernel", "time", "TFLOP/s", "error", "verdict", "pass"):
        assert word in ran.stdout, word
    assert "0 failed" in ran.stdout


MISS = """
import sys
import flashcute
from flashcute.cli import main
real = flashcute.AttentionDescriptor
class Wrong:
    def __init__(self, *a, **o):
        o.pop("causal", None)
        o.pop("window", None)
        self.real = real(*a, **o)
        self.plan = self.real.plan
    def run(self, *a, **o):
        return self.real.run(*a, **o)
flashcute.AttentionDescriptor = Wrong
sys.exit(main(["check", "--quick", "--device", "cpu"]))
"""


def test_check_exits_with_one_on_a_miss():
    """A library that ignores causal masks is caught, named and counted."""
    ran = subprocess.run(
        [sys.executable, "-c", MISS], capture_output=True, text=True, cwd=HERE, env={**os.environ, "COLUMNS": "200"}
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "MISS" in ran.stdout
    assert "expected" in ran.stdout
    assert "given" in ran.stdout


def test_check_refuses_a_device_that_is_not_there():
    if not support.no_cuda_reason():
        pytest.skip("this machine has one")
    ran = cli("check", "--device", "cuda")
    assert ran.returncode not in (0, 1)
    assert "cuda" in ran.stderr


def test_info_tells_version_build_kernels_and_devices():
    ran = cli("info", "--json")
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["version"] == flashcute.__version__
    cpu = next(d for d in facts["devices"] if d["type"] == "cpu")
    assert cpu["usable"]
    assert any(k["can_run"] for k in cpu["kernels"])
    for device in facts["devices"]:
        assert all(k["can_run"] or k["reason"] for k in device["kernels"]), "a kernel that cannot run has no reason"
    text = cli("info")
    assert text.returncode == 0
    assert flashcute.__version__ in text.stdout


def test_a_mistyped_command_explains_itself():
    ran = cli("chekc")
    assert ran.returncode == 2
    assert "check" in ran.stderr
    ran = cli()
    assert ran.returncode == 2
    assert "usage" in ran.stderr


def test_a_seed_is_a_number_of_at_least_zero():
    for seed in ("-1", "x", "1.5"):
        ran = cli("check", "--seed", seed)
        assert ran.returncode == 2
        assert "argument --seed: expected an integer of at least 0" in ran.stderr


def test_version():
    ran = cli("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"flashcute {flashcute.__version__}\n", "")


# ---------------------------------------------------------------------------------------------------------------------
# Whatever the output is


@pytest.mark.parametrize("columns", [80, 160])
def test_info_shows_where_kernels_run_in_any_terminal(columns):
    ran = cli("info", COLUMNS=str(columns))
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    paths = ("library", "headers", "CMake package")  # to be copied, so never folded
    assert all(len(line) <= columns for line in lines if not line.startswith(paths))
    heading = next(line for line in lines if line.startswith("kernel"))
    row = next(line for line in lines if line.startswith("cpu_float32"))
    assert row[heading.index("here") :].startswith("runs on cpu")
    assert ("head dim" in heading) and ("dtype" in heading)


def test_info_numbers_the_reasons(monkeypatch, capsys):
    """Two GPUs that run the kernels and one that does not: grouped, and the reason once, below the table."""
    facts = info_command.collect()
    kernel = dict(facts["kernels"][0], name="sm80_hd128_bfloat16_banded", device="nvidia", family="sm80")
    facts["kernels"].append(kernel)
    why = "a reason too long for a column " * 3
    for number in range(3):
        answer = {"name": kernel["name"], "can_run": number != 1, "reason": why if number == 1 else ""}
        facts["devices"].append(
            {
                "type": "nvidia",
                "id": number,
                "name": "NVIDIA H100 80GB HBM3",
                "usable": True,
                "reason": "",
                "capability": "9.0",
                "multiprocessors": 132,
                "shared_memory_per_block": 232448,
                "l2_bytes": 50 << 20,
                "kernels": [answer],
            }
        )
    monkeypatch.setattr(info_command, "collect", lambda: facts)
    monkeypatch.setenv("COLUMNS", "80")
    info_command.run(False)
    printed = capsys.readouterr().out
    assert re.search("sm80_hd128_bfloat16_banded +runs on cuda:0,2", printed)  # as wide as the longest name
    assert "not on cuda:1 (1)" in printed
    assert printed.count("(1) a reason") == 1


@pytest.mark.parametrize(("device", "kernel"), [("cpu", "cpu_{}"), ("cuda", "sm80_hd128_{}_banded")])
@pytest.mark.parametrize("columns", [80, 120, 160])
def test_check_prints_two_lines_a_problem_at_most(device, kernel, columns, monkeypatch, capsys):
    outcomes = [
        check_command.Outcome(case, "pass", "", kernel.format(case.dtype), 123.4e-6, 123.4, 0.5, 1.0)
        for case in cases(device, quick=False)
    ]
    monkeypatch.setenv("COLUMNS", str(columns))
    check_command._print_table(screen.console(), outcomes)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    starts = [i for i, line in enumerate(lines) if " x " in line] + [len(lines)]
    assert len(starts) == len(outcomes) + 1
    for outcome, start, end in zip(outcomes, starts, starts[1:], strict=False):
        assert end - start <= 2
        words = " ".join(lines[start:end]).split()
        for text in (outcome.case.feature_text(of_heads=columns > 120), outcome.kernel, outcome.case.dtype):
            assert set(text.split()) <= set(words), text


def test_a_pipe_is_wide_and_gets_no_progress_bar():
    ran = cli("check", "--quick", "--device", "cpu", COLUMNS=None)
    assert ran.stderr == ""
    assert "features" in next(line for line in ran.stdout.splitlines() if line.startswith("shape"))


def test_a_terminal_without_unicode():
    for command in (["check", "--quick", "--device", "cpu"], ["info"]):
        for columns in ("80", "160"):
            ran = cli(*command, PYTHONIOENCODING="ascii", LC_ALL="C", COLUMNS=columns)
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout.isascii()


@pytest.mark.parametrize("command", [["check", "--quick", "--device", "cpu"], ["info"], ["info", "--json"]])
def test_a_reader_that_leaves_early(command):
    """Neither a traceback nor the code of a miss."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = cli(*command, stdout=writer)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk():
    for command in (["check", "--quick", "--device", "cpu"], ["info", "--json"]):
        with open("/dev/full", "w") as full:
            ran = cli(*command, stdout=full)
        assert ran.returncode == 2
        assert ran.stderr == "flashcute: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("name", ["FLASHCUTE_NUM_THREADS", "FLASHCUTE_CHECKED"])
def test_a_bad_environment_variable_is_one_sentence(name):
    ran = cli("check", "--quick", "--device", "cpu", **{name: "abc"})
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert name in ran.stderr
    assert "abc" in ran.stderr


@pytest.mark.parametrize("command", ["check", "info", "bench", "explain", "profile"])
def test_a_missing_rich_is_named(command):
    ran = python(
        "-c", f"import sys\nsys.modules['rich'] = None\nfrom flashcute.cli import main\nsys.exit(main([{command!r}]))"
    )
    assert ran.returncode == 2
    assert "need rich, which is not installed" in ran.stderr
    assert "Traceback" not in ran.stderr


INFO, EXPLAIN = ["info"], ["explain", "--device", "cpu"]
CHECK = ["check", "--quick", "--device", "cpu"]


@pytest.mark.parametrize(
    ("command", "redirection"),
    [
        *((command, ">&-") for command in (INFO, EXPLAIN, CHECK, ["bench", "host", "--device", "cpu"], ["--version"])),
        *(([*command, "--json"], ">&-") for command in (INFO, EXPLAIN, CHECK)),
        (INFO, ">&- 2>&-"),
        *((command, "1</dev/null") for command in (INFO, [*INFO, "--json"], EXPLAIN)),
    ],
    ids=lambda x: x if isinstance(x, str) else " ".join(x),
)
def test_an_output_that_is_closed_or_not_to_be_written(command, redirection):
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "flashcute", *command]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=HERE, timeout=400)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    if "2>" not in redirection:
        assert re.fullmatch("flashcute: cannot write the output: .+\n", ran.stderr), ran.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Flags


@pytest.mark.parametrize(
    ("words", "left", "right"),
    [
        (["--window", "-1,0"], -1, 0),
        (["--window", "-1,16"], -1, 16),
        (["--window", "-1,-1"], -1, -1),
        (["--window", "5,-1"], 5, -1),
        (["--window=-1,7"], -1, 7),
        (["--wind", "-1,3"], -1, 3),
        (["--window", "3,4"], 3, 4),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_windows_that_begin_with_a_minus_are_parsed(words, left, right):
    ran = cli("explain", "--json", "--device", "cpu", "--seq", "100", *words, "--dtype", "float32")
    assert ran.returncode == 0, ran.stderr
    problem = json.loads(ran.stdout)["plan"]["problem"]
    assert (problem["window_left"], problem["window_right"]) == (left, right)


def test_a_window_that_is_none_is_refused():
    for words in (["--window", "-1"], ["--window", "--causal"], ["--window", "-1,x"], ["--seq", "-1,0"]):
        ran = cli("explain", "--device", "cpu", *words)
        assert ran.returncode == 2
        assert words[0] in ran.stderr


def test_commands_share_the_names_of_their_flags():
    """What one command calls --seq, another --seqs, and so on: each takes both."""
    plans = []
    for seq, dim, dim_v, dtype in (
        ("--seq", "--head-dim", "--head-dim-v", "--dtype"),
        ("--seqs", "--dims", "--dim-v", "--dtypes"),
    ):
        words = [seq, "77", dim, "40", dim_v, "24", dtype, "float32"]
        ran = cli("explain", "--json", "--device", "cpu", *words)
        assert ran.returncode == 0, ran.stderr
        plans.append(json.loads(ran.stdout)["plan"])
        ran = cli("bench", "--json", "--device", "cpu", *words, "--masks", "full", "--peers", "--rounds", "1")
        assert ran.returncode == 0, ran.stderr
        measured = json.dumps(json.loads(ran.stdout))
        assert "77" in measured and "float32" in measured
    assert plans[0] == plans[1]
    assert (plans[0]["problem"]["seq_k"], plans[0]["problem"]["head_dim_v"]) == (77, 24)


def test_info_counts_no_gpu_as_none(monkeypatch, capsys):
    """ "GPUs 0: no driver" reads like what GPU number 0 has."""
    facts = info_command.collect()
    monkeypatch.setattr(info_command, "collect", lambda: facts)
    facts["build"].update(cuda=True, cuda_description="CUDA 13")
    for count, reason, line in ((0, "no driver", "none; no driver"), (1, "too old", "1; too old"), (2, "", "2")):
        facts["gpu"].update(count=count, reason=reason)
        info_command.run(False)
        assert re.search(f"^GPUs +{line} *$", capsys.readouterr().out, re.MULTILINE)
