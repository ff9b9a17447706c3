"""Descriptors are copied, pickled and referred to weakly, as plain objects are."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import support

import flashcute

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle-{n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
}
duplicated = pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
D = flashcute.TensorDescriptor


def every_option():
    """Each option away from its default, in two descriptors, since packed problems take no score matrices."""
    q, k = D((2, 4, 30, 64), dtype="float16"), D((2, 2, 50, 64), dtype="float16")
    v = D((2, 2, 50, 32), (9000, 4000, 64, 1), dtype="float16")
    pairs = {
        "out": D((2, 4, 30, 32), (4 * 30 * 32, 32, 128, 1), dtype="float16"),
        "scale": 0.3,
        "causal": True,
        "alignment": "top_left",
        "window": (7, 0),
        "mask": D((2, 4, 30, 50), dtype="int16"),
        "block_mask": D((1, 1, 1, 1), dtype="bool"),
        "bias": D((2, 4, 30, 50), (0, 50, 200, 1), dtype="float32"),
        "softcap": 12.5,
        "alibi_slopes": D((2, 4)),
        "sinks": D((4,), dtype="float16"),
        "dropout_p": 0.1,
        "seed": 2**63 + 1,
        "offset": 9,
        "seqused_k": D((2,), dtype="int32"),
        "return_lse": True,
        "return_probs": True,
        "backend": "cpu",
        "checked": True,
    }
    rows = D((30, 4, 64), dtype="bfloat16")
    bounds = D((4,), dtype="int32")
    packed = {
        "mask": D((30,), dtype="bool"),
        "cu_seqlens_q": bounds,
        "cu_seqlens_k": bounds,
        "max_seqlen_q": 20,
        "max_seqlen_k": 25,
        "layout": "shd",
        "dropout_p": 0.2,
        "seed": D((2,), dtype="uint64"),
    }
    return [flashcute.AttentionDescriptor(q, k, v, **pairs), flashcute.AttentionDescriptor(rows, rows, rows, **packed)]


@duplicated
def test_copies_have_the_same_arguments_and_plan(duplicate):
    for made in every_option():
        again = duplicate(made)
        assert again is not made
        assert type(again) is flashcute.AttentionDescriptor
        assert again.plan == made.plan
        assert again.workspace_size == made.workspace_size
        assert again.__reduce__() == made.__reduce__()
    arguments = every_option()[0].__reduce__()[1][0]
    assert arguments["window"] == (7, 0)
    assert arguments["seed"] == 2**63 + 1
    assert arguments["bias"].strides == (0, 50, 200, 1)
    assert arguments["checked"] is True


@duplicated
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_copies_run(duplicate, device):
    torch = support.torch
    if torch is None:
        pytest.skip("PyTorch is not installed")
    if device != "cpu":
        support.skip_without_cuda()
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, n, 70, 64, generator=generator).to(device, torch.float16) for n in (4, 2, 2))
    slopes = torch.ones(4, device=device)
    made = flashcute.AttentionDescriptor(
        q, k, v, alibi_slopes=slopes, window=(20, 3), dropout_p=0.3, seed=11, offset=2, return_lse=True
    )
    want = made.run(q, k, v, alibi_slopes=slopes)
    again = duplicate(made)
    del made
    got = again.run(q, k, v, alibi_slopes=slopes)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    with pytest.raises(flashcute.BadShapeError):
        again.run(q[:, :, :5], k, v, alibi_slopes=slopes)


@duplicated
def test_alignment_is_kept(duplicate):
    """Tensors off by one element: a copy made as if they were aligned would refuse them."""
    room = np.random.default_rng(0).standard_normal((3, 2 * 9 * 16 + 1)).astype("float32")
    q, k, v = (x[1:].reshape(1, 2, 9, 16) for x in room)
    made = flashcute.AttentionDescriptor(q, k, v)
    assert np.array_equal(duplicate(made).run(q, k, v), made.run(q, k, v))


@duplicated
def test_a_machine_that_is_only_planned_for(duplicate):
    h100 = D((1, 8, 512, 64), dtype="float16", device="h100")
    try:
        made = flashcute.AttentionDescriptor(h100, h100, h100)
    except flashcute.NotImplementedByKernelError:
        pytest.skip("this build has no GPU kernels")
    assert duplicate(made).plan == made.plan


def test_a_pickle_is_made_again_in_another_process():
    made = every_option()[1]
    program = "import pickle, sys; print(sorted(pickle.load(sys.stdin.buffer).plan.items()))"
    ran = subprocess.run([sys.executable, "-I", "-c", program], input=pickle.dumps(made), capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.decode().strip() == str(sorted(made.plan.items()))


@duplicated
def test_tensor_descriptors(duplicate):
    for made in (
        D((2, 3), (1, 2), "float16"),
        D((), dtype="int8"),
        D((1, 2, 3), device="h100"),
        D((0,), device="cuda:3"),
    ):
        assert duplicate(made) == made
        assert hash(duplicate(made)) == hash(made)


def test_weak_references():
    tensor = D((1, 2, 9, 16))
    made = flashcute.AttentionDescriptor(tensor, tensor, tensor)
    told = []
    reference = weakref.ref(made, told.append)
    table = weakref.WeakValueDictionary({"key": made})
    keys = weakref.WeakKeyDictionary({made: 1})
    assert reference() is made
    assert table["key"] is made
    assert keys[made] == 1
    del made
    gc.collect()
    assert reference() is None
    assert told == [reference]
    assert not table and not keys
    kept = weakref.ref(tensor)
    assert kept() is tensor


@pytest.mark.parametrize("offset", [0, 5, 2**33 + 1])
def test_a_seed_of_four_words_is_the_same_sixteen_bytes(offset):
    q = np.random.default_rng(0).standard_normal((1, 2, 40, 16), dtype=np.float32)
    seed = np.array([2**40 + 3, offset], dtype=np.uint64)
    want = flashcute.attention(q, q, q, dropout_p=0.5, seed=int(seed[0]), offset=offset)
    for given in (seed, seed.view(np.int64), seed.view(np.uint32)):
        np.testing.assert_array_equal(flashcute.attention(q, q, q, dropout_p=0.5, seed=given), want)
    with pytest.raises(flashcute.BadDtypeError, match="seed"):
        flashcute.attention(q, q, q, dropout_p=0.5, seed=np.zeros(2, np.uint32))
