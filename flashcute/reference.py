"""Textbook attention in NumPy: the oracle behind ``flashcute check`` and the tests.

Everything here is plain NumPy, never a call into the compiled library, and follows the definition instead of an
algorithm: the whole score matrix of a block of query rows is formed, masked, exponentiated and multiplied out.

* :func:`attention` computes the result in float64 (or in float32, see below) with every option of
  :func:`flashcute.attention`.
* :func:`judge` decides whether a result agrees with it. The tolerance comes from the problem itself: the same textbook
  computation with float32 inside and the output rounded to the problem's type ("plain") may be off by some amount, and
  a result may be off by twice that, plus a small floor.

>>> import numpy as np
>>> q = np.zeros((1, 1, 3, 4)); k = np.zeros((1, 1, 7, 4)); v = np.broadcast_to(np.arange(7.0)[:, None], (1, 1, 7, 4))
>>> attention(q, k, v, causal=True).out[0, 0, :, 0].tolist()
[2.0, 2.5, 3.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._elements import Array, dtype_name, from_bfloat16_bits, round_to, to_bfloat16_bits, to_float

__all__ = [
    "MASK_BLOCK",
    "Result",
    "Verdict",
    "attention",
    "dropout_keep",
    "dtype_name",
    "from_bfloat16_bits",
    "judge",
    "philox4x32",
    "round_to",
    "to_bfloat16_bits",
    "to_float",
]

MASK_BLOCK = 128
"""How many queries, and how many keys, one entry of a block mask stands for."""

_BLOCK = 1 << 21  # scores held at once: 16 MiB in float64


class Result(NamedTuple):
    """What :func:`attention` computes."""

    out: Array
    """In the layout of q, with the head dim of v."""
    lse: Array
    """(batch, heads_q, seq_q), without a batch axis where q has none; packed (heads_q, total_q)."""
    covered: Array | None
    """Packed only, (total_q): False for rows of q that belong to no member. They have no result (NaN in both)."""
    probs: Array | None
    """With return_probs, the softmax after dropout: (batch, heads_q, seq_q, seq_k), without a batch axis as lse."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of :func:`judge`. True in a boolean context when the result agrees."""

    ok: bool
    error: float
    """max |out - reference| over the finite places."""
    allowed: float
    message: str
    """One sentence: the worst position and both values."""

    def __bool__(self) -> bool:
        return self.ok


# ---------------------------------------------------------------------------------------------------------------------
# Dropout


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Philox4x32-10: four 32-bit words (as uint64 arrays) for each counter; counter words broadcast together."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(10):
        p0 = c0 * np.uint64(0xD2511F53)
        p1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def dropout_keep(p: float, seed: int, offset: int, head: Any, row: Any, key: Any) -> Array:
    """True where the element (batch * heads_q + head, row, key) survives. The three indices broadcast together.

    The element's word is lane ``key % 4`` of the block with counter (key // 4, row, head, offset); the high half of a
    64-bit offset is folded into the key.
    """
    key = np.asarray(key, dtype=np.uint64)
    hi = ((seed >> 32) ^ (offset >> 32)) & 0xFFFFFFFF
    lanes = philox4x32((key >> np.uint64(2), row, head, offset & 0xFFFFFFFF), (seed & 0xFFFFFFFF, hi))
    word = np.choose((key & np.uint64(3)).astype(np.intp), lanes)
    return np.asarray(word >= np.uint64(math.ceil(float(np.float32(p)) * 2.0**32)))


# ---------------------------------------------------------------------------------------------------------------------
# One batch entry


@dataclass(frozen=True)
class _Member:
    """One batch entry. The options hold the whole batch's tensors; `index` says which entry this is."""

    index: int
    heads: int  # of q
    d: int  # the alignment's offset
    left: int
    right: int
    scale: float
    softcap: float
    key_mask: Array | None  # (seq_k)
    dense_mask: Array | None  # (heads, seq_q, seq_k)
    block_mask: Array | None  # (heads, blocks of queries, blocks of keys)
    bias: Array | None  # (heads, seq_q, seq_k)
    slopes: Array | None  # (heads)
    sinks: Array | None  # (heads)
    dropout_p: float
    seed: int
    offset: int


def _rows_of_member(q: Array, k: Array, v: Array, rows: Array, heads: slice, m: _Member) -> tuple[Array, Array, Array]:
    """out (heads, rows, head_dim_v), lse (heads, rows) and weights (heads, rows, seq_k) of some query rows.

    k and v are already one per query head.
    """
    compute = q.dtype.type
    i = rows[:, None]
    j = np.arange(k.shape[1])[None, :]

    # Scores are held in units of 2^64, which rounds nothing: float32 then holds sums of any finite biases. Queries are
    # divided by a power of two, so that no product of finite numbers overflows either.
    unit = 2.0**64
    largest = np.float64(np.abs(q).max(initial=0, where=np.isfinite(q))) * q.shape[-1]
    exponent = max(0, int(np.frexp(largest)[1]))
    score = np.matmul(np.ldexp(q, -exponent), np.swapaxes(k, 1, 2))
    scale = math.ldexp(m.scale, exponent)
    if m.softcap > 0:
        limit = float(np.finfo(compute).max)
        score = compute(m.softcap / unit) * np.tanh(score * compute(np.clip(scale / m.softcap, -limit, limit)))
    else:
        score = score * compute(scale / unit)
    if m.bias is not None:
        score = score + m.bias[heads][:, rows].astype(compute) / compute(unit)
    if m.slopes is not None:
        slopes = m.slopes[heads, None, None].astype(compute) / compute(unit)
        score = score - slopes * np.abs(i + m.d - j).astype(compute)

    visible = np.broadcast_to(np.ones((), dtype=bool), score.shape).copy()
    if m.left >= 0:
        visible &= j >= i + m.d - m.left
    if m.right >= 0:
        visible &= j <= i + m.d + m.right
    if m.key_mask is not None:
        visible &= m.key_mask[None, None, :] != 0
    if m.dense_mask is not None:
        visible &= m.dense_mask[heads][:, rows] != 0
    if m.block_mask is not None:
        visible &= m.block_mask[heads][:, rows[:, None] // MASK_BLOCK, j // MASK_BLOCK] != 0
    if m.bias is not None:  # a bias of -inf hides its key, whatever the score was
        visible &= m.bias[heads][:, rows] != -np.inf
    visible &= score != -np.inf
    score = np.where(visible, score, -np.inf)

    top = np.max(score, axis=-1, initial=-np.inf)
    if m.sinks is not None:
        sink = np.broadcast_to(m.sinks[heads, None].astype(compute), top.shape)
        top = np.maximum(top, sink / compute(unit))
    base = np.where(top == -np.inf, compute(0), top)
    weight = np.exp((score - base[..., None]) * compute(unit))
    total = weight.sum(axis=-1)
    if m.sinks is not None:
        total = total + np.exp((sink / compute(unit) - base) * compute(unit))
    lse = np.where(total == 0, -np.inf, base.astype(np.float64) * unit + np.log(total))
    if m.sinks is not None:  # a row without keys has the sink's, also an infinite one
        lse = np.where(visible.any(axis=-1), lse, sink)
    weight = weight / np.where(total == 0, compute(1), total)[..., None]
    weight = np.where(visible, weight, compute(0))

    if m.dropout_p > 0:
        head = m.index * m.heads + np.arange(m.heads)[heads][:, None, None]
        keep = dropout_keep(m.dropout_p, m.seed, m.offset, head, i[None], j[None])
        # a NaN score makes its row NaN, dropped or not
        kept = keep | np.isnan(weight)
        weight = np.where(kept, weight / compute(1 - float(np.float32(m.dropout_p))), compute(0))

    # A value that is not finite reaches the rows that see it and no other: 0 * NaN must not happen.
    finite = np.isfinite(v)
    out = np.matmul(weight, np.where(finite, v, compute(0)))
    for h, key in zip(*np.nonzero(~finite.all(axis=-1)), strict=True):
        seen = visible[h, :, key]
        bad = np.where(finite[h, key], compute(0), v[h, key])
        out[h, seen] += weight[h, seen, key][:, None] * bad[None, :]
    return out, lse, weight


def _member(q: Array, k: Array, v: Array, rows: Array, m: _Member, probs: Array | None = None) -> tuple[Array, Array]:
    """q (heads_q, seq_q, D), k (heads_k, seq_k, D), v (heads_k, seq_k, Dv), a block of rows and heads at a time.

    probs (heads_q, rows, seq_k or more) is filled with the weights where it is given.
    """
    group = q.shape[0] // k.shape[0]
    out = np.zeros((q.shape[0], len(rows), v.shape[2]), dtype=q.dtype)
    lse = np.full((q.shape[0], len(rows)), -np.inf, dtype=q.dtype)
    per_head = max(1, k.shape[1]) * max(1, len(rows))
    head_step = max(1, min(q.shape[0], _BLOCK // per_head))
    row_step = max(1, min(len(rows), _BLOCK // max(1, k.shape[1])))
    for h in range(0, q.shape[0], head_step):
        heads = slice(h, min(h + head_step, q.shape[0]))
        of = np.arange(heads.start, heads.stop) // group
        for r in range(0, len(rows), row_step):
            block = rows[r : r + row_step]
            with np.errstate(all="ignore"):
                out[heads, r : r + row_step], lse[heads, r : r + row_step], weight = _rows_of_member(
                    q[heads][:, block], k[of], v[of], block, heads, m
                )
            if probs is not None:
                probs[heads, r : r + row_step, : k.shape[1]] = weight
    return out, lse


# ---------------------------------------------------------------------------------------------------------------------
# The whole call


def _bounds(cu_seqlens: Array, total: int) -> list[tuple[int, int]]:
    """Start and end of each member, clamped as the library clamps lengths that it cannot trust."""
    cu = np.clip(np.asarray(cu_seqlens, dtype=np.int64), 0, total)
    return [(int(cu[b]), max(int(cu[b]), int(cu[b + 1]))) for b in range(len(cu) - 1)]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    alignment: str = "bottom_right",
    window: tuple[int, int] = (-1, -1),
    mask: Any = None,
    block_mask: Any = None,
    bias: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    layout: str | None = None,
    return_probs: bool = False,
    compute: npt.DTypeLike = np.float64,
    rows: Any = None,
) -> Result:
    """Attention by its definition, with the options of :func:`flashcute.attention`, for NumPy arrays.

    compute: float64, or float32 for what a straightforward implementation would get.
    rows: only these query positions (not for packed input); the results then hold these rows, in this order.
    return_probs: also return the softmax after dropout (not for packed input).
    max_seqlen_q and max_seqlen_k are accepted and not needed.
    """
    compute = np.dtype(compute)
    packed = cu_seqlens_q is not None
    layout = layout or ("hsd" if packed else "bhsd")
    q, k, v = (to_float(x, compute) for x in (q, k, v))
    if layout in ("bshd", "shd"):
        q, k, v = (np.swapaxes(x, -3, -2) for x in (q, k, v))
    single = not packed and q.ndim == 3
    if not packed:
        q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))

    heads, depth = q.shape[-3], q.shape[-1]
    if packed:
        members_q, members_k = _bounds(cu_seqlens_q, q.shape[1]), _bounds(cu_seqlens_k, k.shape[1])
    else:
        members_q = [(0, q.shape[2])] * q.shape[0]
        members_k = [(0, k.shape[2])] * k.shape[0]
    batch = len(members_q)
    mask = None if mask is None else np.asarray(mask)
    if mask is not None and mask.ndim <= 2 and not packed:
        mask = np.broadcast_to(mask, (batch, k.shape[2]))
    if mask is not None and mask.ndim == 4:
        mask = np.broadcast_to(mask, (batch, heads, q.shape[2], k.shape[2]))
    if block_mask is not None:
        block_mask = np.asarray(block_mask)
        block_mask = np.broadcast_to(block_mask, (batch, heads, *block_mask.shape[2:]))
    if bias is not None:
        bias = np.broadcast_to(to_float(bias, np.float64), (batch, heads, q.shape[2], k.shape[2]))
    slopes = None if alibi_slopes is None else np.broadcast_to(to_float(alibi_slopes), (batch, heads))

    shared = _Member(
        index=0,
        heads=heads,
        d=0,
        left=min(window[0], 1 << 62),  # j - left must not overflow
        right=0 if causal else min(window[1], 1 << 62),
        scale=float(np.float32(scale)) if scale is not None else 1.0 / math.sqrt(max(1, depth)),
        softcap=float(np.float32(softcap)),
        key_mask=None,
        dense_mask=None,
        block_mask=None,
        bias=None,
        slopes=None,
        sinks=None if sinks is None else to_float(sinks),
        dropout_p=dropout_p,
        seed=0 if seed is None else seed,
        offset=offset,
    )
    outs, lses = [], []
    count = q.shape[-2] if rows is None else len(rows)
    probs = np.zeros((batch, heads, count, k.shape[-2]), dtype=compute) if return_probs else None
    covered = np.zeros(q.shape[1], dtype=bool) if packed else None
    packed_out = np.full((heads, q.shape[1], v.shape[-1]), np.nan, dtype=compute) if packed else None
    packed_lse = np.full((heads, q.shape[1]), np.nan, dtype=compute) if packed else None
    for b in range(batch):
        (q_start, q_end), (k_start, k_end) = members_q[b], members_k[b]
        if seqused_k is not None:
            k_end = k_start + min(max(int(np.asarray(seqused_k)[b]), 0), k_end - k_start)
        used = slice(k_start, k_end)
        if packed:
            qb, kb, vb = q[:, q_start:q_end], k[:, used], v[:, used]
        else:
            qb, kb, vb = q[b], k[b, :, used], v[b, :, used]
        key_mask = dense_mask = None
        if mask is not None and mask.ndim == 4:
            dense_mask = mask[b][..., used]
        elif mask is not None:
            key_mask = mask[used] if packed else mask[b, used]
        member = replace(
            shared,
            index=b,
            d=(k_end - k_start) - (q_end - q_start) if alignment == "bottom_right" else 0,
            key_mask=key_mask,
            dense_mask=dense_mask,
            block_mask=None if block_mask is None else block_mask[b],
            bias=None if bias is None else bias[b][..., used],
            slopes=None if slopes is None else slopes[b],
        )
        positions = np.arange(q_end - q_start) if rows is None else np.asarray(rows, dtype=np.int64)
        out_b, lse_b = _member(qb, kb, vb, positions, member, None if probs is None else probs[b])
        if packed_out is not None and packed_lse is not None and covered is not None:
            packed_out[:, q_start:q_end], packed_lse[:, q_start:q_end] = out_b, lse_b
            covered[q_start:q_end] = True
        else:
            outs.append(out_b)
            lses.append(lse_b)
    if packed_out is not None and packed_lse is not None:
        out, lse = packed_out, packed_lse
    else:
        out = np.stack(outs) if outs else np.zeros((0, heads, count, v.shape[-1]), dtype=compute)
        lse = np.stack(lses) if lses else np.zeros((0, heads, count), dtype=compute)
    if single:
        out, lse, probs = out[0], lse[0], None if probs is None else probs[0]
    if layout in ("bshd", "shd"):
        out = np.swapaxes(out, -3, -2)
    return Result(out, lse, covered, probs)


# ---------------------------------------------------------------------------------------------------------------------
# Agreement


def _kind(x: Array) -> Array:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    return np.where(np.isnan(x), 1, np.where(x == np.inf, 2, np.where(x == -np.inf, 3, 0)))


def _specials(name: str, got: Array, want: Array) -> str:
    """Empty, or a sentence about the first place where one of the two is finite, NaN or infinite and the other not."""
    wrong = _kind(got) != _kind(want)
    if not wrong.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} places differ in kind"
    return f"{name}{list(at)}: expected {want[at]:.9g}, given {got[at]:.9g} ({count})"


def _compare(name: str, got: Array, want: Array, plain: Array, floor: float) -> tuple[float, float, str]:
    """The largest error, what is allowed, and empty or a sentence about the worst place."""
    if got.shape != want.shape:
        return math.inf, 0.0, f"{name}: expected shape {want.shape}, given {got.shape}"
    finite = np.isfinite(want) & np.isfinite(got)
    with np.errstate(invalid="ignore"):
        slack = np.abs(plain - want)
        error = np.where(finite, np.abs(got - want), 0.0)
    allowed = 2 * float(slack[np.isfinite(slack)].max(initial=0.0)) + floor
    worst = float(error.max(initial=0.0))
    message = _specials(name, got, want)
    if not message and worst > allowed:
        at = tuple(int(n) for n in np.unravel_index(int(error.argmax()), error.shape))
        off = f"off by {worst:.3g} where {allowed:.3g} is allowed"
        message = f"{name}{list(at)}: expected {want[at]:.9g}, given {got[at]:.9g}, {off}"
    return worst, allowed, message


def judge(
    out: Any, lse: Any, q: Any, k: Any, v: Any, *, probs: Any = None, dtype: str | None = None, **options: Any
) -> Verdict:
    """Does a result agree with float64?

    max |out - reference| <= 2 max |plain - reference| + a, a = 1e-5 max(1, max |v|) for float32 and 1e-3 max |v| for
    the others; |lse - reference| <= 1e-3 + 1e-5 |reference|; probs as out, with themselves for v; NaN and infinities in
    the same places. An LSE beyond float32 counts as float32's largest.

    out, lse, probs: what was computed (the last two may be None); q, k, v: its inputs, as NumPy arrays. dtype: the
    problem's type where the arrays do not tell it (bfloat16 held as float32 values). options: those of
    :func:`attention`.
    """
    dtype = dtype or dtype_name(np.asarray(q))
    options["return_probs"] = probs is not None
    reference = attention(q, k, v, **options)
    rough = attention(q, k, v, **{**options, "compute": np.float32})
    got, want, plain = to_float(out), reference.out, round_to(rough.out, dtype).astype(np.float64)
    if reference.covered is not None and got.shape == want.shape:
        keep = reference.covered
        axis = 0 if options.get("layout") == "shd" else 1
        got, want, plain = (np.compress(keep, x, axis=axis) for x in (got, want, plain))

    def floor(values: Array) -> float:
        values = np.abs(values)
        largest = float(values[np.isfinite(values)].max(initial=0.0))
        return 1e-5 * max(1.0, largest) if dtype == "float32" else 1e-3 * largest

    worst, allowed, message = _compare("out", got, want, plain, floor(to_float(v)))
    if not message and lse is not None:
        message = _judge_lse(to_float(lse), reference)
    if not message and reference.probs is not None and rough.probs is not None:
        plain = round_to(rough.probs, dtype).astype(np.float64)
        _, _, message = _compare("probs", to_float(probs), reference.probs, plain, floor(reference.probs))
    return Verdict(not message, worst, allowed, message or f"largest error {worst:.3g}, {allowed:.3g} allowed")


def _judge_lse(got: Array, reference: Result) -> str:
    want = reference.lse
    if got.shape != want.shape:
        return f"lse: expected shape {want.shape}, given {got.shape}"
    if reference.covered is not None:
        got, want = got[:, reference.covered], want[:, reference.covered]
    most = float(np.finfo(np.float32).max)
    want = np.where(np.isinf(want), want, np.clip(want, -most, most))
    message = _specials("lse", got, want)
    if message:
        return message
    with np.errstate(invalid="ignore"):
        excess = np.where(np.isfinite(want), np.abs(got - want) - (1e-3 + 1e-5 * np.abs(want)), -1.0)
    if excess.size == 0 or float(excess.max()) <= 0:
        return ""
    at = tuple(int(n) for n in np.unravel_index(int(excess.argmax()), excess.shape))
    return f"lse{list(at)}: expected {want[at]:.9g}, given {got[at]:.9g}"
