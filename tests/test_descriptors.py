"""TensorDescriptor takes what a tensor can be, and says of everything else what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

import flashcute

TOO_LARGE = [(1, 1, 2**62, 16), (2**63, 1, 1, 1), (2**40, 2**40, 2**40, 16), (0, 2**62, 2, 16), (2**200,)]


@pytest.mark.parametrize("shape", TOO_LARGE)
def test_shapes_beyond_64_bits_are_refused(shape):
    for strides in (None, (0,) * len(shape)):
        with pytest.raises(flashcute.BadShapeError, match=r"flashcute\.TensorDescriptor\(shape\): .*2\*\*63"):
            flashcute.TensorDescriptor(shape, strides)


@pytest.mark.parametrize("shape", [("a",), 5, "ab", (1.5,), None, (-1,), (-(2**70),)])
def test_shapes_that_are_none_are_refused(shape):
    with pytest.raises(flashcute.BadShapeError, match=r"flashcute\.TensorDescriptor\(shape\): expected .*, given "):
        flashcute.TensorDescriptor(shape)


@pytest.mark.parametrize("strides", [("a",) * 4, 5, (1,), (2**63, 0, 0, 1), (0, 0, 2**60, 1), (0, 0, -(2**60), 1)])
def test_bad_strides_are_refused(strides):
    with pytest.raises(flashcute.BadStridesError, match=r"flashcute\.TensorDescriptor\(strides\): expected .*, given "):
        flashcute.TensorDescriptor((1, 1, 8, 16), strides)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:²", "cuda:99999999999", "cpu:x", None, 0])
def test_unknown_devices_are_refused(device):
    expected = r"flashcute\.TensorDescriptor\(device\): expected 'cpu' or 'cuda:N', given "
    with pytest.raises(flashcute.BadParamError, match=expected):
        flashcute.TensorDescriptor((1, 1, 8, 16), device=device)


def test_integers_of_any_kind_are_lengths():
    expected = flashcute.TensorDescriptor((2, 4, 8, 16), (512, 128, 16, 1))
    assert flashcute.TensorDescriptor(np.array([2, 4, 8, 16])) == expected
    assert flashcute.TensorDescriptor([2, 4, 8, 16], [np.int32(512), 128, 16, True]) == expected


def test_the_largest_shapes_reach_the_library_whole():
    """What passes here fits the library's own integers: it plans, or says which sizes are beyond it."""
    for shape in ((1, 1, 2**57 - 1, 16), (2**28, 2**28, 1, 16)):
        descriptor = flashcute.TensorDescriptor(shape)
        try:
            flashcute.AttentionDescriptor(descriptor, descriptor, descriptor)
        except flashcute.Error as error:
            assert "AttentionDescriptor" in str(error)


@pytest.mark.parametrize(("value", "checked"), [("", False), ("0", False), ("1", True)])
def test_checked_is_on_or_off(value, checked, monkeypatch):
    monkeypatch.setenv("FLASHCUTE_CHECKED", value)
    q = np.ones((2, 8, 16), np.float32)
    bounds = np.array([0, 9], np.int32)  # one row more than there is

    def run():
        return flashcute.attention(q, q, q, layout="hsd", cu_seqlens_q=bounds, cu_seqlens_k=bounds)

    if checked:
        with pytest.raises(flashcute.BadParamError, match="cu_seqlens_q"):
            run()
    else:
        run()


@pytest.mark.parametrize("value", ["true", "yes", "2", " 1", "00"])
def test_checked_in_other_words_is_refused(value, monkeypatch):
    monkeypatch.setenv("FLASHCUTE_CHECKED", value)
    q = np.ones((1, 2, 8, 16), np.float32)
    with pytest.raises(flashcute.BadParamError, match=rf"\(FLASHCUTE_CHECKED\): expected 0 or 1, given \"{value}\""):
        flashcute.attention(q, q, q)
    flashcute.attention(q, q, q, checked=False)
