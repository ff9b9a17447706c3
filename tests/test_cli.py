"""The command line: what it prints, and that it fails when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import support

import flashcute

HERE = os.path.dirname(__file__)


def cli(*arguments, timeout=400, **environment):
    return subprocess.run(
        [sys.executable, "-m", "flashcute", *arguments], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "COLUMNS": "200", **environment}, cwd=HERE,
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
