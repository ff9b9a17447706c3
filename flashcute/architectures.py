"""GPUs that can be planned for, and judged by their roofline, without having one.

Figures are the makers', for the card that a name stands for. Tensor throughput counts dense products of float16 or
bfloat16 with float32 accumulators.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ._core import add_architecture

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture", "tensor_flop_per_clock"]

_KIB, _MIB = 1 << 10, 1 << 20

# Of one multiprocessor: (tensor cores' own instructions, mma.sync). Hopper's full rate belongs to WGMMA; its mma.sync
# takes 6.1 cycles where 4 would be that rate (docs/perf-log.md).
_TENSOR_FLOP_PER_CLOCK = {80: (2048, 2048), 86: (1024, 1024), 89: (1024, 1024), 90: (4096, 2686)}

EXP_PER_CLOCK = 16  # exponentials of one multiprocessor, on every capability from 8.0 to 9.0


def tensor_flop_per_clock(capability: int, family: str = "") -> int | None:
    """Floating-point operations of one multiprocessor in a clock, None where that is not known.

    `family`: of the kernel. sm80 kernels use mma.sync everywhere.
    """
    known = _TENSOR_FLOP_PER_CLOCK.get(capability)
    return known and known[1 if family == "sm80" else 0]


@dataclass(frozen=True)
class Architecture:
    """One card."""

    key: str
    name: str
    capability: int  # 10 * major + minor
    multiprocessors: int
    shared_memory_per_block: int  # bytes, the opt-in limit
    shared_memory_per_multiprocessor: int  # bytes
    l2_bytes: int
    clock_mhz: int  # at which the maker gives the card's tensor throughput
    memory_bytes_per_second: float

    @functools.cache  # noqa: B019 - the few instances live as long as the process
    def device_id(self) -> int:
        """The library's number for a device that plans as this card would."""
        return add_architecture(
            self.name,
            self.capability,
            self.multiprocessors,
            self.shared_memory_per_block,
            self.shared_memory_per_multiprocessor,
            self.l2_bytes,
        )


ARCHITECTURES = {
    card.key: card
    for card in (
        Architecture("a100", "NVIDIA A100 80GB SXM", 80, 108, 163 * _KIB, 164 * _KIB, 40 * _MIB, 1410, 2.039e12),
        Architecture("a10", "NVIDIA A10", 86, 72, 99 * _KIB, 100 * _KIB, 6 * _MIB, 1695, 0.600e12),
        Architecture("l40s", "NVIDIA L40S", 89, 142, 99 * _KIB, 100 * _KIB, 96 * _MIB, 2520, 0.864e12),
        Architecture("h100", "NVIDIA H100 80GB SXM", 90, 132, 227 * _KIB, 228 * _KIB, 50 * _MIB, 1830, 3.352e12),
        Architecture("h200", "NVIDIA H200 141GB SXM", 90, 132, 227 * _KIB, 228 * _KIB, 50 * _MIB, 1830, 4.8e12),
    )
}

_BY_CAPABILITY = {"sm_80": "a100", "sm_86": "a10", "sm_89": "l40s", "sm_90": "h100", "sm_90a": "h100"}


def find_architecture(name: str) -> Architecture | None:
    """The card called "h100", or that stands for "sm_90" or "sm90"; None where the name is none of these."""
    key = name.lower().replace("-", "_")
    if key.startswith("sm") and not key.startswith("sm_"):
        key = f"sm_{key[2:]}"
    return ARCHITECTURES.get(_BY_CAPABILITY.get(key, key))
