"""The problems of each mode, and their inputs as PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashcute.cli.cases import Array, Case, draw_block_mask
from flashcute.workloads import distributions

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


GPU_TOKENS, GPU_CHANNELS = 16384, 2048  # batch x length, heads x head dim


@dataclass(frozen=True)
class Sizes:
    """What the flags leave open is None, and chosen for the device."""

    seqs: Sequence[int] | None = None
    dims: Sequence[int] | None = None
    dim_v: int | None = None
    masks: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    batch: int | None = None
    tokens: int | None = None
    heads: int | None = None
    heads_k: int | None = None
    lengths: str | None = None  # of varlen: a key of MEMBERS
    data: Sequence[str] | None = None  # of flashcute.workloads.distributions


@dataclass(frozen=True)
class Problem:
    """A case, where it stands on the axis of plots, and which plot it belongs to."""

    case: Case
    x: int
    panel: str  # "head dim 64, causal"
    label: str = ""  # of a feature, which has no place on an axis of lengths
    lengths: str = "uniform"  # of packed members: a key of MEMBERS
    data: str = "normal"

    def facts(self) -> dict[str, Any]:
        case = self.case
        return {
            "dtype": case.dtype,
            "batch": case.batch,
            "heads": list(case.heads),
            "seq": list(case.seq),
            "head_dim": list(case.head_dim),
            "features": case.feature_text(of_heads=False),
            "x": self.x,
            "panel": self.panel,
            "label": self.label,
            "data": self.data,
        }


@dataclass
class Inputs:
    """(batch, heads, length, head_dim), packed (total, heads, head_dim); out is the same, poisoned with NaN."""

    problem: Problem
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    tensors: dict[str, Tensor]  # optional ones, by keyword of flashcute.attention
    lengths: dict[str, Array]  # those of them that the work depends on, lengths and block masks, on the host


def problems(mode: str, sizes: Sizes, gpu: bool) -> list[Problem]:
    """In the order in which they are measured."""
    make = {"decode": _decode, "varlen": _varlen, "features": _features}.get(mode, _forward)
    if mode == "memory" and not sizes.tokens:  # with the tokens held, the quadratic would look linear
        sizes = replace(sizes, batch=sizes.batch or 1)
    return make(sizes, gpu)


def _dtypes(sizes: Sizes, gpu: bool) -> Sequence[str]:
    return sizes.dtypes or (("bfloat16",) if gpu else ("float32", "bfloat16"))


def _heads(sizes: Sizes, gpu: bool, dim: int) -> tuple[int, int]:
    heads = sizes.heads or (max(1, GPU_CHANNELS // dim) if gpu else 8)
    return heads, sizes.heads_k or heads


def _head_dim(sizes: Sizes, dim: int) -> tuple[int, int]:
    return dim, sizes.dim_v or dim


def _dim_text(sizes: Sizes, dim: int) -> str:
    return "/".join(map(str, dict.fromkeys(_head_dim(sizes, dim))))


def _batch(sizes: Sizes, gpu: bool, seq: int) -> int:
    if sizes.batch:
        return sizes.batch
    tokens = sizes.tokens or (GPU_TOKENS if gpu else 0)
    return max(1, tokens // seq)


def _masks(sizes: Sizes) -> list[tuple[str, dict[str, Any]]]:
    return [(mask, {"causal": True} if mask == "causal" else {}) for mask in sizes.masks or ("full", "causal")]


def _forward(sizes: Sizes, gpu: bool) -> list[Problem]:
    seqs = sizes.seqs or ((1024, 2048, 4096, 8192, 16384) if gpu else (512, 1024, 2048, 4096))
    return [
        Problem(
            Case(dtype, _batch(sizes, gpu, seq), _heads(sizes, gpu, dim), (seq, seq), _head_dim(sizes, dim), options),
            seq,
            f"{dtype}, head dim {_dim_text(sizes, dim)}, {mask}{'' if data == 'normal' else f', {data} data'}",
            data=data,
        )
        for dtype in _dtypes(sizes, gpu)
        for dim in sizes.dims or (64, 128)
        for mask, options in _masks(sizes)
        for data in sizes.data or ("normal",)
        for seq in seqs
    ]


def _decode(sizes: Sizes, gpu: bool) -> list[Problem]:
    """One query token against a long contiguous k and v."""
    seqs = sizes.seqs or ((1024, 4096, 16384, 65536, 131072) if gpu else (1024, 4096, 16384))
    heads = sizes.heads or (32 if gpu else 8)
    heads_k = sizes.heads_k or max(1, heads // 4)
    return [
        Problem(
            Case(dtype, sizes.batch or 1, (heads, heads_k), (1, seq), _head_dim(sizes, dim)),
            seq,
            f"{dtype}, head dim {_dim_text(sizes, dim)}, batch {sizes.batch or 1}, heads {heads}/{heads_k}",
        )
        for dtype in _dtypes(sizes, gpu)
        for dim in sizes.dims or (128,)
        for seq in seqs
    ]


def _varlen(sizes: Sizes, gpu: bool) -> list[Problem]:
    """Packed members, until the tokens are used up."""
    lengths = sizes.lengths or "uniform"
    panel = "" if lengths == "uniform" else f", {lengths} lengths"
    seqs = sizes.seqs or ((1024, 2048, 4096, 8192) if gpu else (512, 1024, 2048))
    found = []
    for dtype in _dtypes(sizes, gpu):
        for dim in sizes.dims or (128,):
            for mask, options in _masks(sizes):
                for seq in seqs:
                    tokens = sizes.tokens or (GPU_TOKENS if gpu else 2 * seq)
                    members = len(member_lengths(tokens, seq, lengths))
                    case = Case(
                        dtype, members, _heads(sizes, gpu, dim), (tokens, tokens), _head_dim(sizes, dim),
                        {**options, "layout": "shd"}, ("cu_seqlens",),
                    )  # fmt: skip
                    found.append(
                        Problem(case, seq, f"{dtype}, head dim {_dim_text(sizes, dim)}, {mask}{panel}", lengths=lengths)
                    )
    return found


MEMBERS: dict[str, Callable[[np.random.Generator, int], int]] = {
    "uniform": lambda random, longest: int(random.integers(max(1, longest // 16), longest + 1)),
    "equal": lambda random, longest: longest,
    # most are short, a few as long as may be
    "zipf": lambda random, longest: min(max(int(random.zipf(1.2)), 16), longest),
}


def member_lengths(tokens: int, longest: int, lengths: str = "uniform") -> list[int]:
    """The same for every run, until the tokens are used up."""
    random = np.random.default_rng([tokens, longest])
    found: list[int] = []
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, MEMBERS[lengths](random, longest)))
    return found


def _features(sizes: Sizes, gpu: bool) -> list[Problem]:
    seq = (sizes.seqs or ((4096,) if gpu else (1024,)))[0]
    dim = (sizes.dims or (128,))[0]
    dtype = _dtypes(sizes, gpu)[0]
    heads, heads_k = _heads(sizes, gpu, dim)
    base = Case(dtype, _batch(sizes, gpu, seq), (heads, heads_k), (seq, seq), _head_dim(sizes, dim))
    named = {
        "full": base,
        "causal": replace(base, options={"causal": True}),
        "window 511,0": replace(base, options={"window": (511, 0)}),
        "grouped heads": replace(base, heads=(heads, max(1, heads // 4))),
        "softcap 20": replace(base, options={"softcap": 20.0}),
        "key mask": replace(base, tensors=("mask",)),
        "pair mask": replace(base, tensors=("dense_mask",)),
        "block mask": replace(base, tensors=("block_mask",)),
        "bias": replace(base, tensors=("bias",)),
        "ALiBi, causal": replace(base, options={"causal": True}, tensors=("alibi_slopes",)),
        "sinks, causal": replace(base, options={"causal": True}, tensors=("sinks",)),
        "dropout 0.1": replace(base, options={"dropout_p": 0.1, "seed": 1}),
    }
    panel = f"{dtype}, head dim {_dim_text(sizes, dim)}, length {seq}"
    return [Problem(case, index, panel, label) for index, (label, case) in enumerate(named.items())]


def draw(problem: Problem, device: str, seed: int) -> Inputs:
    """Standard normal q, k and v, and what the problem's distribution makes of q and k."""
    case = problem.case
    random = torch.Generator(device=device).manual_seed(seed)
    dtype = DTYPES[case.dtype]

    def normal(heads: int, seq: int, dim: int) -> Tensor:
        shape = (seq, heads, dim) if case.packed else (case.batch, heads, seq, dim)
        return torch.randn(shape, generator=random, device=device, dtype=dtype)

    q = normal(case.heads[0], case.seq[0], case.head_dim[0])
    k = normal(case.heads[1], case.seq[1], case.head_dim[0])
    v = normal(case.heads[1], case.seq[1], case.head_dim[1])
    if not case.packed:
        distributions.apply(problem.data, q, k, lambda values, like: torch.from_numpy(values).to(like))
    out = torch.full((*q.shape[:-1], case.head_dim[1]), float("nan"), device=device, dtype=dtype)
    tensors, lengths = _optional_tensors(problem, device, random)
    return Inputs(problem, q, k, v, out, tensors, lengths)


def _optional_tensors(
    problem: Problem, device: str, random: torch.Generator
) -> tuple[dict[str, Tensor], dict[str, Array]]:
    case = problem.case
    heads, (seq_q, seq_k) = case.heads[0], case.seq
    tensors: dict[str, Tensor] = {}
    lengths: dict[str, Array] = {}
    for name in case.tensors:
        if name == "mask":
            tensors["mask"] = torch.rand((case.batch, seq_k), generator=random, device=device) < 0.7
        elif name == "dense_mask":
            tensors["mask"] = torch.rand((case.batch, 1, seq_q, seq_k), generator=random, device=device) < 0.7
        elif name == "block_mask":
            mask = draw_block_mask((1, 1), case.seq, np.random.default_rng(case.seq))  # the same for every run
            mask |= np.eye(*mask.shape[2:]) != 0  # so that every row sees something
            lengths["block_mask"] = mask
            tensors["block_mask"] = torch.from_numpy(mask).to(device)
        elif name == "bias":
            shape = (1, heads, seq_q, seq_k)
            tensors["bias"] = torch.randn(shape, generator=random, device=device, dtype=DTYPES[case.dtype])
        elif name == "alibi_slopes":
            tensors["alibi_slopes"] = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)
        elif name == "sinks":
            tensors["sinks"] = torch.randn(heads, generator=random, device=device)
        elif name == "cu_seqlens":
            members = member_lengths(seq_q, problem.x, problem.lengths)
            bounds = np.cumsum([0, *members]).astype(np.int32)
            for key in ("cu_seqlens_q", "cu_seqlens_k"):
                lengths[key] = bounds
                tensors[key] = torch.from_numpy(bounds).to(device)
    return tensors, lengths
