"""Captures on streams that are given, and the contexts of GPUs that are not used. By the driver, without a framework's
graphs."""

from __future__ import annotations

import ctypes
import textwrap

import pytest
import support
from test_faults_streams import normal, python

import flashcute

torch = support.torch
pytestmark = pytest.mark.gpu
BLOCKING, NON_BLOCKING = 0, 1  # whether the legacy default stream waits for it, and it for that
GLOBAL_MODE = 0


def driver(function, *arguments):
    code = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
    assert code == 0, f"{function}: CUDA error {code}"


class Captured:
    """A stream that is captured for the time of a with block, while the frameworks' streams are not."""

    def __init__(self, kind):
        self.handle, self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuStreamCreate", ctypes.byref(self.handle), kind)

    def __enter__(self):
        torch.cuda.synchronize()
        driver("cuStreamBeginCapture_v2", self.handle, GLOBAL_MODE)
        return self.handle.value

    def __exit__(self, kind, value, trace):
        if kind is None:
            driver("cuStreamEndCapture", self.handle, ctypes.byref(self.graph))
            driver("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, ctypes.c_ulonglong(0))
        else:
            ctypes.CDLL("libcuda.so.1").cuStreamEndCapture(self.handle, ctypes.byref(self.graph))

    def replay(self):
        torch.cuda.synchronize()
        driver("cuGraphLaunch", self.executable, self.handle)
        driver("cuStreamSynchronize", self.handle)


@pytest.fixture(autouse=True)
def cuda():
    support.skip_without_cuda()


@pytest.mark.parametrize("kind", [NON_BLOCKING, BLOCKING], ids=["non-blocking", "blocking"])
@pytest.mark.parametrize("path", ["functional", "descriptor"])
def test_a_given_stream_is_captured(kind, path):
    q, k, v = (normal(1, 2, 200, 64, seed=s) for s in (1, 2, 3))
    out = torch.zeros_like(q)
    desc = flashcute.AttentionDescriptor(q, k, v, out=out, causal=True)
    captured = Captured(kind)
    with captured as stream:
        if path == "functional":
            flashcute.attention(q, k, v, out=out, causal=True, stream=stream)
        else:
            desc.run(q, k, v, out=out, stream=stream)
    assert (out == 0).all(), "it ran while it was captured"
    for seed in range(4, 13, 3):
        for n, x in enumerate((q, k, v)):
            x.copy_(normal(*x.shape, seed=seed + n))
        captured.replay()
        assert torch.equal(out, flashcute.attention(q, k, v, causal=True))


@pytest.mark.parametrize("kind", [NON_BLOCKING, BLOCKING], ids=["non-blocking", "blocking"])
def test_results_of_a_captured_call_may_be_its_own(kind):
    """The caller holds them, so that their framework does not reuse their memory."""
    q, k, v = (normal(1, 2, 200, 64, seed=s) for s in (1, 2, 3))
    flashcute.attention(q, k, v, return_lse=True)
    captured = Captured(kind)
    with captured as stream:
        out, lse = flashcute.attention(q, k, v, return_lse=True, stream=stream)
    captured.replay()
    want, want_lse = flashcute.attention(q, k, v, return_lse=True)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


def test_a_captured_call_uses_no_memory_that_it_made_itself():
    """Inputs that are packed need a workspace, which the graph would go on using."""
    q, k, v = (normal(1, 2, 200, 61, seed=s) for s in (1, 2, 3))
    out = torch.zeros_like(q)
    desc = flashcute.AttentionDescriptor(q, k, v, out=out)
    assert desc.workspace_size
    workspace = torch.empty(desc.workspace_size, dtype=torch.uint8, device="cuda")
    used, transposed = torch.full((1,), 200, dtype=torch.int32, device="cuda"), q.transpose(2, 3)
    flashcute.attention(q, k, v)
    flashcute.attention(transposed, transposed, transposed)  # PyTorch must not allocate while something is captured
    captured = Captured(NON_BLOCKING)
    with captured as stream:
        with pytest.raises(flashcute.BadParamError, match=r"\(workspace\)"):
            flashcute.attention(q, k, v, out=out, stream=stream)
        with pytest.raises(flashcute.BadParamError, match=r"\(stream\).*need no copy"):
            flashcute.attention(transposed, transposed, transposed, stream=stream)
        with pytest.raises(flashcute.BadParamError, match=r"\(checked\)"):
            flashcute.attention(q, k, v, out=out, workspace=workspace, seqused_k=used, checked=True, stream=stream)
        flashcute.attention(q, k, v, out=out, workspace=workspace, stream=stream)
    captured.replay()
    assert torch.equal(out, flashcute.attention(q, k, v))


@pytest.mark.parametrize("given", [True, False])
def test_a_given_stream_joins_the_capture_of_the_frameworks(given):
    """As a branch, which what the call made is joined to by itself, and what was given by the caller."""
    q, k, v = (normal(1, 2, 200, 64, seed=s) for s in (1, 2, 3))
    flashcute.attention(q, k, v)
    room = torch.zeros_like(q) if given else None
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        doubled = q * 2
        out = flashcute.attention(doubled, k, v, out=room, stream=side)
        if given:
            torch.cuda.current_stream().wait_stream(side)
        total = out + 1
    q.copy_(normal(*q.shape, seed=9))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(total, flashcute.attention(q * 2, k, v) + 1)


def test_a_gpu_that_is_not_used_is_not_opened():
    """A context is hundreds of megabytes, and fatal where another process has the GPU for itself."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    ran = python(
        textwrap.dedent(
            """
            import ctypes, numpy as np, flashcute
            from flashcute.device_array import DeviceArray

            def opened(number):
                driver = ctypes.CDLL("libcuda.so.1")
                device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
                assert driver.cuDeviceGet(ctypes.byref(device), number) == 0
                assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
                return bool(active.value)

            for head_dim in (64, 61):  # the latter packed into a workspace
                x = np.random.default_rng(0).standard_normal((1, 2, 100, head_dim)).astype("float16")
                arrays = [DeviceArray.from_numpy(x, "cuda:1") for _ in range(3)]
                for _ in range(3):
                    out, lse = flashcute.attention(*arrays, return_lse=True)
                merged, _ = flashcute.merge_states(out, lse, out, lse)
                want = flashcute.attention(x, x, x)
                assert np.abs(merged.numpy().astype("float32") - want.astype("float32")).max() < 0.01
            print(opened(0), opened(1))
            """
        )
    )
    assert ran.stdout.strip() == "False True", ran.stdout + ran.stderr


def test_work_for_another_gpu_leaves_this_one_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    ran = python(
        textwrap.dedent(
            """
            import torch, flashcute
            here = torch.ones(1, 2, 50, 64, dtype=torch.float16, device="cuda:0")
            there = here.to("cuda:1")
            for x in (there, here, there, here):
                for _ in range(3):
                    out = flashcute.attention(x, x, x)
                    assert torch.cuda.current_device() == 0
                    assert torch.empty(1, device="cuda").device.index == 0
                torch.cuda.synchronize(x.device)
                assert out.device == x.device and (out == 1).all()
            with torch.cuda.device(1):
                assert (flashcute.attention(here, here, here).cpu() == 1).all()
                assert torch.cuda.current_device() == 1
            print("fine")
            """
        )
    )
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


FRESH_THREADS = """
import ctypes, threading, numpy as np, torch, flashcute

x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 2, 300, 64)).astype("float16")).cuda()
want = flashcute.attention(x.cpu(), x.cpu(), x.cpu(), causal=True).float()
driver = ctypes.CDLL("libcuda.so.1")

def current():
    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value

def call(make_context, outs, results):
    if make_context:
        context = ctypes.c_void_p()
        create = getattr(driver, "cuCtxCreate_v2")
        assert create(ctypes.byref(context), 0, 0) == 0
    before = current()
    for options, out in zip(({}, {"backend": "sm80"}), outs):  # PyTorch would allocate in the other context
        flashcute.attention(x, x, x, out=out, causal=True, **options)
        results.append((before == current(), out))

rows = []
for make_context in (False, False, True):
    results, outs = [], [torch.empty_like(x) for _ in range(2)]
    thread = threading.Thread(target=call, args=(make_context, outs, results))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    right = [same and (out.cpu().float() - want).abs().max() < 5e-3 for same, out in results]
    rows.append(len(right) == 2 and all(right))
print(rows)
"""


def test_calls_from_threads_that_have_no_context_or_another_librarys():
    """What the host side asks of the driver needs the primary context, current in the thread for the call alone."""
    ran = python(textwrap.dedent(FRESH_THREADS))
    assert ran.stdout.strip() == "[True, True, True]", ran.stdout + ran.stderr
