"""Block masks against everything else that decides which tiles of keys are visited, in what order, and which are taken
the fast way: diagonals, windows, key masks, ALiBi, lengths. Keys of blocks that no row sees are NaN throughout.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import support
from support import Strided, compute, ints, tensor
from test_feature_tiles import ON_HALVES, agree, holes, slopes

from flashcute import reference

BLOCK = reference.MASK_BLOCK


def pattern(name: str, rows: int, keys: int, diagonal: int) -> np.ndarray:
    """(rows, keys) in blocks. diagonal: in keys, where row 0's is."""
    i, j = np.arange(rows)[:, None], np.arange(keys)[None]
    first, last = (i * BLOCK + diagonal) // BLOCK, ((i + 1) * BLOCK - 1 + diagonal) // BLOCK
    on = (j >= first) & (j <= last)
    return {
        "all": j >= 0,
        "none": j < 0,
        "the first": (j == 0) & (i >= 0),
        "the last": (j == keys - 1) & (i >= 0),
        "not the first": (j > 0) & (i >= 0),
        "not the last": (j < keys - 1) & (i >= 0),
        "every other": (i + j) % 2 == 0,
        "both ends": ((j == 0) | (j == keys - 1)) & (i >= 0),
        "the diagonals": on,
        "all but the diagonals": ~on,
        "where diagonals begin": j == first,
        "where diagonals end": j == last,
        "around the diagonals": (j == first - 1) | (j == last + 1),
        "far from the diagonals": (j < first - 1) | (j > last + 1),
    }[name] & (i + j >= 0)


PATTERNS = (
    "all", "none", "the first", "the last", "not the first", "not the last", "every other", "both ends",
    "the diagonals", "all but the diagonals", "where diagonals begin", "where diagonals end", "around the diagonals",
    "far from the diagonals",
)  # fmt: skip


def draw(rng, blocks, seq_q, seq_k, depth=64):
    """q, k, v of a head for each of the mask's, NaN where no row of the head looks."""
    batch, heads = blocks.shape[:2]
    q, k, v = (rng.standard_normal((batch, heads, n, depth)) for n in (seq_q, seq_k, seq_k))
    seen = np.repeat(blocks.any(axis=2), BLOCK, axis=-1)[..., :seq_k]
    k[~seen] = np.nan
    v[~seen] = np.nan
    return q, k, v


def masks(names, seq_q, seq_k, diagonal):
    shape = -(-seq_q // BLOCK), -(-seq_k // BLOCK)
    return np.stack([pattern(name, *shape, diagonal) for name in names])[None]


BOUNDS = [{}, {"causal": True}, {"causal": True, "alignment": "top_left"}, {"window": (200, 90)}, {"window": (300, -1)}]


@ON_HALVES
@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda options: " ".join(options) or "full")
@pytest.mark.parametrize(("seq_q", "seq_k"), [(400, 900), (640, 640), (513, 300), (1, 1000)])
@pytest.mark.parametrize("feature", ["", "alibi", "softcap", "key mask", "sinks"])
def test_holes_at_every_place(device, dtype, path, bounds, seq_q, seq_k, feature, rng):
    diagonal = 0 if "alignment" in bounds else seq_k - seq_q
    blocks = masks(PATTERNS, seq_q, seq_k, diagonal)
    q, k, v = draw(rng, blocks, seq_q, seq_k)
    options = {**bounds, "block_mask": tensor(blocks, "bool")}
    if feature == "alibi":
        options["alibi_slopes"] = slopes(*np.resize([0.002, 0.4], len(PATTERNS)))
    if feature == "softcap":
        options["softcap"] = 8.0
    if feature == "sinks":
        options["sinks"] = slopes(*np.linspace(-3, 3, len(PATTERNS)))
    if feature == "key mask":
        keep = holes("a hole in every third 64", seq_k)[None]
        k[:, :, ~keep[0]] = v[:, :, ~keep[0]] = np.nan
        options["mask"] = tensor(keep, "bool")
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("depth", [32, 96, 128, 192, 256])
@pytest.mark.parametrize("bounds", [{}, {"causal": True}], ids=["full", "causal"])
@pytest.mark.parametrize("alibi", [False, True], ids=["", "alibi"])
def test_every_head_dim(device, dtype, path, depth, bounds, alibi, rng):
    names = ("every other", "all but the diagonals", "the diagonals", "both ends", "not the first")
    blocks = masks(names, 500, 800, 300)
    options = {**bounds, "block_mask": tensor(blocks, "int32")}
    if alibi:
        options["alibi_slopes"] = slopes(*np.linspace(0.01, 0.5, len(names)))
    agree(*draw(rng, blocks, 500, 800, depth), options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.7, 9.0, -0.02])
@pytest.mark.parametrize(
    "bounds", [{}, {"causal": True}, {"alignment": "top_left"}], ids=["full", "causal", "top left"]
)
def test_alibi_whose_diagonals_are_hidden(device, dtype, path, slope, bounds, rng):
    """The references must come from what is nearest: from the farther side they are 2^(slope distance) too low."""
    diagonal = 0 if "alignment" in bounds else 380
    blocks = masks(PATTERNS, 520, 900, diagonal)
    options = {**bounds, "block_mask": tensor(blocks, "bool"), "alibi_slopes": slopes(*[slope] * len(PATTERNS))}
    agree(*draw(rng, blocks, 520, 900), options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("low", [0.0, -200.0])
@pytest.mark.parametrize("hidden", ["every other 64, from the second", "padded at both ends", "one key", "none"])
def test_key_masks_that_leave_visible_blocks_empty(device, dtype, path, low, hidden, rng):
    """The first visible block may have no visible key, and every score be far below any guess of a reference."""
    seq = 700
    blocks = masks(PATTERNS, seq, seq, 0)
    q, k, v = draw(rng, blocks, seq, seq)
    q[..., 0], k[..., 0] = 1, np.where(np.isnan(k[..., 0]), np.nan, low)
    q[..., 1:] = 0
    keep = holes(hidden, seq)[None]
    k[:, :, ~keep[0]] = v[:, :, ~keep[0]] = np.nan
    options = {"scale": 1.0, "causal": True, "block_mask": tensor(blocks, "bool"), "mask": tensor(keep, "bool")}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@ON_HALVES
def test_a_late_peak_is_done_again_over_visible_blocks_alone(device, dtype, path, rng):
    blocks = masks(("every other", "not the first", "far from the diagonals"), 640, 640, 0)
    q, k, v = draw(rng, blocks, 640, 640)
    q[..., 0], q[..., 1:] = 1, 0
    k[:, :, [100, 333, 500], 0] += 200
    options = {"scale": 1.0, "block_mask": tensor(blocks, "bool")}
    agree(q, k, v, options, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_of_visible_blocks_stay_with_their_rows(device, dtype, path, bad, rng):
    blocks = masks(PATTERNS, 512, 512, 0)
    q, k, v = draw(rng, blocks, 512, 512)
    v[:, :, [3, 200, 390], 5] += bad
    agree(q, k, v, {"causal": True, "block_mask": tensor(blocks, "bool")}, device=device, dtype=dtype, path=path)


@ON_HALVES
@pytest.mark.parametrize("options", [
    {"seqused_k": ints([700, 0, 129]), "causal": True},
    {"seqused_k": ints([128, 256, 1])},
    {"dropout_p": 0.3, "seed": 3, "window": (260, 260)},
    {"bias": tensor(np.random.default_rng(0).standard_normal((1, 2, 300, 700)), "float32")},
    {"mask": tensor(np.random.default_rng(1).random((3, 1, 300, 700)) < 0.6, "bool"), "causal": True},
    {"softcap": 300.0, "scale": 2.0},
    {"scale": -0.2},
], ids=lambda options: " ".join(options))  # fmt: skip
def test_beside_other_features(device, dtype, path, options, rng):
    blocks = rng.random((3, 2, 3, 6)) < 0.5
    options = {**options, "block_mask": tensor(blocks, "uint8")}
    agree(*draw(rng, blocks, 300, 700), options, device=device, dtype=dtype, path=path)


# -- long rows of blocks

LONG = 4151  # blocks: more than any part of a mask that a kernel may hold at once


@ON_HALVES
@pytest.mark.parametrize(
    "visible",
    [[0, 1, 4094, 4095, 4096, 4097, 4150], [4096], [4095], [17, 4100], [4150], list(range(4090, 4100))],
    ids=lambda blocks: f"{blocks[0]} to {blocks[-1]}",
)
def test_long_rows_of_blocks(device, dtype, path, visible, rng):
    seq_k, depth = LONG * BLOCK - 70, 32
    blocks = np.zeros((1, 1, 2, LONG), bool)
    blocks[..., visible] = True
    at = np.flatnonzero(np.repeat(blocks[0, 0, 0], BLOCK)[:seq_k])
    q = tensor(rng.standard_normal((1, 1, 200, depth)), dtype)
    k, v = (Strided((1, 1, seq_k, depth), dtype) for _ in range(2))  # NaN
    for x in (k, v):
        x.raw[:, :, at] = support.encode(rng.standard_normal((1, 1, len(at), depth)), dtype)
    few = [tensor(x.values[:, :, at], dtype) for x in (k, v)]
    out, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options={"block_mask": tensor(blocks, "bool")})
    verdict = support.Problem(q, *few).judge(out, lse)
    assert verdict, verdict.message


NOTHING_BEHIND = """
import sys
sys.path[:0] = {folder!r}.split("|")
import numpy as np
import capi, support
from flashcute import reference

device, dtype, keys, depth = {device!r}, {dtype!r}, 1 << 28, 64
rng = np.random.default_rng(7)
blocks = np.zeros((1, 1, 1, keys // 128), bool)
blocks[..., 0] = True
rows = capi.Tensor((1, 1, 128, depth), None, dtype)
cols = capi.Tensor((1, 1, keys, depth), None, dtype)
declared = capi.Tensor(blocks.shape, None, "bool")
options = capi.Options(block_mask=declared.value)
kind = capi.CPU if device == "cpu" else capi.NVIDIA
desc = capi.Attention(rows, rows, cols, cols, None, options, device=kind)
# The workspace, q, out, and k and v of the one visible block, side by side: of the other 64 GB there is no memory. What
# lies behind k and v would lie in them.
block = 128 * depth * 2
spare = -(-(desc.workspace_size + 256) // block)
room = support.tensor(rng.standard_normal((spare + 4, 128, depth)), dtype)
mask = support.tensor(blocks, "bool")
here = [t.torch(device) if device != "cpu" else t.raw for t in (room, mask)]
start, mask_pointer = (t.data_ptr() if device != "cpu" else t.ctypes.data for t in here)
q, out, v, k = (start + (spare + n) * block for n in range(4))
work = start + -start % 256
desc.run(work, desc.workspace_size, out, q, k, v, None, capi.Buffers(block_mask=mask_pointer))
q_values, v_values, k_values = (room.values[spare + n][None, None] for n in (0, 2, 3))
room.fetch()
verdict = reference.judge(room.values[spare + 1][None, None], None, q_values, k_values, v_values, dtype=dtype)
assert verdict, verdict.message
print("nothing was read")
"""


@ON_HALVES
def test_hidden_blocks_are_not_even_loaded(device, dtype, path, root):
    """2^28 keys, of which one block is visible and has memory. In a process of its own, which a load would end."""
    if device != "cpu":
        support.skip_without_cuda()
    code = NOTHING_BEHIND.format(folder=str(root / "tests"), device=device, dtype=dtype)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd="/")
    assert "nothing was read" in ran.stdout, ran.stderr[-2000:]
