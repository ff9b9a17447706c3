"""The faults of masks, lengths, addresses and values again, on each kernel: every head dim, and every way to walk.

"lean" is what mask classes full and banded serve. Slopes of zero ask for class any, and a bias of zeros for its tiles
with features, without changing a result.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import support
from support import Problem, Strided, close, close_lse, ints, ramp, tensor

import flashcute
from flashcute import reference

INF = math.inf
DEPTHS = (32, 64, 96, 128, 192, 256)
WALKS = ("lean", "any", "any, with features")
WHERE = [
    *support.cases(paths=("functional",), devices=("cuda",)),
    pytest.param("cpu", "float32", "functional", id="cpu"),
]

on_every_kernel = pytest.mark.parametrize(("device", "dtype", "path"), WHERE)
at_every_depth = pytest.mark.parametrize("depth", DEPTHS)
in_every_walk = pytest.mark.parametrize("walk", WALKS)


def asking_for(walk, heads, pairs=None):
    """Options that change nothing but the way."""
    if walk == "lean":
        return {}
    if walk == "any" or pairs is None:  # packed batches have no bias
        return {"alibi_slopes": tensor(np.zeros(heads), "float32")}
    return {"bias": tensor(np.zeros((1, 1, *pairs)), "float32")}


def run(problem, path, device):
    """Nothing may be refused here, and no guard touched."""
    if device != "cpu":
        support.skip_without_cuda()
    outcome = support.run(problem, path, "numpy" if device == "cpu" else "torch", device)
    assert not outcome.faults, outcome.faults
    return outcome


def compute(q, k, v, where, options):
    device, dtype, path = where
    q, k, v = (x if isinstance(x, Strided) else tensor(x, dtype) for x in (q, k, v))
    outcome = run(Problem(q, k, v, options, Strided((*q.shape[:-1], v.shape[-1]), dtype)), path, device)
    return outcome.out, outcome.lse


BANDS = [
    (40, 8, {"window": (4, 2)}),
    (1040, 8, {"window": (4, 2)}),
    (3, 7, {"causal": True}),
    (6, 4, {"causal": True}),
    (4, 10, {"window": (2, 1)}),
    (200, 333, {"causal": True}),
    (333, 200, {"causal": True}),
    (333, 200, {"causal": True, "alignment": "top_left"}),
    (150, 310, {"window": (0, 0)}),
    (150, 310, {"window": (70, -1)}),
    (150, 310, {"window": (-1, 70), "alignment": "top_left"}),
    (1, 1000, {}),
    (70, 0, {"causal": True}),
]


@on_every_kernel
@at_every_depth
@in_every_walk
def test_bounds_are_where_they_belong(device, dtype, path, depth, walk):
    """q = 0: a row's output is the mean of the keys it sees, its log-sum-exp the log of their number."""
    for rows, keys, options in BANDS:
        i, j = np.arange(rows)[:, None], np.arange(keys)
        diagonal = i + (keys - rows if "alignment" not in options else 0)
        left, right = options.get("window", (-1, 0 if options.get("causal") else -1))
        sees = np.ones((rows, keys), dtype=bool)
        sees &= (j >= diagonal - left) | (left < 0)
        sees &= (j <= diagonal + right) | (right < 0)
        count = sees.sum(axis=1)
        mean = (sees * j).sum(axis=1) / np.maximum(count, 1)
        q, k, v = np.zeros((1, 2, rows, depth)), np.zeros((1, 1, keys, depth)), ramp(1, 1, keys, depth)
        out, lse = compute(q, k, v, (device, dtype, path), {**options, **asking_for(walk, 2, (rows, keys))})
        close(out, mean[:, None], dtype, scale=max(1, keys))
        with np.errstate(divide="ignore"):
            close_lse(lse, np.log(count))


@on_every_kernel
@at_every_depth
@in_every_walk
@pytest.mark.parametrize("keys", [65, 193])
def test_the_last_tiles_tail_is_hidden(device, dtype, path, depth, walk, keys):
    q, k, v = np.ones((1, 1, 5, depth)), -np.ones((1, 1, keys, depth)), ramp(1, 1, keys, depth)
    options = {"scale": 200 / depth, **asking_for(walk, 1, (5, keys))}
    out, lse = compute(q, k, v, (device, dtype, path), options)
    close(out, (keys - 1) / 2, dtype)
    np.testing.assert_allclose(lse, -200 + math.log(keys), rtol=0, atol=3e-3)


@on_every_kernel
@at_every_depth
@in_every_walk
def test_unused_keys_may_hold_anything(device, dtype, path, depth, walk):
    k, v = (np.full((2, 1, 300, depth), math.nan) for _ in range(2))
    for b, used in enumerate((1, 37)):
        k[b, :, :used], v[b, :, :used] = 0, ramp(1, used, depth)
    options = {"seqused_k": ints([1, 37]), **asking_for(walk, 2, (140, 300))}
    out, lse = compute(np.zeros((2, 2, 140, depth)), k, v, (device, dtype, path), options)
    close(out[0], 0, dtype, scale=18)
    close(out[1], 18, dtype)
    close_lse(lse[0], 0)
    close_lse(lse[1], math.log(37))


@on_every_kernel
@at_every_depth
@pytest.mark.parametrize("walk", WALKS[:2])
def test_packed_members_of_no_length(device, dtype, path, depth, walk):
    options = {
        "cu_seqlens_q": ints([0, 0, 1, 1, 2]),
        "cu_seqlens_k": ints([0, 4, 4, 6, 9]),
        "max_seqlen_q": 1,
        "layout": "hsd",
        **asking_for(walk, 6),
    }
    q, k, v = np.zeros((6, 2, depth)), np.zeros((2, 9, depth)), ramp(2, 9, depth)
    out, lse = compute(q, k, v, (device, dtype, path), options)
    close(out, np.array([0, 7.0])[:, None], dtype)
    close_lse(lse, np.array([-INF, math.log(3)]))


@on_every_kernel
@at_every_depth
@pytest.mark.parametrize("walk", WALKS[:2])
def test_wrong_lengths_touch_no_guard(device, dtype, path, depth, walk, rng):
    wrong = [-1, -(2**31), 2**31 - 1, 10**6, 0, 3, 40, 200]
    for _ in range(4):
        shapes = ((4, 200, depth), (2, 230, depth), (2, 230, depth))
        q, k, v = (tensor(rng.standard_normal(shape), dtype) for shape in shapes)
        options = {
            "cu_seqlens_q": ints(rng.choice(wrong, size=4)),
            "cu_seqlens_k": ints(rng.choice(wrong, size=4)),
            "seqused_k": ints(rng.choice(wrong, size=3)),
            "layout": "hsd",
            "causal": True,
            **asking_for(walk, 4),
        }
        run(Problem(q, k, v, options, Strided(q.shape, dtype)), path, device)


@on_every_kernel
@at_every_depth
@in_every_walk
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_values_that_are_not_finite_stay_in_the_rows_that_see_them(device, dtype, path, depth, walk, bad):
    rows, keys, j, channel = 130, 200, 150, depth - 1
    v = ramp(1, 1, keys, depth).copy()
    v[..., j, channel] = bad
    options = {"causal": True, **asking_for(walk, 1, (rows, keys))}
    q, k = np.zeros((1, 1, rows, depth)), np.zeros((1, 1, keys, depth))
    out, lse = compute(q, k, v, (device, dtype, path), options)
    last = np.arange(rows) + keys - rows
    assert np.array_equal(np.isfinite(out[0, 0, :, channel]), last < j)
    assert np.array_equal(np.isnan(out[0, 0, last >= j, channel]), np.full((last >= j).sum(), math.isnan(bad)))
    close(out[0, 0, :, : channel - 1], (last / 2)[:, None], dtype, scale=keys)
    close_lse(lse[0, 0], np.log(last + 1))


@on_every_kernel
@at_every_depth
@in_every_walk
def test_a_nan_key_and_a_nan_query_stay_in_their_rows(device, dtype, path, depth, walk):
    q, k = np.zeros((1, 1, 130, depth)), np.zeros((1, 1, 130, depth))
    k[0, 0, 100, depth // 2], q[0, 0, 33, 0] = math.nan, math.nan
    options = {"causal": True, **asking_for(walk, 1, (130, 130))}
    out, lse = compute(q, k, ramp(1, 1, 130, depth), (device, dtype, path), options)
    row = np.arange(130)
    want = np.where((row == 33) | (row >= 100), math.nan, row / 2)
    close(out[0, 0], want[:, None], dtype, scale=100)
    assert np.array_equal(np.isnan(lse[0, 0]), np.isnan(want))


@on_every_kernel
@at_every_depth
@in_every_walk
@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_any_address_and_row_length_gives_the_same_bits(device, dtype, path, depth, walk, offset, rng):
    shapes = ((1, 4, 70, depth), (1, 2, 150, depth), (1, 2, 150, depth))
    values = [rng.standard_normal(shape) for shape in shapes]
    options = {"causal": True, **asking_for(walk, 4, (70, 150))}
    plain, plain_lse = compute(*values, (device, dtype, path), options)

    def odd(shape):
        row = depth + 3
        return Strided(shape, dtype, (shape[1] * shape[2] * row, shape[2] * row, row, 1), offset)

    moved = [odd(x.shape).fill(x) for x in values]
    for inputs in (moved, [Strided(x.shape, dtype, offset=offset).fill(x) for x in values]):
        outcome = run(Problem(*inputs, options, odd(shapes[0])), path, device)
        assert np.array_equal(outcome.out, plain)
        assert np.array_equal(outcome.lse, plain_lse)


@on_every_kernel
@at_every_depth
@in_every_walk
def test_each_query_head_reads_its_own_keys(device, dtype, path, depth, walk):
    q, k, v = np.zeros((2, 6, 20, depth)), np.zeros((2, 2, 90, depth)), np.zeros((2, 2, 90, depth))
    v += np.arange(2)[:, None, None, None] * 10 + np.arange(2)[:, None, None]
    out, _ = compute(q, k, v, (device, dtype, path), asking_for(walk, 6, (20, 90)))
    close(out, np.arange(2)[:, None, None, None] * 10 + (np.arange(6) // 3)[:, None, None], dtype)


@on_every_kernel
@at_every_depth
@in_every_walk
def test_a_run_repeats_bitwise_and_a_sequence_alone_is_the_same(device, dtype, path, depth, walk, rng):
    values = [rng.standard_normal(shape) for shape in ((3, 4, 140, depth), (3, 2, 210, depth), (3, 2, 210, depth))]
    options = {"window": (100, 5), **asking_for(walk, 4, (140, 210))}
    out, lse = compute(*values, (device, dtype, path), options)
    again, lse_again = compute(*values, (device, dtype, path), options)
    assert np.array_equal(out, again)
    assert np.array_equal(lse, lse_again)
    alone, lse_alone = compute(*(x[1:2] for x in values), (device, dtype, path), options)
    assert np.array_equal(out[1:2], alone)
    assert np.array_equal(lse[1:2], lse_alone)


# -- what class any alone has


@on_every_kernel
@at_every_depth
def test_softcap_alibi_and_sinks_in_figures(device, dtype, path, depth):
    where = (device, dtype, path)
    one = np.ones((1, 1, 1, depth))
    k = np.concatenate([one, 0 * one], axis=2)
    out, lse = compute(one, k, ramp(1, 1, 2, depth), where, {"scale": 100 / depth, "softcap": 2.0})
    close(out, 0.119203, dtype)
    close_lse(lse, 2.126928)
    four = np.zeros((1, 1, 4, depth))
    slopes = {"alibi_slopes": tensor([1.0], "float32"), "causal": True}
    out, lse = compute(0 * one, four, ramp(1, 1, 4, depth), where, slopes)
    close(out, 2.492653, dtype)
    close_lse(lse, 0.440190)
    sinks = {"sinks": tensor([1.5], "float32"), "causal": True}
    out, lse = compute(np.zeros((1, 1, 2, depth)), 0 * one, one, where, sinks)  # the first row is empty
    close(out, np.array([0, 1 / (1 + math.exp(1.5))])[:, None], dtype)
    close_lse(lse, np.array([1.5, math.log(1 + math.exp(1.5))]))


@on_every_kernel
@at_every_depth
def test_dropout_keeps_the_documented_elements(device, dtype, path, depth):
    """v is the unit matrix, as far as channels go, so that the output is the weights."""
    rows, keys = 150, 300
    keep = reference.dropout_keep(0.5, 77, 2**33 + 1, 1, np.arange(rows)[:, None], np.arange(keys))
    options = {"dropout_p": 0.5, "seed": 77, "offset": 2**33 + 1}
    for first in range(0, keys, depth):
        v = np.zeros((1, 2, keys, depth))
        v[..., np.arange(first, min(first + depth, keys)), np.arange(min(depth, keys - first))] = 1
        zeros = np.zeros((1, 2, rows, depth)), np.zeros((1, 2, keys, depth))
        out, lse = compute(*zeros, v, (device, dtype, path), options)
        assert np.array_equal(out[0, 1, :, : keys - first] != 0, keep[:, first : first + depth])
        close_lse(lse, math.log(keys))


@on_every_kernel
@at_every_depth
@pytest.mark.parametrize("bad", [INF, -INF, math.nan])
def test_a_dropped_value_that_is_not_finite_is_nan(device, dtype, path, depth, bad):
    """Its weight is 0, and 0 times inf is NaN, as in the textbook and PyTorch. Rows that do not see it are spared."""
    rows, keys, j = 140, 200, 100
    v = ramp(1, 1, keys, depth).copy()
    v[0, 0, j, 5] = bad
    options = {"dropout_p": 0.5, "seed": 3, "causal": True}
    q, k = np.zeros((1, 1, rows, depth)), np.zeros((1, 1, keys, depth))
    out, _ = compute(q, k, v, (device, dtype, path), options)
    row = np.arange(rows)
    keep, sees = reference.dropout_keep(0.5, 3, 0, 0, row, j), row + keys - rows >= j
    assert 20 < (keep & sees).sum() < sees.sum() - 20
    assert np.array_equal(np.isnan(out[0, 0, :, 5]), sees & (~keep | math.isnan(bad)))
    assert np.array_equal(np.isinf(out[0, 0, :, 5]), sees & keep & math.isinf(bad))
    if math.isinf(bad):
        assert (np.sign(out[0, 0, sees & keep, 5]) == np.sign(bad)).all()
    assert np.isfinite(np.delete(out, 5, axis=-1)).all()


# -- what only a GPU can show


@pytest.fixture
def torch():
    support.skip_without_cuda()
    return support.torch


@pytest.mark.gpu
@at_every_depth
@in_every_walk
def test_a_captured_graph_replays_with_new_lengths(torch, depth, walk):
    q, k, v = (torch.randn(2, 2, n, depth, dtype=torch.float16, device="cuda") for n in (130, 300, 300))
    used = torch.tensor([16, 16], dtype=torch.int32, device="cuda")
    out = torch.zeros_like(q)
    options = {key: x.torch("cuda") for key, x in asking_for(walk, 2, (130, 300)).items()}
    options["seqused_k"] = used
    flashcute.attention(q, k, v, out=out, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashcute.attention(q, k, v, out=out, **options)
    for lengths in ([0, 299], [300, 1]):
        used.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, flashcute.attention(q, k, v, **options))
        assert (out[0] == 0).all() == (lengths[0] == 0)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("walk", WALKS[:2])
def test_keys_beyond_32_bits(torch, depth, walk):
    row = 2**21
    room = torch.zeros(1024 * row + depth, dtype=torch.float16, device="cuda")
    k = room.as_strided((1, 1, 1025, depth), (0, 0, row, 1))
    k[0, 0] = torch.arange(1025, device="cuda")[:, None].half()
    q = torch.zeros((1, 1, 3, depth), dtype=torch.float16, device="cuda")
    options = {key: x.torch("cuda") for key, x in asking_for(walk, 1).items()}
    close(flashcute.attention(q, k, k, **options).float().cpu().numpy(), 512, "float16")
    del room, k
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bias", "mask"])
@pytest.mark.parametrize("depth", [64, 256])
def test_tensors_of_scores_beyond_32_bits(torch, name, depth):
    """Each row sees one key, told by a row of a tensor of more than 2^32 bytes."""
    rows, keys = 130, 70
    element, step = (torch.float16, 2**24 + 1) if name == "bias" else (torch.uint8, 2**25 + 1)
    room = torch.empty((rows - 1) * step + keys, dtype=element, device="cuda")
    view = room.as_strided((1, 1, rows, keys), (0, 0, step, 1))
    sees = torch.arange(rows, device="cuda")[:, None] % keys == torch.arange(keys, device="cuda")
    view[0, 0] = torch.where(sees, 0.0, -INF).half() if name == "bias" else sees.to(torch.uint8)
    q = torch.zeros((1, 1, rows, depth), dtype=torch.float16, device="cuda")
    v = tensor(ramp(1, 1, keys, depth), "float16").torch("cuda")
    out = flashcute.attention(q, torch.zeros_like(v), v, **{name: view})
    close(out.float().cpu().numpy(), (np.arange(rows) % keys)[:, None], "float16")
    del room, view
    torch.cuda.empty_cache()


@pytest.mark.gpu
def test_an_inner_stride_other_than_one_is_copied_for_inputs_and_rejected_for_out(torch):
    q, k, v = (torch.randn(1, 2, 70, 128, dtype=torch.bfloat16, device="cuda")[..., ::2] for _ in range(3))
    want = flashcute.attention(*(x.contiguous() for x in (q, k, v)))
    assert torch.equal(flashcute.attention(q, k, v), want)
    out = torch.full((1, 2, 70, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(flashcute.BadStridesError, match="out"):
        flashcute.attention(q, k, v, out=out[..., ::2])
    assert (out == 7).all()
