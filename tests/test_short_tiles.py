"""head_dim 256 on a device full of short sequences: tiles of which a multiprocessor holds two CTAs."""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import Problem, compute, tensor
from test_explain import needs_kernels

import flashcute

BANDS = {"full": {}, "causal": {"causal": True}, "window": {"window": (50, 20)}}


def kernel_on(device, batch, seq, **options):
    of_q, of_k, of_v = (
        flashcute.TensorDescriptor((batch, 8, seq, 256), dtype="bfloat16", device=device) for _ in range(3)
    )
    return flashcute.AttentionDescriptor(of_q, of_k, of_v, backend="sm80", **options).plan["kernel"]


@needs_kernels
@pytest.mark.parametrize(
    ("batch", "seq", "options", "kernel"),
    [
        (32, 512, {}, "full_short"),
        (32, 512, {"causal": True}, "banded_small"),
        (32, 2048, {}, "full"),
        (1, 512, {}, "full"),
        (32, 512, {"softcap": 30.0}, "any"),
    ],
)
def test_which_problems_take_them(batch, seq, options, kernel):
    assert kernel_on("h100", batch, seq, **options) == f"sm80_hd256_bfloat16_{kernel}"
    on_a100 = kernel_on("a100", batch, seq, **options)  # which holds one CTA of either
    assert not on_a100.endswith(("short", "small"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("device", "dtype", "path"),
    support.cases(paths=("functional",), devices=("cuda",), dtypes=("float16", "bfloat16")),
)
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("rows", "keys"), [(130, 190), (64, 64), (77, 300)])
@pytest.mark.parametrize("inputs", ["random", "late peaks", "inf in v"])
def test_results(device, dtype, path, band, rows, keys, inputs, rng):
    q, k, v = (rng.standard_normal(shape) for shape in ((25, 8, rows, 256), (25, 4, keys, 256), (25, 4, keys, 256)))
    if inputs == "late peaks":
        k[..., keys // 2 :, :] *= 30
    if inputs == "inf in v":
        v[3, :, keys - 5, 7] = np.inf
    q, k, v = (tensor(x, dtype) for x in (q, k, v))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=BANDS[band], backend="sm80")
    verdict = Problem(q, k, v, BANDS[band]).judge(out, lse)
    assert verdict, verdict.message
