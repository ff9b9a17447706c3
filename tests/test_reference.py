"""The oracle itself, against PyTorch in float64, published Philox vectors and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import ramp

from flashcute import reference

torch = pytest.importorskip("torch")


def sdpa(q, k, v, **options):
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x)) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    options = {
        n: torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for n, x in options.items()
    }
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).numpy()


@pytest.fixture
def qkv(rng):
    return rng.standard_normal((2, 6, 33, 20)), rng.standard_normal((2, 3, 57, 20)), rng.standard_normal((2, 3, 57, 12))


def test_plain_equals_pytorch(qkv):
    np.testing.assert_allclose(reference.attention(*qkv).out, sdpa(*qkv), rtol=1e-12, atol=1e-13)


def test_scale_and_additive_bias_equal_pytorch(qkv, rng):
    bias = rng.standard_normal((2, 1, 33, 57))
    ours = reference.attention(*qkv, scale=0.25, bias=bias)
    np.testing.assert_allclose(ours.out, sdpa(*qkv, scale=0.25, attn_mask=bias), rtol=1e-12, atol=1e-13)


def test_masks_equal_pytorch(qkv, rng):
    keep = rng.random((2, 6, 33, 57)) < 0.5
    keep[..., 3] = True
    np.testing.assert_allclose(
        reference.attention(*qkv, mask=keep).out, sdpa(*qkv, attn_mask=keep), rtol=1e-12, atol=1e-13
    )
    keys = rng.random((2, 57)) < 0.5
    theirs = sdpa(*qkv, attn_mask=np.broadcast_to(keys[:, None, None, :], (2, 6, 33, 57)))
    np.testing.assert_allclose(
        reference.attention(*qkv, mask=keys.astype(np.int8) * 3).out, theirs, rtol=1e-12, atol=1e-13
    )


def test_top_left_causal_equals_pytorch(qkv):
    ours = reference.attention(*qkv, causal=True, alignment="top_left")
    np.testing.assert_allclose(ours.out, sdpa(*qkv, is_causal=True), rtol=1e-12, atol=1e-13)


def test_bottom_right_band_is_a_dense_mask(qkv):
    i, j = np.arange(33)[:, None], np.arange(57)[None, :]
    d = 57 - 33
    keep = (j >= i + d - 5) & (j <= i + d + 2)
    ours = reference.attention(*qkv, window=(5, 2))
    theirs = sdpa(*qkv, attn_mask=np.broadcast_to(keep, (2, 6, 33, 57)))
    np.testing.assert_allclose(ours.out, theirs, rtol=1e-12, atol=1e-13)


def test_lse_softcap_alibi_and_sinks_by_hand(qkv):
    q, k, v = qkv
    slopes, sinks = np.linspace(0.1, 0.9, 6), np.linspace(-1, 2, 6)
    ours = reference.attention(q, k, v, softcap=3.0, alibi_slopes=slopes, sinks=sinks, causal=True)
    b, h, i, d = 1, 4, 7, 57 - 33
    scores = k[b, h // 2] @ q[b, h, i] / math.sqrt(20)
    scores = 3.0 * np.tanh(scores / 3.0) - slopes[h] * np.abs(i + d - np.arange(57))
    weights = np.exp(scores[: i + d + 1])
    total = weights.sum() + math.exp(sinks[h])
    np.testing.assert_allclose(ours.lse[b, h, i], math.log(total), rtol=1e-12)
    np.testing.assert_allclose(ours.out[b, h, i], weights @ v[b, h // 2, : i + d + 1] / total, rtol=1e-12)


def test_packed_members_are_separate_problems(rng):
    q, k, v = (rng.standard_normal((h, n, 8)) for h, n in ((4, 12), (2, 20), (2, 20)))
    packed = reference.attention(
        q, k, v, causal=True, cu_seqlens_q=[1, 6, 6, 11], cu_seqlens_k=[0, 9, 14, 20], seqused_k=[7, 5, 6]
    )
    one = reference.attention(q[:, 6:11], k[:, 14:20], v[:, 14:20], causal=True)
    np.testing.assert_array_equal(packed.out[:, 6:11], one.out)
    one = reference.attention(q[:, 1:6], k[:, :7], v[:, :7], causal=True)
    np.testing.assert_array_equal(packed.lse[:, 1:6], one.lse)
    assert packed.covered.tolist() == [False] + [True] * 10 + [False]


def test_blocks_of_rows_do_not_matter(qkv, monkeypatch):
    options = {"causal": True, "dropout_p": 0.3, "seed": 5, "softcap": 9.0}
    whole = reference.attention(*qkv, **options)
    monkeypatch.setattr(reference, "_BLOCK", 100)
    parts = reference.attention(*qkv, **options)
    np.testing.assert_allclose(parts.out, whole.out, rtol=1e-13, atol=1e-14)
    some = reference.attention(*qkv, rows=[4, 30], **options)
    np.testing.assert_allclose(some.out, whole.out[:, :, [4, 30]], rtol=1e-13, atol=1e-14)


def test_layouts_are_views(qkv):
    q, k, v = qkv
    first = reference.attention(q, k, v, causal=True)
    last = reference.attention(*(np.swapaxes(x, 1, 2) for x in qkv), causal=True, layout="bshd")
    np.testing.assert_array_equal(np.swapaxes(last.out, 1, 2), first.out)
    np.testing.assert_array_equal(last.lse, first.lse)


# Random123's known answers for philox4x32-10
PHILOX = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_philox_known_answers(counter, key, words):
    assert tuple(int(w) for w in reference.philox4x32(counter, key)) == words


def test_dropout_keep_uses_the_documented_words():
    seed, offset, head, row = 0x1122334455667788, 0xAABBCCDD00000007, 13, 21
    keep = reference.dropout_keep(0.4, seed, offset, head, row, np.arange(41))
    for key in range(41):
        words = reference.philox4x32((key // 4, row, head, 7), (0x55667788, 0x11223344 ^ 0xAABBCCDD))
        assert keep[key] == (int(words[key % 4]) * 2.0**-32 >= np.float32(0.4)), key
    assert reference.dropout_keep(0.0, seed, offset, head, row, np.arange(41)).all()
    rate = reference.dropout_keep(
        0.25, 3, 0, np.arange(4)[:, None, None], np.arange(50)[:, None], np.arange(500)
    ).mean()
    assert abs(rate - 0.75) < 4 * math.sqrt(0.25 * 0.75 / 100_000)


def test_dropout_scales_what_it_keeps_and_leaves_lse(qkv):
    q, k, v = qkv
    plain, dropped = reference.attention(q, k, v), reference.attention(q, k, v, dropout_p=0.5, seed=9)
    np.testing.assert_array_equal(plain.lse, dropped.lse)
    one = np.ones_like(v)
    sums = reference.attention(q, k, one, dropout_p=0.5, seed=9).out
    weights = np.exp(np.einsum("d,jd->j", q[1, 3, 5], k[1, 1]) / math.sqrt(20))
    weights /= weights.sum()
    keep = reference.dropout_keep(0.5, 9, 0, 1 * 6 + 3, 5, np.arange(57))
    np.testing.assert_allclose(sums[1, 3, 5], 2 * weights[keep].sum(), rtol=1e-12)


def test_closed_forms():
    def run(sq, sk, **options):
        return reference.attention(np.zeros((1, 1, sq, 4)), np.zeros((1, 1, sk, 4)), ramp(1, 1, sk, 4), **options)

    assert run(3, 7, causal=True).out[0, 0, :, 0].tolist() == [2, 2.5, 3]
    assert run(6, 4, causal=True).out[0, 0, :, 3].tolist() == [0, 0, 0, 0.5, 1, 1.5]
    assert np.isneginf(run(6, 4, causal=True).lse[0, 0, :2]).all()
    assert run(4, 10, window=(2, 1)).out[0, 0, :, 0].tolist() == [5.5, 6.5, 7.5, 8]
    assert run(2, 0).out.tolist() == [[[[0.0] * 4] * 2]]
    assert np.isneginf(run(2, 0).lse).all()
    empty = run(2, 3, mask=np.zeros(3), sinks=np.array([1.25]))
    assert (empty.out == 0).all()
    assert (empty.lse == 1.25).all()


def test_what_no_row_sees_never_arrives(qkv):
    q, k, v = (x.copy() for x in qkv)
    mask = np.ones(57, dtype=bool)
    mask[10] = False
    clean = reference.attention(q, k, v, mask=mask)
    k[:, :, 10], v[:, :, 10] = np.nan, np.inf
    assert np.array_equal(reference.attention(q, k, v, mask=mask).out, clean.out)
    v[:, :, 40, 2] = np.nan
    seen = np.isnan(reference.attention(q, k, v, mask=mask, causal=True).out)
    d = 57 - 33
    assert seen[:, :, 40 - d :, 2].all()
    assert not seen[:, :, : 40 - d].any()
    assert not seen[..., 3].any()


def test_bfloat16_helpers_round_as_ml_dtypes_and_pytorch(rng):
    x = np.concatenate(
        [
            rng.standard_normal(5000).astype(np.float32) * 10.0 ** rng.integers(-30, 30, 5000),
            [0, -0.0, np.inf, -np.inf, 3.4e38],
        ]
    )
    x = x.astype(np.float32)
    theirs = torch.from_numpy(x).to(torch.bfloat16)
    assert np.array_equal(reference.to_bfloat16_bits(x), theirs.view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(reference.round_to(x, "bfloat16"), theirs.float().numpy())
    assert np.isnan(reference.round_to(np.array([np.nan], np.float32), "bfloat16")).all()
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.array_equal(reference.to_float(x.astype(ml_dtypes.bfloat16), np.float32), theirs.float().numpy())


class TestJudge:
    @pytest.fixture
    def problem(self, rng):
        return [rng.standard_normal((1, 2, 9, 16)).astype(np.float32) for _ in range(3)]

    def test_accepts_the_truth_and_small_errors(self, problem):
        out, lse, *_ = reference.attention(*problem)
        assert reference.judge(out, lse, *problem)
        assert reference.judge(out + 9e-6, lse + 9e-4, *problem)

    def test_refuses_a_wrong_value_and_names_it(self, problem):
        out, lse, *_ = reference.attention(*problem)
        want = out[0, 1, 3, 7]
        out[0, 1, 3, 7] += 1e-4
        verdict = reference.judge(out, lse, *problem)
        assert not verdict
        assert verdict.message.startswith("out[0, 1, 3, 7]: expected")
        assert f"{want:.9g}" in verdict.message
        assert f"{out[0, 1, 3, 7]:.9g}" in verdict.message

    def test_refuses_wrong_lse(self, problem):
        out, lse, *_ = reference.attention(*problem)
        lse[0, 0, 2] += 2e-3
        assert reference.judge(out, lse, *problem).message.startswith("lse[0, 0, 2]")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_refuses_specials_in_the_wrong_place(self, problem, bad):
        out, lse, *_ = reference.attention(*problem)
        out[0, 0, 8, 1] = bad
        assert reference.judge(out, lse, *problem).message.startswith("out[0, 0, 8, 1]")
        out, *_ = reference.attention(*problem)
        lse[0, 1, 1] = bad
        assert reference.judge(out, lse, *problem).message.startswith("lse[0, 1, 1]")

    def test_refuses_a_finite_value_where_nan_belongs(self, problem):
        q, k, v = problem
        clean, lse, *_ = reference.attention(q, k, v)
        v = v.copy()
        v[0, 0, 2, 5] = np.nan
        assert not reference.judge(clean, lse, q, k, v)
        assert reference.judge(reference.attention(q, k, v).out, lse, q, k, v)

    def test_half_precision_floor_follows_the_values(self, problem):
        half = [x.astype(np.float16) for x in problem]
        out, lse, *_ = reference.attention(*half)
        biggest = float(np.abs(half[2]).max())
        assert reference.judge(out + 0.9e-3 * biggest, lse, *half)
        assert not reference.judge(out + 4e-3 * biggest, lse, *half)

    def test_refuses_another_shape(self, problem):
        out, lse, *_ = reference.attention(*problem)
        assert "shape" in reference.judge(out[:, :1], lse, *problem).message
        assert "shape" in reference.judge(out, lse[..., :3], *problem).message
