"""What a problem costs at the least: its operations, bytes and exponentials, and the time they take on a device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcute.architectures import EXP_PER_CLOCK, Architecture, tensor_flop_per_clock
from flashcute.cli.cases import Array, Case, blocks, rows_of_q, seen_keys, visible_pairs, work
from flashcute.descriptors import DTYPE_SIZES

_INDEX_BYTES = 4


@dataclass(frozen=True)
class Bound:
    """One resource. `seconds` is what the problem needs of it alone."""

    name: str
    amount: float
    unit: str
    per_second: float

    @property
    def seconds(self) -> float:
        return self.amount / self.per_second


@dataclass(frozen=True)
class Machine:
    """A device by its peak rates, None where one is not known."""

    name: str
    where_from: str
    flop_per_second: float | None
    family_flop_per_second: float | None  # what the kernel's own instructions reach, where that is less
    exp_per_second: float | None
    bytes_per_second: float | None


@dataclass(frozen=True)
class Roofline:
    flop: float
    exps: float
    bytes: float
    bounds: tuple[Bound, ...]

    @property
    def bound(self) -> Bound | None:
        """The resource that takes longest."""
        return max(self.bounds, key=lambda bound: bound.seconds, default=None)

    def as_json(self) -> dict[str, Any]:
        bound = self.bound
        return {
            "flop": self.flop,
            "exponentials": self.exps,
            "bytes": self.bytes,
            "bounds": [
                {
                    "name": each.name,
                    "amount": each.amount,
                    "unit": each.unit,
                    "per_second": each.per_second,
                    "seconds": each.seconds,
                }
                for each in self.bounds
            ],
            "bound": bound.name if bound else None,
            "seconds": bound.seconds if bound else None,
            "tflops": self.flop / bound.seconds / 1e12 if bound and bound.seconds else None,
        }


def compulsory_bytes(case: Case, tensors: dict[str, Array], *, lse: bool = False) -> float:
    """Bytes that must cross the memory bus once: q, the keys and values that are seen, out and optional tensors."""
    size = DTYPE_SIZES[case.dtype]
    heads_q, heads_k = case.heads
    rows, seen = rows_of_q(case, tensors), seen_keys(case, tensors)
    total = float(size * sum(case.head_dim) * (heads_q * rows + heads_k * seen))
    pairs = visible_pairs(case, tensors)
    if lse:
        total += 4.0 * heads_q * rows
    if case.options.get("return_probs"):
        total += 4.0 * heads_q * case.batch * case.seq[0] * case.seq[1]
    for name in case.tensors:
        total += {
            "mask": float(seen),
            "dense_mask": float(pairs),
            "block_mask": float(heads_q * case.batch * blocks(case.seq[0]) * blocks(case.seq[1])),
            "bias": 4.0 * heads_q * pairs / max(case.batch, 1),  # broadcast over the batch
            "alibi_slopes": 4.0 * heads_q,
            "sinks": 4.0 * heads_q,
            "seqused_k": float(_INDEX_BYTES * case.batch),
            "cu_seqlens": float(2 * _INDEX_BYTES * (case.batch + 1)),
        }[name]
    return total


def roofline(case: Case, tensors: dict[str, Array], machine: Machine, *, lse: bool = False) -> Roofline:
    flop = work(case, tensors)
    exps = float(case.heads[0] * visible_pairs(case, tensors))
    moved = compulsory_bytes(case, tensors, lse=lse)
    rates = (
        ("tensor cores" if machine.exp_per_second else "products", flop, "FLOP", machine.flop_per_second),
        ("tensor cores by mma.sync", flop, "FLOP", machine.family_flop_per_second),
        ("exponentials", exps, "exp", machine.exp_per_second),
        ("memory", moved, "B", machine.bytes_per_second),
    )
    bounds = tuple(Bound(name, amount, unit, rate) for name, amount, unit, rate in rates if rate)
    return Roofline(flop, exps, moved, bounds)


def _gpu(
    name: str, where_from: str, capability: int, multiprocessors: int, clock: float, bandwidth: float, family: str
) -> Machine:
    flop, own = tensor_flop_per_clock(capability), tensor_flop_per_clock(capability, family)
    return Machine(
        name,
        where_from,
        flop * multiprocessors * clock if flop else None,
        own * multiprocessors * clock if own and own != flop else None,
        EXP_PER_CLOCK * multiprocessors * clock if flop else None,
        bandwidth or None,
    )


def named_gpu(card: Architecture, family: str = "") -> Machine:
    where_from = f"the maker's figures for {card.name}, at {card.clock_mhz} MHz"
    clock = card.clock_mhz * 1e6
    return _gpu(
        card.name, where_from, card.capability, card.multiprocessors, clock, card.memory_bytes_per_second, family
    )


def present_gpu(device: dict[str, Any], family: str = "") -> Machine:
    """From what flashcute.cli.info tells of a device of this machine."""
    clock = device["clock_khz"] * 1e3
    capability = int(device["capability"].replace(".", ""))
    return _gpu(
        device["name"],
        f"the device's own account, at its highest clock of {clock / 1e6:.0f} MHz",
        capability,
        device["multiprocessors"],
        clock,
        float(device["memory_bytes_per_second"]),
        family,
    )


def this_cpu(dtype: str, isa: str) -> Machine:
    """Measured here, in a quarter of a second: NumPy's float32 product, and reading more than the caches hold."""
    a = np.ones((1024, 1024), dtype=np.float32)
    flop = 2.0 * 1024**3 / _best(lambda: a @ a)
    many = np.ones(1 << 26, dtype=np.uint8).view(np.uint64)
    read = many.nbytes / _best(lambda: many.max())
    doubled = dtype == "bfloat16" and isa == "avx512_bf16"
    where_from = "measured here: NumPy's float32 product" + (", twice that for bfloat16" if doubled else "")
    return Machine("CPU", f"{where_from}, and reading memory by one thread", flop * (1 + doubled), None, None, read)


def _best(call: Any, runs: int = 4) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
