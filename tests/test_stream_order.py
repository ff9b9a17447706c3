"""Which stream waits for which, seen on frameworks and a GPU that only tell what they would do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import flashcute

TESTS = os.path.dirname(__file__)
PRELUDE = """
import fake_frameworks
from fake_frameworks import Cupy, Exchange, Torch, Unknown, filled
fake_frameworks.install()
import flashcute
"""


@pytest.fixture(scope="module")
def fake_gpu(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    library = str(tmp_path_factory.mktemp("fake") / "fake_gpu.so")
    source = os.path.join(TESTS, "fake_gpu.c")
    command = [compiler, "-std=c11", "-shared", "-fPIC", "-I", flashcute.get_include(), source, "-o", library]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return library


@pytest.fixture
def happened(fake_gpu):
    """Runs a program; returns for each piece of work what had to be done before it may start."""

    def run(program, **environment):
        package = os.path.dirname(os.path.dirname(flashcute.__file__))
        path = os.pathsep.join([TESTS, package])
        ran = subprocess.run(
            [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=60, cwd=TESTS,
            env={**os.environ, "LD_PRELOAD": fake_gpu, "PYTHONPATH": path, **environment},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return order(ran.stderr.splitlines())

    return run


def order(lines):
    done: dict[str, set[str]] = {}  # by stream
    known_to_host: set[str] = set()
    before: dict[str, set[str]] = {}
    for line in lines:
        verb, *words = line.split()
        if verb == "work":
            name, stream = words
            before[name] = done.setdefault(stream, set()) | known_to_host
            done[stream].add(name)
        elif verb == "wait":
            waiter, signaller = words
            done.setdefault(waiter, set()).update(done.setdefault(signaller, set()))
        else:
            assert verb == "finish", line
            known_to_host |= done.setdefault(words[0], set())
    return before


def test_the_kernel_comes_after_what_every_framework_has_enqueued(happened):
    before = happened(
        """
q, k, v = filled(Torch, "q"), filled(Cupy, "k"), filled(Exchange, "v")
flashcute.attention(q, k, v)
"""
    )
    assert {"fill:q", "fill:k", "fill:v", "fill:made-0"} <= before["kernel"]


@pytest.mark.parametrize("stream", ["", ", stream=0x300"])
@pytest.mark.parametrize("kind", ["Cupy", "Exchange"])
@pytest.mark.parametrize("call", ["flashcute.attention", "flashcute.AttentionDescriptor(q, k, v).run"])
def test_a_hidden_copy_of_another_framework_is_freed_after_the_kernel(happened, call, kind, stream):
    before = happened(
        f"""
q, k, v = filled(Torch, "q"), filled(Torch, "k"), filled({kind}, "v", contiguous=False)
{call}(q, k, v{stream})
"""
    )
    assert "fill:copy-of-v" in before["kernel"]
    assert "kernel" in before["free:copy-of-v"]
    assert "kernel" in before["free:made-0"]


def test_a_hidden_copy_of_the_same_framework_is_freed_after_a_kernel_on_a_given_stream(happened):
    before = happened(
        """
q, k, v = filled(Torch, "q", contiguous=False), filled(Torch, "k"), filled(Torch, "v")
flashcute.attention(q, k, v, out=filled(Torch, "out"), stream=0x300)
"""
    )
    assert {"fill:copy-of-q", "fill:out"} <= before["kernel"]
    assert "kernel" in before["free:copy-of-q"]


def test_a_workspace_is_freed_after_a_kernel_on_a_given_stream(happened):
    before = happened(
        """
q = filled(Torch, "q")
flashcute.attention(q, filled(Torch, "k"), filled(Torch, "v"), out=filled(Torch, "out"), stream=0x300)
""",
        FAKE_WORKSPACE="1",
    )
    assert "fill:made-0" in before["kernel"]
    assert "kernel" in before["free:made-0"]


def test_packed_results_are_filled_before_the_kernel_writes_on_a_given_stream(happened):
    before = happened(
        """
q = filled(Torch, "q", (2, 8, 64))
starts = filled(Torch, "starts", (2,), "int32")
flashcute.attention(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, layout="hsd", stream=0x300)
"""
    )
    assert "fill:result" in before["kernel"]


def test_an_output_of_another_framework_is_read_after_the_kernel(happened):
    before = happened(
        """
q, out = filled(Torch, "q"), filled(Cupy, "out")
flashcute.attention(q, q, q, out=out)
filled(Cupy, "reader")
"""
    )
    assert "kernel" in before["fill:reader"]


@pytest.mark.parametrize("kind", ["Cupy", "Exchange"])
def test_an_input_of_another_framework_is_freed_after_the_kernel(happened, kind):
    """Also where it hands its memory on by streams: the caller may drop it as soon as the call has returned."""
    before = happened(
        f"""
q = filled(Torch, "q")
flashcute.attention(q, filled({kind}, "k"), filled({kind}, "v"), out=filled(Torch, "out"))
"""
    )
    assert "kernel" in before["free:k"]
    assert "kernel" in before["free:v"]


def test_a_given_stream_stays_the_callers_business(happened):
    """Nothing of the call's own is in play: the framework's stream is not held up."""
    before = happened(
        """
q, out = filled(Torch, "q"), filled(Torch, "out")
flashcute.attention(q, q, q, out=out, stream=0x300)
filled(Torch, "next")
"""
    )
    assert "fill:q" in before["kernel"]
    assert "kernel" not in before["fill:next"]


# -- streams that are captured into a CUDA graph


@pytest.mark.parametrize("kind", ["Torch", "Cupy", "Exchange", "Unknown"])
def test_a_captured_stream_and_those_of_the_frameworks_go_their_ways(happened, kind):
    """None may wait for another: the kernel runs when the graph is launched."""
    before = happened(
        f"""
q, out = filled(Torch, "q"), filled({kind}, "out")
flashcute.attention(q, filled({kind}, "k"), filled({kind}, "v"), out=out, stream=0x300)
flashcute.attention(q, q, q, stream=0x300)
filled(Torch, "next")
""",
        FAKE_CAPTURE="0x300",
    )
    assert before["kernel"] == {"kernel"}, "the second comes after the first"
    assert "kernel" not in before["fill:next"]


def test_streams_of_one_capture_wait_for_each_other(happened):
    before = happened(
        """
q = filled(Torch, "q", contiguous=False)
flashcute.attention(q, filled(Torch, "k"), filled(Torch, "v"), stream=0x300)
""",
        FAKE_CAPTURE="0x300,0x100",
        FAKE_WORKSPACE="1",
    )
    assert {"fill:copy-of-q", "fill:k"} <= before["kernel"]
    assert "kernel" in before["free:copy-of-q"]


@pytest.mark.parametrize(
    ("contiguous", "workspace", "said"),
    [
        (True, "1", "(workspace): expected one on a stream that is captured"),
        (False, "", "(stream): expected tensors that"),
    ],
)
def test_a_graph_does_not_keep_memory_of_the_call(happened, contiguous, workspace, said):
    environment = {"FAKE_WORKSPACE": workspace} if workspace else {}
    before = happened(
        f"""
q = filled(Torch, "q", contiguous={contiguous})
try:
    flashcute.attention(q, filled(Torch, "k"), filled(Torch, "v"), stream=0x300)
except flashcute.BadParamError as error:
    assert {said!r} in str(error), error
else:
    raise AssertionError("it was captured")
""",
        FAKE_CAPTURE="0x300",
        **environment,
    )
    assert "kernel" not in before


def test_a_given_workspace_may_be_captured(happened):
    before = happened(
        """
q = filled(Torch, "q")
workspace = filled(Torch, "workspace", (1024,), "uint8")
flashcute.attention(q, q, q, workspace=workspace, stream=0x300)
""",
        FAKE_CAPTURE="0x300",
        FAKE_WORKSPACE="1",
    )
    assert not before["kernel"]


def test_cupy_is_asked_for_the_stream_of_the_tensors_device(happened):
    before = happened(
        """
q = filled(Torch, "q", device_id=1)
v = filled(Cupy, "v", device_id=1, contiguous=False)
flashcute.attention(q, q, v)
"""
    )
    assert "fill:copy-of-v" in before["kernel"]
    assert "kernel" in before["free:copy-of-v"]


def test_memory_of_an_unknown_framework_is_let_go_when_the_kernel_is_done(happened):
    before = happened(
        """
q = filled(Torch, "q")
flashcute.attention(q, q, filled(Unknown, "v"), out=filled(Torch, "out"))
"""
    )
    assert "fill:v" in before["kernel"]
    assert "kernel" in before["free:v"]


@pytest.mark.parametrize("kind", ["Cupy", "Exchange", "Unknown"])
def test_merge_states_orders_the_streams_of_its_frameworks(happened, kind):
    before = happened(
        f"""
shape = (1, 2, 8)
out_a, lse_a = filled(Torch, "out_a"), filled(Torch, "lse_a", shape, "float32")
out_b, lse_b = filled({kind}, "out_b", contiguous={kind == "Unknown"}), filled({kind}, "lse_b", shape, "float32")
flashcute.merge_states(out_a, lse_a, out_b, lse_b)
del out_b
"""
    )
    assert {"fill:out_a", "fill:lse_a", "fill:out_b", "fill:lse_b"} <= before["kernel"]
    assert {"fill:made-0", "fill:made-1"} <= before["kernel"]
    if kind != "Unknown":
        assert "fill:copy-of-out_b" in before["kernel"]
        assert "kernel" in before["free:copy-of-out_b"]
    else:
        assert "kernel" in before["free:out_b"]
