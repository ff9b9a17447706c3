"""A build under -ffast-math keeps what that gives up, and `flashcute check` notices a process or library without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import support

from flashcute.cli import arithmetic

PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(probe CXX)
include("{root}/cmake/floating_point.cmake")
add_library(probe SHARED probe.cpp)
"""
SOURCE = """
#include <cmath>
#include <limits>
extern "C" {
int is_nan(float x) { return std::isnan(x); }
int is_finite(float x) { return std::isfinite(x); }
float sum(float big, float small) { return (big + small) - big; }
float quotient(float a, float b) { return a / b; }
float product(float a, float b) { return a * b; }
int negative_zero(float x) { return std::signbit(x * 0.0f + -0.0f); }
}
"""
USE = """
    import ctypes, sys
    import numpy as np
    lib = ctypes.CDLL(sys.argv[1])
    for name in ("sum", "quotient", "product"):
        getattr(lib, name).restype = ctypes.c_float
    c = ctypes.c_float
    tiny = 1e-40
    assert np.float32(1e-20) * np.float32(1e-20) != 0, "subnormal numbers are off in the process"
    assert lib.product(c(1e-20), c(1e-20)) != 0, "subnormal numbers are off in the library"
    assert lib.is_nan(c(float("nan"))) == 1
    assert lib.is_finite(c(float("inf"))) == 0
    assert lib.sum(c(1e8), c(1.0)) == 0.0, "sums were reordered"
    assert lib.negative_zero(c(-1.0)) == 1
    print("fine")
"""


def build(tmp_path, project, **environment):
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("no CMake or no C++ compiler here")
    (tmp_path / "CMakeLists.txt").write_text(project)
    (tmp_path / "probe.cpp").write_text(SOURCE)
    keep = {name: value for name, value in os.environ.items() if name not in ("CXXFLAGS", "CFLAGS", "LDFLAGS")}
    for command in (["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_BUILD_TYPE=Release"],
                    ["cmake", "--build", tmp_path / "build"]):  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, env={**keep, **environment})
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return next((tmp_path / "build").glob("libprobe.*"))


def use(library):
    program = [sys.executable, "-c", textwrap.dedent(USE), str(library)]
    return subprocess.run(program, capture_output=True, text=True)


@pytest.mark.parametrize(
    "flags",
    [
        {"CXXFLAGS": "-ffast-math"},
        {"CXXFLAGS": "-Ofast -O2 -funsafe-math-optimizations"},
        {"CXXFLAGS": "-fassociative-math -freciprocal-math -ffinite-math-only -fno-signed-zeros -fno-trapping-math"},
        {"CXXFLAGS": "-ffast-math", "LDFLAGS": "-ffast-math -funsafe-math-optimizations"},
    ],
    ids=lambda flags: " ".join(flags.values()),
)
def test_a_build_under_fast_math_is_exact(root, tmp_path, flags):
    ran = use(build(tmp_path, PROJECT.format(root=root), **flags))
    assert ran.stdout == "fine\n", ran.stderr


def test_the_flags_do_harm_without_what_undoes_them(root, tmp_path):
    """Or the test above would prove nothing."""
    project = "\n".join(line for line in PROJECT.splitlines() if not line.startswith("include"))
    ran = use(build(tmp_path, project, CXXFLAGS="-ffast-math"))
    assert ran.returncode != 0


# -- what `check` notices

FLUSHED = """
    import sys, torch
    from flashcute.cli import main
    if not torch.set_flush_denormal(True):
        sys.exit(77)
    sys.exit(main(["check", "--quick", "--device", "cpu", "--seed", "1", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_check_notices_a_process_that_flushes_subnormal_numbers(as_json):
    pytest.importorskip("torch")
    words = [sys.executable, "-c", textwrap.dedent(FLUSHED), *(["--json"] if as_json else [])]
    here = os.path.dirname(__file__)
    ran = subprocess.run(words, capture_output=True, text=True, cwd=here, env={**os.environ, "COLUMNS": "400"})
    if ran.returncode == 77:
        pytest.skip("this processor has no such switch")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)["arithmetic"] if as_json else ran.stdout.splitlines()
    assert any("this process flushes subnormal numbers to zero" in line for line in told)
    assert any("float32 attention on cpu gives 0 for the mean of values that are all 1e-40" in line for line in told)
    if as_json:
        assert json.loads(ran.stdout)["ok"] is False
        assert len(told) == 2


def test_check_notices_a_library_that_loses_nan(monkeypatch):
    """A library whose comparisons say that nothing is NaN or infinite, as -ffinite-math-only makes them."""
    real = arithmetic.results
    assert arithmetic.faults("cpu") == []

    def finite(*problem):
        return tuple(np.nan_to_num(x, nan=1.0, posinf=3e38) for x in real(*problem))

    monkeypatch.setattr(arithmetic, "results", finite)
    told = arithmetic.faults("cpu")
    for dtype in support.FLOATS:
        assert f"{dtype} attention on cpu loses the NaN of a row of q; -ffast-math does that" in told
        assert f"{dtype} attention on cpu loses infinite values; -ffast-math does that" in told


@pytest.mark.gpu
def test_a_gpu_has_all_of_it():
    support.skip_without_cuda()
    assert arithmetic.faults("cuda:0") == []
