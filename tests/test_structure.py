"""Who may include whom, how long a file may be, and what must not be there. Greps the source tree."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SUFFIXES = {".h", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inl", ".in"}
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in SUFFIXES)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)

# A folder may include itself, the public headers and these.
ALLOWED = {
    "api": {"core", "dispatch"},
    "dispatch": {"core"},
    "core": set(),
    "cpu": {"core"},
    "cuda": {"core"},  # cuda's own folders are looked at below
    "python": set(),
    "include": set(),
}
ALLOWED_IN_CUDA = {"sm80": {"common"}, "sm90": {"common"}, "common": set(), "": {"common", "sm80", "sm90"}}


def includes(path: pathlib.Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def area(path: pathlib.Path) -> str:
    return path.relative_to(CSRC).parts[0]


def resolve(path: pathlib.Path, name: str) -> pathlib.Path | None:
    """The source file that an include means, None for a system or foreign header."""
    for base in (path.parent, CSRC, CSRC / "include"):
        candidate = (base / name).resolve()
        if candidate.is_file() and CSRC in candidate.parents:
            return candidate
    return None


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 30
    assert {area(p) for p in SOURCES} <= ALLOWED.keys()
    assert {"api", "dispatch", "core", "cpu", "cuda", "python", "include"} <= {area(p) for p in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_include_direction(path):
    mine = area(path)
    for name in includes(path):
        target = resolve(path, name)
        if target is None:
            continue
        theirs = area(target)
        if theirs == mine or (theirs == "include" and mine != "include"):
            if mine == "cuda":
                check_inside_cuda(path, target, name)
            continue
        assert theirs in ALLOWED[mine], f"{mine} includes {name} of {theirs}"


def check_inside_cuda(path, target, name):
    if area(target) != "cuda":
        return

    def folder(p):
        parts = p.relative_to(CSRC / "cuda").parts
        return parts[0] if len(parts) > 1 else ""

    mine, theirs = folder(path), folder(target)
    assert theirs == mine or theirs in ALLOWED_IN_CUDA.get(mine, set()), f"cuda/{mine} includes {name} of cuda/{theirs}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_foreign_headers(path):
    mine = area(path)
    text = path.read_text()
    for name in includes(path):
        assert not re.match(r"(torch|ATen|c10|pybind11)/", name), f"PyTorch or pybind11: {name}"
        if mine != "python":
            assert not re.match(r"(nanobind|Python\.h)", name), name
        if mine != "cuda":
            assert not re.match(r"(cuda|cute/|cutlass/|driver_types|nv)", name), f"a CUDA header outside cuda: {name}"
        assert not name.startswith("/"), name
    if mine == "include":
        assert not re.search(r"#\s*include\s*<(?!stddef\.h|stdint\.h|flashcute/)", text), (
            "public headers need only C11's own"
        )


def test_a_cpu_only_build_has_its_own_half_of_cuda():
    disabled = CSRC / "cuda" / "disabled.cpp"
    assert disabled.is_file()
    for name in includes(disabled):
        assert not re.match(r"(cuda|cute/|cutlass/)", name), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_no_file_is_too_long(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 500, f"{len(lines)} lines"


def test_nothing_prints_or_exits():
    for path in SOURCES:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', code)
        for bad in (
            r"\bstd::cout\b",
            r"\bstd::cerr\b",
            r"\bprintf\s*\(",
            r"\bfprintf\s*\(",
            r"\bexit\s*\(",
            r"\babort\s*\(",
        ):
            found = re.search(r"(?<![\w:])" + bad if bad.startswith(r"\bprintf") else bad, code)
            assert not found, f"{path.relative_to(ROOT)}: {found.group(0)}"


def test_ptx_lives_in_ptx_headers_only():
    for path in SOURCES:
        if area(path) == "cuda" and path.name != "ptx.cuh":
            assert not re.search(r"\basm\s*(volatile)?\s*\(", path.read_text()), path


def test_nothing_generated_or_vendored_is_checked_in():
    for folder in ("third_party", "csrc"):
        for path in (ROOT / folder).rglob("*"):
            assert path.suffix not in {".so", ".a", ".o", ".cubin"}, path
            assert "cutlass/include" not in str(path), path


def test_no_conftest_shadows_the_installed_package():
    assert not (ROOT / "conftest.py").exists()
    assert not (ROOT / "tests" / "__init__.py").exists()


def test_python_files_are_short_too():
    for folder in ("flashcute", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 500, path


def test_texts_mention_no_machine():
    """No path of anybody's machine in what is published."""
    for pattern in ("csrc/**/*", "flashcute/**/*.py", "docs/**/*.md", "README.md", "examples/**/*"):
        for path in ROOT.glob(pattern):
            if path.is_file() and path.suffix not in {".so", ".pyc"} and path.suffix:
                found = re.search(r"(?<![\w.])/(home/\w+|root|tmp|work\w*)/", path.read_text(errors="ignore"))
                assert not found, f"{path.relative_to(ROOT)}: {found.group(0)}"
