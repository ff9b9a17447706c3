"""Streams, CUDA graphs, devices and threads."""

from __future__ import annotations

import concurrent.futures
import math
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import support
from support import close, close_lse

import flashcute

torch = support.torch
gpu = pytest.mark.gpu
ON_BOTH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])


@pytest.fixture
def cuda():
    support.skip_without_cuda()
    return torch.device("cuda")


def normal(*shape, dtype="float16", seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype), generator=generator)


@gpu
@pytest.mark.parametrize("kind", ["functional", "descriptor"])
def test_work_goes_to_the_current_stream(cuda, kind):
    """Inputs filled by a slow kernel on a non-blocking stream: 100 of 100 runs are right."""
    stream = torch.cuda.Stream()
    slow = torch.randn(2048, 2048, device=cuda)
    q = torch.zeros(1, 2, 64, 64, device=cuda, dtype=torch.float16)
    k, v = torch.zeros_like(q), torch.zeros_like(q)
    desc = flashcute.AttentionDescriptor(q, k, v)
    torch.cuda.synchronize()
    for n in range(100):
        with torch.cuda.stream(stream):
            v.fill_(-1)
            for _ in range(4):
                slow = torch.clamp(slow @ slow, -1, 1)
            v.fill_(n % 64)
            out = flashcute.attention(q, k, v) if kind == "functional" else desc.run(q, k, v)
            seen = out.float().amin(), out.float().amax()
        stream.synchronize()
        assert seen[0].item() == seen[1].item() == n % 64, n


@gpu
@pytest.mark.parametrize("form", ["int", "object", "protocol", "pointer object"])
def test_every_form_of_a_stream(cuda, form):
    stream = torch.cuda.Stream()

    class Protocol:
        def __cuda_stream__(self):
            return (0, stream.cuda_stream)

    class Pointer:
        ptr = stream.cuda_stream

    given = {"int": stream.cuda_stream, "object": stream, "protocol": Protocol(), "pointer object": Pointer()}[form]
    slow = torch.randn(2048, 2048, device=cuda)
    q, v = (
        torch.zeros(1, 2, 64, 64, device=cuda, dtype=torch.float16),
        torch.zeros(1, 2, 64, 64, device=cuda, dtype=torch.float16),
    )
    torch.cuda.synchronize()
    for n in range(1, 11):
        with torch.cuda.stream(stream):
            for _ in range(8):
                slow = torch.clamp(slow @ slow, -1, 1)
            v.fill_(n)
        out = flashcute.attention(q, q, v, stream=given)
        stream.synchronize()
        assert (out == n).all(), n


@gpu
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_default_streams_by_number(cuda, number):
    q, v = (
        torch.zeros(1, 1, 8, 64, device=cuda, dtype=torch.float16),
        torch.full((1, 1, 8, 64), 3.0, device=cuda, dtype=torch.float16),
    )
    torch.cuda.synchronize()
    out = flashcute.attention(q, q, v, stream=number)
    torch.cuda.synchronize()
    assert (out == 3).all()


@gpu
def test_a_stream_that_is_none_of_these_is_rejected(cuda):
    q = torch.zeros(1, 1, 8, 64, device=cuda, dtype=torch.float16)
    for bad in ("0", 1.5, object()):
        with pytest.raises((flashcute.BadParamError, TypeError), match="stream"):
            flashcute.attention(q, q, q, stream=bad)


@gpu
@pytest.mark.parametrize("kind", ["functional", "descriptor"])
@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_a_captured_graph_replays_with_new_inputs(cuda, kind, options):
    q, k, v = (normal(2, h, 200, 128, seed=s) for h, s in ((4, 1), (2, 2), (2, 3)))
    out = torch.empty_like(q)
    desc = flashcute.AttentionDescriptor(q, k, v, out=out, **options)
    workspace = torch.empty(max(256, desc.workspace_size), dtype=torch.uint8, device=cuda)

    def call():
        if kind == "functional":
            flashcute.attention(q, k, v, out=out, workspace=workspace, **options)
        else:
            desc.run(q, k, v, out=out, workspace=workspace)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in range(5):
        for n, x in enumerate((q, k, v)):
            x.copy_(normal(*x.shape, seed=100 * seed + n))
        out.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        eager = flashcute.attention(q, k, v, **options)
        assert torch.equal(out, eager)


@gpu
@pytest.mark.parametrize("option", ["seqused_k", "cu_seqlens"])
def test_a_captured_graph_replays_with_new_lengths(cuda, option):
    """Captured with lengths of 16, replayed with [1, 0, 4000, 333]: equal to eager; no sync in capture."""
    lengths = torch.tensor([16, 16, 16, 16], dtype=torch.int32, device=cuda)
    used = [1, 0, 4000, 333]
    try:
        if option == "seqused_k":
            q, k, v = normal(4, 2, 3, 64, seed=1), normal(4, 2, 4096, 64, seed=2), normal(4, 2, 4096, 64, seed=3)
            arguments = {"seqused_k": lengths}
            new = torch.tensor(used, dtype=torch.int32, device=cuda)
        else:
            q, k, v = normal(2, 4, 64, seed=1), normal(2, 4400, 64, seed=2), normal(2, 4400, 64, seed=3)
            lengths = torch.tensor([0, 16, 32, 48, 64], dtype=torch.int32, device=cuda)
            arguments = {
                "cu_seqlens_q": torch.arange(5, dtype=torch.int32, device=cuda),
                "cu_seqlens_k": lengths,
                "max_seqlen_q": 1,
                "max_seqlen_k": 4096,
                "layout": "hsd",
            }
            new = torch.tensor([0, *np.cumsum(used)], dtype=torch.int32, device=cuda)
        out = torch.empty_like(q)
        flashcute.attention(q, k, v, out=out, **arguments)
    except flashcute.NotImplementedByKernelError as error:
        pytest.skip(str(error))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashcute.attention(q, k, v, out=out, **arguments)
    lengths.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, flashcute.attention(q, k, v, **arguments))
    assert (out[1] == 0).all() if option == "seqused_k" else (out[:, 1] == 0).all()


@gpu
def test_the_first_launch_of_a_process_may_be_captured(cuda):
    """No kernel is loaded yet when the capture begins."""
    ran = python(
        textwrap.dedent(
            """
            import torch, flashcute
            q, k, v = (torch.randn(1, 2, 200, 64, device="cuda", dtype=torch.float16) for _ in range(3))
            out = torch.zeros_like(q)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                flashcute.attention(q, k, v, out=out)
            assert (out == 0).all()
            graph.replay()
            torch.cuda.synchronize()
            print(torch.equal(out, flashcute.attention(q, k, v)))
            """
        )
    )
    assert ran.stdout.strip() == "True", ran.stdout + ran.stderr


@gpu
def test_a_key_mask_may_change_between_replays(cuda):
    q, k, v = (normal(2, 2, 70, 64, seed=s) for s in (1, 2, 3))
    mask = torch.ones(2, 70, dtype=torch.bool, device=cuda)
    out = torch.empty_like(q)
    flashcute.attention(q, k, v, mask=mask, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashcute.attention(q, k, v, mask=mask, out=out)
    mask[0, 5:] = False
    mask[1] = False
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, flashcute.attention(q, k, v, mask=mask))
    assert (out[1] == 0).all()
    assert (out[0] != 0).any()


@gpu
def test_a_captured_graph_replays_with_new_dropout_seeds(cuda):
    q, v = (
        torch.zeros(1, 2, 40, 64, dtype=torch.float16, device=cuda),
        torch.ones(1, 2, 40, 64, dtype=torch.float16, device=cuda),
    )
    state = torch.tensor([5, 0], dtype=torch.int64, device=cuda)
    out = torch.empty_like(q)
    try:
        flashcute.attention(q, q, v, dropout_p=0.5, seed=state, out=out)
    except flashcute.NotImplementedByKernelError as error:
        pytest.skip(str(error))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashcute.attention(q, q, v, dropout_p=0.5, seed=state, out=out)
    seen = set()
    for seed, offset in ((5, 0), (5, 1), (6, 0), (2**62 + 9, 2**40)):
        state.copy_(torch.tensor([seed, offset], dtype=torch.int64))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, flashcute.attention(q, q, v, dropout_p=0.5, seed=seed, offset=offset))
        seen.add(out.cpu().numpy().tobytes())
    assert len(seen) == 4


@gpu
def test_the_current_device_does_not_change(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16, device="cuda:1")
    v = torch.full_like(q, 2.0)
    torch.cuda.set_device(0)
    out = flashcute.attention(q, q, v)
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert (out == 2).all()
    assert out.device.index == 1
    with pytest.raises(flashcute.Error, match="device"):
        flashcute.attention(q, q.to("cuda:0"), v)


@gpu
def test_tensors_on_two_kinds_of_device_are_rejected(cuda):
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16, device=cuda)
    for arguments in ((q, q.cpu(), q), (q, q, q.cpu()), (q.cpu(), q, q)):
        with pytest.raises(flashcute.Error, match="device"):
            flashcute.attention(*arguments)
    with pytest.raises(flashcute.Error, match="mask"):
        flashcute.attention(q, q, q, mask=torch.ones(8, dtype=torch.bool))
    with pytest.raises(flashcute.Error, match="out"):
        flashcute.attention(q, q, q, out=torch.zeros(1, 1, 8, 64, dtype=torch.float16))
    assert torch.equal(flashcute.attention(q, q, q), q), "the context did not survive a rejected call"


@ON_BOTH
@pytest.mark.parametrize("backend", ["cpu", "cuda", "sm80", "sm90"])
def test_the_tensors_device_decides_the_backend(device, backend):
    if device == "cuda":
        support.skip_without_cuda()
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16, device=device) if torch else np.zeros((1, 1, 8, 64), "float16")
    if (backend == "cpu") == (device == "cpu"):
        try:
            flashcute.attention(q, q, q, backend=backend)
        except flashcute.NotImplementedByKernelError as error:
            assert backend == "sm90"
            assert "sm90" in str(error)
    else:
        with pytest.raises(flashcute.Error, match="backend"):
            flashcute.attention(q, q, q, backend=backend)


def test_a_gpu_that_is_not_there_is_named():
    """Where there is no GPU, or no CUDA kernels in the build, a GPU descriptor says so."""
    if not support.no_cuda_reason():
        pytest.skip("this machine has a GPU")
    t = flashcute.TensorDescriptor((1, 1, 8, 64), dtype="float16", device="cuda")
    with pytest.raises((flashcute.UnsupportedDeviceError, flashcute.DeviceNotFoundError)) as caught:
        flashcute.AttentionDescriptor(t, t, t)
    assert any(word in str(caught.value) for word in ("CUDA", "GPU", "driver")), str(caught.value)


# -- threads


@ON_BOTH
def test_eight_threads_with_errors_among_them(device):
    """8 threads × 200 calls: bitwise equal to serial, and each error text in its own thread."""
    if device == "cuda":
        support.skip_without_cuda()
    rng = np.random.default_rng(5)
    problems = []
    for n in range(8):
        arrays = [rng.standard_normal((1, 2, 20 + 13 * n, 64)).astype("float16") for _ in range(3)]
        if device == "cuda":
            arrays = [torch.from_numpy(a).cuda() for a in arrays]
        problems.append((arrays, bool(n % 2)))
    serial = [support.to_values(flashcute.attention(*a, causal=c)).tobytes() for a, c in problems]
    if device == "cuda":
        torch.cuda.synchronize()
    start = threading.Barrier(8)

    def work(n):
        arrays, causal = problems[n]
        bad = np.zeros((1, 7 + 2 * n, 4, 64), "float16"), np.zeros((1, 2, 4, 64), "float16")
        stream = torch.cuda.Stream() if device == "cuda" else None
        start.wait()
        for call in range(200):
            if call % 10 == 9:
                try:
                    flashcute.attention(bad[0], bad[1], bad[1])
                except flashcute.BadShapeError as error:
                    assert f"{7 + 2 * n} heads" in str(error) or str(7 + 2 * n) in str(error), str(error)
                else:
                    raise AssertionError("a bad shape was accepted")
                continue
            if stream is not None:
                with torch.cuda.stream(stream):
                    out = flashcute.attention(*arrays, causal=causal)
                stream.synchronize()
            else:
                out = flashcute.attention(*arrays, causal=causal)
            assert support.to_values(out).tobytes() == serial[n], (n, call)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(work, n) for n in range(8)]:
            result.result()


def test_one_descriptor_in_many_threads():
    rng = np.random.default_rng(6)
    inputs = [[rng.standard_normal((1, 2, 50, 32)).astype("float32") for _ in range(3)] for _ in range(6)]
    desc = flashcute.AttentionDescriptor(*inputs[0], causal=True)
    serial = [desc.run(*x).tobytes() for x in inputs]

    def work(n):
        return all(desc.run(*inputs[n]).tobytes() == serial[n] for _ in range(100))

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_the_gil_is_released_around_the_work():
    """While a long call runs, another Python thread makes progress."""
    q = np.random.default_rng(0).standard_normal((1, 8, 2048, 64)).astype("float32")
    flashcute.attention(q[:, :1, :64], q[:, :1, :64], q[:, :1, :64])
    counts, stop = [], threading.Event()

    def count():
        n = 0
        while not stop.is_set():
            n += 1
            if n % 100 == 0:
                counts.append(n)

    thread = threading.Thread(target=count)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        start = len(counts)
        flashcute.attention(q, q, q)
        during = len(counts) - start
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    assert during > 50


# -- fork


FORK = textwrap.dedent(
    """
    import os, sys, numpy as np, flashcute
    q = np.random.default_rng(0).standard_normal((1, 4, 300, 64)).astype("float32")
    want = flashcute.attention(q, q, q)
    for n in range(4):
        child = os.fork()
        if child == 0:
            same = np.array_equal(flashcute.attention(q, q, q), want)
            flashcute.set_num_threads(3)
            same &= np.array_equal(flashcute.attention(q, q, q), want)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if np.array_equal(flashcute.attention(q, q, q), want) else 3)
            _, status = os.waitpid(grandchild, 0)
            os._exit(0 if same and status == 0 else 2)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert np.array_equal(flashcute.attention(q, q, q), want)
    print("fine")
    """
)


def python(program, *, timeout=120, **environment):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, **environment}, cwd=os.path.dirname(__file__),
    )  # fmt: skip


def test_fork_after_cpu_use_works():
    ran = python(FORK)
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


def test_fork_while_another_thread_computes():
    ran = python(
        textwrap.dedent(
            """
            import os, threading, numpy as np, flashcute
            q = np.random.default_rng(0).standard_normal((1, 4, 200, 64)).astype("float32")
            want = flashcute.attention(q, q, q)
            stop = threading.Event()
            def work():
                while not stop.is_set():
                    flashcute.attention(q, q, q)
            threads = [threading.Thread(target=work) for _ in range(2)]
            [t.start() for t in threads]
            for n in range(10):
                child = os.fork()
                if child == 0:
                    os._exit(0 if np.array_equal(flashcute.attention(q, q, q), want) else 2)
                _, status = os.waitpid(child, 0)
                assert status == 0, status
            stop.set()
            [t.join() for t in threads]
            print("fine")
            """
        )
    )
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


@gpu
def test_fork_after_gpu_use_gives_a_clear_error(cuda):
    ran = python(
        textwrap.dedent(
            """
            import os, numpy as np, torch, flashcute
            q = torch.zeros(1, 1, 8, 64, dtype=torch.float16, device="cuda")
            flashcute.attention(q, q, q)
            torch.cuda.synchronize()
            child = os.fork()
            if child == 0:
                try:
                    flashcute.attention(q, q, q)
                except flashcute.Error as error:
                    print("said:", error, flush=True)
                    x = np.zeros((1, 1, 8, 64), "float32")
                    flashcute.attention(x, x, x)
                    os._exit(0)
                os._exit(3)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            assert (flashcute.attention(q, q, q) == 0).all()
            print("fine")
            """
        )
    )
    assert ran.stdout.strip().endswith("fine"), ran.stdout + ran.stderr
    assert "fork" in ran.stdout, ran.stdout


def test_threads_are_counted_from_the_environment():
    ran = python("import flashcute; print(flashcute.get_num_threads())", FLASHCUTE_NUM_THREADS="3")
    assert ran.stdout.strip() == "3", ran.stderr
    ran = python(  # a container's quota may leave fewer than there are
        "import os, flashcute; print(1 <= flashcute.get_num_threads() <= len(os.sched_getaffinity(0)))",
        FLASHCUTE_NUM_THREADS="",
        OMP_NUM_THREADS="",
    )
    assert ran.stdout.strip() == "True", ran.stderr


@pytest.mark.parametrize(
    ("ours", "openmp", "want"),
    [
        ("", "7", "7"),
        ("3", "7", "3"),
        ("", " 5,2,1", "5"),  # one for each level of nesting
        ("", "100000", "1024"),
        ("", "many", "as without"),
        ("", "0", "as without"),
        ("", "4 threads", "as without"),
    ],
)
def test_threads_are_those_of_openmp_where_ours_are_not_set(ours, openmp, want):
    show = "import flashcute; print(flashcute.get_num_threads())"
    if want == "as without":
        want = python(show, FLASHCUTE_NUM_THREADS="", OMP_NUM_THREADS="").stdout.strip()
    ran = python(show, FLASHCUTE_NUM_THREADS=ours, OMP_NUM_THREADS=openmp)
    assert ran.stdout.strip() == want, ran.stdout + ran.stderr


@pytest.mark.parametrize("bad", [0, -1])
def test_a_thread_count_below_one_is_rejected(bad):
    before = flashcute.get_num_threads()
    with pytest.raises(flashcute.BadParamError, match="num_threads"):
        flashcute.set_num_threads(bad)
    assert flashcute.get_num_threads() == before


@gpu
def test_the_legacy_default_stream_orders_numpy_free_work(cuda):
    """Eager calls on the default stream see what earlier default-stream work wrote."""
    q = torch.zeros(2, 3, 5, 64, device=cuda, dtype=torch.bfloat16)
    v = torch.arange(5, device=cuda, dtype=torch.bfloat16)[:, None].expand(2, 3, 5, 64)
    out, lse = flashcute.attention(q, q, v, return_lse=True)
    close(support.to_values(out), 2, "bfloat16")
    close_lse(support.to_values(lse), math.log(5))
