"""Whether a result may be timed at all: a sample of its rows against float64, whoever computed it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashcute import reference
from flashcute.bench.problems import Inputs
from flashcute.cli.cases import lengths as member_lengths

# The largest difference of a right result from float64, for inputs N(0, 1): a few roundings of the type.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}

_ROWS = 64


_KEY_TILE = 128  # of the textbook's loop


@dataclass(frozen=True)
class Sample:
    """Random rows of a few heads, with their exact results."""

    inputs: Inputs
    rows: list[tuple[tuple[int, int], Tensor]]  # (batch, head), row numbers
    exact: list[Tensor]  # float64

    def errors(self, out: Tensor) -> tuple[float, float]:
        """The largest difference of a result, NaN where it has one, and their root mean square."""
        return _measures(
            [want - _of_out(self.inputs, out, place)[rows].double() for want, (place, rows) in self._pairs()]
        )

    def textbook_rms(self) -> float | None:
        """The root mean square error of online softmax without shortcuts, with weights of the inputs' type. None where
        the problem has more than a causal mask or a window."""
        case = self.inputs.problem.case
        if case.tensors or not set(case.options) <= {"causal", "window", "layout"}:
            return None
        results = [_textbook(self.inputs, place, rows) for place, rows in self.rows]
        return _measures([want - got.double() for want, got in zip(self.exact, results, strict=True)])[1]

    def _pairs(self) -> Iterator[tuple[Tensor, tuple[tuple[int, int], Tensor]]]:
        return zip(self.exact, self.rows, strict=True)


def sample(inputs: Inputs) -> Sample:
    case = inputs.problem.case
    generator = torch.Generator().manual_seed(0)
    heads = case.heads[0]
    chosen, exact = [], []
    for b, h in sorted({(0, 0), (case.batch - 1, heads - 1), (case.batch // 2, heads // 3)}):
        seq_q, _ = member_lengths(case, inputs.lengths)[b]
        rows = torch.randint(seq_q, (min(_ROWS, seq_q),), generator=generator).to(inputs.out.device)
        q, k, v = _of_head(inputs, (b, h))
        chosen.append(((b, h), rows))
        exact.append(_exact(inputs, q[rows].double(), k.double(), v.double(), rows, (b, h), seq_q))
    return Sample(inputs, chosen, exact)


def _measures(differences: list[Tensor]) -> tuple[float, float]:
    joined = torch.cat([difference.flatten() for difference in differences])
    if joined.numel() == 0:
        return 0.0, 0.0
    return joined.abs().max().item(), joined.square().mean().sqrt().item()


def _of_head(inputs: Inputs, place: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one head: (length, head_dim)."""
    case, (b, h) = inputs.problem.case, place
    g = h // (case.heads[0] // case.heads[1])
    bounds = inputs.lengths.get("cu_seqlens_q")
    if bounds is not None:
        own = slice(int(bounds[b]), int(bounds[b + 1]))
        return inputs.q[own, h], inputs.k[own, g], inputs.v[own, g]
    return inputs.q[b, h], inputs.k[b, g], inputs.v[b, g]


def _of_out(inputs: Inputs, out: Tensor, place: tuple[int, int]) -> Tensor:
    (b, h), bounds = place, inputs.lengths.get("cu_seqlens_q")
    return out[b, h] if bounds is None else out[int(bounds[b]) : int(bounds[b + 1]), h]


def _hidden(options: dict[str, Any], distance: Tensor) -> Tensor:
    """Where a causal mask or a window hides keys. distance: of each row's diagonal from each key."""
    left, right = options.get("window", (-1, -1))
    if options.get("causal"):
        right = 0
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= -distance > right
    return hidden


def _textbook(inputs: Inputs, place: tuple[int, int], rows: Tensor) -> Tensor:
    q, k, v = _of_head(inputs, place)
    keys = torch.arange(k.shape[0], device=q.device)
    distance = rows[:, None] + (k.shape[0] - q.shape[0]) - keys
    scores = (q[rows].double() @ k.double().T).float() / math.sqrt(q.shape[1])
    scores = scores.masked_fill(_hidden(inputs.problem.case.options, distance), -math.inf)
    maximum = torch.full((len(rows), 1), -math.inf, device=q.device)
    total = torch.zeros_like(maximum)
    out = torch.zeros((len(rows), v.shape[1]), device=q.device)
    for begin in range(0, len(keys), _KEY_TILE):
        part = scores[:, begin : begin + _KEY_TILE]
        raised = torch.maximum(maximum, part.amax(1, keepdim=True))
        base = raised.clamp_min(-1e30)  # of rows that have seen no key
        weights, rescale = torch.exp(part - base), torch.exp(maximum - base)
        total = total * rescale + weights.sum(1, keepdim=True)
        # float64: exact for products of the inputs' type, whatever the device makes of float32 matrix products
        product = weights.to(q.dtype).double() @ v[begin : begin + _KEY_TILE].double()
        out = out * rescale + product.float()
        maximum = raised
    return (out / total).to(q.dtype)


def _exact(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, place: tuple[int, int], seq_q: int) -> Tensor:
    case, tensors, (b, h) = inputs.problem.case, inputs.tensors, place
    options = case.options
    keys = torch.arange(k.shape[0], device=q.device)
    distance = rows[:, None] + (k.shape[0] - seq_q) - keys
    scores = q @ k.T / math.sqrt(case.head_dim[0])
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if "bias" in tensors:
        scores = scores + tensors["bias"][0, h, rows].double()
    if "alibi_slopes" in tensors:
        scores = scores - tensors["alibi_slopes"][h].double() * distance.abs()
    hidden = _hidden(options, distance)
    if "mask" in tensors:
        mask = tensors["mask"]
        hidden |= ~(mask[b, 0, rows] if mask.ndim == 4 else mask[b][None, :])
    if "block_mask" in tensors:
        blocks = tensors["block_mask"][0, 0]
        hidden |= ~blocks[rows[:, None] // reference.MASK_BLOCK, keys // reference.MASK_BLOCK]
    scores = scores.masked_fill(hidden, -math.inf)
    if "sinks" in tensors:
        sink = tensors["sinks"][h].double().expand(scores.shape[0], 1)
        weights = torch.cat([scores, sink], dim=1).softmax(-1)[:, :-1]
    else:
        weights = scores.softmax(-1).nan_to_num()  # a block mask may leave a row without keys
    if "dropout_p" in options:
        p = options["dropout_p"]
        head = b * case.heads[0] + h
        keep = reference.dropout_keep(p, options["seed"], 0, head, rows.cpu().numpy()[:, None], keys.cpu().numpy())
        weights = weights * torch.from_numpy(keep).to(weights.device) / (1 - p)
    return weights @ v
