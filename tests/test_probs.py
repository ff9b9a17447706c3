"""The weights that a call returns on request: the softmax after dropout."""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import Problem, cases, close, ramp, tensor

import flashcute
from flashcute import reference

EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), cases())


def run(q, k, v, *, path, device="cpu", dtype="float32", **options):
    """out, lse and probs; skips what no GPU kernel does."""
    if device != "cpu":
        support.skip_without_cuda()
    problem = Problem(*(tensor(x, dtype) for x in (q, k, v)), options, return_probs=True)
    kind = "torch" if device != "cpu" or dtype == "bfloat16" else "numpy"
    try:
        outcome = support.run(problem, path, kind, device)
    except flashcute.NotImplementedByKernelError as error:
        if device == "cpu":
            raise
        pytest.skip(str(error))
    assert not outcome.faults, outcome.faults
    return outcome.out, outcome.lse, outcome.probs


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((2, h, n, 16)).astype("float32") for h, n in ((4, 11), (2, 13), (2, 13))]


@EVERYWHERE
def test_equal_scores_weigh_the_same(device, dtype, path):
    q, k = np.zeros((1, 2, 6, 64)), np.zeros((1, 2, 4, 64))
    _, _, probs = run(q, k, ramp(1, 2, 4, 64), path=path, device=device, dtype=dtype, causal=True)
    want = np.tril(np.ones((6, 4)), -2) / np.array([1, 1, 1, 2, 3, 4])[:, None]
    close(probs, np.broadcast_to(want, probs.shape), dtype)
    assert (probs[..., :2, :] == 0).all()  # rows without keys


@EVERYWHERE
@pytest.mark.parametrize("path_options", [{}, {"causal": True}, {"dropout_p": 0.4, "seed": 3, "offset": 9}])
def test_the_output_is_made_of_them(device, dtype, path, path_options, rng):
    q, k, v = (rng.standard_normal((2, h, n, 64)) for h, n in ((4, 150), (2, 300), (2, 300)))
    out, _, probs = run(q, k, v, path=path, device=device, dtype=dtype, **path_options)
    values = np.repeat(tensor(v, dtype).values.astype("float64"), 2, axis=1)
    atol = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    np.testing.assert_allclose(probs @ values, out, rtol=0, atol=atol)


@EVERYWHERE
def test_dropped_weights_are_zero_and_kept_ones_scaled(device, dtype, path):
    q = np.zeros((2, 3, 70, 64))
    _, lse, probs = run(q, q, ramp(2, 3, 70, 64), path=path, device=device, dtype=dtype, dropout_p=0.25, seed=77)
    head = np.arange(6).reshape(2, 3, 1, 1)
    keep = reference.dropout_keep(0.25, 77, 0, head, np.arange(70)[:, None], np.arange(70))
    close(probs, keep / 70 / 0.75, dtype)
    support.close_lse(lse, np.log(70))


@EVERYWHERE
def test_a_sink_takes_its_share(device, dtype, path):
    q = np.zeros((1, 2, 5, 64))
    sinks = tensor(np.log([2.0, 5.0]), "float32")
    _, _, probs = run(q, q, q, path=path, device=device, dtype=dtype, sinks=sinks)
    close(probs, np.broadcast_to(np.array([1 / 7, 1 / 10])[:, None, None], (1, 2, 5, 5)), dtype)


@EVERYWHERE
def test_nan_stays_in_its_row_and_among_the_keys_it_sees(device, dtype, path, rng):
    q, k, v = (rng.standard_normal((1, 2, 40, 64)) for _ in range(3))
    q[0, 0, 30, 5] = np.nan
    v[0, 0, 3] = np.nan  # a value is no matter to the weights
    _, _, probs = run(q, k, v, path=path, device=device, dtype=dtype, causal=True)
    assert np.isnan(probs[0, 0, 30, :31]).all()
    assert (probs[0, 0, 30, 31:] == 0).all()
    probs[0, 0, 30] = 0
    assert np.isfinite(probs).all()


FEATURES = {
    "causal": {"causal": True},
    "top left": {"causal": True, "alignment": "top_left"},
    "window": {"window": (60, 30)},
    "softcap": {"softcap": 3.0},
    "a high cap": {"softcap": 500.0, "scale": 1.0},
    "a scale below zero": {"scale": -0.3},
    "key mask": {"mask": ("bool", (2, 301))},
    "wide key mask": {"mask": ("int64", (2, 301))},
    "pair mask": {"mask": ("bool", (2, 1, 170, 301))},
    "block mask": {"block_mask": ("bool", (1, 4, 2, 3)), "causal": True},
    "bias": {"bias": ("float32", (1, 4, 170, 301))},
    "alibi": {"alibi_slopes": ("float32", (2, 4))},
    "sinks": {"sinks": ("float32", (4,))},
    "lengths": {"seqused_k": support.ints([0, 299]), "causal": True},
    "dropout": {"dropout_p": 0.3, "seed": 2**40 + 7, "offset": 2**33},
    "many": {
        "window": (200, 5), "softcap": 10.0, "dropout_p": 0.2, "seed": 1, "seqused_k": support.ints([300, 77]),
        "mask": ("bool", (2, 301)), "block_mask": ("int32", (2, 1, 2, 3)), "bias": ("float32", (2, 1, 1, 301)),
        "alibi_slopes": ("float32", (4,)), "sinks": ("float32", (4,)),
    },
}  # fmt: skip


@EVERYWHERE
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_against_float64(device, dtype, path, feature, rng):
    """Grouped heads, lengths that end inside of everything, and a whole tensor to be written."""

    def drawn(value):
        if not isinstance(value, tuple) or not isinstance(value[0], str):
            return value
        kind, shape = value
        return tensor(rng.random(shape) < 0.7 if kind != "float32" else rng.random(shape), kind)

    options = {name: drawn(value) for name, value in FEATURES[feature].items()}
    q, k, v = (rng.standard_normal((2, h, n, 64)) for h, n in ((4, 170), (2, 301), (2, 301)))
    out, lse, probs = run(q, k, v, path=path, device=device, dtype=dtype, **options)
    verdict = Problem(*(tensor(x, dtype) for x in (q, k, v)), options).judge(out, lse, probs)
    assert verdict, verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("width", [20, 77, 256])
def test_unaligned_tensors_on_the_gpu(width, rng):
    """q and k are copied for their alignment; nothing is written beside the weights."""
    support.skip_without_cuda()
    q, k, v = (
        support.Strided((2, 2, n, width), "float16", offset=1).fill(rng.standard_normal((2, 2, n, width)))
        for n in (50, 90, 90)
    )
    placed = [x.torch("cuda") for x in (q, k, v)]
    desc = flashcute.AttentionDescriptor(*placed, causal=True, return_probs=True)
    room = support.Strided((2, 2, 50, 90), "float32")
    out, _ = desc.run(*placed, probs=room.torch("cuda"))
    room.fetch()
    assert not room.guard_fault()
    verdict = Problem(q, k, v, {"causal": True}).judge(support.to_values(out), None, room.values)
    assert verdict, verdict.message


def test_order_types_and_shapes_of_results(qkv):
    out = flashcute.attention(*qkv)
    pair, probs = flashcute.attention(*qkv, return_probs=True)
    assert np.array_equal(pair, out)
    assert (probs.shape, probs.dtype) == ((2, 4, 11, 13), np.float32)
    out3, lse3, probs3 = flashcute.attention(*qkv, return_lse=True, return_probs=True)
    assert np.array_equal(out3, out)
    assert np.array_equal(lse3, flashcute.attention(*qkv, return_lse=True)[1])
    assert np.array_equal(probs3, probs)
    single = flashcute.attention(*(x[0] for x in qkv), return_probs=True)[1]
    assert np.array_equal(single, probs[0])
    turned = flashcute.attention(*(x.swapaxes(1, 2) for x in qkv), layout="bshd", return_probs=True)[1]
    assert np.array_equal(turned, probs)
    half = flashcute.attention(*(x.astype("float16") for x in qkv), return_probs=True)[1]
    assert half.dtype == np.float32
    empty = flashcute.attention(qkv[0], qkv[1][:, :, :0], qkv[2][:, :, :0], return_probs=True)[1]
    assert empty.shape == (2, 4, 11, 0)


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_results_are_the_callers_type(qkv, framework):
    module = pytest.importorskip(framework)
    tensors = [module.asarray(x) for x in qkv]
    _, probs = flashcute.attention(*tensors, return_probs=True)
    assert type(probs) is type(tensors[0])
    assert np.array_equal(np.asarray(probs), flashcute.attention(*qkv, return_probs=True)[1])


def test_unused_keys_have_no_weight_and_given_memory_is_written_whole(qkv):
    used = np.array([3, 0], "int32")
    desc = flashcute.AttentionDescriptor(*qkv, seqused_k=used, return_probs=True)
    room = np.full((2, 4, 11, 13), np.nan, "float32")
    _, probs = desc.run(*qkv, seqused_k=used, probs=room)
    assert probs is room
    np.testing.assert_allclose(room.sum(-1), np.broadcast_to([[[1]], [[0]]], (2, 4, 11)), atol=1e-6)
    assert (room[0, ..., 3:] == 0).all()
    assert (room[1] == 0).all()


def test_a_descriptor_refuses_memory_that_does_not_fit(qkv):
    desc = flashcute.AttentionDescriptor(*qkv, return_probs=True)
    for bad, error in (
        (np.zeros((2, 4, 11, 12), "float32"), flashcute.BadShapeError),
        (np.zeros((2, 4, 11, 13), "float64"), flashcute.BadDtypeError),
        (np.zeros((2, 4, 13, 11), "float32").swapaxes(2, 3), flashcute.BadStridesError),
        (np.broadcast_to(np.zeros(13, "float32"), (2, 4, 11, 13)), flashcute.BadParamError),  # read-only
    ):
        with pytest.raises(error, match=r"run\(probs\)"):
            desc.run(*qkv, probs=bad)
    with pytest.raises(TypeError, match="probs"):
        flashcute.attention(*qkv, probs=np.zeros((2, 4, 11, 13), "float32"))


def test_memory_must_be_its_own(rng):
    q = rng.standard_normal((1, 1, 8, 8)).astype("float32")
    room = np.zeros((1, 1, 8, 8), "float32")
    desc = flashcute.AttentionDescriptor(q, q, q, return_probs=True, return_lse=True)
    for shared in ({"q": q, "probs": q}, {"out": room, "probs": room}, {"lse": room[..., 0, :], "probs": room}):
        tensors = {"q": q.copy(), "k": q.copy(), "v": q.copy(), **shared}
        with pytest.raises(flashcute.BadParamError, match=r"run\(probs\): expected memory of its own"):
            desc.run(**tensors)


@pytest.mark.parametrize("seq", [8193, 2**40])
def test_large_problems_are_refused_before_anything_is_allocated(seq):
    q, k = (flashcute.TensorDescriptor((1, 1, n, 8), dtype="float32") for n in (8192, seq))
    with pytest.raises(
        flashcute.BadParamError, match=r"AttentionDescriptor\(return_probs\): expected .*67108864.*tests"
    ):
        flashcute.AttentionDescriptor(q, k, k, return_probs=True)
    long = flashcute.TensorDescriptor((1, 1, 2**50, 8), dtype="float32")
    with pytest.raises(flashcute.BadShapeError):  # more pairs than 64 bits count
        flashcute.AttentionDescriptor(long, long, long, return_probs=True)
    view = np.broadcast_to(np.zeros((1, 1, 1, 8), "float32"), (1, 1, 50_000, 8))
    many = np.broadcast_to(view[:, :, :1], (1, 1, 2**36, 8))
    with pytest.raises(flashcute.BadParamError, match=r"attention\(return_probs\): expected .*67108864"):
        flashcute.attention(view, many, many, return_probs=True)


def test_the_oracle_returns_them_too(rng):
    q, k, v = (rng.standard_normal((2, h, n, 20)) for h, n in ((6, 33), (3, 57), (3, 57)))
    plain = reference.attention(q, k, v, causal=True, return_probs=True)
    assert plain.probs.shape == (2, 6, 33, 57)
    np.testing.assert_allclose(plain.probs.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(plain.probs @ np.repeat(v, 2, axis=1), plain.out, rtol=1e-12, atol=1e-13)
    assert reference.attention(q, k, v).probs is None
    some = reference.attention(q, k, v, causal=True, return_probs=True, rows=[7, 2])
    assert np.array_equal(some.probs, plain.probs[:, :, [7, 2]])
    used = reference.attention(q, k, v, seqused_k=np.array([9, 0]), return_probs=True).probs
    assert (used[0, ..., 9:] == 0).all()
    assert (used[1] == 0).all()


def test_judge_looks_at_them(rng):
    problem = [rng.standard_normal((1, 2, 9, 16)).astype(np.float32) for _ in range(3)]
    out, lse, _, probs = reference.attention(*problem, return_probs=True)
    assert reference.judge(out, lse, *problem, probs=probs)
    assert reference.judge(out, lse, *problem, probs=probs + 9e-6)
    probs[0, 1, 3, 2] += 3e-5
    assert reference.judge(out, lse, *problem, probs=probs).message.startswith("probs[0, 1, 3, 2]: expected")
    assert "shape" in reference.judge(out, lse, *problem, probs=probs[:, :1]).message
