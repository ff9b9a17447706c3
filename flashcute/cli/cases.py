"""What ``flashcute check`` computes: a spread of shapes, types and features, each small enough for a float64 oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashcute.reference import MASK_BLOCK
from flashcute.workloads import distributions

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One problem. Optional tensors are named by `tensors` and drawn by :func:`draw`."""

    dtype: str
    batch: int
    heads: tuple[int, int]  # of q, of k and v
    seq: tuple[int, int]  # of q, of k and v; packed: the lengths add up to these
    head_dim: tuple[int, int]  # of q and k, of v and out
    options: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()  # of mask, dense_mask, block_mask, bias, alibi_slopes, sinks, seqused_k, cu_seqlens
    quick: bool = False
    long: bool = False  # too long for the oracle: heads and rows are sampled. Without optional tensors or a layout
    data: str = "normal"  # of flashcute.workloads.distributions

    @property
    def packed(self) -> bool:
        return "cu_seqlens" in self.tensors

    def shape_text(self) -> str:
        def pair(values: tuple[int, int]) -> str:
            return str(values[0]) if values[0] == values[1] else f"{values[0]}/{values[1]}"

        return f"{self.batch} x {pair(self.heads)} x {self.seq[0]} x {self.seq[1]} x {pair(self.head_dim)}"

    def feature_text(self, *, of_heads: bool = True) -> str:
        """What the problem has beyond q, k and v; without the kind of heads, which the shape shows too, if need be."""
        names = {
            "dense_mask": "pair mask",
            "block_mask": "block mask",
            "alibi_slopes": "ALiBi",
            "seqused_k": "seqused",
            "cu_seqlens": "packed",
        }
        words = []
        for name, value in self.options.items():
            if name == "window":
                words.append(f"window {value[0]},{value[1]}")
            elif name in ("layout", "backend"):
                words.append(f"{name} {value}")
            elif name == "alignment":
                words.append(str(value).replace("_", " "))
            elif value is True:
                words.append(name.removeprefix("return_"))
            elif name != "seed":
                words.append(f"{name.removesuffix('_p')} {value:g}")
        words += [names.get(name, name) for name in self.tensors]
        words += [f"{self.data} data"] if self.data != "normal" else []
        if of_heads and self.heads[0] != self.heads[1]:
            words.append("multi-query" if self.heads[1] == 1 else "grouped heads")
        return ", ".join(words) or "full"


def cases(device: str, quick: bool) -> list[Case]:
    """The list for "cpu" or "cuda"; `quick` keeps a few small ones."""
    chosen = [*_shapes(), *_features(), *_large(device)]
    if device == "cuda":
        chosen = [case for case in chosen if case.dtype != "float32"]
    return [case for case in chosen if case.quick or not quick]


def _shapes() -> Iterator[Case]:
    for dtype in ("float32", "float16", "bfloat16"):
        yield Case(dtype, 2, (4, 4), (128, 128), (64, 64), quick=True)
        yield Case(dtype, 1, (8, 8), (512, 512), (128, 128), {"causal": True}, quick=True)
        yield Case(dtype, 2, (8, 2), (200, 333), (64, 64), {"causal": True})
        yield Case(dtype, 1, (4, 1), (1, 1000), (128, 128))
        yield Case(dtype, 3, (2, 2), (65, 65), (80, 80))
        yield Case(dtype, 1, (3, 3), (40, 8), (64, 64), {"window": (4, 2)}, quick=True)
    yield Case("float16", 2, (2, 2), (77, 130), (20, 20))
    yield Case("bfloat16", 1, (2, 2), (100, 100), (64, 32))
    yield Case("bfloat16", 1, (2, 2), (100, 140), (192, 128), {"causal": True})
    yield Case("bfloat16", 1, (2, 2), (100, 140), (256, 256), {"causal": True})
    yield Case("float32", 1, (2, 2), (64, 64), (500, 500))
    yield Case("bfloat16", 1, (2, 2), (100, 0), (64, 64))


def _features() -> Iterator[Case]:
    base = Case("bfloat16", 2, (4, 2), (160, 224), (64, 64))
    for dtype in ("float32", "bfloat16"):
        of = replace(base, dtype=dtype)
        yield replace(of, tensors=("mask",), quick=True)
        yield replace(of, options={"window": (63, 0)})
    yield replace(base, dtype="float16", options={"causal": True}, tensors=("mask",), head_dim=(128, 128))
    yield replace(base, options={"window": (-1, 16)})
    yield replace(base, options={"causal": True, "alignment": "top_left"})
    yield replace(base, options={"layout": "bshd"})
    yield replace(base, options={"scale": 0.05})
    yield replace(base, options={"softcap": 20.0})
    yield replace(base, tensors=("alibi_slopes",), options={"causal": True})
    yield replace(base, tensors=("sinks",))
    yield replace(base, tensors=("bias",))
    yield replace(base, tensors=("dense_mask",))
    yield replace(base, tensors=("block_mask",), seq=(400, 700))
    yield replace(base, options={"dropout_p": 0.2, "seed": 1234})
    yield replace(base, options={"return_probs": True})
    yield replace(base, tensors=("seqused_k",), options={"causal": True})
    yield replace(base, tensors=("cu_seqlens",), batch=5, seq=(300, 400), options={"causal": True, "layout": "hsd"})
    for data in distributions.NAMES[1:]:
        for dtype in ("float16", "bfloat16"):
            yield replace(base, dtype=dtype, data=data, seq=(300, 400), options={"causal": data in ("sink", "late")})
    every = {"window": (100, 5), "softcap": 15.0, "dropout_p": 0.1, "seed": 99}
    yield replace(base, dtype="float32", options=every, tensors=("mask", "bias", "alibi_slopes", "sinks"))


def _large(device: str) -> Iterator[Case]:
    if device == "cpu":
        sizes = [(1, (8, 8), 2048, 64), (1, (8, 8), 2048, 128)]
    else:
        sizes = [(2, (16, 16), 4096, 64), (1, (16, 16), 4096, 128), (1, (16, 4), 8192, 128)]
    for dtype in ("float32", "float16", "bfloat16"):
        for batch, heads, seq, dim in sizes:
            for causal in (False, True):
                yield Case(dtype, batch, heads, (seq, seq), (dim, dim), {"causal": True} if causal else {}, long=True)


# ---------------------------------------------------------------------------------------------------------------------
# Inputs and work


@dataclass
class Inputs:
    """The values of one case, already rounded to its type, in the layout that the call takes."""

    q: Array
    k: Array
    v: Array
    tensors: dict[str, Array]  # by keyword of flashcute.attention


def draw(case: Case, random: np.random.Generator) -> Inputs:
    """Standard normal q, k, v, changed by the case's distribution, and whatever optional tensors the case names."""
    seq_q, seq_k = case.seq
    heads_q, heads_k = case.heads

    def normal(heads: int, seq: int, dim: int) -> Array:
        if case.packed:
            shape: tuple[int, ...] = (heads, seq, dim)
        elif case.options.get("layout") == "bshd":
            shape = (case.batch, seq, heads, dim)
        else:
            shape = (case.batch, heads, seq, dim)
        return random.standard_normal(shape, dtype=np.float32)

    tensors = draw_optional(case, random)
    made = Inputs(
        normal(heads_q, seq_q, case.head_dim[0]),
        normal(heads_k, seq_k, case.head_dim[0]),
        normal(heads_k, seq_k, case.head_dim[1]),
        tensors,
    )
    q, k = (x.swapaxes(-3, -2) if case.options.get("layout") == "bshd" else x for x in (made.q, made.k))
    distributions.apply(case.data, q, k, lambda channels, like: channels.astype(like.dtype))
    if case.packed:
        tensors["cu_seqlens_q"] = _cumulative(random, case.batch, seq_q)
        tensors["cu_seqlens_k"] = _cumulative(random, case.batch, seq_k)
    return made


def draw_optional(case: Case, random: np.random.Generator) -> dict[str, Array]:
    """The optional tensors that the case names, without cumulative lengths, by keyword of flashcute.attention."""
    (seq_q, seq_k), heads_q = case.seq, case.heads[0]
    keys = (seq_k,) if case.packed else (case.batch, seq_k)
    makers: dict[str, Callable[[], Array]] = {
        "mask": lambda: random.random(keys) < 0.7,
        "dense_mask": lambda: random.random((case.batch, 1, seq_q, seq_k)) < 0.7,
        "block_mask": lambda: draw_block_mask((case.batch, heads_q), case.seq, random),
        "bias": lambda: random.standard_normal((1, heads_q, seq_q, seq_k), dtype=np.float32),
        "alibi_slopes": lambda: np.exp2(-8.0 * (np.arange(heads_q) + 1) / heads_q).astype(np.float32),
        "sinks": lambda: random.standard_normal(heads_q, dtype=np.float32),
        "seqused_k": lambda: random.integers(0, seq_k + 1, case.batch, dtype=np.int32),
    }
    named = [name for name in case.tensors if name != "cu_seqlens"]
    return {"mask" if name == "dense_mask" else name: makers[name]() for name in named}


def blocks(length: int) -> int:
    """Of a block mask, along an axis of that length."""
    return -(-length // MASK_BLOCK)


def draw_block_mask(lead: tuple[int, int], seq: tuple[int, int], random: np.random.Generator) -> Array:
    """Half of the blocks, each batch entry and head its own."""
    return np.asarray(random.random((*lead, blocks(seq[0]), blocks(seq[1]))) < 0.5)


def _cumulative(random: np.random.Generator, batch: int, total: int) -> Array:
    """Bounds of members whose lengths add up to the total, an empty one among them."""
    cuts = np.sort(random.integers(0, total + 1, batch - 2))
    return np.concatenate([[0, 0], cuts, [total]]).astype(np.int32)


def work(case: Case, tensors: dict[str, Array]) -> float:
    """Floating-point operations: two for each multiplication of a visible pair, in both products."""
    return 2.0 * case.heads[0] * visible_pairs(case, tensors) * sum(case.head_dim)


def visible_pairs(case: Case, tensors: dict[str, Array]) -> float:
    """Pairs of a row and a key that its bounds and block mask let it see, of one head of all batch entries.

    Where the block masks of heads differ, that is their mean.
    """
    if "block_mask" not in tensors:
        return sum(times * _pairs(case.options, *seq) for seq, times in _counted_lengths(case, tensors))
    mask = np.broadcast_to(tensors["block_mask"] != 0, (case.batch, *tensors["block_mask"].shape[1:])).mean(axis=1)
    return sum(_block_pairs(case.options, *seq, mask[b]) for b, seq in enumerate(lengths(case, tensors)))


def seen_keys(case: Case, tensors: dict[str, Array]) -> int:
    """Keys from the first to the last that any row sees, of one head of all batch entries."""
    return sum(times * _span(case.options, *seq) for seq, times in _counted_lengths(case, tensors))


def rows_of_q(case: Case, tensors: dict[str, Array]) -> int:
    """Of one head of all batch entries."""
    return sum(times * seq_q for (seq_q, _), times in _counted_lengths(case, tensors))


def _counted_lengths(case: Case, tensors: dict[str, Array]) -> Iterable[tuple[tuple[int, int], int]]:
    """Each pair of lengths, and how many batch entries have it."""
    if not case.packed and "seqused_k" not in tensors:
        return [(case.seq, case.batch)]
    return Counter(lengths(case, tensors)).items()


def lengths(case: Case, tensors: dict[str, Array]) -> list[tuple[int, int]]:
    """The lengths (of q, of k and v) of each batch entry or packed member."""
    result = []
    for b in range(case.batch):
        seq_q, seq_k = case.seq
        if case.packed:
            seq_q, seq_k = (int(np.diff(tensors[f"cu_seqlens_{x}"])[b]) for x in "qk")
        if "seqused_k" in tensors:
            seq_k = min(seq_k, int(tensors["seqused_k"][b]))
        result.append((seq_q, seq_k))
    return result


# Counted without an array of the rows, since `explain` plans problems of any length.


def _bounds(options: dict[str, Any], seq_q: int, seq_k: int) -> tuple[int | None, int | None]:
    """Row i sees the keys from i + the first on and before i + the second; None: unbounded."""
    left, right = options.get("window", (-1, -1))
    if options.get("causal"):
        right = 0
    d = seq_k - seq_q if options.get("alignment", "bottom_right") == "bottom_right" else 0
    return d - left if left >= 0 else None, d + right + 1 if right >= 0 else None


def _pairs(options: dict[str, Any], seq_q: int, seq_k: int) -> int:
    first, end = _bounds(options, seq_q, seq_k)
    before_end = seq_q * seq_k if end is None else _clipped_sum(end, seq_q, seq_k)
    return before_end - (0 if first is None else _clipped_sum(first, seq_q, seq_k))


def _block_pairs(options: dict[str, Any], seq_q: int, seq_k: int, share: Array) -> float:
    """Pairs in each block of rows and keys, times the share of heads that see it."""
    first, end = _bounds(options, seq_q, seq_k)
    start = np.arange(share.shape[1]) * MASK_BLOCK
    pairs = 0.0
    for block, seen in enumerate(share):
        rows = np.arange(block * MASK_BLOCK, min((block + 1) * MASK_BLOCK, seq_q))[:, None]
        low = start if first is None else np.maximum(start, rows + first)
        high = np.minimum(start + MASK_BLOCK, seq_k if end is None else np.minimum(rows + end, seq_k))
        within = np.broadcast_to(np.maximum(high - low, 0), (len(rows), len(start)))
        pairs += float((within * seen).sum())
    return pairs


def _clipped_sum(start: int, count: int, top: int) -> int:
    """The sum over i < count of start + i, each clipped to 0 and top."""

    def below(x: int) -> int:  # of the clipped integers below x
        x = max(x, 0)
        return x * (x - 1) // 2 if x <= top else top * (top - 1) // 2 + (x - top) * top

    return below(start + count) - below(start)


def _span(options: dict[str, Any], seq_q: int, seq_k: int) -> int:
    first, end = _bounds(options, seq_q, seq_k)
    top_row = 0 if end is None else max(0, 1 - end)
    last_row = seq_q - 1 if first is None else min(seq_q - 1, seq_k - 1 - first)
    if top_row > last_row:  # no row sees a key
        return 0
    return (seq_k if end is None else min(last_row + end, seq_k)) - (0 if first is None else max(top_row + first, 0))
