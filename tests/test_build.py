"""The build's own logic, without building: what is fetched, where objects are kept, and how many compilers run."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 1 << 30


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """The in-tree backend's modules but for the one that needs scikit-build-core, in a tree without a build folder."""
    package = types.ModuleType("flashcute_backend")
    package.__path__ = [str(ROOT / "cmake" / "flashcute_backend")]
    for name in [name for name in sys.modules if name.startswith("flashcute_backend")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flashcute_backend", package)
    for name in list(os.environ):
        if name.startswith(("FLASHCUTE_", "SKBUILD_", "CMAKE_", "CUDA")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    modules = {m: importlib.import_module(f"flashcute_backend.{m}") for m in ("options", "folders", "requirements")}
    yield types.SimpleNamespace(**modules)
    for name in [name for name in sys.modules if name.startswith("flashcute_backend.")]:
        del sys.modules[name]


def wheels(backend, monkeypatch, nvcc: bool, settings=None, **environment: str) -> list[str]:
    """Names of the wheels that a build would fetch, on a machine with or without an nvcc."""
    monkeypatch.setattr(backend.options.shutil, "which", lambda name, path=None: "nvcc" if nvcc else None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return [line.partition("==")[0] for line in backend.requirements.missing(backend.options.Options(settings))]


CUDA = ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]


@pytest.mark.parametrize(
    ("nvcc", "settings", "environment", "fetched"),
    [
        (True, None, {}, ["nvidia-cutlass"]),
        (False, None, {}, []),
        (True, None, {"FLASHCUTE_CUDA": "off"}, []),
        (True, None, {"FLASHCUTE_CUDA": "ON"}, ["nvidia-cutlass"]),
        (False, None, {"FLASHCUTE_CUDA": "on"}, ["nvidia-cutlass", *CUDA]),
        (False, None, {"FLASHCUTE_CUDA": "on", "CUDACXX": "/opt/cuda/bin/nvcc"}, ["nvidia-cutlass"]),
        (False, {"cmake.define.FLASHCUTE_CUDA": "on"}, {}, ["nvidia-cutlass", *CUDA]),
        (False, {"cmake.define.FLASHCUTE_CUDA": ["off", "on"]}, {"FLASHCUTE_CUDA": "off"}, ["nvidia-cutlass", *CUDA]),
        (True, None, {"CMAKE_ARGS": "-G Ninja -DFLASHCUTE_CUDA:STRING=off"}, []),
        (True, None, {"SKBUILD_CMAKE_DEFINE": "A=b;FLASHCUTE_CUDA=off"}, []),
        (True, None, {"FLASHCUTE_CUTLASS_DIR": "/opt/cutlass"}, []),
        (False, None, {"FLASHCUTE_CUDA": "on", "FLASHCUTE_CUTLASS_DIR": "/opt/cutlass"}, CUDA),
    ],
)
def test_only_what_the_build_uses_is_fetched(backend, monkeypatch, nvcc, settings, environment, fetched):
    assert wheels(backend, monkeypatch, nvcc, settings, **environment) == fetched


def test_nothing_is_fetched_twice(backend, monkeypatch):
    for name in (f"cutlass-{backend.requirements.CUTLASS}", f"cuda-{backend.requirements.NVCC}"):
        pathlib.Path("build", "third_party", name).mkdir(parents=True)
    assert wheels(backend, monkeypatch, nvcc=False, FLASHCUTE_CUDA="on") == []


def test_builds_with_other_options_lie_elsewhere(backend, monkeypatch):
    def folder(settings=None, nvcc=True, **environment: str) -> pathlib.Path:
        with monkeypatch.context() as patch:
            patch.setattr(backend.options.shutil, "which", lambda name, path=None: "nvcc" if nvcc else None)
            for name, value in environment.items():
                patch.setenv(name, value)
            with backend.folders.build_folder(backend.options.Options(settings)) as result:
                assert result.is_dir()
                return result

    default = folder()
    assert default.parent == pathlib.Path("build").absolute()
    same = [folder(FLASHCUTE_CUDA="on"), folder(CMAKE_BUILD_PARALLEL_LEVEL="1"), folder(FLASHCUTE_NUM_THREADS="3")]
    assert set(same) == {default}
    others = [
        folder(nvcc=False),
        folder(FLASHCUTE_CUDA="on", nvcc=False),
        folder(FLASHCUTE_HEAD_DIMS="64"),
        folder({"cmake.define.FLASHCUTE_HEAD_DIMS": "128"}),
        folder(CXX="clang++"),
        folder(CXXFLAGS="-g"),
        folder(SKBUILD_BUILD_DIR="elsewhere"),
    ]
    assert len({default, *others}) == len(others) + 1
    assert others[-1] == pathlib.Path("elsewhere").absolute()
    assert folder(FLASHCUTE_CUDA="off") == others[0]


def test_a_kept_tree_is_complete_and_stays(backend, tmp_path):
    source = tmp_path / "wheel"
    (source / "include").mkdir(parents=True)
    (source / "include" / "a.h").write_text("a")
    (source / "lib").mkdir()
    (source / "lib" / "libx.a").write_text("x")
    (source / "lib" / "libx.so.1").write_text("x")
    trees = tmp_path / "trees"
    trees.mkdir()
    kept = backend.requirements._tree(trees, "x", "no-such-distribution", "1.0", [source])
    assert kept == trees / "x-1.0"
    assert sorted(p.name for p in kept.rglob("*")) == ["a.h", "include", "lib", "lib64", "libx.a"]
    before = (kept / "include" / "a.h").stat().st_mtime_ns
    shutil.rmtree(source)
    assert backend.requirements._tree(trees, "x", "no-such-distribution", "1.0", [source]) == kept
    assert (kept / "include" / "a.h").stat().st_mtime_ns == before
    assert backend.requirements._tree(trees, "x", "no-such-distribution", "2.0", [source]) is None
    assert [p.name for p in trees.iterdir()] == ["x-1.0"]


def test_a_tree_that_cannot_be_written_builds_elsewhere(backend, tmp_path, capsys):
    pathlib.Path("build").write_text("not a folder")
    with backend.folders.build_folder(backend.options.Options(None)) as folder:
        assert folder.is_dir() and tmp_path not in folder.parents
    assert not folder.exists()
    assert "not kept" in capsys.readouterr().out


# -- what is shown


def test_kernels_are_counted_and_everything_is_logged(tmp_path):
    """A stand-in for Ninja says, as `ninja -n` would, that two of three files are out of date."""
    generated = tmp_path / "csrc" / "cuda" / "generated"
    generated.mkdir(parents=True)
    (generated / "contents.txt").write_text("one.cu a b\ntwo.cu c d e\nthree.cu f\n")
    line = "[{}/9] Building CUDA object csrc/cuda/CMakeFiles/flashcute_kernels.dir/{}.cu.o"
    one, three = line.format(3, "generated/one"), line.format(5, "generated/three")
    ninja = tmp_path / "ninja"
    ninja.write_text(f"#!/bin/sh\necho '{one}'\necho '{three}'\necho '{line.format(6, 'common/merge')}'\n")
    ninja.chmod(0o755)
    (tmp_path / "CMakeCache.txt").write_text(f"A:STRING=b\nCMAKE_MAKE_PROGRAM:FILEPATH={ninja}\n")
    build = ["*** Building project with Ninja...", line.format(1, "common/merge"), three, "from three", one, "done"]
    program = f"""
import subprocess, sys
sys.path.insert(0, {str(ROOT / "cmake" / "flashcute_backend")!r})
import pathlib, progress
try:
    with progress.Log(pathlib.Path({str(tmp_path)!r})):
        subprocess.run(["printf", "%s\\n", *{build!r}], check=True)
        print("unfinished", end="", file=sys.stderr)
        raise KeyError
except KeyError:
    print("after")
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path.parent)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    shown = re.sub(r", \d+ s$", "", ran.stdout, flags=re.MULTILINE).splitlines()
    log = tmp_path / "build.log"
    assert shown == [
        build[0],
        "flashcute: 3 kernels to compile, in 2 files",
        build[1],
        three,
        "flashcute: kernel 1 of 3 (three.cu)",
        "from three",
        one,
        "flashcute: kernel 3 of 3 (one.cu)",
        "done",
        "unfinished",
        "flashcute: the build failed",  # and no log: it lies in the folder of temporary files
        "after",
    ]
    kept = log.read_text()
    assert [text for text in [*build, "unfinished"] if text not in kept] == []


# -- cmake/jobs.cmake, on folders that stand for /proc and /sys


def machine(root: pathlib.Path, cpus: str, available: int, files: dict[str, str]) -> tuple[int, int]:
    """(files of kernels, other files) at once."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no CMake here")
    files = {
        "proc/self/status": f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n",
        "proc/meminfo": f"MemTotal:  99 kB\nMemAvailable:  {available // 1024} kB\n",
        **files,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = root / "script.cmake"
    script.write_text(
        f'cmake_minimum_required(VERSION 3.24)\ninclude("{ROOT}/cmake/jobs.cmake")\n'
        f'flashcute_free_resources("{root}" cores megabytes)\n'
        "flashcute_jobs(${cores} ${megabytes} kernels others)\n"
        'message("${kernels} ${others}")\n'
    )
    ran = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    kernels, others = map(int, ran.stderr.split())
    return kernels, others


V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("cpus", "available", "files", "expected"),
    [
        ("0-1", 22 * GIB, {}, (2, 2)),
        ("0-3,8,10-12", 64 * GIB, {}, (8, 8)),
        ("0-15", 16 * GIB, {}, (4, 11)),
        ("0-15", 8 * GIB, {}, (2, 5)),
        ("0-1", 2 * GIB, {}, (1, 1)),
        # A container of 8 GiB, 3 of them used, 1 of these the page cache's.
        (
            "0-15",
            64 * GIB,
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": f"{8 * GIB}\n",
                f"{V2}/memory.current": f"{3 * GIB}\n",
                f"{V2}/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            },
            (1, 8),
        ),
        # The group's own limit is off; its parent's holds, and its share of three cores.
        (
            "0-15",
            64 * GIB,
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/b/memory.max": "max\n",
                f"{V2}/a/b/memory.current": "1\n",
                f"{V2}/a/b/cpu.max": "250000 100000\n",
                f"{V2}/a/memory.max": f"{8 * GIB}\n",
                f"{V2}/a/memory.current": "0\n",
                f"{V2}/a/cpu.max": "max 100000\n",
            },
            (2, 3),
        ),
        # Version 1, where no limit is a large number, and the path may be that of another name space.
        (
            "0-15",
            64 * GIB,
            {
                "proc/self/cgroup": "5:memory:/x/y\n3:cpu,cpuacct:/x\n2:cpuset:/\n",
                f"{V2}/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
                f"{V2}/memory/memory.usage_in_bytes": "0\n",
                f"{V2}/memory/x/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V2}/memory/x/memory.usage_in_bytes": "0\n",
                f"{V2}/cpu/x/cpu.cfs_quota_us": "-1\n",
                f"{V2}/cpu/x/cpu.cfs_period_us": "100000\n",
                f"{V2}/cpu/cpu.cfs_quota_us": "400000\n",
                f"{V2}/cpu/cpu.cfs_period_us": "100000\n",
            },
            (1, 2),
        ),
    ],
)
def test_jobs_fit_cores_and_free_memory(tmp_path, cpus, available, files, expected):
    kernels, others = machine(tmp_path, cpus, available, files)
    assert (kernels, others) == expected
