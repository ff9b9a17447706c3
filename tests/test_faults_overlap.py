"""Results in the memory of what a call reads: right where out is exactly q, refused by both names where anything else
certainly overlaps, and taken where views interleave without an element in common."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import support

import flashcute

torch = support.torch
pytestmark = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SHAPE = (1, 4, 600, 64)  # several tiles: small problems come out right by luck


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda":
        support.skip_without_cuda()
    return request.param


@pytest.fixture
def qkv(device):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SHAPE, generator=generator).to(device, torch.float16) for _ in range(3)]


def call(path, q, k, v, **tensors):
    results = {name: tensors[name] for name in ("lse", "probs") if name in tensors}
    wanted = {f"return_{name}": True for name in ("lse", "probs") if name in tensors or tensors.get(f"return_{name}")}
    options = {name: x for name, x in tensors.items() if name not in results and not name.startswith("return_")}
    if path == "functional":
        return flashcute.attention(q, k, v, **options, **wanted)
    return flashcute.AttentionDescriptor(q, k, v, **options, **wanted).run(
        q, k, v, **{name: x for name, x in options.items() if name not in ("causal", "scale", "backend")}, **results
    )


BACKENDS = ["auto", "sm80", "sm90"]


def backend_of(device, name):
    if device == "cpu" and name != "auto":
        pytest.skip("a CPU has one")
    return {} if name == "auto" else {"backend": name}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_those_of_q_where_out_replaces_it(qkv, device, backend, path, layout, causal):
    q, k, v = qkv
    options = {"causal": causal, "return_lse": True, "return_probs": True, **backend_of(device, backend)}
    try:
        expected = flashcute.attention(q, k, v, **options)
    except flashcute.NotImplementedByKernelError as error:
        if backend == "auto":
            raise
        pytest.skip(str(error))
    if layout == "strided":  # rows of q beside other rows of one buffer
        buffer = torch.full((1, 600, 3, 4, 64), torch.nan, dtype=q.dtype, device=device)
        place = buffer[:, :, 1].transpose(1, 2)
    else:
        place = torch.empty_like(q)
    place.copy_(q)
    out, lse, probs = call(path, place, k, v, out=place, **options)
    assert out is place
    for got, want in zip((out, lse, probs), expected, strict=True):
        assert torch.equal(got, want)
    # and they are the weights of the q that was there
    scores = (q.double() @ k.double().mT) / 8
    if causal:
        scores = scores.masked_fill(~torch.ones(600, 600, dtype=torch.bool, device=device).tril(), -torch.inf)
    assert (probs - scores.softmax(-1)).abs().max() < 2e-3


def test_weights_are_those_of_q_where_out_replaces_it_by_the_c_api(device):
    import capi

    rng = np.random.default_rng(3)
    q, k, v = (support.tensor(rng.standard_normal((1, 2, 300, 64)), "float16") for _ in range(3))
    problem = support.Problem(q, k, v, {}, out=support.Strided(q.shape, "float16"), return_probs=True)
    expected = support.run(problem, "c", device=device)
    assert not expected.faults
    assert problem.judge(expected.out, expected.lse, expected.probs).ok
    heads = capi.Tensor(q.shape, q.strides, "float16")
    shape = (1, 2, 300, 300)
    probs_view = capi.Tensor(shape, support.contiguous_strides(shape), "float32")
    options = capi.Options(min_alignment=16, probs=probs_view.value)
    kind = capi.CPU if device == "cpu" else capi.NVIDIA
    desc = capi.Attention(heads, heads, heads, heads, None, options, device=kind)
    placed = [torch.from_numpy(np.ascontiguousarray(x.raw)).to(device) for x in (q, k, v)]
    probs = torch.zeros(shape, device=device)
    space = support.Workspace(desc.workspace_size, device)
    pointers = [x.data_ptr() for x in (placed[0], *placed)]
    desc.run(space.pointer, space.size, *pointers, None, capi.Buffers(probs=probs.data_ptr()))
    if device != "cpu":
        torch.cuda.synchronize()
    np.testing.assert_array_equal(probs.cpu().numpy(), expected.probs)
    np.testing.assert_array_equal(placed[0].float().cpu().numpy(), expected.out)


@pytest.mark.parametrize("device", ["a100", "h100"])
def test_plans_with_weights_stage_q(device):
    """On a GPU the weights are made after out, by a kernel of their own."""
    rows = flashcute.TensorDescriptor((2, 4, 600, 64), dtype="float16", device=device)
    try:
        plan = flashcute.AttentionDescriptor(rows, rows, rows, return_probs=True).plan
    except flashcute.NotImplementedByKernelError:
        pytest.skip("this build has no GPU kernels")
    assert plan["staged"] == ["q"]
    assert plan["workspace"] >= 2 * 4 * 600 * 64 * 2
    assert flashcute.AttentionDescriptor(rows, rows, rows).plan["staged"] == []


def views(device):
    """A call with every optional tensor that this device has kernels for, each in memory of its own."""
    made = {
        "mask": torch.ones(1, 600, dtype=torch.int32, device=device),
        "alibi_slopes": torch.ones(4, dtype=torch.float32, device=device),
        "sinks": torch.zeros(4, dtype=torch.float32, device=device),
        "seqused_k": torch.full((1,), 600, dtype=torch.int32, device=device),
        "bias": torch.zeros(1, 1, 600, 600, dtype=torch.float32, device=device),
        "block_mask": torch.ones(1, 1, 5, 5, dtype=torch.int32, device=device),
    }
    pairs = torch.ones(1, 1, 600, 600, dtype=torch.int16, device=device)
    return [*made.items(), ("mask", pairs)]


@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("number", range(7))
def test_an_output_in_the_memory_of_an_optional_tensor_is_refused(qkv, device, path, number):
    name, given = views(device)[number]
    room = torch.zeros(1 + 4 * 600 * 64 * 2 // 4 + given.numel() * given.element_size() // 4, device=device)
    results = room[: 4 * 600 * 64 * 2 // 4].view(torch.float16).view(SHAPE)
    end = results.numel() * 2 - 4  # the last element of out and the first of the other share four bytes
    inside = (
        room.view(torch.uint8)[end : end + given.numel() * given.element_size()].view(given.dtype).view(given.shape)
    )
    inside.copy_(given)
    kept = inside.clone()
    call(path, *qkv, **{name: given}, out=results)
    inside.copy_(given)
    with pytest.raises(
        flashcute.BadParamError, match=rf"\(out\): expected memory of its own, given memory that overlaps {name}\b"
    ):
        call(path, *qkv, **{name: inside}, out=results)
    assert torch.equal(inside, kept)


def test_lse_and_weights_in_the_memory_of_an_input_are_refused(qkv, device):
    q, k, v = (x[:, :, :40] for x in qkv)
    scores = torch.zeros(1, 4, 40, 40, device=device)
    with pytest.raises(
        flashcute.BadParamError, match=r"\(probs\): expected memory of its own, given memory that overlaps bias"
    ):
        call("descriptor", q, k, v, bias=scores, probs=scores)
    lse = torch.zeros(1, 4, 40, device=device)
    with pytest.raises(
        flashcute.BadParamError, match=r"\(lse\): expected memory of its own, given memory that overlaps sinks"
    ):
        call("descriptor", q, k, v, sinks=lse[0, 3, 36:], lse=lse)


@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse"])
def test_a_workspace_over_a_tensor_is_refused(device, path, name):
    """Head dim 61 on a GPU, rows that are staged: both backends then need a workspace."""
    shape = (1, 4, 600, 61)
    desc = flashcute.AttentionDescriptor(
        *(torch.zeros(shape, dtype=torch.float16, device=device) for _ in range(3)), return_lse=True
    )
    room = torch.zeros(desc.workspace_size + (8 << 20), dtype=torch.uint8, device=device)
    assert desc.workspace_size > 0
    where = desc.workspace_size // 2 // 256 * 256  # in the middle of the workspace
    count = 4 * 600 if name == "lse" else 4 * 600 * 61
    size, dtype = (4, torch.float32) if name == "lse" else (2, torch.float16)
    inside = room[where : where + count * size].view(dtype).view(shape[:3] if name == "lse" else shape)
    tensors = {x: torch.zeros(shape, dtype=torch.float16, device=device) for x in "qkv"} | {name: inside}
    with pytest.raises(flashcute.BadParamError, match=r"\(workspace\): expected memory of its own"):
        if path == "descriptor" or name == "lse":  # only a run takes an lse
            extra = {} if "out" not in tensors else {"out": tensors["out"]}
            made = flashcute.AttentionDescriptor(*(tensors[x] for x in "qkv"), return_lse=True, **extra)
            lse = tensors.get("lse", torch.zeros(shape[:3], dtype=torch.float32, device=device))
            made.run(*(tensors[x] for x in "qkv"), lse=lse, workspace=room, **extra)
        else:
            flashcute.attention(*(tensors[x] for x in "qkv"), out=tensors.get("out"), workspace=room)


def test_packed_lengths_in_the_memory_of_a_result_are_refused(device):
    q = torch.ones(2, 20, 16, dtype=torch.float16, device=device)
    out = torch.zeros_like(q)
    inside = out.view(torch.int32).reshape(-1)[-2:]
    bounds = torch.tensor([0, 20], dtype=torch.int32, device=device)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        inside.copy_(bounds)
        given = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, name: inside}
        with pytest.raises(
            flashcute.BadParamError, match=rf"\(out\): expected memory of its own, given memory that overlaps {name}"
        ):
            flashcute.attention(q, q, q, out=out, **given)


@pytest.mark.parametrize("first", range(7))
def test_heads_of_one_buffer_overlap_where_they_share_a_head(device, first):
    """(batch, seq, heads, channels) of 8 heads: q has the first two, k and v the next ones, out two from `first` on."""
    generator = torch.Generator().manual_seed(2)
    buffer = torch.randn(2, 130, 8, 64, generator=generator).to(device, torch.float16)
    q, k, v, out = (buffer[:, :, i : i + 2] for i in (0, 2, 4, first))
    expected = flashcute.attention(q, k, v, layout="bshd")
    if first in (0, 6):  # q itself, or nobody's
        assert torch.equal(flashcute.attention(q, k, v, layout="bshd", out=out), expected)
        return
    kept = buffer.clone()
    name = "qqkkvv"[first]
    with pytest.raises(
        flashcute.BadParamError, match=rf"\(out\): expected memory of its own, given memory that overlaps {name}"
    ):
        flashcute.attention(q, k, v, layout="bshd", out=out)
    assert torch.equal(buffer, kept)


def test_overlap_is_found_exactly(rng):
    """Views of one small buffer, drawn at random: refused when and only when elements of out belong to another."""
    room = np.zeros(400, np.float32)
    index = np.arange(400)

    def draw():
        heads, rows, channels = (int(n) for n in rng.integers(1, 4, 3))
        row = channels + int(rng.integers(0, 4))
        head = row * rows + int(rng.integers(0, 4))
        steps = (head, row, 1)
        if rng.random() < 0.5:  # heads inside of rows
            head = channels + int(rng.integers(0, 3))
            steps = (head, head * heads + int(rng.integers(0, 4)), 1)
        start = int(rng.integers(0, 60))

        def view(flat):
            size = flat.itemsize
            return np.lib.stride_tricks.as_strided(flat[start:], (heads, rows, channels), [s * size for s in steps])

        return view(room), set(view(index).ravel().tolist())

    seen = {True: 0, False: 0}
    for _ in range(3000):
        k, k_at = draw()
        out, out_at = draw()
        q = np.zeros((out.shape[0], out.shape[1], k.shape[2]), np.float32)
        v = np.zeros((k.shape[0], k.shape[1], out.shape[2]), np.float32)
        if q.shape[0] % k.shape[0]:
            continue
        shared = bool(k_at & out_at)
        seen[shared] += 1
        if shared:
            with pytest.raises(
                flashcute.BadParamError, match=r"\(out\): expected memory of its own, given memory that overlaps k"
            ):
                flashcute.attention(q, k, v, out=out)
        else:
            flashcute.attention(q, k, v, out=out)
    assert min(seen.values()) > 200


def test_a_search_that_finds_nothing_ends_soon(rng):
    """Strides without a common order, in several axes, are looked at for a bounded time."""
    lengths = (40, 41, 42)
    room = np.zeros(60_000_000, np.float32)

    def view(start, steps):
        return np.lib.stride_tricks.as_strided(room[start:], (*lengths, 2), [4 * s for s in (*steps, 1)])

    k = view(0, (98_765, 2_346, 54))
    out = view(1, (99_989, 2_402, 56))
    q = np.zeros((*lengths, 2), np.float32)
    for a, b in itertools.product((k, out), repeat=2):
        if a is not b:
            try:
                flashcute.attention(q, a, q, out=b)
            except flashcute.BadParamError as error:
                assert "overlap" in str(error)
