"""What profiling/sanitize.py runs under each of compute-sanitizer's tools: small problems for every kernel and feature.

The problems of `flashcute check`, and beside them each head-dim bucket and type with each feature, in sizes just beyond
a few tiles. Results are compared with float64 here too.

Memory is `DeviceArray`'s, one cudaMalloc of exactly the bytes for each tensor and workspace. Frameworks cut tensors out
of large blocks instead, and what is read or written beyond a tensor is still inside of its block, where the tools see
nothing wrong. Outputs and workspaces are not initialised: initcheck tells what is read of them before it was written,
and which results were not written at all.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import flashcute
from flashcute import reference
from flashcute.cli.cases import Array, Case, Inputs, cases, draw
from flashcute.device_array import DeviceArray

_BUCKETS = (32, 64, 96, 128, 192, 256)
_TYPES = ("float16", "bfloat16")
# Lengths that no tensor has. Kernels clamp what they read from the device.
_WRONG = (-(2**31), -1, 2**31 - 1, 1000)


@dataclass(frozen=True)
class Problem:
    """A case, and what is done to its inputs once they are drawn. Without an oracle where `judged` is false."""

    case: Case
    change: Callable[[Inputs], None] | None = None
    judged: bool = True


@dataclass(frozen=True)
class Place:
    """Where problems run."""

    device: str
    backend: str  # as for flashcute.attention


@dataclass
class Account:
    """Of a whole run: how many problems ran, which kernels, what no kernel takes, what came out wrong."""

    problems: int
    ran: int = 0
    kernels: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def problems() -> list[Problem]:
    chosen = [Problem(case) for case in cases("cuda", quick=False) if not case.long]
    for dtype in _TYPES:
        for head_dim in (*((bucket, bucket) for bucket in _BUCKETS), (192, 128)):
            chosen += _of_bucket(dtype, head_dim)
    return [*chosen, *_of_edges()]


def _of_bucket(dtype: str, head_dim: tuple[int, int]) -> Iterator[Problem]:
    def case(*tensors: str, seq: tuple[int, int] = (70, 201), short: int = 0, **options: Any) -> Case:
        return Case(dtype, 2, (2, 1), seq, (head_dim[0] - short, head_dim[1] - short), options, tensors)

    yield Problem(case())
    yield Problem(case(causal=True, seq=(150, 190)))
    yield Problem(case(window=(40, 7)))
    yield Problem(case(window=(20, 30), alignment="top_left", seq=(190, 150)))
    yield Problem(case("mask", causal=True))
    yield Problem(case("seqused_k", layout="bshd"))
    yield Problem(case("cu_seqlens", layout="hsd", causal=True, seq=(170, 301)))
    yield Problem(case(short=3))  # rows at odd addresses, packed into the workspace
    yield Problem(case("cu_seqlens", layout="hsd", short=2, window=(50, 0), seq=(170, 301)))
    for tensors in (("alibi_slopes",), ()):  # the plain forms of class "any"
        yield Problem(case(*tensors, softcap=20.0))
    yield Problem(case("alibi_slopes", causal=True, seq=(150, 280)))
    yield Problem(case("sinks", "mask"))
    yield Problem(case("dense_mask", causal=True))
    yield Problem(case("block_mask", seq=(150, 300)))
    yield Problem(case(return_probs=True))
    yield Problem(case("mask", "bias", "alibi_slopes", "sinks", window=(100, 5), softcap=15.0, dropout_p=0.1, seed=99))
    for tensors, options in (((), {}), ((), {"causal": True}), (("sinks",), {})):  # a class each
        for change in (_late_peaks, _infinite_value):
            yield Problem(case(*tensors, seq=(150, 300), **options), change)


# Both make rows fail, which are then done a second time.


def _late_peaks(inputs: Inputs) -> None:
    """After the first tiles of keys. And a NaN, which must stay in the rows that see it."""
    inputs.k[..., 70:130, :] *= 200
    inputs.v[..., 201, 5] = np.nan


def _infinite_value(inputs: Inputs) -> None:
    inputs.v[..., 97, 3] = np.inf


def _of_edges() -> Iterator[Problem]:
    for dtype in _TYPES:
        for head_dim in (64, 256):
            for seq in ((0, 40), (40, 0), (1, 1), (129, 1), (1, 257)):
                yield Problem(Case(dtype, 1, (3, 1), seq, (head_dim, head_dim), {"causal": True}))
            yield Problem(Case(dtype, 0, (2, 2), (50, 50), (head_dim, head_dim)))
            for number, wrong in enumerate(_WRONG):
                packed = Case(dtype, 4, (2, 1), (90, 140), (head_dim, head_dim), {"layout": "hsd"}, ("cu_seqlens",))
                yield Problem(packed, _spoiler(f"cu_seqlens_{'qk'[number % 2]}", wrong), judged=False)
                used = Case(dtype, 2, (2, 1), (90, 140), (head_dim, head_dim), {"causal": True}, ("seqused_k",))
                yield Problem(used, _spoiler("seqused_k", wrong), judged=False)
        for band in ({}, {"causal": True}):  # many short sequences, for which there are tiles of their own
            yield Problem(Case(dtype, 34, (8, 8), (64, 150), (256, 256), band))


def _spoiler(name: str, wrong: int) -> Callable[[Inputs], None]:
    def spoil(inputs: Inputs) -> None:
        inputs.tensors[name][1] = wrong

    return spoil


# ---------------------------------------------------------------------------------------------------------------------
# Work


def run(problem: Problem, place: Place, random: np.random.Generator, account: Account) -> None:
    """With and without a log-sum-exp, for which kernels have loops of their own."""
    case = problem.case
    inputs = draw(case, random)
    if problem.change is not None:
        problem.change(inputs)
    for name in ("q", "k", "v"):
        setattr(inputs, name, reference.round_to(getattr(inputs, name), case.dtype))
    try:
        kernel, results = _launch(problem, inputs, place, with_lse=True)
        _, again = _launch(problem, inputs, place, with_lse=False)
    except flashcute.NotImplementedByKernelError as error:
        account.refused.append(f"{_text(case)}: {error}")
        return
    account.kernels.add(kernel)
    account.ran += 1
    if not problem.judged:
        return
    options = {**case.options, **inputs.tensors}
    probs = results.get("probs")
    verdict = reference.judge(
        results["out"], results["lse"], inputs.q, inputs.k, inputs.v, probs=probs, dtype=case.dtype, **options
    )
    if not verdict:
        account.wrong.append(f"{_text(case)}: {verdict.message}")
    elif not np.allclose(again["out"], results["out"], rtol=0.0, atol=2 * verdict.allowed, equal_nan=True):
        account.wrong.append(f"{_text(case)}: another result without a log-sum-exp")


def _launch(problem: Problem, inputs: Inputs, place: Place, *, with_lse: bool) -> tuple[str, dict[str, Array]]:
    """The kernel's name, and the results by name, of problems that are judged."""
    case = problem.case
    device = place.device
    q, k, v = (DeviceArray.from_numpy(x, device, case.dtype) for x in (inputs.q, inputs.k, inputs.v))
    tensors = {name: DeviceArray.from_numpy(x, device) for name, x in inputs.tensors.items()}
    results = {"out": DeviceArray((*inputs.q.shape[:-1], case.head_dim[1]), case.dtype, device)}
    desc = flashcute.AttentionDescriptor(
        q, k, v, out=results["out"], return_lse=with_lse, backend=place.backend, **case.options, **tensors
    )
    if with_lse:
        lead = inputs.q.shape[:-1]
        shape = (*lead[:-2], lead[-1], lead[-2]) if case.options.get("layout") == "bshd" else lead
        results["lse"] = DeviceArray(shape, "float32", device)
    if case.options.get("return_probs"):
        results["probs"] = DeviceArray((case.batch, case.heads[0], *case.seq), "float32", device)
    late: dict[str, Any] = {name: case.options[name] for name in ("seed",) if name in case.options}
    if desc.workspace_size:
        late["workspace"] = DeviceArray((desc.workspace_size,), "uint8", device)
    desc.run(q, k, v, **results, **tensors, **late)
    results["out"].synchronize()
    return str(desc.plan["kernel"]), {name: x.numpy() for name, x in results.items()} if problem.judged else {}


def merge(dtype: str, head_dim: int, device: str, random: np.random.Generator, account: Account) -> None:
    """merge_states, of partial results some of which are empty."""
    shape = (2, 3, 41, head_dim)
    outs = [reference.round_to(random.standard_normal(shape, dtype=np.float32), dtype) for _ in range(2)]
    lses = [random.standard_normal(shape[:-1], dtype=np.float32) for _ in range(2)]
    lses[0][..., ::5], lses[1][..., ::3] = -np.inf, np.inf
    arrays: list[DeviceArray] = []
    for out, lse in zip(outs, lses, strict=True):
        arrays += [DeviceArray.from_numpy(out, device, dtype), DeviceArray.from_numpy(lse, device)]
    merged, merged_lse = flashcute.merge_states(*arrays)
    account.ran += 1
    want, want_lse = _merged(outs, lses)
    with np.errstate(invalid="ignore"):  # empty ones are -inf on both sides
        close = np.abs(merged_lse.numpy() - want_lse) <= 1e-3
    fits = np.abs(merged.numpy() - want).max() <= 0.02 * np.abs(want).max()
    if not fits or not (close | (merged_lse.numpy() == want_lse)).all():
        account.wrong.append(f"merge_states of {shape} {dtype}: not what NumPy makes of it")


def _merged(outs: Sequence[Array], lses: Sequence[Array]) -> tuple[Array, Array]:
    exponents = [np.where(np.isinf(lse), -np.inf, lse).astype(np.float64) for lse in lses]
    with np.errstate(divide="ignore"):
        lse = np.logaddexp(*exponents)
    shares = [np.exp(x - np.where(np.isinf(lse), 0.0, lse))[..., None] for x in exponents]
    return shares[0] * outs[0] + shares[1] * outs[1], lse


def _bucket(case: Case) -> int:
    return next(bucket for bucket in (*_BUCKETS, 512) if bucket >= max(case.head_dim))


def _text(case: Case) -> str:
    return f"{case.shape_text()} {case.dtype} {case.feature_text()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--backend", default="auto", help="a family of kernels, such as sm80")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="only every Nth problem")
    parser.add_argument("--account", required=True, help="a JSON file for what ran and what came of it")
    parser.add_argument("--buckets", type=int, nargs="+", choices=_BUCKETS, default=_BUCKETS, help="of head dims")
    arguments = parser.parse_args(argv)
    chosen = [problem for problem in problems() if _bucket(problem.case) in arguments.buckets][:: arguments.every]
    merges = [(dtype, head_dim) for dtype in _TYPES for head_dim in (64, 100)]
    account = Account(len(chosen) + len(merges))
    for number, problem in enumerate(chosen):
        run(
            problem,
            Place(arguments.device, arguments.backend),
            np.random.default_rng([arguments.seed, number]),
            account,
        )
    for dtype, head_dim in merges:
        merge(dtype, head_dim, arguments.device, np.random.default_rng([arguments.seed, head_dim]), account)
    text = json.dumps({**vars(account), "kernels": sorted(account.kernels)}, indent=1)
    pathlib.Path(arguments.account).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
