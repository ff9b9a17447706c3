"""A program may set a locale with a decimal comma, as German ones do. Plans, facts and messages have their points."""

from __future__ import annotations

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import textwrap

import pytest

LC_NUMERIC_MAGIC = 0x20031114  # of glibc's compiled locales


def numbers_with_commas(folder: pathlib.Path) -> str:
    """A locale of the C library whose numbers are 1.234,5, and its name. What `localedef` would write, in 60 bytes."""
    start = 8 + 4 * 6
    texts, places = b"", []
    for item in (b",\0", b".\0", b"\3\3\0", None, struct.pack("=I", ord(",")), struct.pack("=I", ord(".")), b"UTF-8\0"):
        if item is None:
            texts += bytes(-(start + len(texts)) % 4)
        else:
            places.append(start + len(texts))
            texts += item
    made = folder / "de_DE.UTF-8"
    made.mkdir()
    (made / "LC_NUMERIC").write_bytes(struct.pack("=II6I", LC_NUMERIC_MAGIC, 6, *places) + texts)
    return made.name


PROGRAM = """
    import ctypes, json, locale, sys
    import numpy as np
    import flashcute
    from flashcute.cli import main
    locale.setlocale(locale.LC_NUMERIC, sys.argv[1])
    room = ctypes.create_string_buffer(40)
    ctypes.CDLL(None).snprintf(room, 40, b"%g", ctypes.c_double(1.5))
    assert room.value == b"1,5", room.value  # or the test would prove nothing

    q = np.ones((1, 2, 9, 16), np.float32)
    made = flashcute.AttentionDescriptor(q, q, q, scale=0.0625)
    assert made.plan["problem"]["scale"] == 0.0625, made.plan
    assert (made.run(q, q, q) == 1).all()
    a100 = flashcute.TensorDescriptor((4, 20, 700, 64), dtype="float16", device="a100")
    try:
        plan = flashcute.AttentionDescriptor(a100, a100, a100).plan
        assert plan["waves"] % 1, plan["waves"]
    except flashcute.NotImplementedByKernelError:
        pass  # a build without GPU kernels

    import capi
    view = capi.Tensor((1, 2, 9, 16), (288, 144, 16, 1), "float32")
    options = capi.Options(has_scale=1, scale=0.125)
    assert capi.Attention(view, view, view, view, None, options).plan["problem"]["scale"] == 0.125
    for bad, words in (({"scale": 1.5e38}, "1e37, given 1.5e+38"), ({"dropout_p": 1.5}, "[0, 1), given 1.5"),
                       ({"softcap": -2.25}, "1e20, given -2.25"), ({"softcap": 1.5e20}, "given 1.5e+20")):
        for call in (flashcute.attention, flashcute.AttentionDescriptor):
            try:
                call(q, q, q, **bad)
            except flashcute.BadParamError as error:
                assert words in str(error), error
            else:
                raise AssertionError(bad)
    assert json.loads(json.dumps(flashcute._core.info()))["version"] == flashcute.__version__
    sys.exit(main(["explain", "--json", "--device", "cpu", "--seq", "100", "--softcap", "1.5"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's locales are glibc's")
def test_a_decimal_comma_changes_nothing(tmp_path):
    name = numbers_with_commas(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), name], capture_output=True, text=True, timeout=120,
        env={**os.environ, "LOCPATH": str(tmp_path)}, cwd=os.path.dirname(__file__),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["plan"]["problem"]["scale"] == pytest.approx(128**-0.5)


def test_sources_format_no_numbers_by_the_locale(root):
    """printf, strtod and streams follow it; std::to_string of integers, std::to_chars and std::from_chars do not."""
    pattern = re.compile(r"printf\s*\(|\b(strto(d|f|ld)|atof|sto(f|d|ld))\s*\(|\b[io]?s?stringstream\b|std::locale")
    for path in (root / "csrc").rglob("*"):
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            found = pattern.search(path.read_text())
            assert found is None, f"{path.relative_to(root)}: {found.group(0)}"
