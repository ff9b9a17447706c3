"""Who owns the memory of a call: outputs that share it with inputs, rows that nobody writes, and what frameworks are
told of writes; and values that a framework holds in another form than its memory says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import support

import flashcute

torch = support.torch
pytestmark = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SHAPE = (1, 4, 600, 64)  # long enough for several tiles: small problems come out right by luck


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda":
        support.skip_without_cuda()
    return request.param


@pytest.fixture
def qkv(device):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SHAPE, generator=generator).to(device, torch.float16) for _ in range(3)]


def call(path, q, k, v, **tensors):
    if path == "functional":
        return flashcute.attention(q, k, v, **tensors)
    return flashcute.AttentionDescriptor(q, k, v, **{n: x for n, x in tensors.items() if n != "lse"}).run(
        q, k, v, **tensors
    )


@pytest.mark.parametrize("path", ["functional", "descriptor"])
@pytest.mark.parametrize("shared", [1, 2])
def test_an_output_in_the_memory_of_k_or_v_is_refused(qkv, path, shared):
    kept = qkv[shared].clone()
    with pytest.raises(flashcute.BadParamError, match=r"\(out\)"):
        call(path, *qkv, out=qkv[shared])
    assert torch.equal(qkv[shared], kept)


def test_an_output_that_overlaps_q_is_refused_but_q_itself_is_fine(qkv):
    q, k, v = qkv
    expected = flashcute.attention(q, k, v)
    buffer = torch.zeros(q.numel() + 64, dtype=q.dtype, device=q.device)
    shifted, inside = buffer[64:].view(SHAPE), buffer[:-64].view(SHAPE)
    inside.copy_(q)
    with pytest.raises(flashcute.BadParamError, match=r"\(out\)"):
        flashcute.attention(inside, k, v, out=shifted)
    assert torch.equal(inside, q)
    assert flashcute.attention(inside, k, v, out=inside) is inside
    assert torch.equal(inside, expected)


def test_an_lse_inside_the_output_is_refused(qkv):
    q, k, v = qkv
    descriptor = flashcute.AttentionDescriptor(q, k, v, return_lse=True)
    out = torch.empty_like(q)
    lse = out.view(torch.float32).reshape(-1)[: 4 * 600].view(1, 4, 600)
    with pytest.raises(flashcute.BadParamError, match="lse"):
        descriptor.run(q, k, v, out=out, lse=lse)


def test_views_that_interleave_in_one_buffer_share_no_element(qkv):
    packed = torch.stack([x.transpose(1, 2) for x in (*qkv, torch.zeros_like(qkv[0]))], dim=2)  # (b, s, 4, h, d)
    q, k, v, out = (packed[:, :, i].transpose(1, 2) for i in range(4))
    expected = flashcute.attention(*qkv)
    assert torch.equal(flashcute.attention(q, k, v, out=out), expected)


def test_packed_rows_of_no_member_are_empty_rows_of_a_new_result_and_untouched_in_a_given_one(device):
    q = torch.ones(2, 20, 16, dtype=torch.float16, device=device)
    members = torch.tensor([3, 10], dtype=torch.int32, device=device)
    options = {"layout": "hsd", "cu_seqlens_q": members, "cu_seqlens_k": members}
    for _ in range(3):  # so that freed memory is used again
        torch.full_like(q, 1234.5)
        out, lse = flashcute.attention(q, q, q, return_lse=True, **options)
        uncovered = [*range(3), *range(10, 20)]
        assert (out[:, uncovered] == 0).all()
        assert (lse[:, uncovered] == -torch.inf).all()
        assert (out[:, 3:10] == 1).all()
    given = torch.full_like(q, 7)
    flashcute.attention(q, q, q, out=given, **options)
    assert (given[:, uncovered] == 7).all()


def test_a_write_to_a_saved_tensor_is_noticed_by_autograd(qkv):
    saved = qkv[0].clone().float().half()
    weight = torch.ones_like(saved, requires_grad=True)
    product = weight * saved
    flashcute.attention(*qkv, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        flashcute.attention(*qkv, out=torch.empty_like(saved))


def test_results_that_need_a_gradient_are_refused(qkv):
    descriptor = flashcute.AttentionDescriptor(*qkv, return_lse=True)
    for name, shape, dtype in (("out", SHAPE, torch.float16), ("lse", SHAPE[:-1], torch.float32)):
        result = torch.zeros(shape, dtype=dtype, device=qkv[0].device, requires_grad=True)
        with pytest.raises(flashcute.NotImplementedByKernelError, match=rf"\({name}\).*requires_grad"):
            descriptor.run(*qkv, **{name: result})
        with torch.no_grad():
            descriptor.run(*qkv, **{name: result})


def test_forward_mode_tangents_are_not_lost(qkv):
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(qkv[0], torch.ones_like(qkv[0]))
        with pytest.raises(flashcute.NotImplementedByKernelError, match=r"\(q\).*forward-mode"):
            flashcute.attention(dual, *qkv[1:])
        expected = flashcute.attention(*qkv)
        leaf = qkv[0].clone().requires_grad_()  # grad mode is off, so this asks for nothing
        assert torch.equal(flashcute.attention(leaf, *qkv[1:]), expected)


def test_lazily_negated_values_are_read_as_what_they_are():
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 5, 8, generator=generator) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, dtype=torch.complex64, generator=generator).conj().imag
    assert bias.is_neg()
    expected = flashcute.attention(q, k, v, bias=bias.resolve_neg().contiguous())
    assert torch.equal(flashcute.attention(q, k, v, bias=bias), expected)
    thin = torch.randn(1, 2, 5, 1, dtype=torch.complex64, generator=generator).conj().imag
    assert torch.equal(flashcute.attention(thin, k[..., :1], v), flashcute.attention(thin.resolve_neg(), k[..., :1], v))


def test_the_process_ends_quietly_while_a_thread_computes():
    program = """
        import threading, time
        import numpy as np
        import flashcute
        q = np.ones((1, 8, 1, 64), np.float32)
        def forever():
            while True:
                flashcute.attention(q, q, q)
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
    """
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60,
            cwd=os.path.dirname(__file__),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [1e-60, -1e-60])
def test_a_number_too_small_for_float32_is_not_taken_for_off(value):
    q = np.ones((1, 1, 2, 8), np.float32)
    with pytest.raises(flashcute.BadParamError, match="softcap"):
        flashcute.attention(q, q, q, softcap=value)
    with pytest.raises(flashcute.BadParamError, match="dropout_p"):
        flashcute.attention(q, q, q, dropout_p=value, seed=1)


def test_a_descriptor_refuses_an_offset_beside_a_seed_tensor():
    q = np.ones((1, 1, 2, 8), np.float32)
    seed = np.array([1, 2], np.uint64)
    with pytest.raises(flashcute.BadParamError, match="offset"):
        flashcute.AttentionDescriptor(q, q, q, dropout_p=0.5, seed=seed, offset=7)
