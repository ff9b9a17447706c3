"""Distributions of scores: what each adds to scores of N(0, 1), and where they can be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from flashcute.workloads import distributions

ROWS, KEYS, DEPTH = 300, 500, 64


def scores(name, rows=ROWS, keys=KEYS, depth=DEPTH):
    """(heads, rows, keys): of one draw of q and k, and of the same draw unchanged."""
    rng = np.random.default_rng(7)
    q, k = rng.standard_normal((8, rows, depth)), rng.standard_normal((8, keys, depth))
    before = q @ k.swapaxes(1, 2) / np.sqrt(depth)
    distributions.apply(name, q, k, lambda values, _: values)
    return q @ k.swapaxes(1, 2) / np.sqrt(depth), before


def test_normal_changes_nothing():
    after, before = scores("normal")
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("factor", [3, 12, 4.5])
def test_wide_multiplies_the_scores(factor):
    after, before = scores(f"wide{factor:g}")
    np.testing.assert_allclose(after, factor * before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("sink", lambda j: 12.0 * (j == 0)),
        ("rising", lambda j: 40 * j / (KEYS - 1) - 20),
        ("falling", lambda j: 20 - 40 * j / (KEYS - 1)),
        ("late", lambda j: 20.0 * (j >= KEYS - 64)),
    ],
)
def test_what_a_key_scores_beside_the_others(name, added):
    after, _ = scores(name)
    mean = after.mean(axis=(0, 1))
    np.testing.assert_allclose(mean - mean.mean(), added(np.arange(KEYS)) - added(np.arange(KEYS)).mean(), atol=0.3)
    assert (after - mean).std() == pytest.approx(1, abs=0.1)


def test_local_prefers_neighbours_of_the_aligned_diagonal():
    after, _ = scores("local", depth=128)
    distance = np.arange(ROWS)[:, None] + (KEYS - ROWS) - np.arange(KEYS)
    mean = [after[:, distance == d].mean() for d in (0, 64, 250)]
    assert mean[0] == pytest.approx(20, abs=1)
    assert 3 < mean[1] < 12
    assert abs(mean[2]) < 6


def test_outlier_channel():
    after, _ = scores("outlier")
    assert after.std() == pytest.approx(np.sqrt(144**2 + DEPTH - 1) / np.sqrt(DEPTH), rel=0.2)


@pytest.mark.parametrize("name", ["wide", "wide0", "wide-3", "Normal", "", "rising2"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"expected one of normal, .* or wide and a factor of q, given"):
        distributions.parse(name)


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("name", distributions.NAMES)
def test_few_channels_and_no_keys(name, depth):
    for rows, keys in ((5, 7), (3, 0), (0, 3)):
        after, _ = scores(name, rows, keys, depth)
        assert np.isfinite(after).all()
