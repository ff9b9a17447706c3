"""The sm90 family: what it takes and refuses, which needs no GPU, and its results, which need a Hopper GPU.

Lengths are of several tiles (of 64 to 192 rows or keys) with odd ends.
"""

from __future__ import annotations

import numpy as np
import pytest
import support
from support import Problem, Strided, compute, ints, tensor
from test_explain import explained, needs_kernels

HALVES = ("float16", "bfloat16")
ON_HOPPER = pytest.mark.parametrize(
    ("device", "dtype", "path"), support.cases(paths=("functional",), devices=("cuda",), dtypes=HALVES)
)
DEPTHS = pytest.mark.parametrize("depth", [64, 128, (192, 128), 256], ids=str)
BANDS = {
    "full": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "alignment": "top_left"},
    "window": {"window": (150, 70)},
    "narrow": {"window": (3, 0)},
    "left": {"window": (200, -1)},
}


def agree(q, k, v, options, *, device, dtype, path):
    q, k, v = (tensor(x, dtype) for x in (q, k, v))
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options, backend="sm90")
    verdict = Problem(q, k, v, options).judge(out, lse)
    assert verdict, verdict.message
    return out, lse


def channels(depth):
    """Of q, k and v: a depth is one number, or that of q and k and that of v."""
    depth, depth_v = depth if isinstance(depth, tuple) else (depth, depth)
    return depth, depth, depth_v


def random_inputs(rng, rows, keys, depth, heads=(2, 2), batch=1):
    shapes = zip((heads[0], heads[1], heads[1]), (rows, keys, keys), channels(depth), strict=True)
    return [rng.standard_normal((batch, *shape)) for shape in shapes]


def packed_inputs(rng, depth):
    """q, k, v and options of six members, one of them empty; the third begins at row 100."""
    starts = np.cumsum([0, 100, 0, 257, 1, 500, 64])
    q, k, v = (rng.standard_normal((2, starts[-1], n)) for n in channels(depth))
    options = {
        "layout": "hsd", "cu_seqlens_q": ints(starts), "cu_seqlens_k": ints(starts), "max_seqlen_q": 500,
        "max_seqlen_k": 500,
    }  # fmt: skip
    return q, k, v, options


# -- which problems it takes


def kernel_for(*words):
    return explained("--arch", "h100", "--seq", "2048", "--heads", "4", *words)["plan"]["kernel"]


@needs_kernels
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("words", [("full",), ("banded", "--causal"), ("banded", "--window", "64,0")], ids=" ".join)
def test_a_hopper_gpu_runs_plain_problems_by_it(dtype, words):
    mask, *flags = words
    assert kernel_for("--head-dim", "64", "--dtype", dtype, *flags) == f"sm90_hd64_{dtype}_{mask}"


@needs_kernels
@pytest.mark.parametrize("device", ["a100", "l40s"])
def test_other_gpus_do_not(device):
    plan = explained("--arch", device, "--seq", "512", "--head-dim", "64")["plan"]
    assert plan["kernel"].startswith("sm80_")


@needs_kernels
def test_what_it_lacks_goes_to_the_older_family():
    assert kernel_for("--head-dim", "64", "--with", "bias").startswith("sm80_")


@needs_kernels
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("words", ["--softcap 30", "--with alibi_slopes", "--with sinks", "--with mask"])
def test_features_of_rows_and_columns_take_its_kernels_of_mask_class_any(head_dim, words):
    kernel = kernel_for("--head-dim", str(head_dim), "--causal", *words.split())
    assert kernel == f"sm90_hd{head_dim}_bfloat16_any"


@needs_kernels
@pytest.mark.parametrize(
    ("head_dim", "kernel"), [(32, "sm80_hd32"), (40, "sm90_hd64"), (96, "sm90_hd96"), (192, "sm90_hd192")]
)
def test_head_dims_without_a_bucket_of_their_own_take_the_faster_family(head_dim, kernel):
    assert kernel_for("--head-dim", str(head_dim)).startswith(kernel)


@needs_kernels
@pytest.mark.parametrize(("words", "mask"), [("", "full"), ("--causal", "banded"), ("--with sinks", "any")])
@pytest.mark.parametrize(
    ("head_dims", "bucket", "kind"),
    [
        ((192, 128), "192", "_v128"), ((160, 64), "192", "_v128"), ((192, 129), "192", ""), ((192, 192), "192", ""),
        ((128, 64), "128", ""), ((128, 192), "192", ""), ((256, 128), "256", ""),
    ],
)  # fmt: skip
def test_fewer_channels_of_values_than_of_queries(words, mask, head_dims, bucket, kind):
    depth, depth_v = map(str, head_dims)
    kernel = kernel_for("--head-dim", depth, "--head-dim-v", depth_v, *words.split())
    assert kernel == f"sm90_hd{bucket}_bfloat16_{mask}{kind}"


# -- results


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
def test_rows_that_see_no_key_are_zeros_beside_nans(device, dtype, path, depth, rng):
    q, k, v = random_inputs(rng, 224, 52, depth)
    v[..., 20:30, ::3] = np.nan
    options = {"window": (30, 5), "alignment": "top_left"}
    out, _ = agree(q, k, v, options, device=device, dtype=dtype, path=path)
    assert not np.any(out[:, :, 100:])


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (130, 700), (700, 700), (500, 130), (384, 1056)])
def test_bands_and_lengths(device, dtype, path, depth, band, rows, keys, rng):
    inputs = random_inputs(rng, rows, keys, depth, heads=(4, 2))
    agree(*inputs, BANDS[band], device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("depth", [40, 96, 120, (160, 100), 200], ids=str)
def test_head_dims_between_the_buckets(device, dtype, path, depth, causal, rng):
    agree(*random_inputs(rng, 200, 300, depth), {"causal": causal}, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
def test_more_tiles_than_multiprocessors(device, dtype, path, depth, rng):
    """Each CTA takes several tiles, by ticket; the order of the tiles must lose none."""
    inputs = random_inputs(rng, 520, 520, depth, heads=(16, 4), batch=6)
    agree(*inputs, {"causal": True}, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("peak", [20.0, 200.0])
def test_rows_whose_reference_turns_out_wrong(device, dtype, path, depth, causal, peak, rng):
    """20 is beyond float16's range as a weight, 200 beyond float32's: those rows are done again."""
    keys = 900
    scores = rng.uniform(-1, 1, size=keys)
    scores[[333, 500, 850]] = peak
    q, k, v = random_inputs(rng, keys, keys, depth)
    q[:] = k[:] = 0
    q[..., 0], k[..., 0] = 1, scores
    options = {"scale": 1.0, "causal": causal}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_only_the_failed_rows_of_a_tile_are_written_again(device, dtype, path, causal, rng):
    """A row's bits must not depend on whether another row of its tile fails."""
    q, k, v = random_inputs(rng, 300, 900, 128)
    calm, _ = agree(q, k, v, {"causal": causal}, device=device, dtype=dtype, path=path)
    q[:, :, 77] = 60 * k[:, :, 599]
    wild, _ = agree(q, k, v, {"causal": causal}, device=device, dtype=dtype, path=path)
    others = np.arange(300) != 77
    np.testing.assert_array_equal(wild[:, :, others], calm[:, :, others])


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_rows_fail_in_tile_after_tile_of_a_cta(device, dtype, path, depth, causal, rng):
    """A failed tile comes again three items later, between others that may fail too."""
    q, k, v = random_inputs(rng, 800, 800, depth, heads=(16, 16), batch=6)
    q[:4, :, ::97] = 60 * k[:4, :, 599:600]
    v[4, :, 450, 3] = np.inf  # where no weight sinks to zero: 0 * inf is NaN
    agree(q, k, v, {"causal": causal}, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
def test_equal_values_average_to_themselves(device, dtype, path, depth, rng):
    q, k, v = random_inputs(rng, 200, 1000, depth)
    v[:] = 1.0
    out, _ = agree(3 * q, k, v, {}, device=device, dtype=dtype, path=path)
    assert np.abs(out - 1).max() < 1e-3


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
def test_nan_and_inf_reach_only_the_rows_that_see_them(device, dtype, path, depth, rng):
    q, k, v = random_inputs(rng, 600, 600, depth)
    v[:, :, 290, 5], v[:, :, 450, 3] = np.nan, np.inf
    q[:, 0, 17] = np.nan
    agree(q, k, v, {"causal": True}, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_keys_beyond_the_used_ones_may_be_anything(device, dtype, path, depth, causal, rng):
    q, k, v = random_inputs(rng, 200, 700, depth, batch=3)
    used = [333, 7, 0]
    for member, length in enumerate(used):
        k[member, :, length:], v[member, :, length:] = np.nan, np.inf
    options = {"causal": causal, "seqused_k": ints(used)}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_packed_members(device, dtype, path, depth, causal, rng):
    """Neighbours' infs lie in the copies of a member's last tile; empty members have no tile."""
    q, k, v, options = packed_inputs(rng, depth)
    v[:, 100] = np.inf  # the third member's first row, after the first's tail
    agree(q, k, v, {"causal": causal, **options}, device=device, dtype=dtype, path=path)


def slopes(*values):
    return tensor(np.array(values), "float32")


def mask_of(keep):
    return tensor(keep, "bool")


FEATURES = {
    "softcap": {"softcap": 30.0},
    "wide softcap": {"softcap": 300.0},
    "alibi": {"alibi_slopes": slopes(0.02, 0.7)},
    "alibi of either sign": {"alibi_slopes": slopes(0.3, -0.01)},
    "sinks": {"sinks": slopes(0.5, -2.0)},
    "negative scale": {"scale": -0.2},
    "all": {"softcap": 20.0, "alibi_slopes": slopes(0.05, 0.2), "sinks": slopes(3.0, 1.0)},
}


@pytest.mark.gpu
@ON_HOPPER
@pytest.mark.parametrize("depth", [64, 96, 128, (192, 128), 192, 256], ids=str)
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("feature", FEATURES)
def test_features(device, dtype, path, depth, band, feature, rng):
    inputs = random_inputs(rng, 300, 700, depth)
    agree(*inputs, {**BANDS[band], **FEATURES[feature]}, device=device, dtype=dtype, path=path)


def masks_of_keys(rng, keys):
    """A batch of them: holes, one tile's hole, padding behind, padding before, one key, none."""
    keep = np.ones((6, keys), bool)
    keep[0] = rng.random(keys) < 0.5
    keep[1, 256:384] = False
    keep[2, 301:] = False
    keep[3, :450] = False
    keep[4] = np.arange(keys) == 333
    keep[5] = False
    return keep


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("feature", ["none", "all"])
def test_key_masks(device, dtype, path, depth, causal, feature, rng):
    """Infs and NaNs of hidden keys reach no row."""
    keys = 900
    q, k, v = random_inputs(rng, 400, keys, depth, batch=6)
    keep = masks_of_keys(rng, keys)
    hidden = ~keep[:, None, :, None] & (rng.random(v.shape) < 0.01)
    v[hidden] = np.inf
    options = {"causal": causal, "mask": mask_of(keep), **FEATURES.get(feature, {})}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("feature", ["softcap", "alibi", "all"])
def test_features_of_rows_that_fail(device, dtype, path, depth, feature, rng):
    """Late keys far above the first tile's, and infs and NaNs that some rows see."""
    q, k, v = random_inputs(rng, 600, 600, depth)
    q[:, :, ::5] = 40 * k[:, :, 500:501]
    v[:, 1, 290, 5] = np.nan
    keep = np.ones(600, bool)
    keep[[3, 291]] = False
    options = {"causal": True, "mask": mask_of(keep), **FEATURES[feature]}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_features_of_packed_members(device, dtype, path, depth, causal, rng):
    q, k, v, options = packed_inputs(rng, depth)
    agree(q, k, v, {"causal": causal, **options, **FEATURES["all"]}, device=device, dtype=dtype, path=path)


@pytest.mark.gpu
@ON_HOPPER
@DEPTHS
@pytest.mark.parametrize("own", [23, 60])
def test_channels_beyond_the_outputs_own_are_left_alone(device, dtype, path, depth, own, rng):
    """The copy engine writes 16 bytes at a time, over the end of a row of any other number of them."""
    support.skip_without_cuda()
    q, k, v = random_inputs(rng, 300, 500, depth)

    def padded(rows):
        return Strided((1, 2, rows, own), dtype, strides=(2 * rows * 64, rows * 64, 64, 1))

    values = padded(500).fill(v[..., :own])
    problem = Problem(tensor(q, dtype), tensor(k, dtype), values, {}, padded(300))
    outcome = support.run(problem, path, "torch", device, backend="sm90")
    assert not outcome.faults, outcome.faults
    verdict = problem.judge(outcome.out, outcome.lse)
    assert verdict, verdict.message


@pytest.mark.gpu
@ON_HOPPER
def test_strides_that_the_copy_engine_cannot_read_go_to_the_older_family(device, dtype, path, rng):
    """A row stride of 68 elements is no multiple of 16 bytes."""
    values = random_inputs(rng, 100, 100, 64)
    shape = (1, 2, 100, 64)
    q, k, v = (Strided(shape, dtype, strides=(2 * 100 * 68, 100 * 68, 68, 1)).fill(x) for x in values)
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype)
    verdict = Problem(q, k, v, {}).judge(out, lse)
    assert verdict, verdict.message
