"""The public Python surface: names, defaults, exceptions, layouts, results and messages."""

from __future__ import annotations

import inspect
import math
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import support
from support import close

import flashcute

NAMES = [
    "attention", "AttentionDescriptor", "TensorDescriptor", "merge_states", "set_num_threads", "get_num_threads",
    "get_include", "get_library", "get_cmake_dir", "__version__",
]  # fmt: skip

ERRORS = {
    "BadParamError": (ValueError, 3),
    "BadShapeError": (ValueError, 11),
    "BadStridesError": (ValueError, 12),
    "BadDtypeError": (TypeError, 10),
    "NullPointerError": (ValueError, 4),
    "UnsupportedDeviceError": (RuntimeError, 5),
    "UnsupportedArchitectureError": (RuntimeError, 8),
    "DeviceNotFoundError": (RuntimeError, 6),
    "NotImplementedByKernelError": (NotImplementedError, 2),
    "InsufficientWorkspaceError": (ValueError, 13),
    "InternalError": (RuntimeError, 1),
}


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((2, 3, 11, 16)).astype("float32") for _ in range(3)]


@pytest.mark.parametrize("name", [*NAMES, "Error", *ERRORS])
def test_public_names(name):
    assert hasattr(flashcute, name)
    if not name.startswith("__"):
        assert name in flashcute.__all__


def test_all_lists_nothing_that_is_missing():
    assert all(hasattr(flashcute, name) for name in flashcute.__all__)
    assert len(set(flashcute.__all__)) == len(flashcute.__all__)


@pytest.mark.parametrize("name", ERRORS)
def test_exceptions(name):
    base, status = ERRORS[name]
    kind = getattr(flashcute, name)
    assert issubclass(kind, flashcute.Error)
    assert issubclass(kind, base)
    assert issubclass(flashcute.Error, Exception)
    assert kind.status == status


def test_every_status_has_its_own_exception():
    import capi

    statuses = {getattr(flashcute, name).status for name in ERRORS}
    assert len(statuses) == len(ERRORS)
    for status in statuses:
        assert capi.exception_of(status).status == status


def test_a_raised_exception_carries_its_status(qkv):
    with pytest.raises(flashcute.BadParamError) as caught:
        flashcute.attention(*qkv, softcap=-1.0)
    assert caught.value.status == 3
    assert isinstance(caught.value, ValueError)


def test_signature_of_attention():
    text = flashcute.attention.__doc__ or ""
    try:
        signature = inspect.signature(flashcute.attention)
    except ValueError:
        pytest.fail(f"attention has no signature: {text[:80]}")
    want = {
        "out": None, "scale": None, "causal": False, "alignment": "bottom_right", "window": (-1, -1), "mask": None,
        "block_mask": None, "bias": None, "softcap": 0.0, "alibi_slopes": None, "sinks": None, "dropout_p": 0.0,
        "seed": None, "offset": 0, "cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": None,
        "max_seqlen_k": None, "seqused_k": None, "layout": None, "return_lse": False, "return_probs": False,
        "backend": "auto", "checked": None, "workspace": None, "stream": None,
    }  # fmt: skip
    parameters = signature.parameters
    assert list(parameters) == ["q", "k", "v", *want]
    for name, default in want.items():
        assert parameters[name].default == default
        assert parameters[name].kind == inspect.Parameter.KEYWORD_ONLY


def test_defaults_written_out_change_nothing(qkv):
    want = flashcute.attention(*qkv)
    got = flashcute.attention(
        *qkv, out=None, scale=None, causal=False, alignment="bottom_right", window=(-1, -1), mask=None,
        block_mask=None, bias=None, softcap=0.0, alibi_slopes=None, sinks=None, dropout_p=0.0, seed=None, offset=0,
        cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None, layout=None,
        return_lse=False, return_probs=False, backend="auto", checked=None, workspace=None, stream=None,
    )  # fmt: skip
    assert np.array_equal(got, want)
    scale = flashcute.attention(*qkv, scale=1 / 4)
    assert np.array_equal(scale, want)


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"layout": "sbhd"}, flashcute.BadParamError, "layout"),
        ({"layout": "hsd"}, flashcute.Error, "layout"),
        ({"layout": 3}, (flashcute.BadParamError, TypeError), "layout"),
        ({"alignment": "top"}, flashcute.BadParamError, "alignment"),
        ({"backend": "tpu"}, flashcute.BadParamError, "backend"),
        ({"window": (1, 2, 3)}, (flashcute.BadParamError, TypeError), "window"),
        ({"window": 4}, (flashcute.BadParamError, TypeError), "window"),
        ({"window": (-2, 0)}, flashcute.BadParamError, "window"),
        ({"window": (1.5, 0)}, (flashcute.BadParamError, TypeError), "window"),
        ({"scale": "big"}, (flashcute.BadParamError, TypeError), "scale"),
        ({"softcap": -1.0}, flashcute.BadParamError, "softcap"),
        ({"dropout_p": 1.0, "seed": 1}, flashcute.BadParamError, "dropout_p"),
        ({"dropout_p": 0.5}, flashcute.BadParamError, "seed"),
        ({"dropout_p": 0.5, "seed": 1.5}, (flashcute.BadParamError, TypeError), "seed"),
        ({"dropout_p": 0.5, "seed": -1}, flashcute.BadParamError, "seed"),
        ({"dropout_p": 0.5, "seed": 2**64}, flashcute.BadParamError, "seed"),
        ({"dropout_p": 0.5, "seed": 1, "offset": -1}, flashcute.BadParamError, "offset"),
        ({"max_seqlen_q": 4}, flashcute.BadParamError, "max_seqlen_q"),
        ({"mask": np.ones((2, 3, 11), bool)}, flashcute.BadShapeError, "mask"),
        ({"mask": np.ones((2, 11), "float32")}, flashcute.BadDtypeError, "mask"),
        ({"block_mask": np.ones((1, 1), bool)}, flashcute.BadShapeError, "block_mask"),
        ({"block_mask": np.ones((1, 1, 2, 1), bool)}, flashcute.BadShapeError, "block_mask"),
        ({"block_mask": np.ones((1, 2, 1, 1), bool)}, flashcute.BadShapeError, "block_mask"),
        ({"block_mask": np.ones((1, 1, 1, 1), "float32")}, flashcute.BadDtypeError, "block_mask"),
        ({"return_probs": "yes"}, flashcute.BadParamError, "return_probs"),
        ({"bias": np.zeros((11, 11), "float32")}, flashcute.BadShapeError, "bias"),
        ({"bias": np.zeros((1, 1, 11, 11), "float64")}, flashcute.BadDtypeError, "bias"),
        ({"bias": np.zeros((1, 1, 11, 11), "float16")}, flashcute.BadDtypeError, "bias"),
        ({"alibi_slopes": np.zeros(3, "float64")}, flashcute.BadDtypeError, "alibi_slopes"),
        ({"sinks": np.zeros(3, "int32")}, flashcute.BadDtypeError, "sinks"),
        ({"seqused_k": np.zeros(2, "int64")}, flashcute.BadDtypeError, "int32"),
        ({"cu_seqlens_q": np.zeros(3, "int32")}, flashcute.BadShapeError, "three axes .* with cu_seqlens"),
    ],
)
def test_bad_options_are_refused_by_name(qkv, options, error, name):
    with pytest.raises(error, match=name):
        flashcute.attention(*qkv, **options)
    with pytest.raises(error, match=name):
        flashcute.AttentionDescriptor(*qkv, **options).run(
            *qkv,
            **{
                k: v
                for k, v in options.items()
                if k
                in (
                    "mask",
                    "block_mask",
                    "bias",
                    "alibi_slopes",
                    "sinks",
                    "seqused_k",
                    "seed",
                    "offset",
                    "cu_seqlens_q",
                )
            },
        )


@pytest.mark.parametrize(
    "name", ["block_table", "page_size", "k_new", "v_new", "num_splits", "seqused_q", "is_causal", "typo"]
)
def test_unknown_options_are_refused_by_name(qkv, name):
    with pytest.raises((flashcute.Error, TypeError), match=name):
        flashcute.attention(*qkv, **{name: 1})


def test_positional_options_are_refused(qkv):
    with pytest.raises(TypeError):
        flashcute.attention(*qkv, None)


MESSAGES = [
    (lambda q, k, v: flashcute.attention(q, k[:, :2], v[:, :2]), "q"),
    (lambda q, k, v: flashcute.attention(q, k, v, softcap=-3.0), "softcap"),
    (lambda q, k, v: flashcute.attention(q, k[..., :8], v), "k"),
    (lambda q, k, v: flashcute.attention(q, k, v, layout="abc"), "layout"),
    (lambda q, k, v: flashcute.attention(q.astype("float64"), k, v), "q"),
    (lambda q, k, v: flashcute.attention(q, k, v, out=np.zeros((1, 2), "float32")), "out"),
    (lambda q, k, v: flashcute.attention(q, k, v, mask=np.ones((5, 5), bool)), "mask"),
]


@pytest.mark.parametrize(("call", "argument"), MESSAGES)
def test_messages_name_function_argument_expected_and_given(qkv, call, argument):
    with pytest.raises(flashcute.Error) as caught:
        call(*qkv)
    text = str(caught.value)
    assert re.match(rf"flashcute\.attention\({argument}\): expected .+, given .+", text), text
    assert "\n" not in text


def test_a_message_from_a_descriptors_run_names_it(qkv):
    desc = flashcute.AttentionDescriptor(*qkv)
    with pytest.raises(flashcute.Error, match=r"AttentionDescriptor\.run\(k\): expected .+, given "):
        desc.run(qkv[0], qkv[1][:, :, :5], qkv[2])


# -- layouts and results


def test_layouts(qkv):
    want, lse = flashcute.attention(*qkv, causal=True, return_lse=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in qkv]
    got, turned_lse = flashcute.attention(*turned, causal=True, layout="bshd", return_lse=True)
    assert got.shape == turned[0].shape
    assert np.array_equal(got.swapaxes(1, 2), want)
    assert lse.shape == turned_lse.shape == (2, 3, 11)
    assert np.array_equal(lse, turned_lse)
    one = flashcute.attention(*(x[0] for x in turned), causal=True, layout="bshd", return_lse=True)
    assert one[0].shape == (11, 3, 16)
    assert one[1].shape == (3, 11)
    assert np.array_equal(one[0], got[0])


@pytest.mark.parametrize("layout", ["hsd", "shd"])
def test_packed_layouts(qkv, layout):
    cu = np.array([0, 4, 11], dtype="int32")
    q, k, v = (x[0] for x in qkv)
    if layout == "shd":
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
    out, lse = flashcute.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, layout=layout, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == (3, 11)
    first = flashcute.attention(*(x[:1, :, :4] for x in qkv))
    close(
        out if layout == "hsd" else out.swapaxes(0, 1),
        np.concatenate([first[0], flashcute.attention(*(x[:1, :, 4:] for x in qkv))[0]], axis=1),
    )


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_dense_layouts_with_cu_seqlens_are_refused(qkv, layout):
    cu = np.array([0, 11], dtype="int32")
    with pytest.raises(flashcute.Error, match="layout"):
        flashcute.attention(*(x[0] for x in qkv), cu_seqlens_q=cu, cu_seqlens_k=cu, layout=layout)


def test_packed_calls_refuse_what_needs_a_common_score_matrix(qkv):
    cu = np.array([0, 11], dtype="int32")
    q, k, v = (x[0] for x in qkv)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "layout": "hsd"}
    for name, bad in (
        ("bias", np.zeros((1, 1, 11, 11), "float32")),
        ("mask", np.ones((1, 1, 11, 11), bool)),
        ("mask", np.ones((1, 11), bool)),
        ("block_mask", np.ones((1, 1, 1, 1), bool)),
        ("return_probs", True),
    ):
        with pytest.raises(flashcute.Error, match=name):
            flashcute.attention(q, k, v, **packed, **{name: bad})
    out = flashcute.attention(q, k, v, **packed, mask=np.ones(11, bool))
    assert np.array_equal(out, flashcute.attention(q, k, v, **packed))


def test_return_lse_decides_the_results_form(qkv):
    assert isinstance(flashcute.attention(*qkv), np.ndarray)
    result = flashcute.attention(*qkv, return_lse=True)
    assert isinstance(result, tuple)
    assert len(result) == 2
    assert result[1].dtype == np.float32


def test_out_is_written_and_returned(qkv):
    out = np.full((2, 3, 11, 16), np.nan, "float32")
    got = flashcute.attention(*qkv, out=out)
    assert got is out
    assert np.array_equal(out, flashcute.attention(*qkv))
    got, _ = flashcute.attention(*qkv, out=out, return_lse=True)
    assert got is out


@pytest.mark.parametrize("shape", [(2, 3, 11, 8), (2, 3, 10, 16), (1, 3, 11, 16), (3, 11, 16), (2, 3, 11, 16, 1)])
def test_out_of_a_wrong_shape_is_refused(qkv, shape):
    out = np.full(shape, 7, "float32")
    with pytest.raises(flashcute.BadShapeError, match="out"):
        flashcute.attention(*qkv, out=out)
    assert (out == 7).all()


def test_out_may_be_q_itself_or_is_refused(qkv):
    """In place: what a caller would hope for, or an error; never a wrong result."""
    want = flashcute.attention(*qkv)
    q = qkv[0].copy()
    try:
        flashcute.attention(q, *qkv[1:], out=q)
    except flashcute.Error as error:
        assert "out" in str(error)
    else:
        assert np.array_equal(q, want)


# -- descriptors


def test_descriptors_of_tensor_descriptors(qkv):
    shape = (2, 3, 11, 16)
    t = flashcute.TensorDescriptor(shape, dtype="float32")
    desc = flashcute.AttentionDescriptor(t, t, t, causal=True)
    assert np.array_equal(desc.run(*qkv), flashcute.attention(*qkv, causal=True))
    # with strides, of views
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in qkv]
    t = flashcute.TensorDescriptor(shape, strides=(528, 16, 48, 1), dtype="float32", device="cpu")
    desc = flashcute.AttentionDescriptor(t, t, t)
    assert np.array_equal(desc.run(*turned), flashcute.attention(*qkv))
    with pytest.raises(flashcute.Error, match=r"run\(q\)"):
        desc.run(*qkv)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", np.float32, np.dtype("float16")])
def test_dtypes_of_tensor_descriptors(dtype):
    t = flashcute.TensorDescriptor((1, 1, 4, 8), dtype=dtype)
    desc = flashcute.AttentionDescriptor(t, t, t)
    assert desc.plan["kernel"]


@pytest.mark.parametrize(
    "bad", [{"dtype": "float3"}, {"dtype": "float32", "device": "tpu"}, {"dtype": "float32", "strides": (1, 1)}]
)
def test_bad_tensor_descriptors_are_refused(bad):
    with pytest.raises((flashcute.Error, TypeError, ValueError)):
        flashcute.AttentionDescriptor(*[flashcute.TensorDescriptor((1, 1, 4, 8), **bad)] * 3)


def test_a_descriptor_runs_many_times_with_other_data(qkv, rng):
    desc = flashcute.AttentionDescriptor(*qkv, causal=True, return_lse=True)
    for _ in range(5):
        other = [rng.standard_normal(x.shape).astype("float32") for x in qkv]
        out, lse = desc.run(*other)
        want, want_lse = flashcute.attention(*other, causal=True, return_lse=True)
        assert np.array_equal(out, want)
        assert np.array_equal(lse, want_lse)


def test_a_descriptor_refuses_what_it_was_not_made_for(qkv):
    desc = flashcute.AttentionDescriptor(*qkv)
    for bad in (
        [x.astype("float16") for x in qkv],
        [x[:, :, :5] for x in qkv],
        [x[0] for x in qkv],
        [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in qkv],
    ):
        with pytest.raises(flashcute.Error):
            desc.run(*bad)
    with pytest.raises(flashcute.Error, match="bias"):
        desc.run(*qkv, bias=np.zeros((1, 1, 11, 11), "float32"))
    with pytest.raises(flashcute.Error, match="block_mask"):
        desc.run(*qkv, block_mask=np.ones((1, 1, 1, 1), bool))
    with pytest.raises(flashcute.Error, match="lse"):
        desc.run(*qkv, lse=np.zeros((2, 3, 11), "float32"))
    with pytest.raises(flashcute.Error, match="probs"):
        desc.run(*qkv, probs=np.zeros((2, 3, 11, 11), "float32"))


def test_a_descriptor_demands_what_it_was_made_for(qkv):
    bias = np.zeros((1, 1, 11, 11), "float32")
    desc = flashcute.AttentionDescriptor(*qkv, bias=bias)
    with pytest.raises(flashcute.NullPointerError, match="bias"):
        desc.run(*qkv)
    assert np.allclose(desc.run(*qkv, bias=bias), flashcute.attention(*qkv), atol=1e-6)
    # only the key mask may be left out
    desc = flashcute.AttentionDescriptor(*qkv, mask=np.ones((2, 11), bool))
    assert np.allclose(desc.run(*qkv), flashcute.attention(*qkv), atol=1e-6)


def test_plan_is_a_printable_dict(qkv):
    plan = flashcute.AttentionDescriptor(*qkv).plan
    assert isinstance(plan, dict)
    assert isinstance(plan["kernel"], str)
    import json

    assert json.loads(json.dumps(plan)) == plan
    assert "cpu" in plan["kernel"].lower() or plan.get("family") == "cpu"


def test_workspace(qkv):
    desc = flashcute.AttentionDescriptor(*qkv)
    size = desc.workspace_size
    assert isinstance(size, int)
    assert size >= 0
    room = np.full(size + 64, 0x5A, dtype=np.uint8)
    want = flashcute.attention(*qkv)
    assert np.array_equal(desc.run(*qkv, workspace=room[:size]), want)
    assert (room[size:] == 0x5A).all()
    if size:
        for less in (size // 2, 1):
            with pytest.raises(flashcute.InsufficientWorkspaceError, match="workspace"):
                desc.run(*qkv, workspace=room[: size - less])
            with pytest.raises(flashcute.InsufficientWorkspaceError, match="workspace"):
                flashcute.attention(*qkv, workspace=room[: size - less])
    assert np.array_equal(flashcute.attention(*qkv, workspace=np.zeros(1 << 20, np.uint8)), want)


def test_dropout_state_as_a_tensor(qkv):
    want = flashcute.attention(*qkv, dropout_p=0.5, seed=77, offset=5)
    got = flashcute.attention(*qkv, dropout_p=0.5, seed=np.array([77, 5], dtype="uint64"))
    assert np.array_equal(got, want)
    with pytest.raises(flashcute.Error, match="seed"):
        flashcute.attention(*qkv, dropout_p=0.5, seed=np.array([77], dtype="uint64"))
    with pytest.raises(flashcute.Error, match="seed"):
        flashcute.attention(*qkv, dropout_p=0.5, seed=np.array([77, 5], dtype="int32"))


def test_merge_states_layouts_and_types(qkv):
    a, b = (
        flashcute.attention(qkv[0], k, v, return_lse=True)
        for k, v in zip(np.split(qkv[1][:, :, :10], 2, 2), np.split(qkv[2][:, :, :10], 2, 2), strict=True)
    )
    want, want_lse = flashcute.attention(qkv[0], qkv[1][:, :, :10], qkv[2][:, :, :10], return_lse=True)
    out, lse = flashcute.merge_states(*a, *b)
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    turned, turned_lse = flashcute.merge_states(a[0].swapaxes(1, 2), a[1], b[0].swapaxes(1, 2), b[1], layout="bshd")
    assert np.array_equal(turned.swapaxes(1, 2), out)
    assert np.array_equal(turned_lse, lse)


# -- files


def test_paths():
    include = pathlib.Path(flashcute.get_include())
    for header in ("flashcute.h", "infiniop.h"):
        assert (include / "flashcute" / header).is_file()
    library = pathlib.Path(flashcute.get_library())
    assert library.is_file()
    assert library.name.startswith("libflashcute.so")
    cmake = pathlib.Path(flashcute.get_cmake_dir())
    assert any(cmake.rglob("flashcuteConfig.cmake")) or any(cmake.rglob("flashcute-config.cmake"))


def test_the_c_library_is_the_one_that_python_uses():
    import capi

    capi.check(capi.lib.flashcuteSetNumThreads(5))
    before = 5
    assert flashcute.get_num_threads() == before
    flashcute.set_num_threads(len(os.sched_getaffinity(0)))
    assert capi.lib.flashcuteGetVersion().decode() == flashcute.__version__


def test_soname():
    ran = subprocess.run(["readelf", "-d", flashcute.get_library()], capture_output=True, text=True)
    if ran.returncode == 0:
        assert "[libflashcute.so.0]" in ran.stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", ran.stdout)
        assert all(
            re.match(r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux.*)\.so", n) for n in needed
        ), needed


def test_the_library_exports_the_c_api_and_nothing_else():
    ran = subprocess.run(["nm", "-D", "--defined-only", flashcute.get_library()], capture_output=True, text=True)
    if ran.returncode != 0:
        pytest.skip("no nm here")
    names = [line.split()[-1].split("@")[0] for line in ran.stdout.splitlines()]
    ours = [n for n in names if re.match(r"(flashcute[A-Z]|infiniop[A-Z]|infinirt[A-Z])", n)]
    assert len(ours) >= 20
    other = [
        n
        for n in names
        if n not in ours and not re.match(r"(_ZNSt|_ZZNSt|_ZSt|_ZN9__gnu|_ZTISt|_ZTSSt|_ZTVSt|_ZNKSt|_ZGV)", n)
    ]
    assert not other, other[:5]


def test_python_m_flashcute_is_the_console_script(root):
    a = subprocess.run(
        [sys.executable, "-m", "flashcute", "--help"], capture_output=True, text=True, cwd=root / "tests"
    )
    assert a.returncode == 0, a.stderr
    assert {"check", "info"} <= set(a.stdout.split()), a.stdout


def test_get_num_threads_is_positive():
    assert flashcute.get_num_threads() >= 1
    assert support.no_cuda_reason() is not None


# -- what the caller did not say is never held against them


@pytest.mark.parametrize("make", [flashcute.attention, flashcute.AttentionDescriptor])
def test_layout_follows_the_packing_where_none_is_named(make, rng):
    q, k = (rng.standard_normal((2, n, 16)).astype("float32") for n in (9, 12))
    bounds = {"cu_seqlens_q": np.array([0, 4, 9], np.int32), "cu_seqlens_k": np.array([0, 5, 12], np.int32)}

    def compute(q, k, **options):
        if make is flashcute.attention:
            return make(q, k, k, **options)
        tensors = {name: x for name, x in options.items() if name != "layout"}
        return make(q, k, k, **options).run(q, k, k, **tensors)

    for first, last in ((0, 0), (1, 1)):
        rows = slice(bounds["cu_seqlens_q"][first], bounds["cu_seqlens_q"][last + 1])
        keys = slice(bounds["cu_seqlens_k"][first], bounds["cu_seqlens_k"][last + 1])
        alone = compute(q[:, rows], k[:, keys])  # three axes without bounds are one batch entry
        for layout in ({}, {"layout": None}, {"layout": "hsd"}):
            assert np.array_equal(compute(q, k, **bounds, **layout)[:, rows], alone)
    rows_first = compute(q.swapaxes(0, 1), k.swapaxes(0, 1), **bounds, layout="shd")
    assert np.array_equal(rows_first.swapaxes(0, 1), compute(q, k, **bounds))
    four = compute(q[None], k[None])
    assert np.array_equal(compute(q[None], k[None], layout=None), four)
    assert np.array_equal(compute(q[None], k[None], layout="bhsd"), four)
    for layout in ("bhsd", "bshd"):
        with pytest.raises(flashcute.BadParamError, match=rf"\(layout\): expected 'hsd' or 'shd' .*, given '{layout}'"):
            compute(q, k, **bounds, layout=layout)
    for layout in ("hsd", "shd"):
        with pytest.raises(flashcute.BadParamError, match=rf"\(layout\): expected 'bhsd' .*, given '{layout}'"):
            compute(q, k, layout=layout)


@pytest.mark.parametrize("value", [2.0, 1.0, -0.5, math.nan, math.inf])
def test_ranges_are_checked_before_companions(qkv, value):
    for alone in ({}, {"seed": np.zeros(2, np.uint64), "offset": 1}):
        with pytest.raises(flashcute.BadParamError, match=r"\(dropout_p\): expected a number in \[0, 1\)"):
            flashcute.attention(*qkv, dropout_p=value, **alone)
        with pytest.raises(flashcute.BadParamError, match=r"\(dropout_p\): expected a number in \[0, 1\)"):
            flashcute.AttentionDescriptor(*qkv, dropout_p=value, **alone)
    with pytest.raises(flashcute.BadParamError, match=r"\(seed\): expected an int .* with dropout_p > 0"):
        flashcute.attention(*qkv, dropout_p=0.5)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        with pytest.raises(flashcute.BadParamError, match=rf"\({name}\): expected a length of at least 0"):
            flashcute.attention(*qkv, **{name: -1})


def test_a_mask_of_pairs_without_its_leading_axes_is_told_of_them(rng):
    q, k = (rng.standard_normal((2, 3, n, 16)).astype("float32") for n in (7, 11))
    pairs = np.tri(7, 11, dtype=bool)
    message = r"\(mask\): expected four axes for a mask of pairs \(mask\[None, None\]\) or, .*, \(batch, seq_k\) = "
    for make in (flashcute.attention, flashcute.AttentionDescriptor):
        with pytest.raises(flashcute.BadShapeError, match=message):
            make(q, k, k, mask=pairs)
    want = flashcute.attention(q, k, k, causal=True, alignment="top_left")
    np.testing.assert_allclose(flashcute.attention(q, k, k, mask=pairs[None, None]), want, rtol=0, atol=1e-6)
