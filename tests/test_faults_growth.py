"""Scores that grow by many powers of two along the keys, so that the growth meets each kind of key tile."""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import cases, compute

LN2 = float(np.log(2))
SMALL = [case for case in cases(paths=("functional",)) if "float32-" not in case.id or case.id.startswith("cpu")]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (500, 500)}], ids=["full", "causal", "window"])
@pytest.mark.parametrize("feature", ["none", "sinks", "mask", "alibi"])
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize(("device", "dtype", "path"), SMALL)
def test_a_key_before_a_great_rise_keeps_its_share(device, dtype, path, depth, feature, options):
    """Key 140 scores 87 above the first ones, key 382 89: the output is the weight of key 140."""
    keys = 383
    q = np.zeros((1, 1, keys, depth))
    q[..., 0] = 1
    k, v = np.zeros((1, 1, keys, depth)), np.zeros((1, 1, keys, depth))
    k[:, :, 140, 0], k[:, :, 382, 0], v[:, :, 140] = 87, 89, 1
    seen = np.ones(keys)
    seen[5] = 0
    tensors = {
        "none": {},
        "sinks": {"sinks": support.tensor([-1000.0], "float32")},
        "mask": {"mask": support.tensor(seen, "bool")},
        "alibi": {"alibi_slopes": support.tensor([0.0], "float32")},
    }[feature]
    out, lse = compute(q, k, v, path, device, dtype, options={"scale": 1.0, **options, **tensors})
    share = 1 / (1 + np.exp(2.0))
    support.close(out[0, 0, -1], np.full(depth, share), dtype)
    support.close_lse(lse[0, 0, -1], 89 + np.log1p(np.exp(-2.0)))


def staircase(keys, step, random):
    """Scores in natural units: a rise of `step` powers of two at three drawn keys, and noise."""
    at = np.sort(random.choice(keys, 3, replace=False))
    return LN2 * step * np.searchsorted(at, np.arange(keys), side="right") + random.standard_normal(keys)


OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "alignment": "top_left"},
    "window": {"window": (200, 30)},
    "softcap": {"softcap": 120.0},
    "mask": {},
    "block mask": {},
    "sinks": {},
    "alibi": {"causal": True},
    "bias": {},
    "seqused": {},
}


@pytest.mark.parametrize("step", [20, 40, 64, 100, 126, 128, 150])
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize(("device", "dtype", "path"), SMALL)
def test_rises_at_any_key_agree_with_float64(device, dtype, path, depth, kind, step, rng):
    if dtype == "float16" and step > 128:
        pytest.skip("the same sums as with smaller steps")
    keys, rows = 620, 200
    q, k = np.zeros((1, 2, rows, depth)), np.zeros((1, 2, keys, depth))
    q[..., 0] = 0.5 + (np.arange(rows) % 4) / 4
    for head in range(2):
        k[0, head, :, 0] = staircase(keys, step, rng)
    v = rng.standard_normal((1, 2, keys, depth))
    tensors = {
        "mask": lambda: {"mask": support.tensor(rng.random((1, keys)) < 0.8, "bool")},
        "block mask": lambda: {"block_mask": support.tensor(np.array([[[[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]]]]), "bool")},
        "sinks": lambda: {"sinks": support.tensor(LN2 * step * np.array([0.5, 2.5]), "float32")},
        "alibi": lambda: {"alibi_slopes": support.tensor([0.05, 0.001], "float32")},
        "bias": lambda: {"bias": support.tensor(rng.standard_normal((1, 1, rows, keys)), "float32")},
        "seqused": lambda: {"seqused_k": support.ints([keys - 33])},
    }.get(kind, dict)()
    options = {"scale": 1.0, **OPTIONS[kind], **tensors}
    q, k, v = (support.tensor(x, dtype) for x in (q, k, v))
    out, lse = compute(q, k, v, path, device, dtype, options=options)
    verdict = support.Problem(q, k, v, options).judge(out, lse)
    assert verdict, verdict


@pytest.mark.parametrize("value", [3e38, -3e38])
@pytest.mark.parametrize("keys", [2, 130, 5000])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_values_near_the_end_of_bfloat16_average_to_themselves(device, causal, keys, value):
    q, k = np.zeros((1, 1, 70, 64)), np.zeros((1, 1, keys, 64))
    v = support.tensor(np.full((1, 1, keys, 64), value), "bfloat16")
    out, lse = compute(q, k, v, device=device, dtype="bfloat16", options={"causal": causal, "alignment": "top_left"})
    np.testing.assert_allclose(out, v.values[0, 0, 0, 0], rtol=1e-2)
    seen = np.minimum(np.arange(70) + 1, keys) if causal else np.full(70, keys)
    support.close_lse(lse[0, 0], np.log(seen))
