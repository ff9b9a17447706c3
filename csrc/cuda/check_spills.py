"""Holds the compiled kernels to what variants.cmake promises: reads the build's log, which `-Xptxas -v` fills.

    python csrc/cuda/check_spills.py BUILD_LOG

Exits with 1 if ptxas serialised WGMMA instructions anywhere, spilled registers in a kernel marked spill_free, or said
nothing about a kernel of the list.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

VARIANTS = Path(__file__).with_name("variants.cmake")
MASK_CLASSES = ("any", "full", "banded")  # in the order of core/kernel.h
TILE_KINDS = ("", "_small", "_short", "_v128")  # likewise
DTYPES = {"half_t": "float16", "bfloat16_t": "bfloat16"}

VARIANT = re.compile(r'"(sm\d+) (\d+) (\w+) (\w+) (spill_free|may_spill)( small| short| v128)?"')
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
CONFIG = re.compile(
    r"cuda\d+?(sm\d\d)\d+\w*?ConfigIN7cutlass\d+(half_t|bfloat16_t)ELi(\d+)ELNS_9MaskClassE(\d)ELNS_8TileKindE(\d)"
)
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
SERIALISED = re.compile(r"\bC75\d\d\b|wgmma.*serializ", re.IGNORECASE)  # ptxas advisories C7510, C7511, C7515 ...


def promises() -> dict[str, bool]:
    """Variant name to whether it must not spill."""
    found = VARIANT.findall(VARIANTS.read_text())
    return {
        f"{family}_hd{dim}_{dtype}_{mask}{kind.replace(' ', '_')}": mark == "spill_free"
        for family, dim, dtype, mask, mark, kind in found
    }


def variant_name(symbol: str) -> str | None:
    """The name of a mangled attention kernel, None for every other kernel."""
    match = CONFIG.search(symbol)
    if match is None:
        return None
    family, dtype, head_dim, mask, kind = match.groups()
    return f"{family}_hd{head_dim}_{DTYPES[dtype]}_{MASK_CLASSES[int(mask)]}{TILE_KINDS[int(kind)]}"


def spills(lines: list[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """(kernel, architecture) to bytes of spill stores and loads."""
    result = {}
    current = None
    for line in lines:
        if entry := ENTRY.search(line):
            name = variant_name(entry[1])
            current = (name, entry[2]) if name else None
        elif current and (bytes_ := SPILLS.search(line)):
            result[current] = (int(bytes_[1]), int(bytes_[2]))
            current = None
    return result


def main() -> int:
    lines = Path(sys.argv[1]).read_text(errors="replace").splitlines()
    spilled = spills(lines)
    problems = [line.strip() for line in lines if SERIALISED.search(line)]
    for name, must_not_spill in promises().items():
        reports = {arch: sizes for (kernel, arch), sizes in spilled.items() if kernel == name}
        if not reports:
            problems.append(f"{name}: the log says nothing about it")
        for arch, (stores, loads) in sorted(reports.items()):
            if stores or loads:
                sentence = f"{name} on {arch}: {stores} bytes of spill stores, {loads} of loads"
                if must_not_spill:
                    problems.append(sentence)
                else:
                    print(f"allowed: {sentence}")
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"{len(promises())} kernels, {len(problems)} broken promises")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
