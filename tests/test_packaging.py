"""What is installed: which libraries it wants, how large it is, what it needs to run, and what builds against it."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import pytest

import flashcute

PACKAGE = pathlib.Path(flashcute.__file__).parent
BINARIES = [pathlib.Path(flashcute.get_library()), *PACKAGE.glob("_core*.so")]
PKGCONFIG = PACKAGE / "lib" / "pkgconfig"


def dynamic(path: pathlib.Path) -> dict[int, list[str]]:
    """Tags of an ELF file's dynamic section to their strings: 1 NEEDED, 14 SONAME, 15 RPATH, 29 RUNPATH."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", f"{path} is not a 64-bit little-endian ELF file"
    headers, size, count = (struct.unpack_from(kind, data, at)[0] for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, headers + i * size) for i in range(count)]
    table = next(section for section in sections if section[1] == 6)
    strings = sections[table[6]][4]
    result: dict[int, list[str]] = {}
    for at in range(table[4], table[4] + table[5], 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag in (1, 14, 15, 29):
            start = strings + value
            result.setdefault(tag, []).append(data[start : data.index(b"\0", start)].decode())
    return result


@pytest.mark.parametrize("path", BINARIES, ids=lambda path: path.name.split(".")[0])
def test_it_needs_the_system_and_itself_only(path):
    """No libcuda, libcudart, libtorch, libpython: only what every Linux has, and one own library beside it."""
    found = dynamic(path)
    system = r"(lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)|ld-linux[\w-]*)\.so\.\d+"
    foreign = [name for name in found[1] if not re.fullmatch(system, name)]
    if path.name.startswith("_core"):
        assert foreign == ["libflashcute.so.0"]
        assert found.get(29, found.get(15)) == ["$ORIGIN/lib"]
    else:
        assert foreign == []
        assert found[14] == [path.name]
        assert 15 not in found and 29 not in found, "a path of the machine that built it"


def test_the_package_is_small():
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 30e6


def test_numpy_is_enough():
    """rich is for the command line: importing the package and computing on the CPU does without."""
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rich", "torch", "jax", "ml_dtypes"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import numpy as np
import flashcute
q = np.arange(24, dtype=np.float32).reshape(1, 1, 3, 8) / 24
out, lse = flashcute.attention(q, q, q, return_lse=True)
s = q[0, 0] @ q[0, 0].T / 8**0.5
w = np.exp(s)
assert np.allclose(out[0, 0], w / w.sum(1, keepdims=True) @ q[0, 0], atol=1e-6)
assert np.allclose(lse[0, 0], np.log(w.sum(1)), atol=1e-6)
out16 = flashcute.attention(*[q.astype(np.float16)] * 3)
assert np.allclose(out16, out, atol=2e-3)
"""
    ran = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_requirements_are_numpy_and_rich():
    requires = importlib.metadata.requires("flashcute") or []
    assert {re.split(r"[^\w-]", line)[0] for line in requires if "extra ==" not in line} == {"numpy", "rich"}


def test_licenses_of_what_is_compiled_in_are_installed():
    names = {path.name for path in importlib.metadata.files("flashcute") or [] if "licenses" in path.parts}
    assert {"LICENSE", "NOTICE", "CUTLASS.txt", "nanobind.txt", "robin-map.txt"} <= names


def pkg_config(*arguments: str) -> str:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config here")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(PKGCONFIG)}
    ran = subprocess.run(["pkg-config", *arguments, "flashcute"], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_pkg_config_names_what_is_there():
    assert pkg_config("--modversion") == flashcute.__version__
    assert os.path.samefile(pkg_config("--variable=includedir"), flashcute.get_include())
    assert os.path.samefile(pkg_config("--variable=libdir"), pathlib.Path(flashcute.get_library()).parent)
    words = pkg_config("--cflags", "--libs").split()
    assert "-l:libflashcute.so.0" in words
    assert any(word.startswith("-Wl,-rpath,") for word in words)


def test_the_pkg_config_file_names_no_machine():
    lines = (PKGCONFIG / "flashcute.pc").read_text().splitlines()
    assert not [line for line in lines if re.search(r"(=|\s|-[IL])/", line.partition("#")[0])]


def test_examples_build_and_run_through_pkg_config(root, tmp_path):
    pkg_config("--exists")
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("no C and C++ compilers here")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(PKGCONFIG)}
    command = ["sh", str(root / "examples" / "pkg_config.sh"), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all rows agree" in ran.stdout and "merged" in ran.stdout


EDITABLE = """
import importlib.util, pathlib, sys
tree, site = map(pathlib.Path, sys.argv[1:])
class Redirect:
    # as the import hook of an editable install: Python files of the tree, and what was compiled from site-packages
    def find_spec(self, name, path=None, target=None):
        if name == "flashcute":
            places = [str(site), str(tree)]
            return importlib.util.spec_from_file_location(name, tree / "__init__.py", submodule_search_locations=places)
        if name == "flashcute._core":
            return importlib.util.spec_from_file_location(name, next(site.glob("_core*.so")))
sys.meta_path.insert(0, Redirect())
import flashcute
from flashcute.cli import info
assert pathlib.Path(flashcute.__file__).parent == tree
paths = {"include": flashcute.get_include(), "library": flashcute.get_library(), "cmake_dir": flashcute.get_cmake_dir()}
assert info.collect()["python"] == paths
for kind, file in (("include", "flashcute/flashcute.h"), ("library", ""), ("cmake_dir", "flashcute-config.cmake")):
    assert (pathlib.Path(paths[kind]) / file).is_file(), paths
print("fine")
"""


def test_paths_exist_in_an_editable_install(root, tmp_path):
    tree, site = tmp_path / "tree" / "flashcute", tmp_path / "site-packages" / "flashcute"
    shutil.copytree(root / "flashcute", tree, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    installed = pathlib.Path(flashcute.get_library()).parent.parent
    site.mkdir(parents=True)
    for path in (*installed.glob("_core*.so"), installed / "lib", installed / "include"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, site / path.name)
    ran = subprocess.run([sys.executable, "-c", EDITABLE, tree, site], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == "fine\n", ran.stderr
