"""Whether a result may be timed at all: a sample of its rows against float64, whoever computed it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashcute import reference
from flashcute.bench.problems import Inputs
from flashcute.cli.cases import lengths as member_lengths

# The largest difference of a right result from float64, for inputs N(0, 1): a few roundings of the type.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}

_ROWS = 64


def worst_error(inputs: Inputs, out: Tensor) -> float:
    """The largest difference over random rows of a few heads; NaN where the result has one."""
    case = inputs.problem.case
    generator = torch.Generator().manual_seed(0)
    heads = case.heads[0]
    bounds = inputs.lengths.get("cu_seqlens_q")
    worst = 0.0
    for b, h in {(0, 0), (case.batch - 1, heads - 1), (case.batch // 2, heads // 3)}:
        seq_q, _ = member_lengths(case, inputs.lengths)[b]
        rows = torch.randint(seq_q, (min(_ROWS, seq_q),), generator=generator).to(out.device)
        g = h // (heads // case.heads[1])
        if bounds is not None:
            own = slice(int(bounds[b]), int(bounds[b + 1]))
            q, k, v, got = inputs.q[own, h], inputs.k[own, g], inputs.v[own, g], out[own, h]
        else:
            q, k, v, got = inputs.q[b, h], inputs.k[b, g], inputs.v[b, g], out[b, h]
        exact = _exact(inputs, q[rows].double(), k.double(), v.double(), rows, (b, h), seq_q)
        error = (exact - got[rows].double()).abs().max().item()
        worst = error if math.isnan(error) else max(worst, error)
        if math.isnan(worst):
            break
    return worst


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
    left, right = options.get("window", (-1, -1))
    if options.get("causal"):
        right = 0
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= -distance > right
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
