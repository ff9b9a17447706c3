"""Tests run against the installed package: `pip install '.[test]' && pytest`.

There is no conftest.py above this folder, and tests import each other's helpers through this folder only, because the
source folder flashcute/ beside it would otherwise stand in front of the installed package.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

# Thousands of small products: threads of the oracle's BLAS would only fight with those under test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
if str(ROOT) in sys.path or "" in sys.path:  # `python -m pytest`
    sys.path[:] = [p for p in sys.path if p not in ("", str(ROOT))]

pytest.register_assert_rewrite("support", "problems")


def pytest_addoption(parser):
    parser.addoption(
        "--problems", type=int, default=0, help="generated problems of each device's sweep; default: 3200 CPU, 1500 GPU"
    )
    parser.addoption("--gpu-backend", default="auto", help="of GPU tests that do not ask for one, such as sm80")


def pytest_configure(config):
    os.environ["FLASHCUTE_TEST_BACKEND"] = config.getoption("gpu_backend")  # also for processes that tests start
    config.addinivalue_line(
        "markers", "gpu: needs a CUDA device and CUDA kernels; skipped, with the reason, without them"
    )


def pytest_report_header(config):
    import support

    import flashcute

    return [f"flashcute: {flashcute.__file__}", f"GPU tests: {support.no_cuda_reason() or 'on'}"]


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(20240607)


@pytest.fixture
def root() -> pathlib.Path:
    return ROOT
