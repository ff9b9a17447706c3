"""Random problems, each made from one number, over every feature and every pair of features.

`python tests/problems.py cpu 1234` makes and runs problem 1234 and prints what came of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np
import support
from support import Problem, Strided

from flashcute.workloads import distributions

# Every axis a problem can vary on. A recipe picks one value for each.
AXES: dict[str, tuple[str, ...]] = {
    "dtype": ("float32", "float16", "bfloat16"),
    "form": ("4d", "3d", "packed"),
    "layout": ("heads first", "heads last"),
    "heads": ("equal", "grouped", "single"),
    "head_dim": ("tiny", "small", "64", "odd", "128", "large"),
    "head_dim_v": ("same", "other"),
    "lengths": ("equal", "more keys", "more queries", "one query", "no keys", "long"),
    "scale": ("default", "given", "zero", "negative"),
    "data": ("normal", "wide3", "wide12", "wide60", "sink", "rising", "falling", "local", "outlier", "late"),
    "band": ("none", "causal", "left", "right", "both", "causal window", "huge"),
    "alignment": ("bottom_right", "top_left"),
    "mask": ("none", "keys", "keys of each", "pairs"),
    "blocks": ("none", "shared", "of each batch and head"),
    "bias": ("none", "own type", "float32"),
    "softcap": ("off", "on"),
    "alibi": ("none", "heads", "batch and heads"),
    "sinks": ("none", "own type", "float32"),
    "dropout": ("off", "on"),
    "seqused": ("none", "some"),
    "lse": ("no", "yes"),
    "probs": ("no", "yes"),
    "strides": ("contiguous", "transposed", "padded", "sparse", "sliced", "broadcast", "unaligned"),
    "out": ("theirs", "contiguous", "transposed", "padded", "unaligned"),
    "poison": ("none", "unseen", "value", "key", "query"),
    "path": support.PATHS,
    "kind": ("numpy", "torch"),
}

# What GPU kernels take: every feature, with each of their head dims and what lies between.
GPU_AXES = {
    **AXES,
    "dtype": ("float16", "bfloat16"),
    "head_dim": ("tiny", "32", "64", "96", "128", "192", "256", "odd", "wide"),
    "kind": ("torch",),
}

# What their mask classes "full" and "banded" take, which few of the problems above are for.
LEAN_AXES = {
    **GPU_AXES,
    "scale": ("default", "given"),
    "mask": ("none", "keys", "keys of each"),
    "blocks": ("none",),
    "bias": ("none",),
    "softcap": ("off",),
    "alibi": ("none",),
    "sinks": ("none",),
    "dropout": ("off",),
    "probs": ("no",),
}

AXES_ON_GPU = {**AXES, "kind": ("torch",)}  # what they do not take too, and then refuse
LONG_AXES = {**AXES, "lengths": ("long",)}  # work enough for several threads
SETS = {"all": AXES_ON_GPU, "gpu": GPU_AXES, "lean": LEAN_AXES, "long": LONG_AXES}

MASK_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TORCH_MASK_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8")


FEATURES = ("mask", "blocks", "bias", "softcap", "alibi", "sinks", "dropout", "seqused", "poison", "scale", "data")


def excluded(a: str, x: str, b: str, y: str) -> bool:
    """Pairs of values that no problem can have."""
    pairs = {(a, x), (b, y)}
    if ("form", "packed") in pairs:
        refused = {"mask": ("keys of each", "pairs"), "bias": AXES["bias"][1:], "blocks": AXES["blocks"][1:]}
        return any(value in refused.get(axis, ()) for axis, value in pairs) or ("probs", "yes") in pairs
    return False


def recipe(seed: int, axes: dict[str, tuple[str, ...]] = AXES) -> dict[str, str]:
    """A value for each axis. Features stay off a little more often, so that neither all nor none are the rule."""
    rng = np.random.default_rng([2, seed])
    picked: dict[str, str] = {}
    for axis, values in axes.items():
        allowed = [v for v in values if not any(excluded(axis, v, a, x) for a, x in picked.items())]
        plain = axis in FEATURES
        first = plain and rng.random() < 0.35
        picked[axis] = allowed[0] if first else str(rng.choice(allowed))
    return picked


def pairs(axes: dict[str, tuple[str, ...]] = AXES):
    """Every pair of values of two axes that a problem can have."""
    for a, b in itertools.combinations(axes, 2):
        for x, y in itertools.product(axes[a], axes[b]):
            if not excluded(a, x, b, y):
                yield a, x, b, y


def strided(rng, style: str, shape, name: str, heads_first: bool = True) -> Strided:
    """A tensor of this shape whose memory order, gaps and start follow the style. The last axis is contiguous."""
    order = list(range(len(shape) - 1))
    gaps = [1] * len(order)
    extra, offset = 0, 0
    row = len(shape) - 2 if heads_first else len(shape) - 3
    if style == "transposed":
        order[-2:] = reversed(order[-2:])
    elif style == "padded":
        extra = int(rng.choice([1, 3, 8, 16]))
    elif style == "sparse":
        gaps[row] = 2
    elif style == "sliced":
        gaps[row], offset = 3, int(rng.integers(0, 3)) * 8
    elif style == "unaligned":
        offset = int(rng.choice([1, 2, 4]))
    strides, step = [0] * len(shape), 1
    strides[-1] = 1
    step = shape[-1] + extra
    for axis in reversed(order):
        strides[axis] = step * gaps[axis]
        step = strides[axis] * max(1, shape[axis])
    if style == "broadcast":
        strides[int(rng.integers(0, len(order)))] = 0
    return Strided(shape, name, strides, offset)


def _pick_head_dim(rng, kind: str) -> int:
    ranges = {"tiny": (1, 8), "small": (8, 33), "wide": (129, 257), "large": (129, 513)}
    if kind in ranges:
        return int(rng.integers(*ranges[kind]))
    return int(rng.choice([20, 36, 72, 80, 96, 100, 112, 127])) if kind == "odd" else int(kind)


def _pick_lengths(rng, kind: str, usual: int, top: int) -> tuple[int, int]:
    a, b = sorted(int(x) for x in rng.integers(1, usual, size=2))
    if kind == "equal":
        return b, b
    if kind == "more keys":
        return a, b + 1
    if kind == "more queries":
        return b + 1, a
    if kind == "one query":
        return 1, int(rng.integers(1, 3 * usual))
    if kind == "no keys":
        return a, 0
    return int(rng.integers(60, top)), int(rng.integers(60, top))


def _pick_band(rng, kind: str, usual: int) -> dict:
    left, right = (int(x) for x in rng.integers(0, usual // 2, size=2))
    huge = int(rng.choice([2**31 - 1, 2**31, 2**62, 2**63 - 1]))
    return {
        "none": {},
        "causal": {"causal": True},
        "left": {"window": (left, -1)},
        "right": {"window": (-1, right)},
        "both": {"window": (left, right)},
        "causal window": {"causal": True, "window": (left, int(rng.choice([-1, right])))},
        "huge": {"window": (huge, int(rng.choice([huge, right])))},
    }[kind]


def make(
    seed: int, gpu: bool = False, axes: dict[str, tuple[str, ...]] | None = None
) -> tuple[dict[str, str], Problem]:
    """The recipe and the problem of this number."""
    pick = recipe(seed, axes or (GPU_AXES if gpu else AXES))
    rng = np.random.default_rng([3, seed])
    name, packed, first = pick["dtype"], pick["form"] == "packed", pick["layout"] == "heads first"
    depth = _pick_head_dim(rng, pick["head_dim"])
    depth_v = depth if pick["head_dim_v"] == "same" else int(rng.integers(1, 129))
    heads_k = 1 if pick["heads"] == "single" else int(rng.integers(1, 4))
    heads = heads_k * (1 if pick["heads"] == "equal" else int(rng.choice([2, 3, 4, 5, 6, 8])))
    if max(depth, depth_v) > 128:
        heads_k, heads = min(heads_k, 2), min(heads_k, 2) * (heads // heads_k if heads // heads_k < 4 else 3)
    batch = 1 if pick["form"] == "3d" else int(rng.integers(1, 4))
    blocks = pick["blocks"] != "none"
    if blocks or pick["lengths"] == "long":  # the oracle holds all scores
        heads_k, heads, batch = min(heads_k, 2), min(heads_k, 2) * min(heads // heads_k, 3), min(batch, 2)
    # a GPU kernel's tile has 128 rows, and so has a block of a mask: most of their problems should need several
    usual, top = (240 if gpu or blocks else 80), (700 if gpu or axes == LONG_AXES else 260)
    seq_q, seq_k = _pick_lengths(rng, pick["lengths"], usual, top)
    options: dict = {**_pick_band(rng, pick["band"], usual)}
    if pick["alignment"] == "top_left":
        options["alignment"] = "top_left"

    lengths_q = lengths_k = None
    if packed:
        lengths_q, lengths_k = _members(rng, batch, seq_q, seq_k, pick["lengths"])
        gap = int(rng.integers(0, 3))  # rows of no member before the first
        tail = int(rng.integers(0, 3))
        options["cu_seqlens_q"] = support.ints(np.concatenate([[gap], gap + np.cumsum(lengths_q)]))
        options["cu_seqlens_k"] = support.ints(np.concatenate([[gap], gap + np.cumsum(lengths_k)]))
        total_q, total_k = gap + tail + int(lengths_q.sum()), gap + tail + int(lengths_k.sum())
        if rng.random() < 0.7:
            options["max_seqlen_q"] = max(1, int(lengths_q.max()))
            options["max_seqlen_k"] = max(1, int(lengths_k.max()))
        shapes = [(heads, total_q, depth), (heads_k, total_k, depth), (heads_k, total_k, depth_v)]
        seq_k = total_k
    else:
        lead = () if pick["form"] == "3d" else (batch,)
        shapes = [(*lead, heads, seq_q, depth), (*lead, heads_k, seq_k, depth), (*lead, heads_k, seq_k, depth_v)]
    out_shape = (*shapes[0][:-1], depth_v)
    if not first:
        shapes = [(*s[:-3], s[-2], s[-3], s[-1]) for s in shapes]
        out_shape = (*out_shape[:-3], out_shape[-2], out_shape[-3], out_shape[-1])
    options["layout"] = ("hsd" if first else "shd") if packed else ("bhsd" if first else "bshd")

    style = pick["strides"]
    q, k, v = (
        strided(rng, "contiguous" if style == "broadcast" and n == 0 else style, s, name, first)
        for n, s in enumerate(shapes)
    )
    peak = float(rng.choice([0.3, 1.0, 1.0, 3.0]))
    values = [rng.standard_normal(t.shape) * (1.0 if t is v else peak) for t in (q, k, v)]
    by_head = values if first else [x.swapaxes(-3, -2) for x in values]
    distributions.apply(pick["data"], by_head[0], by_head[1], lambda channels, _: channels)
    for t, x in zip((q, k, v), values, strict=True):
        t.fill(x)

    if pick["scale"] != "default":
        options["scale"] = {"given": float(rng.uniform(0.05, 0.6)), "zero": 0.0, "negative": -0.2}[pick["scale"]]
    if pick["softcap"] == "on":
        options["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
    _add_masks(rng, pick, options, batch, heads, seq_q, seq_k, q, name)
    if blocks:
        options["block_mask"] = _block_mask(rng, pick, batch, heads, seq_q, seq_k)
    if pick["alibi"] != "none":
        shape = (heads,) if pick["alibi"] == "heads" else (batch, heads)
        options["alibi_slopes"] = support.tensor(rng.uniform(0.01, 0.5, size=shape), "float32")
    if pick["sinks"] != "none":
        kind = name if pick["sinks"] == "own type" else "float32"
        options["sinks"] = support.tensor(rng.standard_normal(heads), kind)
    if pick["dropout"] == "on":
        options["dropout_p"] = float(rng.choice([0.1, 0.25, 0.5]))
        options["seed"] = int(rng.integers(0, 2**63)) * 2 + 1
        options["offset"] = int(rng.choice([0, 7, 2**32 + 5, 2**63 + 1]))
    if pick["seqused"] == "some":
        top = lengths_k if lengths_k is not None else np.full(batch, seq_k)
        options["seqused_k"] = support.ints([int(rng.integers(0, n + 1)) for n in top])
    _poison(rng, pick["poison"], packed, first, options, q, k, v)
    out = None
    if pick["out"] != "theirs" or packed:  # only given memory shows which rows were left alone
        out = strided(rng, "contiguous" if pick["out"] == "theirs" else pick["out"], out_shape, name, first)
    return pick, Problem(q, k, v, options, out, pick["lse"] == "yes", pick["probs"] == "yes")


def _members(rng, batch: int, seq_q: int, seq_k: int, kind: str):
    """Lengths of a packed batch: random up to the bounds, some of them zero."""
    q = np.array([int(rng.integers(0, seq_q + 1)) for _ in range(batch)])
    k = np.array([int(rng.integers(0, seq_k + 1)) for _ in range(batch)])
    if kind == "equal":
        k = q.copy()
    if kind == "one query":
        q[:] = 1
    return q, k


def _mask_types(pick) -> tuple[str, ...]:
    return MASK_TYPES if pick["kind"] == "numpy" or pick["path"] == "c" else TORCH_MASK_TYPES


def _block_mask(rng, pick, batch, heads, seq_q, seq_k) -> Strided:
    lead = (1, 1) if pick["blocks"] == "shared" else tuple(n if rng.random() < 0.7 else 1 for n in (batch, heads))
    shape = (*lead, -(-seq_q // 128), -(-seq_k // 128))
    style = str(rng.choice(["contiguous", "padded", "unaligned", "transposed"]))
    keep = rng.random(shape) < rng.choice([0.3, 0.6, 0.9])
    return strided(rng, style, shape, str(rng.choice(_mask_types(pick)))).fill(keep)


def _add_masks(rng, pick, options, batch, heads, seq_q, seq_k, q, name) -> None:
    mask_types = _mask_types(pick)
    kind = pick["mask"]
    if kind != "none":
        mask_type = str(rng.choice(mask_types))
        shape = {
            "keys": (seq_k,),
            "keys of each": (batch, seq_k),
            "pairs": tuple(n if rng.random() < 0.6 else 1 for n in (batch, heads, seq_q, seq_k)),
        }[kind]
        keep = rng.random(shape) < rng.choice([0.1, 0.5, 0.9])
        nonzero = 1 if mask_type == "bool" else np.array([1, 2, 100])[rng.integers(0, 3, size=shape)]
        style = str(rng.choice(["contiguous", "padded", "unaligned"]))
        options["mask"] = strided(rng, style if len(shape) > 1 else "contiguous", shape, mask_type)
        options["mask"].fill(np.where(keep, nonzero, 0))
    if pick["bias"] != "none":
        shape = tuple(n if rng.random() < 0.6 else 1 for n in (batch, heads, seq_q, seq_k))
        values = rng.standard_normal(shape)
        if rng.random() < 0.3:
            values[rng.random(shape) < 0.2] = -np.inf
        style = str(rng.choice(["contiguous", "padded", "unaligned"]))
        options["bias"] = strided(rng, style, shape, name if pick["bias"] == "own type" else "float32").fill(values)


def _poison(rng, kind: str, packed: bool, first: bool, options, q, k, v) -> None:
    """NaN where no row may look, or in one place that some rows see."""

    def at(t: Strided, row: int) -> tuple:
        return (..., row, slice(None)) if first else (..., row, slice(None), slice(None))

    keys, rows = (t.shape[-2] if first else t.shape[-3] for t in (k, q))
    nan = support.encode(np.full(1, np.nan), q.name)[0]
    if kind == "unseen":
        unseen = np.zeros(keys, dtype=bool)
        if packed:
            unseen[:] = True
            cu = options["cu_seqlens_k"].values
            for start, end in itertools.pairwise(cu):
                unseen[start:end] = False
        elif "seqused_k" in options:
            unseen |= np.arange(keys) >= options["seqused_k"].values.max(initial=0)
        mask = options.get("mask")
        blocks = options.get("block_mask")
        if blocks is not None and keys:
            unseen |= np.repeat(~(blocks.values != 0).any(axis=(0, 1, 2)), 128)[:keys]
        if mask is not None and len(mask.shape) <= 2 and keys:
            unseen |= ~(mask.values.reshape(-1, keys) != 0).any(axis=0)
        for j in np.flatnonzero(unseen):
            k.raw[at(k, j)] = nan
            v.raw[at(v, j)] = nan
    elif kind == "value" and keys:
        v.raw[(*at(v, int(rng.integers(keys)))[:-1], int(rng.integers(v.shape[-1])))] = nan
    elif kind == "key" and keys:
        k.raw[at(k, int(rng.integers(keys)))] = nan
    elif kind == "query" and rows:
        q.raw[at(q, int(rng.integers(rows)))] = nan


def check(seed: int, device: str = "cpu", axes=None) -> str:
    """Runs one problem; empty when all is well, otherwise what is wrong and how to see it again."""
    gpu = device != "cpu"
    pick, problem = make(seed, gpu, axes)
    again = " ".join(["python tests/problems.py", device, str(seed), *(n for n, a in SETS.items() if a == axes)])
    described = " ".join(f"{axis}={value!r}" for axis, value in pick.items())
    try:
        outcome = support.run(problem, pick["path"], pick["kind"], device)
    except support.flashcute.NotImplementedByKernelError:
        raise
    except Exception as error:
        return f"{again}: {type(error).__name__}: {error}\n    {described}"
    faults = list(outcome.faults)
    verdict = problem.judge(outcome.out, outcome.lse, outcome.probs)
    if not verdict:
        faults.append(verdict.message)
    if problem.packed and problem.out is not None:
        left = ~problem.expected().covered
        axis = 1 if problem.heads_first else 0
        if not np.compress(left, problem.out.untouched(), axis=axis).all():
            faults.append("wrote rows of out that belong to no member")
    if not faults:
        return ""
    shapes = f"q{problem.q.shape} k{problem.k.shape} v{problem.v.shape}"
    return f"{again}: {'; '.join(faults)}\n    {shapes} {described}"


def check_many(seeds: Sequence[int], device: str, axes=None) -> tuple[list[str], list[str]]:
    """What is wrong with these problems, and why kernels refused some: a process's share of many."""
    failures, refused = [], []
    for seed in seeds:
        try:
            failures.append(check(seed, device, axes))
        except support.flashcute.NotImplementedByKernelError as error:
            refused.append(f"{seed}: {error}")
    return [f for f in failures if f], refused


if __name__ == "__main__":
    print(check(int(sys.argv[2]), sys.argv[1], *(SETS[name] for name in sys.argv[3:])) or "agrees")
