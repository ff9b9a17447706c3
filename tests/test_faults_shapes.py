"""Shapes, strides and sizes that attention libraries have got wrong: right or rejected, never a wrong read or write."""

from __future__ import annotations

import math
import mmap

import capi
import numpy as np
import pytest
import support
from support import Problem, Strided, cases, close, close_lse, compute, ints, ramp, tensor

import flashcute

EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), cases())
IN_PYTHON = pytest.mark.parametrize(("device", "dtype", "path"), cases(paths=("functional", "descriptor")))


def zeros(*shape):
    return np.zeros(shape)


@EVERYWHERE
@pytest.mark.parametrize(("heads_q", "heads_k"), [(5, 2), (3, 2), (2, 4), (4, 0)])
def test_heads_that_do_not_divide_are_rejected_with_both_numbers(device, dtype, path, heads_q, heads_k):
    with pytest.raises(flashcute.BadShapeError) as caught:
        compute(zeros(1, heads_q, 4, 64), *[zeros(1, heads_k, 4, 64)] * 2, path=path, device=device, dtype=dtype)
    assert str(heads_q) in str(caught.value)
    assert str(heads_k) in str(caught.value)


@EVERYWHERE
@pytest.mark.parametrize(("heads_q", "heads_k"), [(4, 4), (4, 2), (6, 2), (5, 1), (7, 1), (15, 3), (64, 1)])
def test_each_query_head_reads_its_own_group(device, dtype, path, heads_q, heads_k):
    v = np.broadcast_to(np.arange(heads_k)[None, :, None, None], (2, heads_k, 9, 64))
    out, _ = compute(zeros(2, heads_q, 5, 64), zeros(2, heads_k, 9, 64), v, path=path, device=device, dtype=dtype)
    close(out, (np.arange(heads_q) // (heads_q // heads_k))[None, :, None, None] * np.ones(out.shape), dtype)


@EVERYWHERE
@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (((2, 4, 5, 64), (2, 4, 7, 32), (2, 4, 7, 64)), "head_dim"),
        (((2, 4, 5, 64), (2, 4, 7, 64), (2, 4, 6, 64)), "v"),
        (((2, 4, 5, 64), (2, 4, 7, 64), (2, 2, 7, 64)), "v"),
        (((2, 4, 5, 64), (3, 4, 7, 64), (3, 4, 7, 64)), "batch"),
        (((2, 4, 5, 64), (2, 4, 7, 64), (3, 4, 7, 64)), "batch"),
        (((2, 4, 5, 64), (4, 7, 64), (4, 7, 64)), "k"),
        (((5, 64), (7, 64), (7, 64)), "q"),
        (((1, 2, 4, 5, 64), (1, 2, 4, 7, 64), (1, 2, 4, 7, 64)), "q"),
        (((2, 4, 5, 0), (2, 4, 7, 0), (2, 4, 7, 64)), "head_dim"),
        (((2, 4, 5, 64), (2, 4, 7, 64), (2, 4, 7, 0)), "head_dim"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected_by_name(device, dtype, path, bad, what):
    with pytest.raises(flashcute.BadShapeError, match=what):
        compute(*(zeros(*s) for s in bad), path=path, device=device, dtype=dtype)


STYLES = {
    # how many axes to permute and with which gaps: (memory order of the first three axes, multiplier, extra, offset)
    "bshd": ((0, 2, 1), 1, 0, 0),
    "heads outermost": ((1, 0, 2), 1, 0, 0),
    "packed qkv slice": ((0, 2, 1), 3, 0, 128),
    "every second row": ((0, 1, 2), 2, 0, 0),
    "padded rows": ((0, 1, 2), 1, 8, 0),
    "rows of odd length": ((0, 1, 2), 1, 3, 0),
    "off by two bytes": ((0, 1, 2), 1, 0, 1),
    "off by four bytes": ((0, 1, 2), 1, 0, 2),
    "off by eight bytes": ((0, 1, 2), 1, 0, 4),
    "off by sixteen bytes": ((0, 1, 2), 1, 0, 8),
}


def laid_out(values, name, style):
    order, gap, extra, offset = STYLES[style]
    shape, strides = values.shape, [0, 0, 0, 1]
    step = shape[3] + extra
    for axis in reversed(order):
        strides[axis] = step * (gap if axis == order[-1] else 1)
        step = strides[axis] * shape[axis]
    return Strided(shape, name, strides, offset).fill(values)


@EVERYWHERE
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("which", ["inputs", "out"])
def test_views_give_bitwise_the_result_of_contiguous_tensors(device, dtype, path, style, which, rng):
    if device != "cpu":
        support.skip_without_cuda()
    q, k, v = (rng.standard_normal(s) for s in ((2, 4, 37, 64), (2, 2, 70, 64), (2, 2, 70, 64)))
    plain, plain_lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"causal": True})
    out = laid_out(np.zeros(plain.shape), dtype, style if which == "out" else "padded rows")
    out.poison()
    inputs = [laid_out(x, dtype, style) if which == "inputs" else tensor(x, dtype) for x in (q, k, v)]
    problem = Problem(*inputs, {"causal": True}, out)
    outcome = support.run(problem, path, "numpy" if device == "cpu" and dtype != "bfloat16" else "torch", device)
    assert not outcome.faults
    assert np.array_equal(outcome.out, plain)
    assert np.array_equal(outcome.lse, plain_lse)


@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_inner_stride_other_than_one_is_copied_for_inputs(dtype, path, rng):
    """Python copies q, k, v once; it never copies out."""
    wide = [rng.standard_normal((1, 2, 9, 128)).astype(dtype) for _ in range(3)]
    strided = [x[..., ::2] for x in wide]
    want = flashcute.attention(*(np.ascontiguousarray(x) for x in strided))
    if path == "functional":
        got = flashcute.attention(*strided)
    else:
        got = flashcute.AttentionDescriptor(*strided).run(*strided)
    assert np.array_equal(got, want)
    out = np.zeros((1, 2, 9, 128), dtype=dtype)[..., ::2]
    with pytest.raises(flashcute.BadStridesError, match="out"):
        flashcute.attention(*strided, out=out)
    assert (out == 0).all()


def test_an_inner_stride_other_than_one_is_rejected_in_c():
    good = capi.Tensor((1, 2, 9, 64), None, "float32")
    bad = capi.Tensor((1, 2, 9, 64), (2304, 1152, 128, 2), "float32")
    for n, name in enumerate(("out", "q", "k", "v")):
        tensors = [good] * 4
        tensors[n] = bad
        with pytest.raises(flashcute.BadStridesError, match=name):
            capi.Attention(*tensors)
    # an axis of length 1 may have any stride
    one = capi.Tensor((1, 2, 9, 1), (2304, 1152, 128, 77), "float32")
    capi.Attention(one, one, one, one)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_negative_strides_are_right(dtype, path, axes, rng):
    q, k, v = (rng.standard_normal((2, 2, 9, 16)).astype(dtype) for _ in range(3))
    flipped = [np.flip(x, axes) for x in (q, k, v)]
    want = flashcute.attention(*(np.ascontiguousarray(x) for x in flipped))
    if path == "functional":
        got = flashcute.attention(*flipped)
    else:
        got = flashcute.AttentionDescriptor(*flipped).run(*flipped)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_negative_stride_in_out_is_right_or_rejected(axis, rng):
    q, k, v = (rng.standard_normal((2, 2, 9, 16)).astype("float32") for _ in range(3))
    room = np.full((4, 4, 20, 16), 7, dtype="float32")
    out = np.flip(room[1:3, 1:3, 5:14], axis)
    try:
        flashcute.attention(q, k, v, out=out)
    except flashcute.BadStridesError as error:
        assert "out" in str(error)
        assert (room == 7).all()
    else:
        assert np.array_equal(out, flashcute.attention(q, k, v))


def test_negative_strides_are_rejected_in_c():
    good = capi.Tensor((2, 2, 9, 16), None, "float32")
    bad = capi.Tensor((2, 2, 9, 16), (288, 144, -16, 1), "float32")
    for n, name in enumerate(("out", "q", "k", "v")):
        tensors = [good] * 4
        tensors[n] = bad
        with pytest.raises(flashcute.BadStridesError, match=name):
            capi.Attention(*tensors)


@EVERYWHERE
@pytest.mark.parametrize("strides", [(0, 0, 64, 1), (0, 640, 64, 1), (640, 0, 64, 1), (0, 0, 0, 1)])
def test_zero_strides_in_k_and_v_are_legal(device, dtype, path, strides, rng):
    shape = (2, 2, 10, 64)
    k, v = (
        Strided(shape, dtype, strides).fill(np.broadcast_to(rng.standard_normal((1, 1, 10, 64)), shape))
        for _ in range(2)
    )
    q = rng.standard_normal((2, 4, 6, 64))
    got, lse = compute(q, k, v, path=path, device=device, dtype=dtype)
    want, want_lse = compute(q, k.values, v.values, path=path, device=device, dtype=dtype)
    assert np.array_equal(got, want)
    assert np.array_equal(lse, want_lse)


@EVERYWHERE
@pytest.mark.parametrize(
    "strides", [(0, 640, 64, 1), (640, 0, 64, 1), (1280, 640, 0, 1), (1280, 640, 32, 1), (64, 640, 64, 1)]
)
def test_an_output_that_overlaps_itself_is_rejected(device, dtype, path, strides):
    if device != "cpu":
        support.skip_without_cuda()
    q, k, v = (tensor(zeros(2, 2, 10, 64), dtype) for _ in range(3))
    out = Strided((2, 2, 10, 64), dtype, strides)
    before = out.buffer.copy()
    kind = "numpy" if device == "cpu" and dtype != "bfloat16" else "torch"
    with pytest.raises(flashcute.BadStridesError, match="out"):
        support.run(Problem(q, k, v, {}, out), path, kind, device)
    out.fetch()
    assert out.bits(out.buffer).tobytes() == out.bits(before).tobytes()


@EVERYWHERE
def test_axes_of_length_one_may_have_any_stride(device, dtype, path):
    strides = (7, 3, 5, 1)
    q, k, v = (
        Strided((1, 1, 1, 64), dtype, strides).fill(x)
        for x in (zeros(1, 1, 1, 64), zeros(1, 1, 1, 64), np.full((1, 1, 1, 64), 3.0))
    )
    if device != "cpu":
        support.skip_without_cuda()
    out = Strided((1, 1, 1, 64), dtype, strides)
    kind = "numpy" if device == "cpu" and dtype != "bfloat16" else "torch"
    outcome = support.run(Problem(q, k, v, {}, out), path, kind, device)
    assert not outcome.faults
    close(outcome.out, 3, dtype)


@EVERYWHERE
@pytest.mark.parametrize(
    "depth", [1, 2, 3, 5, 7, 8, 16, 20, 36, 63, 64, 65, 80, 96, 100, 127, 128, 129, 160, 192, 224, 256, 257, 512]
)
def test_head_dims_are_right_or_refused_and_nothing_is_written_beyond(device, dtype, path, depth, rng):
    """On the CPU all of 1 to 512; rows of `out` are padded, so a write beyond the last channel hits a guard."""
    if device != "cpu":
        support.skip_without_cuda()
    q, k, v = (tensor(rng.standard_normal((1, 2, 19, depth)), dtype) for _ in range(3))
    out = Strided((1, 2, 19, depth), dtype, (2 * 19 * (depth + 8), 19 * (depth + 8), depth + 8, 1))
    problem = Problem(q, k, v, {"causal": True}, out)
    kind = "numpy" if device == "cpu" and dtype != "bfloat16" else "torch"
    try:
        outcome = support.run(problem, path, kind, device)
    except flashcute.NotImplementedByKernelError as error:
        assert device != "cpu" and depth > 256, str(error)
        assert str(depth) in str(error)
        pytest.skip(str(error))
    assert not outcome.faults, outcome.faults
    verdict = problem.judge(outcome.out, outcome.lse)
    assert verdict, verdict.message


@EVERYWHERE
@pytest.mark.parametrize(
    ("depth", "depth_v"), [(64, 32), (32, 64), (64, 1), (3, 64), (100, 20), (64, 128), (192, 128), (128, 512)]
)
def test_v_may_have_its_own_head_dim(device, dtype, path, depth, depth_v):
    q, k, v = zeros(1, 2, 6, depth), zeros(1, 1, 9, depth), ramp(1, 1, 9, depth_v)
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype)
    assert out.shape == (1, 2, 6, depth_v)
    close(out, 4, dtype)
    close_lse(lse, math.log(9))


@pytest.mark.parametrize("path", support.PATHS)
@pytest.mark.parametrize("depth", [0, 513, 1024])
def test_head_dims_outside_the_documented_set(path, depth):
    tensors = [zeros(1, 1, 4, depth)] * 3
    with pytest.raises((flashcute.BadShapeError, flashcute.NotImplementedByKernelError), match="head_dim"):
        compute(*tensors, path=path)


def huge(dtype, elements):
    """A zeroed buffer that only costs the small pages that are touched."""
    room = mmap.mmap(-1, elements * np.dtype(dtype).itemsize)
    room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, dtype=dtype)


@pytest.mark.parametrize("path", support.PATHS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_offsets_beyond_32_bits_on_the_cpu(path, dtype):
    """k = v: 1025 rows, 2^21 elements apart, in one buffer of 4 GiB (8 for float32) of which 1025 rows are touched."""
    row = 2**21
    room = huge(dtype, 1024 * row + 64)
    k = np.lib.stride_tricks.as_strided(room, (1, 1025, 1, 64), [x * room.itemsize for x in (0, row, 64, 1)])
    k[0, :, 0, :] = np.arange(1025)[:, None]
    q = np.zeros((1, 3, 1, 64), dtype=dtype)
    want, error = 512, support.TOLERANCE[dtype] * 512
    if path == "functional":
        out = flashcute.attention(q, k, k, layout="bshd")
    elif path == "descriptor":
        out = flashcute.AttentionDescriptor(q, k, k, layout="bshd").run(q, k, k)
    else:
        out = np.empty((1, 1, 3, 64), dtype=dtype)
        tensors = [capi.Tensor((1, 1, 3, 64), None, dtype)] * 2 + [
            capi.Tensor((1, 1, 1025, 64), (0, 64, row, 1), dtype)
        ] * 2
        desc = capi.Attention(*tensors, options=capi.Options(min_alignment=room.itemsize))
        work = support.Workspace(desc.workspace_size, "cpu")
        desc.run(work.pointer, work.size, out.ctypes.data, q.ctypes.data, k.ctypes.data, k.ctypes.data)
    assert np.abs(out.astype(np.float64) - want).max() <= error


@pytest.mark.parametrize("axis", ["batch", "head"])
def test_batch_and_head_offsets_beyond_32_bits_on_the_cpu(axis):
    far = 2**31 + 64
    room = huge("float16", far + 4096)
    strides = {"batch": (far, 1024, 64, 1), "head": (2048, far, 64, 1)}[axis]
    shape = (2, 1, 8, 64) if axis == "batch" else (1, 2, 8, 64)
    v = np.lib.stride_tricks.as_strided(room, shape, [2 * s for s in strides])
    v[...] = np.arange(2).reshape((2, 1, 1, 1) if axis == "batch" else (1, 2, 1, 1)) + 1
    q = np.zeros((*shape[:2], 3, 64), dtype="float16")
    out = np.lib.stride_tricks.as_strided(huge("float16", far + 4096), q.shape, [2 * s for s in strides])
    flashcute.attention(q, v, v, out=out)
    close(out[0, 0], 1, "float16")
    close(out[-1, -1], 2, "float16")


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["functional", "descriptor"])
def test_offsets_beyond_32_bits_on_the_gpu(path):
    support.skip_without_cuda()
    torch = support.torch
    row = 2**21
    room = torch.zeros(1024 * row + 64, dtype=torch.float16, device="cuda")
    k = room.as_strided((1, 1025, 1, 64), (0, row, 64, 1))
    k[0, :, 0] = torch.arange(1025, device="cuda")[:, None].half()
    q = torch.zeros((1, 3, 1, 64), dtype=torch.float16, device="cuda")
    if path == "functional":
        out = flashcute.attention(q, k, k, layout="bshd")
    else:
        out = flashcute.AttentionDescriptor(q, k, k, layout="bshd").run(q, k, k)
    close(out.float().cpu().numpy(), 512, "float16")
    del room, k
    torch.cuda.empty_cache()


@EVERYWHERE
@pytest.mark.parametrize(
    ("shape", "heads_k"), [((65537, 1, 1, 8), 1), ((1, 65537, 1, 8), 1), ((1, 65536, 2, 8), 65536)]
)
def test_there_is_no_limit_at_65535(device, dtype, path, shape, heads_k):
    batch, heads = shape[:2]
    v = np.zeros((batch, heads_k, 2, 8))
    v[...] = (np.arange(batch) % 128)[:, None, None, None] + (np.arange(heads_k) % 64)[None, :, None, None]
    out, lse = compute(zeros(*shape), zeros(*v.shape), v, path=path, device=device, dtype=dtype)
    want = (np.arange(batch) % 128)[:, None] + (np.arange(heads) % 64 if heads_k > 1 else np.zeros(heads))[None, :]
    close(out, np.broadcast_to(want[:, :, None, None], out.shape), dtype)
    close_lse(lse, math.log(2))


@EVERYWHERE
def test_packed_members_have_no_limit_at_65535(device, dtype, path):
    """70,000 members of one row each, and no max_seqlen to bound them."""
    count = 70_000
    v = np.broadcast_to((np.arange(count) % 128)[None, :, None], (1, count, 8))
    cu = np.arange(count + 1)
    options = {"cu_seqlens_q": ints(cu), "cu_seqlens_k": ints(cu), "layout": "hsd"}
    out, lse = compute(
        zeros(1, count, 8), zeros(1, count, 8), v, path=path, device=device, dtype=dtype, options=options
    )
    close(out, v, dtype)
    close_lse(lse, 0)


@EVERYWHERE
def test_long_sequences_have_no_limit_at_65535_either(device, dtype, path):
    q = zeros(1, 1, 66000, 8)
    out, _ = compute(q, zeros(1, 1, 3, 8), ramp(1, 1, 3, 8), path=path, device=device, dtype=dtype)
    close(out, 1, dtype)
    out, lse = compute(
        zeros(1, 1, 2, 8), zeros(1, 1, 66000, 8), np.ones((1, 1, 66000, 8)), path=path, device=device, dtype=dtype
    )
    close(out, 1, dtype)
    close_lse(lse, math.log(66000))


@EVERYWHERE
def test_three_axes_are_one_batch_entry(device, dtype, path, rng):
    q, k, v = (rng.standard_normal((2, 9, 64)) for _ in range(3))
    three, lse3 = compute(q, k, v, path=path, device=device, dtype=dtype)
    four, lse4 = compute(q[None], k[None], v[None], path=path, device=device, dtype=dtype)
    assert np.array_equal(three, four[0])
    assert np.array_equal(lse3, lse4[0])
    assert lse3.shape == (2, 9)


@pytest.mark.parametrize("path", support.PATHS)
def test_elements_at_odd_addresses_are_right_or_rejected(path, rng):
    """A pointer that is not even aligned to its elements."""
    room = np.zeros(3 * 2 * 9 * 16 * 4 + 1, dtype=np.uint8)
    flat = room[1:].view(np.uint8)
    arrays = [np.ndarray((1, 2, 9, 16), "float32", buffer=flat.data, offset=n * 2 * 9 * 16 * 4) for n in range(3)]
    for a in arrays:
        a[...] = rng.standard_normal(a.shape)
    want = flashcute.attention(*(a.copy() for a in arrays))
    try:
        if path == "functional":
            got = flashcute.attention(*arrays)
        elif path == "descriptor":
            got = flashcute.AttentionDescriptor(*arrays).run(*arrays)
        else:
            t = capi.Tensor((1, 2, 9, 16), None, "float32")
            desc = capi.Attention(t, t, t, t, options=capi.Options(min_alignment=4))
            got = np.empty((1, 2, 9, 16), "float32")
            desc.run(None, 0, got.ctypes.data, *(a.ctypes.data for a in arrays))
    except (flashcute.BadParamError, flashcute.BadStridesError) as error:
        assert "align" in str(error)
    else:
        assert np.array_equal(got, want)


@EVERYWHERE
@pytest.mark.parametrize("p", ["mask", "bias", "alibi_slopes", "sinks", "seqused_k"])
def test_optional_tensors_of_a_wrong_shape_are_rejected_by_name(device, dtype, path, p):
    wrong = {
        "mask": tensor(np.ones((2, 6)), "bool"),
        "bias": tensor(np.zeros((2, 4, 5, 6)), "float32"),
        "alibi_slopes": tensor(np.zeros(3), "float32"),
        "sinks": tensor(np.zeros(2), "float32"),
        "seqused_k": support.ints([1, 2, 3]),
    }
    with pytest.raises(flashcute.BadShapeError, match=p):
        compute(
            zeros(2, 4, 5, 64),
            zeros(2, 4, 7, 64),
            zeros(2, 4, 7, 64),
            path=path,
            device=device,
            dtype=dtype,
            options={p: wrong[p]},
        )
