"""Distributions of attention scores, made by changing q and k that are drawn from N(0, 1).

Real models do not have scores like N(0, 1): some heads have a wide range of scores, an attention sink, scores that rise
or fall along the keys, a preference for neighbours, or outlier channels. A kernel may be slower or less accurate on
them. A few channels of q and k make each of these; the others keep N(0, 1).

The command line's --help reads the names: NumPy is imported where it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.floating[Any]]

NAMES = ("normal", "wide3", "wide6", "wide12", "sink", "rising", "falling", "local", "outlier", "late")

_SINK = 12.0  # what key 0 scores above the rest
_SLOPE = 40.0  # the change of the mean score from the first key to the last
_LOCAL, _REACH, _PAIRS = 20.0, 64, 8  # the height and reach of the preference for neighbours; its channel pairs
_OUTLIER = 12.0  # the factor of one channel, in q and in k
_LATE, _LATE_KEYS = 20.0, 64  # what the last keys score above the rest, and how many they are


@dataclass(frozen=True)
class Change:
    """How q and k change, in this order."""

    q_factor: float = 1.0
    first_channel_factor: float = 1.0  # of q and k
    q_channels: Array | None = None  # (seq_q, n): replace the first n channels of every head
    k_channels: Array | None = None  # (seq_k, n)


def parse(name: str) -> str:
    """The name, if it is one: one of NAMES, or "wide" and a positive factor of q, as in "wide4.5".

    Raises ValueError.
    """
    if name in NAMES or (re.fullmatch(r"wide\d+(\.\d+)?", name) and float(name[4:]) > 0):
        return name
    raise ValueError(f"expected one of {', '.join(NAMES)}, or wide and a factor of q, given {name}")


def change(name: str, seq_q: int, seq_k: int, head_dim: int) -> Change:
    """What makes the distribution of that name, for a scale of 1/sqrt(head_dim) and a diagonal that ends in the
    bottom right corner."""
    import numpy as np

    parse(name)
    keys = np.arange(float(seq_k))
    if name.startswith("wide"):
        return Change(q_factor=float(name[4:]))
    if name == "outlier":
        return Change(first_channel_factor=_OUTLIER)
    if name == "sink":
        return _added(_SINK * (keys == 0), seq_q, head_dim)
    if name in ("rising", "falling"):
        along = (keys / max(seq_k - 1, 1) - 0.5) * _SLOPE
        return _added(along if name == "rising" else -along, seq_q, head_dim)
    if name == "late":
        return _added(_LATE * (keys >= seq_k - _LATE_KEYS), seq_q, head_dim)
    if name == "local":
        return _local(seq_q, seq_k, head_dim)
    return Change()


def _added(score: Array, seq_q: int, head_dim: int) -> Change:
    """Adds to the score of each key what is given, through one channel that is the same for every query."""
    import numpy as np

    product = score * math.sqrt(head_dim)
    query = math.sqrt(max(float(np.abs(product).max(initial=0.0)), 1e-6))
    return Change(q_channels=np.full((seq_q, 1), query), k_channels=(product / query)[:, None])


def _local(seq_q: int, seq_k: int, head_dim: int) -> Change:
    """Adds about _LOCAL * exp(-|i - j| / _REACH): a sum of cosines of i - j, whose frequencies are quantiles of that
    function's spectrum. Each takes two channels, which turn with the position, as rotary embeddings do."""
    import numpy as np

    pairs = min(_PAIRS, head_dim // 4)
    if pairs == 0:
        return Change()
    frequencies = np.tan(np.pi / 2 * (np.arange(pairs) + 0.5) / pairs) / _REACH
    size = math.sqrt(_LOCAL / pairs * math.sqrt(head_dim))

    def channels(positions: Array) -> Array:
        angles = positions[:, None] * frequencies
        return size * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

    rows, keys = np.arange(seq_q) + float(seq_k - seq_q), np.arange(float(seq_k))
    return Change(q_channels=channels(rows), k_channels=channels(keys))


def apply(name: str, q: Any, k: Any, convert: Callable[[Array, Any], Any]) -> None:
    """Changes q and k in place, (…, seq, head_dim), arrays of NumPy or PyTorch.

    convert(values, like) makes an array of like's kind and type of NumPy's float64.
    """
    made = change(name, q.shape[-2], k.shape[-2], q.shape[-1])
    if made.q_factor != 1.0:
        q *= made.q_factor
    if made.first_channel_factor != 1.0:
        q[..., 0] *= made.first_channel_factor
        k[..., 0] *= made.first_channel_factor
    for x, channels in ((q, made.q_channels), (k, made.k_channels)):
        if channels is not None:
            x[..., : channels.shape[1]] = convert(channels, x)
