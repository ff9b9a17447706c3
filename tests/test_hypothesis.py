"""Problems that shrink: small shapes, lengths and bands drawn by hypothesis, to find the smallest one that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import Problem, Strided, ints, tensor

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, database=None)
bound = st.one_of(st.just(-1), st.integers(0, 40), st.integers(2**31 - 2, 2**63 - 1))


@st.composite
def bands(draw):
    return {
        "causal": draw(st.booleans()),
        "alignment": draw(st.sampled_from(["bottom_right", "top_left"])),
        "window": (draw(bound), draw(bound)),
    }


def judged(problem: Problem, path: str) -> None:
    kind = "torch" if problem.name == "bfloat16" else "numpy"
    outcome = support.run(problem, path, kind)
    assert not outcome.faults, outcome.faults
    verdict = problem.judge(outcome.out, outcome.lse)
    assert verdict, verdict.message


@SETTINGS
@given(
    path=st.sampled_from(support.PATHS),
    name=st.sampled_from(support.FLOATS),
    batch=st.integers(1, 3),
    heads_k=st.integers(1, 3),
    group=st.integers(1, 4),
    seq_q=st.integers(0, 70),
    seq_k=st.integers(0, 140),
    depth=st.integers(1, 70),
    depth_v=st.integers(1, 70),
    band=bands(),
    seed=st.integers(0, 2**32),
)
def test_dense(path, name, batch, heads_k, group, seq_q, seq_k, depth, depth_v, band, seed):
    rng = np.random.default_rng(seed)
    shapes = [(batch, heads_k * group, seq_q, depth), (batch, heads_k, seq_k, depth), (batch, heads_k, seq_k, depth_v)]
    q, k, v = (tensor(rng.standard_normal(s), name) for s in shapes)
    judged(Problem(q, k, v, band, Strided((*shapes[0][:3], depth_v), name)), path)


@SETTINGS
@given(
    path=st.sampled_from(support.PATHS),
    name=st.sampled_from(support.FLOATS),
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90), st.integers(0, 90)), min_size=0, max_size=6),
    bounded=st.booleans(),
    used=st.booleans(),
    layout=st.sampled_from(["hsd", "shd"]),
    band=bands(),
    seed=st.integers(0, 2**32),
)
def test_packed(path, name, lengths, bounded, used, layout, band, seed):
    rng = np.random.default_rng(seed)
    len_q, len_k = [n[0] for n in lengths], [n[1] for n in lengths]
    cu_q, cu_k = (ints(np.concatenate([[0], np.cumsum(n, dtype=int)])) for n in (len_q, len_k))
    shapes = [(4, sum(len_q), 16), (2, sum(len_k), 16), (2, sum(len_k), 24)]
    out_shape = (4, sum(len_q), 24)
    if layout == "shd":
        shapes = [(s[1], s[0], s[2]) for s in shapes]
        out_shape = (out_shape[1], out_shape[0], out_shape[2])
    q, k, v = (tensor(rng.standard_normal(s), name) for s in shapes)
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "layout": layout, **band}
    if bounded and lengths:
        options |= {"max_seqlen_q": max(1, *len_q), "max_seqlen_k": max(1, *len_k)}
    if used:
        options["seqused_k"] = ints([min(n[2], n[1]) for n in lengths])
    judged(Problem(q, k, v, options, Strided(out_shape, name)), path)
