"""One problem from flags: what `explain` and `profile` are about."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import flashcute
from flashcute.cli import flags
from flashcute.cli.cases import Array, Case, blocks
from flashcute.descriptors import TensorDescriptor


def case_of(arguments: argparse.Namespace) -> tuple[Case, dict[str, Array]]:
    """The problem, and the lengths that it takes as tensors (seqused_k: full). Raises BadParamError."""
    options: dict[str, Any] = {}
    if arguments.causal:
        options["causal"] = True
    if arguments.alignment != "bottom_right":
        options["alignment"] = arguments.alignment
    if arguments.window is not None:
        options["window"] = arguments.window
    if arguments.softcap is not None:
        options["softcap"] = arguments.softcap
    if arguments.probs:
        options["return_probs"] = True
    if arguments.backend is not None:
        options["backend"] = arguments.backend
    if arguments.dropout:
        options.update(dropout_p=arguments.dropout, seed=0)
    batch = arguments.batch
    seq = tuple(arguments.seq if given is None else given for given in (arguments.seq_q, arguments.seq_k))
    names = tuple(arguments.tensors)
    tensors: dict[str, Array] = {}
    if arguments.lengths:
        given = (arguments.batch, arguments.seq, arguments.seq_q, arguments.seq_k)
        if given != (flags.BATCH, flags.SEQ, None, None):
            raise flashcute.BadParamError("--lengths: expected without --batch and --seq, of which it takes the place")
        batch, seq = len(arguments.lengths), (sum(arguments.lengths),) * 2
        names += ("cu_seqlens",)
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            tensors[name] = np.cumsum([0, *arguments.lengths]).astype(np.int32)
        options["layout"] = {"bhsd": "hsd", "bshd": "shd"}[arguments.layout]
    elif arguments.layout != "bhsd":
        options["layout"] = arguments.layout
    if "seqused_k" in names:
        tensors["seqused_k"] = np.full(batch, seq[1], dtype=np.int32)
    case = Case(
        arguments.dtype,
        batch,
        (arguments.heads, arguments.heads_k or arguments.heads),
        (seq[0], seq[1]),
        (arguments.head_dim, arguments.head_dim_v or arguments.head_dim),
        options,
        names,
    )
    return case, tensors


def rows_shape(case: Case, heads: int, seq: int, dim: int) -> tuple[int, ...]:
    """The shape of q, k, v or out in the case's layout."""
    layout = case.options.get("layout", "bhsd")
    sizes = {"b": case.batch, "h": heads, "s": seq, "d": dim}
    return tuple(sizes[axis] for axis in layout)


def _optional_shapes(case: Case) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype by keyword of attention()."""
    seq_q, seq_k = case.seq
    pairs = (case.batch, 1, seq_q, seq_k)
    shapes: dict[str, tuple[str, tuple[int, ...], str]] = {
        "mask": ("mask", (seq_k,) if case.packed else (case.batch, seq_k), "bool"),
        "dense_mask": ("mask", pairs, "bool"),
        "block_mask": ("block_mask", (case.batch, case.heads[0], blocks(seq_q), blocks(seq_k)), "bool"),
        "bias": ("bias", (1, case.heads[0], seq_q, seq_k), "float32"),
        "alibi_slopes": ("alibi_slopes", (case.heads[0],), "float32"),
        "sinks": ("sinks", (case.heads[0],), "float32"),
        "seqused_k": ("seqused_k", (case.batch,), "int32"),
    }
    found = {shapes[name][0]: shapes[name][1:] for name in case.tensors if name != "cu_seqlens"}
    if case.packed:
        found["cu_seqlens_q"] = found["cu_seqlens_k"] = ((case.batch + 1,), "int32")
    return found


def tensors_of(case: Case, device: str) -> dict[str, TensorDescriptor]:
    """q, k, v and whatever optional tensors the case names."""
    shapes = {
        "q": (rows_shape(case, case.heads[0], case.seq[0], case.head_dim[0]), case.dtype),
        "k": (rows_shape(case, case.heads[1], case.seq[1], case.head_dim[0]), case.dtype),
        "v": (rows_shape(case, case.heads[1], case.seq[1], case.head_dim[1]), case.dtype),
        **_optional_shapes(case),
    }
    return {name: TensorDescriptor(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}


def longest(tensors: dict[str, Array]) -> dict[str, int]:
    """The bounds on packed lengths that attention() takes."""
    return {
        f"max_seqlen_{x}": int(np.diff(tensors[f"cu_seqlens_{x}"]).max(initial=0))
        for x in "qk"
        if f"cu_seqlens_{x}" in tensors
    }


def descriptor_of(
    case: Case, tensors: dict[str, Array], device: str, *, return_lse: bool = False
) -> flashcute.AttentionDescriptor:
    """The planned problem. Raises flashcute's errors."""
    return flashcute.AttentionDescriptor(
        **tensors_of(case, device), **case.options, **longest(tensors), return_lse=return_lse
    )
