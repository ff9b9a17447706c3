"""The Python boundary: whose tensors, of which kind, in which state; and what an import does."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import capsules
import numpy as np
import pytest
import support
from capsules import Producer

import flashcute

torch = support.torch
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SHAPE = (1, 2, 9, 16)


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal(SHAPE).astype("float32") for _ in range(3)]


def python(program, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment}, cwd=os.path.dirname(__file__),
    )  # fmt: skip


# -- whose tensors


@needs_torch
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("path", ["functional", "descriptor"])
def test_a_tensor_that_requires_grad_is_refused_in_grad_mode(qkv, which, path):
    tensors = {n: torch.from_numpy(x) for n, x in zip("qkv", qkv, strict=True)}
    plain = flashcute.attention(**tensors)
    tensors[which] = tensors[which].clone().requires_grad_()

    def call():
        if path == "functional":
            return flashcute.attention(**tensors)
        return flashcute.AttentionDescriptor(*(torch.from_numpy(x) for x in qkv)).run(**tensors)

    with pytest.raises(flashcute.Error, match="grad") as caught:
        call()
    assert which in str(caught.value)
    with torch.no_grad():
        assert torch.equal(call(), plain)
    with torch.inference_mode():
        assert torch.equal(call(), plain)
    tensors = {n: x.detach() for n, x in tensors.items()}
    assert torch.equal(call(), plain)


@needs_torch
def test_a_bias_that_requires_grad_is_refused_too(qkv):
    q, k, v = (torch.from_numpy(x) for x in qkv)
    bias = torch.zeros(1, 1, 9, 9, requires_grad=True)
    with pytest.raises(flashcute.Error, match="bias"):
        flashcute.attention(q, k, v, bias=bias)


@needs_torch
@pytest.mark.gpu
def test_a_gpu_tensor_that_requires_grad_is_refused(qkv):
    support.skip_without_cuda()
    q, k, v = (torch.from_numpy(x).cuda().half() for x in qkv)
    with pytest.raises(flashcute.Error, match="grad"):
        flashcute.attention(q.requires_grad_(), k, v)


def test_read_only_arrays_are_fine_as_inputs(qkv):
    want = flashcute.attention(*qkv)
    for x in qkv:
        x.flags.writeable = False
    assert np.array_equal(flashcute.attention(*qkv), want)
    assert np.array_equal(flashcute.AttentionDescriptor(*qkv).run(*qkv), want)


def test_read_only_arrays_are_refused_as_outputs(qkv):
    out = np.zeros(SHAPE, "float32")
    out.flags.writeable = False
    with pytest.raises(flashcute.Error, match=r"out.*read-only|read-only.*out"):
        flashcute.attention(*qkv, out=out)
    desc = flashcute.AttentionDescriptor(*qkv, return_lse=True)
    with pytest.raises(flashcute.Error, match="read-only"):
        desc.run(*qkv, out=out)
    lse = np.zeros(SHAPE[:3], "float32")
    lse.flags.writeable = False
    with pytest.raises(flashcute.Error, match="lse"):
        desc.run(*qkv, lse=lse)
    assert (out == 0).all()
    assert (lse == 0).all()


def test_read_only_capsules_are_refused_as_outputs(qkv):
    room = np.zeros(SHAPE, "float32")
    with pytest.raises(flashcute.Error, match="read-only"):
        flashcute.attention(*qkv, out=Producer(room, versioned=True, flags=1))
    assert (room == 0).all()


def test_bfloat16_of_ml_dtypes(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = [x.astype(ml_dtypes.bfloat16) for x in qkv]
    out, lse = flashcute.attention(*half, return_lse=True)
    assert out.dtype == ml_dtypes.bfloat16
    assert lse.dtype == np.float32
    verdict = flashcute.reference.judge(out, lse, *half) if hasattr(flashcute, "reference") else True
    assert verdict


@needs_torch
def test_bfloat16_of_pytorch_and_ml_dtypes_are_the_same_bits(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = flashcute.attention(*(torch.from_numpy(x).bfloat16() for x in qkv), causal=True)
    ours = flashcute.attention(*(x.astype(ml_dtypes.bfloat16) for x in qkv), causal=True)
    assert theirs.dtype == torch.bfloat16
    assert np.array_equal(theirs.view(torch.int16).numpy(), ours.view(np.int16))


@pytest.mark.parametrize("bad", ["uint16", "int16", "float64", "int32", "int8", "complex64", "bool"])
def test_other_element_types_are_refused_by_name(qkv, bad):
    """uint16 is never taken for bfloat16."""
    wrong = [x.astype(bad) for x in qkv]
    with pytest.raises(flashcute.BadDtypeError, match=bad) as caught:
        flashcute.attention(*wrong)
    assert "q" in str(caught.value)


@pytest.mark.parametrize("which", [1, 2])
def test_mixed_element_types_are_refused_by_name(qkv, which):
    qkv[which] = qkv[which].astype("float16")
    with pytest.raises(flashcute.BadDtypeError) as caught:
        flashcute.attention(*qkv)
    text = str(caught.value)
    assert "float16" in text
    assert "float32" in text
    assert "qkv"[which] in text


def test_an_output_of_another_element_type_is_refused(qkv):
    with pytest.raises(flashcute.BadDtypeError, match="out"):
        flashcute.attention(*qkv, out=np.zeros(SHAPE, "float16"))


@pytest.mark.parametrize("bad", [None, 3, "text", [[1.0]], object(), np.float32(1)])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_what_is_no_tensor_is_refused_by_name(qkv, which, bad):
    arguments = dict(zip("qkv", qkv, strict=True))
    arguments[which] = bad
    with pytest.raises((flashcute.Error, TypeError), match=which):
        flashcute.attention(**arguments)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_results_are_the_callers_type(qkv, framework):
    module = pytest.importorskip(framework)
    make = {"numpy": np.asarray, "torch": lambda x: module.from_numpy(x), "jax": lambda x: module.numpy.asarray(x)}[
        framework
    ]
    out, lse = flashcute.attention(*(make(x) for x in qkv), return_lse=True)
    kind = {"numpy": "ndarray", "torch": "Tensor", "jax": "Array"}[framework]
    for x in (out, lse):
        assert isinstance(x, getattr(module, kind)), type(x)
    np.testing.assert_allclose(np.asarray(out), flashcute.attention(*qkv), rtol=0, atol=1e-6)
    if framework == "jax":
        with pytest.raises(flashcute.Error, match="out"):
            flashcute.attention(*(make(x) for x in qkv), out=make(np.zeros(SHAPE, "float32")))


@needs_torch
def test_frameworks_may_be_mixed_on_the_cpu(qkv):
    want = flashcute.attention(*qkv)
    out = flashcute.attention(torch.from_numpy(qkv[0]), qkv[1], torch.from_numpy(qkv[2]))
    assert isinstance(out, torch.Tensor)
    assert np.array_equal(out.numpy(), want)
    room = np.zeros(SHAPE, "float32")
    flashcute.attention(*(torch.from_numpy(x) for x in qkv), out=room)
    assert np.array_equal(room, want)


@needs_torch
def test_pytorch_results_have_no_graph_and_own_their_memory(qkv):
    out = flashcute.attention(*(torch.from_numpy(x) for x in qkv))
    want = out.clone()
    assert not out.requires_grad
    assert out.is_contiguous()
    gc.collect()
    [flashcute.attention(*(torch.from_numpy(x * 2) for x in qkv)) for _ in range(20)]
    assert torch.equal(out, want)
    out.resize_(0)


@needs_torch
def test_conjugate_and_sparse_tensors_are_refused(qkv):
    q = torch.from_numpy(qkv[0])
    for bad in (q.to_sparse(), torch.empty(SHAPE, device="meta")):
        with pytest.raises((flashcute.Error, TypeError, BufferError, RuntimeError)):
            flashcute.attention(bad, q, q)


@needs_torch
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gpu_results_are_pytorch_tensors_of_the_same_device(qkv, dtype):
    support.skip_without_cuda()
    q, k, v = (torch.from_numpy(x).cuda().to(getattr(torch, dtype)) for x in qkv)
    out, lse = flashcute.attention(q, k, v, return_lse=True)
    assert out.device == q.device
    assert out.dtype == q.dtype
    assert lse.dtype == torch.float32


# -- capsules


def test_a_bare_dlpack_producer_works(qkv):
    want = flashcute.attention(*qkv)
    for versioned in (False, True):
        out = np.zeros(SHAPE, "float32")
        flashcute.attention(*(Producer(x, versioned=versioned) for x in qkv), out=out)
        assert np.array_equal(out, want)


def test_null_strides_mean_contiguous(qkv):
    want = flashcute.attention(*qkv)
    out = np.zeros(SHAPE, "float32")
    flashcute.attention(*(Producer(x, strides=None) for x in qkv), out=out)
    assert np.array_equal(out, want)


def test_byte_offset_is_added(qkv):
    want = flashcute.attention(*qkv)
    for extra in (1, 2, 3, 4, 16):
        out = np.zeros(SHAPE, "float32")
        moved = [np.concatenate([np.full(extra, np.nan, "float32"), x.ravel()]) for x in qkv]
        flashcute.attention(*(Producer(m, shape=SHAPE, byte_offset=4 * extra) for m in moved), out=out)
        assert np.array_equal(out, want)
        room = np.zeros(extra + out.size, "float32")
        flashcute.attention(*qkv, out=Producer(room, shape=SHAPE, byte_offset=4 * extra))
        assert np.array_equal(room[extra:].reshape(SHAPE), want)
        assert (room[:extra] == 0).all()


@pytest.mark.parametrize("shape", [(), (9,), (9, 16), (1, 1, 2, 9, 16), (1,) * 9, (1,) * 33])
def test_capsules_of_other_ranks_are_refused(qkv, shape):
    room = np.zeros(SHAPE, "float32")
    for arguments in ((Producer(room, shape=shape), qkv[1], qkv[2]), (qkv[0], Producer(room, shape=shape), qkv[2])):
        with pytest.raises(flashcute.Error, match=r"axes|dimension|shape|ndim"):
            flashcute.attention(*arguments)


@pytest.mark.parametrize("shape", [(0, 2, 9, 16), (1, 2, 0, 16)])
def test_capsules_of_no_elements_and_null_data_work(shape):
    q = Producer(None, shape=shape)
    out = np.zeros(shape, "float32")
    flashcute.attention(q, q, q, out=out)


def test_null_data_with_elements_is_refused(qkv):
    with pytest.raises(flashcute.Error):
        flashcute.attention(Producer(None, shape=SHAPE), qkv[1], qkv[2])


@pytest.mark.parametrize(
    "device", [(2, 0), (2, 99), (4, 0), (7, 0), (8, 0), (10, 0), (13, 0), (1234, 0), (-5, 0), (0, 0)]
)
def test_unknown_devices_are_refused_and_never_read(qkv, device):
    """Pointers that would crash if anybody followed them."""
    lost = [Producer(None, shape=SHAPE, device=device, data=0x10) for _ in range(3)]
    with pytest.raises((flashcute.Error, BufferError, RuntimeError)):
        flashcute.attention(*lost)
    with pytest.raises((flashcute.Error, BufferError, RuntimeError)):
        flashcute.attention(qkv[0], lost[0], lost[1])


@pytest.mark.parametrize(
    "dtype",
    [
        (capsules.FLOAT, 32, 2),
        (capsules.FLOAT, 8, 1),
        (capsules.FLOAT, 64, 1),
        (99, 32, 1),
        (3, 64, 1),
        (capsules.FLOAT, 16, 4),
    ],
)
def test_capsules_of_other_types_and_lanes_are_refused(qkv, dtype):
    with pytest.raises(flashcute.BadDtypeError):
        flashcute.attention(*(Producer(x, dtype=dtype) for x in qkv))


def test_capsules_of_a_later_major_version_are_refused(qkv):
    with pytest.raises((flashcute.Error, BufferError, TypeError)):
        flashcute.attention(*(Producer(x, versioned=True, major=2) for x in qkv))


def test_negative_or_absurd_shapes_do_not_crash(qkv):
    for shape in ((1, 2, -9, 16), (-1, 2, 9, 16), (1, 2, 2**62, 16), (2**40, 2**40, 9, 16)):
        with pytest.raises((flashcute.Error, MemoryError)):
            flashcute.attention(Producer(qkv[0], shape=shape), qkv[1], qkv[2])


def test_the_same_capsule_twice_is_refused_and_not_freed_twice(qkv):
    same = capsules.Same(qkv[0])
    out = np.zeros(SHAPE, "float32")
    flashcute.attention(same, qkv[1], qkv[2], out=out)
    with pytest.raises((flashcute.Error, TypeError, ValueError, BufferError)):
        flashcute.attention(same, qkv[1], qkv[2])
    two = capsules.Same(qkv[0])
    with pytest.raises((flashcute.Error, TypeError, ValueError, BufferError)):
        flashcute.attention(two, two, two)


def test_every_capsule_is_released_exactly_once(qkv):
    want = flashcute.attention(*qkv)
    gc.collect()
    capsules.deleted.clear()
    for _ in range(10):
        out = np.zeros(SHAPE, "float32")
        flashcute.attention(*(Producer(x) for x in qkv), out=out)
        assert np.array_equal(out, want)
        with pytest.raises(flashcute.Error):
            flashcute.attention(Producer(qkv[0]), Producer(qkv[1], shape=(1, 2, 8, 18)), Producer(qkv[2]))
    gc.collect()
    assert 30 < len(capsules.deleted) <= 60
    assert len(capsules._kept) == 0, "a capsule was never released"


def test_what_a_producer_raises_arrives(qkv):
    class Broken:
        def __dlpack__(self, **arguments):
            raise RuntimeError("the producer's own words")

        def __dlpack_device__(self):
            return (1, 0)

    class Liar(Broken):
        def __dlpack__(self, **arguments):
            return "no capsule"

    with pytest.raises((flashcute.Error, RuntimeError), match="the producer's own words"):
        flashcute.attention(Broken(), qkv[1], qkv[2])
    with pytest.raises((flashcute.Error, TypeError), match="q"):
        flashcute.attention(Liar(), qkv[1], qkv[2])


def test_old_producers_without_keyword_arguments_work(qkv):
    class Old:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, stream=None):
            return capsules.capsule(self.array)

        def __dlpack_device__(self):
            return (1, 0)

    out = np.zeros(SHAPE, "float32")
    flashcute.attention(*(Old(x) for x in qkv), out=out)
    assert np.array_equal(out, flashcute.attention(*qkv))


def test_a_cpu_producer_is_asked_for_no_stream(qkv):
    producer = Producer(qkv[0])
    flashcute.attention(producer, qkv[1], qkv[2], out=np.zeros(SHAPE, "float32"))
    assert producer.calls
    assert all(c.get("stream") is None for c in producer.calls)


@needs_torch
@pytest.mark.gpu
@pytest.mark.parametrize("versioned", [False, True])
def test_gpu_capsules_are_offset_and_asked_for_a_stream(versioned):
    """byte_offset counts, and the hand-over names the stream on which the work will run."""
    support.skip_without_cuda()
    stream = torch.cuda.Stream()
    shape, half = (1, 2, 9, 64), (capsules.FLOAT, 16, 1)
    room = torch.full((3, 1 + 8 + 2 * 9 * 64), float("nan"), dtype=torch.float16, device="cuda")
    tensors = [r[8:-1].view(shape).normal_() for r in room]
    want = flashcute.attention(*tensors)
    out = torch.empty(shape, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    fields = {"shape": shape, "dtype": half, "device": (capsules.CUDA, 0), "byte_offset": 16, "versioned": versioned}
    producers = [Producer(None, data=r.data_ptr(), **fields) for r in room]
    flashcute.attention(*producers, out=out, stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(out, want)
    for producer in producers:
        assert [c.get("stream") for c in producer.calls if "stream" in c] == [stream.cuda_stream]


# -- memory

MEMORY = """
    import gc, resource, sys
    import numpy as np
    import flashcute
    sys.path.insert(0, ".")
    from capsules import Producer
    kind = sys.argv[1]
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 16)).astype("float32")
    wide = np.zeros((1, 2, 9, 32), "float32")[..., ::2]
    if kind != "numpy":
        import torch
        x = torch.from_numpy(x).to("cuda" if kind == "cuda" else "cpu")
        x = x.half() if kind == "cuda" else x
    allocated = []
    room = np.zeros((1, 2, 9, 16), "float32")
    np_x = np.zeros((1, 2, 9, 16), "float32")

    def now():
        gc.collect()
        if kind == "cuda":
            torch.cuda.synchronize()
            allocated.append(torch.cuda.memory_allocated())
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

    def calls(n):
        for i in range(n):
            flashcute.attention(x, x, x, causal=True, return_lse=True)
            flashcute.attention(x, x, x, scale=1.0 + i * 1e-3)   # a new plan each time: the cache is bounded
            flashcute.attention(np_x, wide, wide)                # copies
            desc = flashcute.AttentionDescriptor(x, x, x)
            desc.run(x, x, x)
            for bad in ((x, x[:, :1, :4], x), (x, x, None), (x, np_x.astype("float64"), x)):
                try:
                    flashcute.attention(*bad)
                except Exception:
                    pass
            flashcute.attention(Producer(np_x), Producer(np_x), Producer(np_x), out=room)

    calls(1500)
    before = now()
    calls(int(sys.argv[2]))
    grown = now() - before
    print(grown, allocated)
    sys.exit(grown > 2 << 20 or len(set(allocated)) > 1)
"""


@pytest.mark.parametrize("kind", ["numpy", "torch", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_ten_thousand_calls_good_and_bad_leave_memory_flat(kind):
    if kind == "cuda":
        support.skip_without_cuda()
    else:
        pytest.importorskip(kind)
    ran = python(MEMORY, kind, "2000")  # eight calls in each round
    assert ran.returncode == 0, ran.stdout + ran.stderr


# -- imports


def test_import_opens_no_gpu_and_no_driver():
    """Neither the driver nor a framework is loaded by the import, nor by a call on the CPU."""
    ran = python(
        """
        import sys
        import flashcute
        maps = open("/proc/self/maps").read()
        assert "libcuda" not in maps.replace("libcudart", ""), "the import loaded the driver"
        for name in ("torch", "jax", "cupy", "tensorflow", "ml_dtypes"):
            assert name not in sys.modules, name
        import numpy as np
        q = np.zeros((1, 1, 4, 8), "float32")
        flashcute.attention(q, q, q)
        assert "libcuda" not in open("/proc/self/maps").read().replace("libcudart", ""), "a CPU call loaded the driver"
        import os
        files = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
        opened = [os.readlink(f) for f in files if os.path.exists(f)]
        assert not [f for f in opened if "nvidia" in f], opened
        print("fine")
        """
    )
    assert ran.stdout.strip() == "fine", ran.stdout + ran.stderr


def test_import_links_neither_driver_nor_cuda_runtime():
    library = str(flashcute.get_library())
    folder = os.path.dirname(flashcute.__file__)
    modules = [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".so")]
    assert modules
    for file in [library, *modules]:
        listed = subprocess.run(["ldd", file], capture_output=True, text=True)
        if listed.returncode == 0:
            assert "libcuda" not in listed.stdout
            assert "libtorch" not in listed.stdout
            assert "libpython" not in listed.stdout


def test_import_works_where_no_gpu_is_visible():
    ran = python(
        """
        import numpy as np, flashcute
        q = np.ones((1, 1, 4, 8), "float32")
        assert (flashcute.attention(q, q, q) == 1).all()
        print("fine")
        """,
        CUDA_VISIBLE_DEVICES="-1",
        LD_LIBRARY_PATH="",
    )
    assert ran.stdout.strip() == "fine", ran.stderr


def test_the_source_tree_says_that_it_is_not_built(root):
    """Importing flashcute/ of an unbuilt source tree says so in one sentence."""
    if any(f.suffix == ".so" for f in (root / "flashcute").iterdir()):
        pytest.skip("the source folder holds a build")
    ran = subprocess.run([sys.executable, "-c", "import flashcute"], capture_output=True, text=True, cwd=root)
    if root in [__import__("pathlib").Path(p) for p in sys.path]:
        pytest.skip("an editable install")
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError"), last
    assert "pip install" in last or "built" in last, last


def test_stubs_and_marker_are_installed():
    folder = os.path.dirname(flashcute.__file__)
    files = os.listdir(folder)
    assert "py.typed" in files
    assert any(f.endswith(".pyi") for f in files)
