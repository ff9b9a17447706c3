"""Rows in which one key outweighs all others: the place where a rounded weight meets an unrounded sum."""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import compute

ON_BOTH = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", "float32"),
        ("cpu", "float16"),
        ("cpu", "bfloat16"),
        pytest.param("cuda", "float16", marks=pytest.mark.gpu),
        pytest.param("cuda", "bfloat16", marks=pytest.mark.gpu),
    ],
)


@pytest.mark.parametrize("log2_weight", [1.0055, 12.0055, 20.0055])
@ON_BOTH
def test_equal_values_average_to_themselves(device, dtype, log2_weight):
    """With all values 1, out is 1 whatever the weights are."""
    if device == "cuda":
        support.skip_without_cuda()
    q = np.zeros((1, 1, 64, 64), np.float32)
    q[..., 0] = 1
    k = np.zeros((1, 1, 128, 64), np.float32)
    k[:, :, 100, 0] = 1
    v = np.ones((1, 1, 128, 64), np.float32)
    out, lse = compute(q, k, v, device=device, dtype=dtype, options={"scale": float(np.log(2) * log2_weight)})
    assert np.abs(out - 1).max() <= (2e-6 if dtype == "float32" else 1e-3)
    support.close_lse(lse, np.full(lse.shape, np.log(127 + 2.0**log2_weight)))


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["full", "causal"])
@ON_BOTH
def test_weights_that_all_round_the_same_way_cancel(device, dtype, options):
    """Every key but the first has one weight, which rounding to bfloat16 changes by 2^-8 of itself."""
    if device == "cuda":
        support.skip_without_cuda()
    weight, length = 0.2509, 1024
    q = np.zeros((1, 1, length, 64), np.float32)
    q[..., 0] = 1
    k = np.zeros((1, 1, length, 64), np.float32)
    k[:, :, 0, 0] = 1
    v = np.ones((1, 1, length, 64), np.float32)
    options = {"scale": float(-np.log(weight)), **options}
    out, lse = compute(q, k, v, device=device, dtype=dtype, options=options)
    assert np.abs(out - 1).max() <= (2e-6 if dtype == "float32" else 1e-3)
    others = np.arange(length) if "causal" in options else np.full(length, length - 1)
    support.close_lse(lse, np.broadcast_to(np.log(1 / weight + others), lse.shape))


@pytest.mark.parametrize("size", [1e3, 3e4, 1e6, 1e15])
@pytest.mark.parametrize("kind", ["full", "causal", "softcap", "mask", "sinks", "block mask"])
@pytest.mark.parametrize("depth", [64, 128, 256])
@ON_BOTH
def test_keys_of_one_huge_score_share_their_row(device, dtype, depth, kind, size):
    """However large it is, a row's largest score weighs 1, in each tile: not 0, as in a row without keys, nor inf."""
    if device == "cuda":
        support.skip_without_cuda()
    if dtype == "float16" and size > 5e4:
        pytest.skip("beyond float16")
    keys = 700
    seen = np.arange(keys) % 7 != 3
    blocks = np.array([[[[1, 1, 0, 1, 1, 1]]]])
    options = {
        "full": {},
        "causal": {"causal": True},
        "softcap": {"softcap": 1e19},
        "mask": {"mask": support.tensor(seen, "bool")},
        "sinks": {"sinks": support.tensor(np.ones(1), "float32")},
        "block mask": {"block_mask": support.tensor(blocks, "bool")},
    }[kind]
    v = np.zeros((1, 1, keys, depth), np.float32)
    v[..., :] = np.linspace(-1, 1, keys)[:, None]
    for step in (1.0, 1.03, 1.1, 1.23):  # how the product rounds
        q, k = np.zeros((1, 1, 40, depth), np.float32), np.zeros(v.shape, np.float32)
        q[..., 0] = k[..., 0] = size * step
        out, lse = compute(q, k, v, device=device, dtype=dtype, options=options)
        problem = support.Problem(*(support.tensor(x, dtype) for x in (q, k, v)), options)
        expected = problem.expected()
        assert np.abs(out - expected.out).max() <= 5e-3
        np.testing.assert_allclose(lse, expected.lse, rtol=1e-5, atol=1e-3)


def rounded(x, dtype):
    """To the nearest of dtype, as float32."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def half_step(x, dtype):
    """What rounding to dtype may change x by."""
    digits, least = (11, -24) if dtype == "float16" else (8, -133)
    exponents = np.frexp(np.abs(x))[1]  # x < 2**exponent
    return np.exp2(np.maximum(exponents - digits, least) - 1.0)


def textbook(scores, v, dtype, tile=64):
    """(rows, D): online softmax without shortcuts, weights rounded to dtype for both sums, which are float32."""
    rows, keys = scores.shape
    scores = (scores * np.log2(np.e)).astype(np.float32)
    maximum = np.full((rows, 1), -np.inf, np.float32)
    sums, out = np.zeros((rows, 1), np.float32), np.zeros((rows, v.shape[1]), np.float32)
    for begin in range(0, keys, tile):
        part = scores[:, begin : begin + tile]
        raised = np.maximum(maximum, part.max(axis=1, keepdims=True))
        base = np.where(np.isinf(raised), 0, raised)
        weights, rescale = rounded(np.exp2(part - base), dtype), np.exp2(maximum - base)
        sums = sums * rescale + weights.sum(axis=1, keepdims=True)
        out = out * rescale + weights @ v[begin : begin + tile]
        maximum = raised
    return out / sums


ADVERSARIES = {
    "rising": np.linspace(-20, 20, 640),
    "rising fast": np.linspace(0, 300, 640),
    "falling": np.linspace(20, -20, 640),
    "one late": np.where(np.arange(640) == 600, 100, 0),
    "all equal": np.full(640, 3.0),
    "large of either sign": np.where(np.arange(640) % 3 == 1, 1e4, -1e4),
    "tiny": np.where(np.arange(640) % 2 == 1, 2.0**-20, -(2.0**-130)),
    "infinite": np.where(np.arange(640) % 5 == 2, -np.inf, np.linspace(-3, 9, 640)),
}


@pytest.mark.parametrize("values", [1.0, 2.0**-20], ids=["", "small values"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("kind", ADVERSARIES)
@pytest.mark.parametrize(
    ("device", "dtype"), [case for case in ON_BOTH.args[1] if "float32" not in getattr(case, "values", case)]
)
def test_no_shortcut_costs_more_than_half_of_the_textbooks_error(device, dtype, kind, depth, causal, values, rng):
    """A reference that is kept, a rescale left out, a cut weight: errors stay within 1.5 times those of a kernel that
    does none of it, on rows made to find the difference, as their root mean square. The largest of hundreds, beyond
    what rounding the result adds to either, varies by luck and may be twice the other's."""
    if device == "cuda":
        support.skip_without_cuda()
    keys = len(ADVERSARIES[kind])
    q, k = np.zeros((1, 2, keys, depth), np.float32), np.zeros((1, 2, keys, depth), np.float32)
    q[..., 0], k[..., 0] = 1, ADVERSARIES[kind]
    q, k, v = (rounded(x, dtype) for x in (q, k, values * rng.standard_normal(k.shape)))
    options = {"scale": 1.0, "causal": causal}
    out, _ = compute(q, k, v, device=device, dtype=dtype, options=options)
    scores = np.broadcast_to(k[0, 0, :, 0], (keys, keys))
    if causal:
        scores = np.where(np.tri(keys, dtype=bool), scores, -np.inf)
    weights = np.exp(scores.astype(np.float64) - np.max(scores, axis=1, keepdims=True, initial=-1e30))
    exact = weights @ v[0].astype(np.float64) / weights.sum(axis=1, keepdims=True)
    plain = np.stack([textbook(scores, v[0, head], dtype) for head in range(2)])

    def rms(errors):
        return np.sqrt(np.mean(errors**2))

    assert rms(out[0] - exact) <= 1.5 * rms(rounded(plain, dtype) - exact) + 1e-7 * values
    beyond = np.abs(out[0] - exact) - half_step(exact, dtype)
    assert beyond.max() <= 2 * np.abs(plain - exact).max() + 1e-7 * values
