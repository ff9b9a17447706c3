"""Features where a kernel takes whole tiles of keys the fast way: references that turn out wrong and must be redone,
tiles that a mask leaves whole, empty or holed, steep ALiBi slopes, caps of every size, score tensors of odd strides.

Everything is compared with float64, at lengths of several tiles of 32, 64 and 128.
"""

from __future__ import annotations

import numpy as np
import problems
import pytest
import support
from support import Problem, compute, tensor

CASES = support.cases(paths=("functional",))
EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), CASES)
ON_HALVES = pytest.mark.parametrize(
    ("device", "dtype", "path"), support.cases(paths=("functional",), dtypes=("float16", "bfloat16"))
)


def agree(q, k, v, options, *, device, dtype, path, **extra):
    q, k, v = (tensor(x, dtype) for x in (q, k, v))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options, **extra)
    verdict = Problem(q, k, v, options).judge(out, lse)
    assert verdict, verdict.message
    return out, lse


def random_inputs(rng, rows, keys, depth=64, heads=2, batch=1):
    return [rng.standard_normal((batch, heads, n, depth)) for n in (rows, keys, keys)]


def one_channel(rng, scores, rows, depth=64, heads=2):
    """q, k, v for which every row scores scores[j] at key j, with scale 1."""
    q, k = np.zeros((1, heads, rows, depth)), np.zeros((1, heads, len(scores), depth))
    q[..., 0], k[..., 0] = 1, scores
    return q, k, rng.standard_normal(k.shape)


def slopes(*values):
    return tensor(np.array(values), "float32")


# -- rows that must be done again


@EVERYWHERE
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("peak", [20.0, 200.0])
@pytest.mark.parametrize("feature", ["none", "softcap", "alibi", "softcap and alibi", "key mask", "sinks"])
def test_a_late_peak_far_above_the_reference(device, dtype, path, depth, causal, peak, feature, rng):
    """20 is beyond float16's range as a weight, 200 (or what the cap leaves of it) beyond float32's."""
    keys = 640
    scores = rng.uniform(-1, 1, size=keys)
    scores[[100, 333, 500]] = peak
    options = {"scale": 1.0, "causal": causal}
    if "softcap" in feature:
        options["softcap"] = 120.0
    if "alibi" in feature:
        options["alibi_slopes"] = slopes(0.01, 0.3)
    if feature == "key mask":
        keep = np.ones(keys)
        keep[[5, 290]] = 0
        options["mask"] = tensor(keep, "bool")
    if feature == "sinks":
        options["sinks"] = slopes(1.0, 100.0)
    agree(*one_channel(rng, scores, keys, depth), options, device=device, dtype=dtype, path=path)


@ON_HALVES  # float32 has its own roundings at scores of -200
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_no_reference_near_the_diagonal_and_low_scores(device, dtype, path, causal, rng):
    """The keys around each row's diagonal are masked, so that a guess must do, and every score is far below it."""
    keys = 640
    keep = np.ones(keys)
    keep[224:480] = 0
    options = {"scale": 1.0, "causal": causal, "alibi_slopes": slopes(0.05, 0.5), "mask": tensor(keep, "bool")}
    agree(*one_channel(rng, np.full(keys, -200.0), keys), options, device=device, dtype=dtype, path=path)


@EVERYWHERE
@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize("alibi", [False, True], ids=["", "alibi"])
def test_a_value_that_is_nan_reaches_only_the_rows_that_see_it(device, dtype, path, softcap, alibi, rng):
    q, k, v = random_inputs(rng, 600, 600)
    v[:, :, 300, 5] = np.nan
    options = {"causal": True, "softcap": softcap}
    if alibi:
        options["alibi_slopes"] = slopes(0.01, 0.02)
    out, _ = agree(q, k, v, options, device=device, dtype=dtype, path=path)
    assert np.isfinite(out[:, :, :300]).all()
    assert np.isnan(out[:, :, 300:, 5]).all()


# -- ALiBi


@EVERYWHERE
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": (700, 300)},
        {"window": (-1, 40)},
        {"alignment": "top_left"},
        {"alignment": "top_left", "causal": True},
    ],
    ids=lambda options: " ".join(options.keys()) or "full",
)
@pytest.mark.parametrize(("rows", "keys"), [(300, 3000), (1100, 1100), (1000, 200)])
def test_alibi_from_flat_to_steep(device, dtype, path, options, rows, keys, rng):
    """2^(slope distance) overflows from the second slope on; a slope below zero favours the farthest keys."""
    options = {**options, "alibi_slopes": slopes(0.002, 0.7, 9.0, -0.02, 0.0)}
    agree(*random_inputs(rng, rows, keys, heads=5), options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("depth", [32, 96, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_alibi_and_softcap_at_every_head_dim(device, dtype, path, depth, causal, rng):
    options = {"causal": causal, "alibi_slopes": slopes(0.01, 0.5), "softcap": 20.0}
    agree(*random_inputs(rng, 500, 700, depth), options, device=device, dtype=dtype, path=path)


@ON_HALVES
def test_alibi_of_packed_members(device, dtype, path, rng):
    lengths = np.array([0, 1, 130, 700, 64])
    starts = support.ints(np.concatenate([[0], np.cumsum(lengths)]))
    total = int(lengths.sum())
    q, k, v = (rng.standard_normal((2, total, 64)) for _ in range(3))
    options = {
        "layout": "hsd", "cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 700, "max_seqlen_k": 700,
        "causal": True, "alibi_slopes": slopes(0.01, 0.6), "softcap": 15.0,
    }  # fmt: skip
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


# -- softcap


@EVERYWHERE
@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0, 127.0, 128.0, 129.0, 1e3, 1e6])
@pytest.mark.parametrize("size", [0.01, 1.0, 40.0])
def test_caps_of_every_size(device, dtype, path, softcap, size, rng):
    """Scores far below the cap (where tanh is its argument), around it and far above."""
    q, k, v = random_inputs(rng, 300, 300)
    agree(size * q, k, v, {"softcap": softcap, "causal": True}, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("softcap", [1.0, 10.0, 50.0, 128.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_capped_score_is_off_by_a_ten_thousandth_at_most(device, dtype, path, softcap, sign, rng):
    """Each head has one score, on this and that side of where a polynomial gives way to the next: all its LSE is."""
    keys = 300
    q, k, v = random_inputs(rng, 100, keys, heads=64)
    q[:] = k[:] = 0
    q[..., 0], k[..., 0] = 1, sign * softcap * np.append(np.linspace(0.01, 0.7, 62), [1, 3])[:, None]
    scores = tensor(k, dtype).values[0, :, 0, 0].astype(float)
    _, lse = agree(q, k, v, {"scale": 1.0, "softcap": softcap}, device=device, dtype=dtype, path=path)
    expected = softcap * np.tanh(scores / softcap) + np.log(keys)
    np.testing.assert_allclose(lse[0], np.broadcast_to(expected[:, None], lse[0].shape), rtol=1e-6, atol=1e-4)


@EVERYWHERE
@pytest.mark.parametrize("softcap", [2.0, 50.0, 1e3])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_infinite_scores_are_capped_and_nan_stays(device, dtype, path, softcap, causal, rng):
    q, k, v = random_inputs(rng, 400, 400)
    k[..., 3] = np.where(np.arange(400) % 3 == 0, 1.0, -1.0)  # of either sign, never 0
    q[:, :, [7, 200, 399], 3] = np.inf
    q[:, :, 201, 3] = -np.inf
    q[:, :, 202, 0] = np.nan
    out, _ = agree(q, k, v, {"softcap": softcap, "causal": causal}, device=device, dtype=dtype, path=path)
    others = np.arange(400) != 202
    assert np.isfinite(out[:, :, others]).all()
    assert np.isnan(out[:, :, 202]).all()


# -- key masks


def holes(pattern: str, keys: int) -> np.ndarray:
    at = np.arange(keys)
    return {
        "all": at >= 0,
        "none": at < 0,
        "every other 32": at // 32 % 2 == 0,
        "every other 64, from the second": at // 64 % 2 == 1,
        "a hole in every 64": at % 64 != 37,
        "a hole in every third 64": at % 192 != 150,
        "padded at the left": at >= keys // 3,
        "padded at the right": at < keys // 3,
        "padded at both ends": abs(at - keys // 2) < keys // 5,
        "one key": at == keys - keys // 4,
        "a block in the middle is missing": abs(at - keys // 2) > keys // 5,
    }[pattern]


HOLES = (
    "all", "none", "every other 32", "every other 64, from the second", "a hole in every 64",
    "a hole in every third 64", "padded at the left", "padded at the right", "padded at both ends", "one key",
    "a block in the middle is missing",
)  # fmt: skip


def hide(keep: np.ndarray, k: np.ndarray, v: np.ndarray, value: float = np.nan) -> None:
    """The value where no row may look. keep: (batch, keys)."""
    for b in range(len(keep)):
        k[b, :, ~keep[b]] = value
        v[b, :, ~keep[b]] = value


@EVERYWHERE
@pytest.mark.parametrize("pattern", HOLES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (100, 250)}], ids=["full", "causal", "window"])
@pytest.mark.parametrize("feature", ["", "alibi", "softcap"])
@pytest.mark.parametrize("hidden", [np.nan, 300.0])  # NaNs have rows done again, which may hide a fault
def test_key_masks_of_whole_empty_and_holed_tiles(device, dtype, path, pattern, options, feature, hidden, rng):
    keys = 650
    keep = np.stack([holes(pattern, keys), holes("all", keys), holes("none", keys)])
    q, k, v = random_inputs(rng, 300, keys, batch=3)
    hide(keep, k, v, hidden)
    options = {**options, "mask": tensor(keep, "bool")}
    if feature == "alibi":
        options["alibi_slopes"] = slopes(0.01, 0.6)
    if feature == "softcap":
        options["softcap"] = 8.0
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("kind", ["bool", "int16", "int32", "int64"])
@pytest.mark.parametrize(
    "visible",
    [
        [(4090, 4102)],
        [(0, 10), (8990, 9000)],
        [(0, 4095), (4097, 8191), (8193, 9000)],
        [(4096, 8192)],
        [(8999, 9000)],
        [(2000, 2001)],
    ],
    ids=str,
)
def test_long_key_masks(device, dtype, path, kind, visible, rng):
    """Longer than any part of a mask that a kernel may hold at once."""
    keep = np.zeros((1, 9000), dtype=bool)
    for start, end in visible:
        keep[0, start:end] = True
    q, k, v = random_inputs(rng, 130, 9000)
    hide(keep, k, v)
    marks = np.where(keep, 1 << (0 if kind == "bool" else 14), 0)  # no bit in the lowest byte
    for options in ({}, {"causal": True, "alibi_slopes": slopes(0.001, 0.5)}):
        agree(q, k, v, {**options, "mask": tensor(marks, kind)}, device=device, dtype=dtype, path=path)


# -- pair masks and biases


PAIR_SHAPES = {
    "each": lambda batch, heads, rows, keys: (batch, heads, rows, keys),
    "all alike": lambda batch, heads, rows, keys: (1, 1, rows, keys),
    "one row": lambda batch, heads, rows, keys: (batch, 1, 1, keys),
    "one key": lambda batch, heads, rows, keys: (1, heads, rows, 1),
}


@ON_HALVES
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("keys", [332, 333])
@pytest.mark.parametrize("shape", PAIR_SHAPES)
@pytest.mark.parametrize("style", ["contiguous", "padded", "unaligned"])
@pytest.mark.parametrize("kind", ["bool", "int32", "bias", "float32 bias", "both"])
def test_score_tensors_of_any_stride(device, dtype, path, depth, keys, shape, style, kind, rng):
    batch, heads, rows = 2, 2, 261
    full = PAIR_SHAPES[shape](batch, heads, rows, keys)
    options = {"causal": bool(rng.integers(2))}
    if kind in ("bool", "int32", "both"):
        keep = rng.random(full) < 0.7
        keep[..., : full[-2] // 2, : full[-1] // 2] = False  # tiles that no row sees
        options["mask"] = problems.strided(rng, style, full, "int32" if kind == "int32" else "bool").fill(keep)
    if kind in ("bias", "float32 bias", "both"):
        values = rng.standard_normal(full)
        values[rng.random(full) < 0.2] = -np.inf
        options["bias"] = problems.strided(rng, style, full, dtype if kind == "bias" else "float32").fill(values)
    agree(*random_inputs(rng, rows, keys, depth, heads, batch), options, device=device, dtype=dtype, path=path)


@ON_HALVES
def test_a_bias_of_minus_infinity_hides_a_nan_score(device, dtype, path, rng):
    q, k, v = random_inputs(rng, 200, 300)
    k[:, :, 150] = np.nan
    bias = np.zeros((1, 1, 200, 300))
    bias[..., 150] = -np.inf
    out, _ = agree(q, k, v, {"bias": tensor(bias, "float32")}, device=device, dtype=dtype, path=path)
    assert np.isfinite(out).all()
