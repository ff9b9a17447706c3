"""Block-sparse masks: which blocks of 128 queries see which blocks of 128 keys."""

from __future__ import annotations

import time

import numpy as np
import pytest
import support
from support import cases, close, close_lse, compute, ints, ramp, tensor

import flashcute
from flashcute import reference
from flashcute.cli.cases import Case, visible_pairs

EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), cases())


def spread(blocks, seq_q: int, seq_k: int) -> np.ndarray:
    """The same as a mask of pairs."""
    return np.repeat(np.repeat(np.asarray(blocks) != 0, 128, axis=2), 128, axis=3)[:, :, :seq_q, :seq_k]


@EVERYWHERE
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 500), (128, 256), (1, 129), (257, 128), (640, 1100)])
def test_rows_average_the_keys_of_the_blocks_they_see(device, dtype, path, seq_q, seq_k, rng):
    blocks = rng.random((2, 1, -(-seq_q // 128), -(-seq_k // 128))) < 0.5
    blocks[0, :, 0] = False  # 128 rows without a key
    out, lse = compute(
        np.zeros((2, 4, seq_q, 64)), np.zeros((2, 2, seq_k, 64)), ramp(2, 2, seq_k, 64) / 64,
        path=path, device=device, dtype=dtype, options={"block_mask": tensor(blocks, "bool")},
    )  # fmt: skip
    seen = np.broadcast_to(spread(blocks, seq_q, seq_k), (2, 4, seq_q, seq_k))
    count = seen.sum(-1)
    mean = np.where(count > 0, (seen * np.arange(seq_k)).sum(-1) / np.maximum(count, 1), 0)
    close(out, np.broadcast_to(mean[..., None] / 64, out.shape), dtype)
    with np.errstate(divide="ignore"):
        close_lse(lse, np.log(count))
    assert (out[0, :, : min(128, seq_q)] == 0).all()


@EVERYWHERE
def test_each_query_head_has_its_own_blocks(device, dtype, path, rng):
    blocks = rng.random((3, 6, 2, 3)) < 0.5
    q, k, v = (rng.standard_normal((3, h, n, 64)) for h, n in ((6, 200), (2, 300), (2, 300)))
    whole, lse = compute(
        q, k, v, path=path, device=device, dtype=dtype, options={"block_mask": tensor(blocks, "uint8")}
    )
    for b, h in ((0, 0), (0, 1), (1, 3), (2, 5)):
        one = tensor(blocks[b : b + 1, h : h + 1], "uint8")
        alone, alone_lse = compute(
            *(x[b : b + 1, n : n + 1] for x, n in ((q, h), (k, h // 3), (v, h // 3))),
            path=path, device=device, dtype=dtype, options={"block_mask": one},
        )  # fmt: skip
        assert alone[0, 0].tobytes() == whole[b, h].tobytes()
        assert alone_lse[0, 0].tobytes() == lse[b, h].tobytes()


BESIDE = [
    {"causal": True},
    {"causal": True, "alignment": "top_left"},
    {"window": (100, 30)},
    {"window": (140, -1), "softcap": 3.0},
    {"seqused_k": ints([130, 333])},
    {"dropout_p": 0.3, "seed": 5},
    {"sinks": tensor(np.linspace(-1, 1, 4), "float32")},
]


@EVERYWHERE
@pytest.mark.parametrize("options", BESIDE, ids=lambda options: " ".join(options))
def test_blocks_are_counted_from_the_first_row_and_key_and_narrow_the_rest(device, dtype, path, options, rng):
    """What a mask of pairs of the same blocks does, whatever the alignment moves."""
    blocks = rng.random((1, 4, 2, 3)) < 0.5
    q, k, v = (rng.standard_normal((2, h, n, 64)) for h, n in ((4, 200), (2, 333), (2, 333)))

    def run(**mask):
        return compute(q, k, v, path=path, device=device, dtype=dtype, options={**options, **mask})

    out, lse = run(block_mask=tensor(blocks, "int32"))
    want, want_lse = run(mask=tensor(spread(blocks, 200, 333), "bool"))
    close(out, want, dtype)
    close_lse(lse, want_lse)


@EVERYWHERE
@pytest.mark.parametrize("lead", [(1, 1), (2, 4)])
def test_all_blocks_are_no_mask_bitwise(device, dtype, path, lead, rng):
    q, k, v = (rng.standard_normal((2, h, n, 64)) for h, n in ((4, 300), (2, 555), (2, 555)))
    sinks = tensor(np.full(4, -np.inf), "float32")  # no weight, but on a GPU the kernel that block masks take too
    backend = "sm80" if device == "cuda" else "auto"

    def run(**options):
        options = {"causal": True, "sinks": sinks, **options}
        return compute(q, k, v, path=path, device=device, dtype=dtype, options=options, backend=backend)

    out, lse = run()
    again, again_lse = run(block_mask=tensor(np.ones((*lead, 3, 5)), "bool"))
    assert again.tobytes() == out.tobytes()
    assert again_lse.tobytes() == lse.tobytes()


@EVERYWHERE
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_lies_behind_hidden_blocks_never_arrives(device, dtype, path, bad, rng):
    """Blocks of keys that no row sees, and ones that some rows see: those take the NaN, the others do not."""
    blocks = np.zeros((1, 1, 3, 4), bool)
    blocks[0, 0, 0, [0, 3]] = blocks[0, 0, 1, 1] = True  # keys 256 to 383 are nobody's, the last row block sees none
    options = {"block_mask": tensor(blocks, "bool")}
    q, k, v = (rng.standard_normal((1, 2, n, 64)) for n in (300, 500, 500))
    clean, clean_lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    k[:, :, 256:384] = v[:, :, 256:384] = bad
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    assert out.tobytes() == clean.tobytes()
    assert lse.tobytes() == clean_lse.tobytes()
    v[:, :, 130, 7] = bad  # of block 1, which the rows from 128 to 255 see
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    assert not np.isfinite(out[:, :, 128:256, 7]).any()
    out[:, :, 128:256, 7] = clean[:, :, 128:256, 7]
    close(out, clean, dtype)
    close_lse(lse, clean_lse)
    assert (out[:, :, 256:] == 0).all()
    assert np.isneginf(lse[:, :, 256:]).all()


@EVERYWHERE
@pytest.mark.parametrize("kind", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_type(device, dtype, path, kind, rng):
    blocks = rng.random((1, 2, 3, 4)) < 0.5
    q, k, v = (tensor(rng.standard_normal((1, 2, n, 32)), dtype) for n in (300, 500, 500))
    highest = 8 * np.dtype(kind).itemsize - 2  # no bit in the lowest byte, where there are others
    values = blocks if kind == "bool" else blocks.astype(kind) << np.array(highest, kind)
    options = {"block_mask": tensor(values, kind)}
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    verdict = support.Problem(q, k, v, options).judge(out, lse)
    assert verdict, verdict.message


@pytest.mark.gpu
def test_masks_of_any_strides_on_the_gpu(rng):
    support.skip_without_cuda()
    q, k, v = (tensor(rng.standard_normal((2, 2, n, 64)), "float16").torch("cuda") for n in (300, 500, 500))
    blocks = support.torch.from_numpy(rng.random((2, 2, 3, 4)) < 0.5).cuda()
    want = flashcute.attention(q, k, v, block_mask=blocks)
    turned = blocks.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    wide = blocks.repeat_interleave(3, dim=3)[..., ::3]
    for view in (turned, wide):
        assert support.torch.equal(flashcute.attention(q, k, v, block_mask=view), want)
    shared = blocks[:1, :1]
    assert support.torch.equal(
        flashcute.attention(q, k, v, block_mask=shared.expand(2, 2, 3, 4)),
        flashcute.attention(q, k, v, block_mask=shared),
    )


def test_masks_of_any_strides(rng):
    q, k, v = (rng.standard_normal((2, 2, n, 32)).astype("float32") for n in (300, 500, 500))
    blocks = rng.random((2, 2, 3, 4)) < 0.5
    want = flashcute.attention(q, k, v, block_mask=blocks)
    turned = np.ascontiguousarray(blocks.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    backwards = np.ascontiguousarray(blocks[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    wide = np.repeat(blocks, 3, axis=3)[..., ::3]
    for view in (turned, backwards, wide):
        assert np.array_equal(flashcute.attention(q, k, v, block_mask=view), want)
        desc = flashcute.AttentionDescriptor(q, k, v, block_mask=view)
        assert np.array_equal(desc.run(q, k, v, block_mask=view), want)
    shared = np.broadcast_to(blocks[:1, :1], blocks.shape)
    assert np.array_equal(
        flashcute.attention(q, k, v, block_mask=shared), flashcute.attention(q, k, v, block_mask=blocks[:1, :1])
    )


@EVERYWHERE
@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (1, 1, 1, 1), (1, 1, 4, 3), (1, 2, 3, 4), (3, 1, 3, 4)])
def test_masks_of_a_wrong_shape_are_rejected_by_name(device, dtype, path, shape):
    q, k = np.zeros((2, 4, 300, 64)), np.zeros((2, 2, 500, 64))
    with pytest.raises(flashcute.BadShapeError, match=r"block_mask.*\(2, 4, 3, 4\)"):
        compute(q, k, k, path=path, device=device, dtype=dtype, options={"block_mask": tensor(np.ones(shape), "bool")})


def seconds(call) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(5))


@pytest.mark.parametrize("dtype", support.FLOATS)
@pytest.mark.parametrize("heads", ["shared", "each"])
def test_hidden_blocks_cost_nothing(dtype, heads, rng):
    """Grouped heads, 1/16 of the blocks; where heads differ, no block is hidden from all of them."""
    q, k, v = (tensor(rng.standard_normal((1, h, 2048, 64)), dtype).place("torch") for h in (8, 2, 2))
    blocks = np.zeros((1, 8, 16, 16), bool)
    for h in range(8):
        blocks[0, h, np.arange(16), (np.arange(16) + (2 * h if heads == "each" else 0)) % 16] = True
    few = blocks if heads == "each" else blocks[:, :1]
    full = seconds(lambda: flashcute.attention(q, k, v, block_mask=np.ones_like(few)))
    sparse = seconds(lambda: flashcute.attention(q, k, v, block_mask=few))
    assert sparse < full / 4, f"{sparse * 1e3:.2f} ms of {full * 1e3:.2f} ms"


def test_the_oracle_sees_what_a_mask_of_pairs_sees(rng):
    q, k, v = (rng.standard_normal((2, h, n, 20)) for h, n in ((6, 290), (3, 300), (3, 300)))
    blocks = rng.random((1, 6, 3, 3)) < 0.5
    pairs = np.broadcast_to(spread(blocks, 290, 300), (2, 6, 290, 300))
    for options in ({}, {"causal": True}, {"rows": [5, 127, 128, 289]}):
        ours = reference.attention(q, k, v, block_mask=blocks, **options)
        theirs = reference.attention(q, k, v, mask=pairs, **options)
        assert np.array_equal(ours.out, theirs.out)
        assert np.array_equal(ours.lse, theirs.lse)


def test_work_is_that_of_the_visible_blocks(rng):
    blocks = rng.random((2, 4, 3, 2)) < 0.5
    for options in ({}, {"causal": True}, {"window": (90, 7)}):
        case = Case("float32", 2, (4, 4), (300, 250), (8, 8), options, ("block_mask",))
        i, j = np.arange(300)[:, None], np.arange(250)[None]
        left, right = options.get("window", (-1, 0 if options else -1))
        seen = spread(blocks, 300, 250)
        if left >= 0:
            seen = seen & (j >= i - 50 - left)
        if right >= 0:
            seen = seen & (j <= i - 50 + right)
        assert visible_pairs(case, {"block_mask": blocks}) == pytest.approx(seen.sum() / 4)
