"""Masks and numerics that attention libraries have got wrong, with small inputs whose right answer is a formula.

With q = 0 every visible key weighs the same, and with v[j] = j the output is the mean index of the visible keys and the
LSE the log of their number: a wrong mask shows as a wrong number, with no other kernel to compare to.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import support
from support import cases, close, close_lse, compute, ints, ramp, tensor

import flashcute
from flashcute import reference

INF = math.inf
EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), cases())


def zeros(*shape):
    return np.zeros(shape)


def uniform(sq, sk, *, device, dtype, path, depth=64, options=None, heads=2, **extra):
    """out and lse of one channel and head for q = 0 and v = ramp; every channel and head must be the same."""
    out, lse = compute(
        zeros(1, heads, sq, depth), zeros(1, heads, sk, depth), ramp(1, heads, sk, depth),
        path=path, device=device, dtype=dtype, options=options, **extra,
    )  # fmt: skip
    same = np.isclose(out, out[:, :1, :, :1], rtol=0, atol=1e-6, equal_nan=True)
    assert same.all(), f"channels or heads differ, first at {np.argwhere(~same)[0]}"
    return out[0, 0, :, 0], lse[0, 0]


@EVERYWHERE
@pytest.mark.parametrize("rows", [40, 1040])
def test_fully_masked_rows_are_zero_not_nan(device, dtype, path, rows):
    out, lse = uniform(rows, 8, device=device, dtype=dtype, path=path, options={"window": (4, 2)})
    first = rows - 10  # the first row that sees a key
    assert (out[:first] == 0).all()
    assert np.isneginf(lse[:first]).all()
    close(out[first : first + 4], [0, 0.5, 1, 1.5], dtype)
    close_lse(lse[first : first + 4], np.log([1, 2, 3, 4]))


@EVERYWHERE
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": (2, 2)}, {"causal": True, "alignment": "top_left"}]
)
def test_no_keys_at_all(device, dtype, path, options):
    q, k = np.ones((2, 3, 4, 64)), zeros(2, 0, 2, 64)
    out, lse = compute(q, k, k, path=path, device=device, dtype=dtype, options={**options, "layout": "bshd"})
    assert out.shape == (2, 3, 4, 64)
    assert (out == 0).all()
    assert lse.shape == (2, 4, 3)
    assert np.isneginf(lse).all()


@EVERYWHERE
def test_no_keys_with_a_mask_of_no_keys(device, dtype, path):
    q, k = np.ones((2, 4, 3, 64)), zeros(2, 2, 0, 64)
    out, lse = compute(q, k, k, path=path, device=device, dtype=dtype, options={"mask": tensor(zeros(2, 0), "bool")})
    assert (out == 0).all()
    assert np.isneginf(lse).all()


@EVERYWHERE
@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [((0, 3, 4, 64), (0, 3, 5, 64)), ((2, 3, 0, 64), (2, 3, 5, 64)), ((2, 3, 0, 64), (2, 3, 0, 64))],
)
def test_empty_batch_or_rows_give_an_empty_result(device, dtype, path, q_shape, k_shape):
    out, lse = compute(zeros(*q_shape), zeros(*k_shape), zeros(*k_shape), path=path, device=device, dtype=dtype)
    assert out.shape == q_shape
    assert lse.shape == q_shape[:3]


@EVERYWHERE
def test_no_heads_is_rejected(device, dtype, path):
    with pytest.raises(flashcute.BadShapeError, match="head"):
        compute(zeros(2, 0, 4, 64), zeros(2, 0, 4, 64), zeros(2, 0, 4, 64), path=path, device=device, dtype=dtype)


@EVERYWHERE
def test_causal_sits_in_the_bottom_right_corner(device, dtype, path):
    out, lse = uniform(3, 7, device=device, dtype=dtype, path=path, options={"causal": True})
    close(out, [2, 2.5, 3], dtype)
    close_lse(lse, np.log([5, 6, 7]))
    out, lse = uniform(6, 4, device=device, dtype=dtype, path=path, options={"causal": True})
    close(out, [0, 0, 0, 0.5, 1, 1.5], dtype)
    close_lse(lse, [-INF, -INF, 0, math.log(2), math.log(3), math.log(4)])


@EVERYWHERE
def test_top_left_causal_on_request(device, dtype, path):
    options = {"causal": True, "alignment": "top_left"}
    out, _ = uniform(3, 7, device=device, dtype=dtype, path=path, options=options)
    close(out, [0, 0.5, 1], dtype)
    out, _ = uniform(6, 4, device=device, dtype=dtype, path=path, options=options)
    close(out, [0, 0.5, 1, 1.5, 1.5, 1.5], dtype)


@EVERYWHERE
def test_windows_are_inclusive_on_both_sides(device, dtype, path):
    out, lse = uniform(4, 10, device=device, dtype=dtype, path=path, options={"window": (2, 1)})
    close(out, [5.5, 6.5, 7.5, 8], dtype)
    close_lse(lse, np.log([4, 4, 4, 3]))


@EVERYWHERE
@pytest.mark.parametrize(
    ("window", "causal", "want"),
    [
        ((1, -1), False, [3, 3.5, 4, 4.5]),
        ((-1, 0), False, [1, 1.5, 2, 2.5]),
        ((-1, 1), False, [1.5, 2, 2.5, 2.5]),
        ((0, 0), False, [2, 3, 4, 5]),
        ((-1, 3), True, [1, 1.5, 2, 2.5]),  # causal means right = 0, whatever the window's right
        ((1, -1), True, [1.5, 2.5, 3.5, 4.5]),
    ],
)
def test_one_sided_windows_do_not_leak(device, dtype, path, window, causal, want):
    out, _ = uniform(4, 6, device=device, dtype=dtype, path=path, options={"window": window, "causal": causal})
    close(out, want, dtype)


@EVERYWHERE
@pytest.mark.parametrize("left", [2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("right", [-1, 2**31 - 1, 2**63 - 1])
def test_huge_windows_are_unbounded(device, dtype, path, left, right):
    out, lse = uniform(5, 9, device=device, dtype=dtype, path=path, options={"window": (left, right)})
    close(out, 4, dtype)
    close_lse(lse, math.log(9))


@EVERYWHERE
@pytest.mark.parametrize("window", [(-2, 0), (0, -2), (-(2**40), -1)])
def test_other_negative_windows_are_rejected(device, dtype, path, window):
    with pytest.raises(flashcute.BadParamError, match="window"):
        uniform(4, 4, device=device, dtype=dtype, path=path, options={"window": window})


@EVERYWHERE
@pytest.mark.parametrize("keys", [1, 15, 31, 63, 65, 127, 129, 193, 257])
def test_the_last_tiles_tail_is_masked_not_zero(device, dtype, path, keys):
    q, k = zeros(1, 1, 3, 64), zeros(1, 1, keys, 64)
    q[..., 0], k[..., 0] = 1, -200
    out, lse = compute(q, k, ramp(1, 1, keys, 64), path=path, device=device, dtype=dtype, options={"scale": 1.0})
    close(out, (keys - 1) / 2, dtype)
    close_lse(lse, -200 + math.log(keys))
    if keys == 65:
        close(out, 32, dtype)
        close_lse(lse, -195.8256)


@EVERYWHERE
def test_softcap_bounds_the_scaled_score(device, dtype, path):
    q, k, v = zeros(1, 1, 1, 64), zeros(1, 1, 2, 64), ramp(1, 1, 2, 64)
    q[..., 0], k[0, 0, 0, 0] = 1, 100
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"scale": 1.0, "softcap": 2.0})
    close(out, 0.119203, dtype)
    close_lse(lse, 2.126928)


@EVERYWHERE
def test_softcap_comes_after_the_scale(device, dtype, path):
    q, k, v = zeros(1, 1, 1, 64), zeros(1, 1, 2, 64), ramp(1, 1, 2, 64)
    q[..., 0], k[0, 0, 0, 0] = 1, 8
    out, _ = compute(q, k, v, path=path, device=device, dtype=dtype, options={"scale": 0.25, "softcap": 1.0})
    close(out, 1 / (1 + math.exp(math.tanh(2.0))), dtype)


@EVERYWHERE
def test_softcap_zero_is_off_bitwise_and_negative_is_rejected(device, dtype, path, rng):
    q, k, v = (rng.standard_normal((1, 2, 33, 64)) for _ in range(3))
    where = {"path": path, "device": device, "dtype": dtype}
    off, _ = compute(q, k, v, **where)
    zero, _ = compute(q, k, v, options={"softcap": 0.0}, **where)
    assert off.tobytes() == zero.tobytes()
    for bad in (-1.0, -1e-30, math.nan, INF):
        with pytest.raises(flashcute.BadParamError, match="softcap"):
            compute(q, k, v, options={"softcap": bad}, **where)


@EVERYWHERE
def test_scale_must_be_finite(device, dtype, path):
    for bad in (math.nan, INF, -INF):
        with pytest.raises(flashcute.BadParamError, match="scale"):
            compute(*[zeros(1, 1, 4, 64)] * 3, path=path, device=device, dtype=dtype, options={"scale": bad})


@EVERYWHERE
def test_default_scale_is_of_the_unpadded_head_dim(device, dtype, path):
    q, k, v = zeros(1, 1, 1, 36), zeros(1, 1, 2, 36), ramp(1, 1, 2, 36)
    q[..., 0], k[0, 0, 0, 0] = 3, 4
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype)
    close(out, 1 / (1 + math.exp(2)), dtype)
    close_lse(lse, math.log(1 + math.exp(2)))


@EVERYWHERE
def test_alibi_distance(device, dtype, path):
    options = {"causal": True, "alibi_slopes": tensor(np.ones(2), "float32")}
    out, lse = uniform(1, 4, device=device, dtype=dtype, path=path, options=options)
    close(out, 2.492653, dtype)
    close_lse(lse, 0.440190)


@EVERYWHERE
def test_alibi_is_symmetric_and_per_query_head(device, dtype, path):
    slopes = np.array([[0.5, 0.0, 2.0, 1.0], [1.0, 3.0, 0.0, 0.25]])
    options = {"alibi_slopes": tensor(slopes, "float32")}
    q, k, v = zeros(2, 4, 3, 64), zeros(2, 2, 5, 64), ramp(2, 2, 5, 64)
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    for b, h, i in np.ndindex(2, 4, 3):
        weights = np.exp(-slopes[b, h] * abs(i + 2 - np.arange(5)))
        close(out[b, h, i], weights @ np.arange(5) / weights.sum(), dtype, scale=4)
        close_lse(lse[b, h, i], math.log(weights.sum()))


@EVERYWHERE
@pytest.mark.parametrize("kind", ["float32", "own"])
def test_a_sink_takes_weight_and_counts_in_lse(device, dtype, path, kind):
    sinks = tensor([0.0, math.log(2)], dtype if kind == "own" else "float32")
    q, k, v = zeros(1, 2, 3, 64), zeros(1, 2, 4, 64), np.ones((1, 2, 4, 64))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"sinks": sinks})
    close(out[0, 0], 4 / 5, dtype)
    close(out[0, 1], 4 / 6, dtype)
    close_lse(lse[0, 0], math.log(5))
    close_lse(lse[0, 1], math.log(4 + math.exp(float(sinks.values[1]))))


@EVERYWHERE
def test_an_empty_row_with_a_sink(device, dtype, path):
    options = {"sinks": tensor([0.5, -3.0], "float32"), "causal": True}
    q, k, v = zeros(1, 2, 3, 64), zeros(1, 2, 1, 64), np.ones((1, 2, 1, 64))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    assert (out[0, :, :2] == 0).all()
    close_lse(lse[0, :, :2], np.array([[0.5, 0.5], [-3, -3]]))
    close(out[0, 0, 2], 1 / (1 + math.exp(0.5)), dtype)


@EVERYWHERE
def test_a_nan_sink_is_seen_by_its_head_alone(device, dtype, path):
    """An empty row has no weights that it could spoil, but its LSE is the sink."""
    options = {"sinks": tensor([math.nan, 0.5], "float32"), "causal": True}
    q, k, v = zeros(1, 2, 3, 64), zeros(1, 2, 1, 64), np.ones((1, 2, 1, 64))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    assert (out[0, :, :2] == 0).all()
    assert np.isnan(out[0, 0, 2]).all()
    assert np.isnan(lse[0, 0]).all()
    close(out[0, 1, 2], 1 / (1 + math.exp(0.5)), dtype)
    close_lse(lse[0, 1, :2], 0.5)


@EVERYWHERE
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "int32", "int64"])
def test_key_mask_of_every_integer_type(device, dtype, path, kind):
    keep = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, 1])
    values = keep if kind == "bool" else keep * np.array([1, 2, 3, 4, -128 if kind[0] == "i" else 128, 64, 1, 1, 1, 1])
    out, lse = uniform(3, 10, device=device, dtype=dtype, path=path, options={"mask": tensor(values, kind)})
    close(out, (1 + 4 + 5 + 9) / 4, dtype)
    close_lse(lse, math.log(4))


@pytest.mark.parametrize("path", support.PATHS)
@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_key_mask_of_the_wide_unsigned_types(path, kind):
    top = np.iinfo(kind).max
    mask = tensor(np.array([0, top, 0, top // 2 + 1, 256 if kind == "uint16" else 65536], dtype=kind), kind)
    out, _ = uniform(2, 5, device="cpu", dtype="float32", path=path, options={"mask": mask})
    close(out, (1 + 3 + 4) / 3)


@EVERYWHERE
def test_a_mask_may_blank_whole_batch_entries(device, dtype, path):
    keep = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    q, k, v = zeros(3, 1, 2, 64), zeros(3, 1, 3, 64), ramp(3, 1, 3, 64)
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"mask": tensor(keep, "bool")})
    close(out[:, 0, 0, 0], [0.5, 0, 2], dtype)
    close_lse(lse[:, 0, 1], [math.log(2), -INF, 0])


@EVERYWHERE
def test_a_dense_mask_broadcasts_over_size_one_axes(device, dtype, path):
    keep = np.zeros((1, 2, 1, 6), dtype=bool)
    keep[0, 0, 0, [1, 2]] = keep[0, 1, 0, [5]] = True
    q, k, v = zeros(2, 2, 3, 64), zeros(2, 1, 6, 64), ramp(2, 1, 6, 64)
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"mask": tensor(keep, "bool")})
    close(out[:, 0], 1.5, dtype, scale=5)
    close(out[:, 1], 5, dtype)
    close_lse(lse[:, 1], 0)


@EVERYWHERE
def test_a_bias_of_minus_infinity_hides_a_key_and_its_nan(device, dtype, path):
    bias = np.zeros((1, 1, 1, 4))
    bias[..., 2] = -INF
    v = ramp(1, 1, 4, 64).copy()
    v[..., 2, :] = math.nan
    out, lse = compute(zeros(1, 1, 3, 64), zeros(1, 1, 4, 64), v, path=path, device=device, dtype=dtype,
                       options={"bias": tensor(bias, "float32")})  # fmt: skip
    close(out, (0 + 1 + 3) / 3, dtype)
    close_lse(lse, math.log(3))


@EVERYWHERE
def test_large_scores_do_not_overflow(device, dtype, path):
    """Scores of ±30000 with a bias in place of the maximum subtraction's usual range."""
    q, k, v = zeros(1, 1, 2, 64), zeros(1, 1, 3, 64), ramp(1, 1, 3, 64)
    q[0, 0, :, 0] = [1, -1]
    k[0, 0, :, 0] = [-30000, 0, 30000]
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"scale": 1.0})
    close(out[0, 0, :, 0], [2, 0], dtype)
    top = float(tensor([30000.0], dtype).values[0])
    np.testing.assert_allclose(lse[0, 0], top, rtol=1e-5)


@EVERYWHERE
@pytest.mark.parametrize(("sq", "sk", "j"), [(70, 70, 37), (130, 200, 150), (5, 64, 63)])
def test_nan_in_one_value_reaches_only_the_rows_that_see_it(device, dtype, path, sq, sk, j):
    d = sk - sq
    v = ramp(1, 1, sk, 64).copy()
    v[0, 0, j] = math.nan
    out, lse = compute(zeros(1, 1, sq, 64), zeros(1, 1, sk, 64), v, path=path, device=device, dtype=dtype,
                       options={"causal": True})  # fmt: skip
    sees = np.arange(sq) + d >= j
    assert np.isnan(out[0, 0, sees]).all()
    close(out[0, 0, ~sees, 0], (np.arange(sq)[~sees] + d) / 2, dtype)
    close_lse(lse[0, 0], np.log(np.arange(sq) + d + 1))


@EVERYWHERE
def test_nan_in_one_key_reaches_only_the_rows_that_see_it(device, dtype, path):
    k = zeros(1, 2, 100, 64)
    k[0, 1, 40, 3] = math.nan
    out, lse = compute(zeros(1, 2, 100, 64), k, ramp(1, 2, 100, 64), path=path, device=device, dtype=dtype,
                       options={"causal": True})  # fmt: skip
    close(out[0, 0, :, 0], np.arange(100) / 2, dtype)
    close(out[0, 1, :40, 0], np.arange(40) / 2, dtype)
    assert np.isnan(out[0, 1, 40:]).all()
    assert np.isnan(lse[0, 1, 40:]).all()


@EVERYWHERE
def test_nan_in_one_query_reaches_only_its_row(device, dtype, path):
    q = zeros(1, 2, 70, 64)
    q[0, 1, 33, 7] = math.nan
    out, lse = compute(q, zeros(1, 2, 90, 64), ramp(1, 2, 90, 64), path=path, device=device, dtype=dtype)
    assert np.isnan(out[0, 1, 33]).all()
    assert np.isnan(lse[0, 1, 33])
    out[0, 1, 33], lse[0, 1, 33] = 44.5, math.log(90)
    close(out, 44.5, dtype)
    close_lse(lse, math.log(90))


@EVERYWHERE
def test_infinity_in_a_visible_value_stays_infinity(device, dtype, path):
    v = ramp(1, 1, 50, 64).copy()
    v[0, 0, 20, 5] = INF
    v[0, 0, 30, 6] = -INF
    out, _ = compute(zeros(1, 1, 50, 64), zeros(1, 1, 50, 64), v, path=path, device=device, dtype=dtype,
                     options={"causal": True})  # fmt: skip
    assert np.isposinf(out[0, 0, 20:, 5]).all()
    assert np.isfinite(out[0, 0, :20, 5]).all()
    assert np.isneginf(out[0, 0, 30:, 6]).all()
    assert np.isfinite(out[0, 0, :30, 6]).all()
    assert np.isfinite(out[..., 7]).all()


@EVERYWHERE
def test_an_infinite_score_gives_a_nan_row(device, dtype, path):
    q, k = np.ones((1, 1, 2, 64)), zeros(1, 1, 3, 64)
    k[0, 0, 1, 0] = INF
    out, _ = compute(q, k, ramp(1, 1, 3, 64), path=path, device=device, dtype=dtype)
    assert np.isnan(out).all()
    q[0, 0, 1] = -1  # a score of minus infinity is a key not seen
    out, lse = compute(q, k, ramp(1, 1, 3, 64), path=path, device=device, dtype=dtype)
    close(out[0, 0, 1], 1, dtype)
    close_lse(lse[0, 0, 1], math.log(2))


@EVERYWHERE
@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan, INF])
def test_dropout_outside_its_range_is_rejected(device, dtype, path, p):
    with pytest.raises(flashcute.BadParamError, match="dropout_p"):
        compute(*[zeros(1, 1, 4, 64)] * 3, path=path, device=device, dtype=dtype, options={"dropout_p": p, "seed": 1})


@pytest.mark.parametrize(("device", "dtype", "path"), cases(paths=("functional", "descriptor")))
def test_dropout_needs_a_seed(device, dtype, path):
    with pytest.raises(flashcute.BadParamError, match="seed"):
        compute(*[zeros(1, 1, 4, 64)] * 3, path=path, device=device, dtype=dtype, options={"dropout_p": 0.5})


@EVERYWHERE
def test_dropout_zero_is_none_bitwise_and_repeats_bitwise(device, dtype, path, rng):
    q, k, v = (rng.standard_normal((2, 2, 45, 64)) for _ in range(3))
    where = {"path": path, "device": device, "dtype": dtype}
    none, _ = compute(q, k, v, **where)
    zero, _ = compute(q, k, v, options={"dropout_p": 0.0, "seed": 7}, **where)
    assert none.tobytes() == zero.tobytes()
    one, lse = compute(q, k, v, options={"dropout_p": 0.4, "seed": 7, "offset": 3}, **where)
    two, _ = compute(q, k, v, options={"dropout_p": 0.4, "seed": 7, "offset": 3}, **where)
    other, _ = compute(q, k, v, options={"dropout_p": 0.4, "seed": 8, "offset": 3}, **where)
    assert one.tobytes() == two.tobytes()
    assert one.tobytes() != other.tobytes()
    _, plain_lse = compute(q, k, v, **where)
    np.testing.assert_allclose(lse, plain_lse, rtol=0, atol=2e-5)


@EVERYWHERE
@pytest.mark.parametrize(("sq", "sk"), [(5, 40), (130, 300)])
def test_dropout_keeps_the_documented_elements_in_any_tiling(device, dtype, path, sq, sk):
    """With q = 0 and v = identity columns, out shows for each row which keys survived."""
    heads, seed, offset = 2, 0x123456789ABCDEF, 11
    depth = 64
    q, k = zeros(2, heads, sq, depth), zeros(2, heads, sk, depth)
    for first in range(0, sk, depth):
        v = zeros(2, heads, sk, depth)
        columns = np.arange(first, min(first + depth, sk))
        v[:, :, columns, columns - first] = sk * 0.5
        out, _ = compute(q, k, v, path=path, device=device, dtype=dtype,
                         options={"dropout_p": 0.5, "seed": seed, "offset": offset})  # fmt: skip
        head = np.arange(2 * heads).reshape(2, heads, 1, 1)
        keep = reference.dropout_keep(0.5, seed, offset, head, np.arange(sq)[:, None], columns)
        got = out[..., : len(columns)]
        assert ((got > 0.5) == keep).all()
        close(got, keep * 1.0, dtype, scale=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.gpu
def test_dropout_is_the_same_on_cpu_and_gpu(dtype):
    options = {"dropout_p": 0.3, "seed": 99, "offset": 5}
    q, k, v = zeros(2, 3, 33, 64), zeros(2, 3, 70, 64), np.ones((2, 3, 70, 64))
    gpu, _ = compute(q, k, v, device="cuda", dtype=dtype, options=options)
    cpu, _ = compute(q, k, v, device="cpu", dtype=dtype, options=options)
    close(gpu, cpu, dtype)


@EVERYWHERE
def test_zero_length_members_in_a_packed_grouped_batch(device, dtype, path):
    options = {
        "cu_seqlens_q": ints([0, 0, 1, 1, 2]),
        "cu_seqlens_k": ints([0, 4, 4, 6, 9]),
        "max_seqlen_q": 1,
        "layout": "hsd",
    }
    out, lse = compute(
        zeros(6, 2, 64), zeros(2, 9, 64), ramp(2, 9, 64), path=path, device=device, dtype=dtype, options=options
    )
    close(out[:, 0], 0, dtype)
    close(out[:, 1], 7.0, dtype)
    assert np.isneginf(lse[:, 0]).all()
    close_lse(lse[:, 1], math.log(3))


@EVERYWHERE
def test_lengths_hide_what_lies_beyond_them(device, dtype, path):
    """A cache full of NaN, lengths 1 and 37 filled with a ramp."""
    k, v = np.full((2, 1, 50, 64), math.nan), np.full((2, 1, 50, 64), math.nan)
    for b, used in enumerate((1, 37)):
        k[b, :, :used], v[b, :, :used] = 0, ramp(1, used, 64)
    out, lse = compute(zeros(2, 2, 1, 64), k, v, path=path, device=device, dtype=dtype,
                       options={"seqused_k": ints([1, 37]), "causal": True})  # fmt: skip
    close(out[:, 0, 0, 0], [0, 18], dtype)
    close_lse(lse[:, 1, 0], [0, math.log(37)])


@EVERYWHERE
def test_alignment_uses_each_members_own_length(device, dtype, path):
    options = {"seqused_k": ints([3, 7]), "causal": True}
    out, _ = compute(
        zeros(2, 1, 3, 64),
        zeros(2, 1, 8, 64),
        ramp(2, 1, 8, 64),
        path=path,
        device=device,
        dtype=dtype,
        options=options,
    )
    close(out[0, 0, :, 0], [0, 0.5, 1], dtype)
    close(out[1, 0, :, 0], [2, 2.5, 3], dtype)


PATTERNS = {
    "rising slowly": lambda j: 0.05 * j,
    "rising": lambda j: 1.0 * j,
    "rising fast": lambda j: 50.0 * j,
    "falling": lambda j: -1.0 * j,
    "falling fast": lambda j: -50.0 * j,
    "one late peak": lambda j: np.where(j == len(j) - 3, 300.0, 0.0),
    "one middle peak": lambda j: np.where(j == len(j) // 2, 80.0, -5.0),
    "a late peak above float16": lambda j: np.where(j == len(j) - 3, 14.0, 0.0),
    "low first tile": lambda j: np.where(j < 70, -25000.0, 3.0),
    "low last tile": lambda j: np.where(j < 400, 3.0, -25000.0),
    "all low": lambda j: np.full(len(j), -30000.0),
    "all high": lambda j: np.full(len(j), 30000.0),
    "stairs": lambda j: 20.0 * (j // 64),
    "swinging": lambda j: 100.0 * np.cos(j / 5),
}


@EVERYWHERE
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (150, 20)}], ids=["full", "causal", "window"])
def test_scores_that_move_far_along_the_keys(device, dtype, path, pattern, options, rng):
    """A running maximum, or a reference that is kept, must survive scores that leave its range in either direction."""
    sq, sk = 200, 600
    q, k, v = zeros(1, 2, sq, 64), zeros(1, 2, sk, 64), rng.standard_normal((1, 2, sk, 64))
    q[..., 0] = rng.choice([1.0, 0.5, -1.0], size=(1, 2, sq))
    # a scale that is no power of two: scores that float32 holds exactly would ask for an exactness that few can have
    k[..., 0] = PATTERNS[pattern](np.arange(sk)) / 0.7
    if device != "cpu":
        support.skip_without_cuda()
    tensors = [tensor(x, dtype) for x in (q, k, v)]
    problem = support.Problem(*tensors, {"scale": 0.7, **options}, support.Strided((1, 2, sq, 64), dtype))
    kind = "numpy" if device == "cpu" and dtype != "bfloat16" else "torch"
    outcome = support.run(problem, path, kind, device)
    assert not outcome.faults
    verdict = problem.judge(outcome.out, outcome.lse)
    assert verdict, verdict.message


@EVERYWHERE
@pytest.mark.parametrize("cap", [300.0, 1e4, 1e6, 1e12])
def test_a_large_softcap_is_nearly_none(device, dtype, path, cap, rng):
    """cap * tanh(s / cap) for small s / cap: a tanh with an absolute error would be multiplied by the cap."""
    q, k, v = (rng.standard_normal((1, 2, n, 64)) * size for n, size in ((9, 2), (70, 2), (70, 1)))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"softcap": cap})
    values = [tensor(x, dtype).values for x in (q, k, v)]
    verdict = reference.judge(out, lse, *values, dtype=dtype, softcap=cap)
    assert verdict, verdict.message


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["full", "causal"])
def test_a_score_of_minus_infinity_is_a_key_not_seen(device, dtype, path, options):
    """Not only masks make one: an infinite key does too, and a NaN in its value stays there."""
    keys = 300
    q, k, v = zeros(1, 1, keys, 64), zeros(1, 1, keys, 64), ramp(1, 1, keys, 64).copy()
    q[..., 0] = -1
    k[0, 0, 100, 0], v[0, 0, 100] = INF, math.nan
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    last = np.arange(keys) if options else np.full(keys, keys - 1)
    held = np.where(last >= 100, 100, 0)
    count = last + 1 - (last >= 100)
    close(out[0, 0, :, 0], (last * (last + 1) / 2 - held) / count, dtype)
    close_lse(lse[0, 0], np.log(count))


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 0)}], ids=["full", "causal", "window"])
def test_infinities_and_nan_meet_in_the_rows_that_see_both(device, dtype, path, options):
    """One channel has +inf at key 20, one -inf at 30, one both, one NaN and +inf, in tiles that rows see in part."""
    n = 150
    v = np.zeros((1, 1, n, 64))
    v[0, 0, 20, [0, 2, 3]] = INF
    v[0, 0, 30, [1, 2]] = -INF
    v[0, 0, 30, 3] = math.nan
    v[0, 0, 77, 4] = math.nan
    out, lse = compute(
        zeros(1, 1, n, 64), zeros(1, 1, n, 64), v, path=path, device=device, dtype=dtype, options=options
    )
    want = reference.attention(zeros(1, 1, n, 64), zeros(1, 1, n, 64), v, **options)
    assert np.array_equal(np.isposinf(out), np.isposinf(want.out))
    assert np.array_equal(np.isneginf(out), np.isneginf(want.out))
    assert np.array_equal(np.isnan(out), np.isnan(want.out))
    assert (out[np.isfinite(want.out)] == 0).all()
    close_lse(lse, want.lse)
