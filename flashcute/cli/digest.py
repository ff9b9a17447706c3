"""What a report of Nsight Compute says about a kernel, in a dozen lines, and beside another report."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from flashcute.cli import screen

_NOT_METRICS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Device", "CC")
_STALL = re.compile(r"smsp__average_warps?_issue_stalled_(?!.*not_issued)(\w+?)_per_issue_active\.ratio")
_MOST_STALLS = 7


@dataclass(frozen=True)
class Report:
    """The first kernel of a report's raw page: values in base units, by metric name."""

    source: str
    kernel: str
    device: str  # its compute capability
    metrics: dict[str, float]
    units: dict[str, str]
    expected: dict[str, Any] | None = None  # what `explain` said about the problem, where that is known


def parse(text: str, source: str) -> Report:
    """Reads what `ncu --csv --page raw --print-units base` prints. Raises ValueError where that is no such page."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)  # after whatever ncu remarks
    rows = list(csv.reader(io.StringIO("\n".join(lines[start:])))) if start is not None else []
    if len(rows) < 3 or len(rows[0]) != len(rows[2]):
        raise ValueError(f"expected the raw page of an ncu report with a kernel in it, given {source}")
    names, unit_row, values = rows[:3]
    facts = dict(zip(names, values, strict=True))
    metrics, units = {}, {}
    for name, unit, value in zip(names, unit_row, values, strict=True):
        if name in _NOT_METRICS:
            continue
        try:
            metrics[name] = float(value.replace(",", ""))
        except ValueError:
            continue
        units[name] = unit
    return Report(source, facts.get("Kernel Name", "unknown"), facts.get("CC", ""), metrics, units)


@dataclass(frozen=True)
class Quantity:
    """A line of the digest: the largest of the metrics that match the first pattern that has any."""

    key: str
    label: str
    patterns: tuple[str, ...]
    show: Callable[[float], str]

    def of(self, report: Report) -> float | None:
        for pattern in self.patterns:
            found = [value for name, value in report.metrics.items() if re.fullmatch(pattern, name)]
            if found:
                return max(found)
        return None


def _percent(value: float) -> str:
    return f"{value:.1f}%"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return screen.with_prefix(value, "B/s")


_ACTIVE, _ELAPSED = r"\.avg\.pct_of_peak_sustained_active", r"\.avg\.pct_of_peak_sustained_elapsed"


def _pipe(name: str) -> tuple[str, str]:
    """Cycles, which count an instruction of several cycles in full, before mere instructions."""
    return rf"sm__pipe_{name}\w*cycles_active{_ACTIVE}", rf"sm__inst_executed_pipe_{name}\w*{_ACTIVE}"


def _shared(name: str) -> tuple[str, str]:
    return rf"l1tex__data_{name}_mem_shared\.sum", rf"l1tex__data_{name}_mem_shared_op_\w+\.sum"


_CLOCK = tuple(rf"{unit}__cycles_elapsed\.avg\.per_second" for unit in ("smsp", "sm", "gpc"))
_ISSUE = (rf"sm__inst_issued{_ACTIVE}", rf"smsp__issue_active{_ACTIVE}", r"smsp__issue_active\.avg\.pct")
_DRAM = (rf"dram__throughput{_ELAPSED}", rf"gpu__dram_throughput{_ELAPSED}")

QUANTITIES = (
    Quantity("duration", "duration", (r"gpu__time_duration\.(sum|avg|max)",), lambda ns: screen.time_text(ns * 1e-9)),
    Quantity("clock", "SM clock", _CLOCK, lambda hertz: f"{hertz * 1e-6:.0f} MHz"),
    Quantity("tensor", "tensor pipe", _pipe("tensor"), _percent),
    Quantity("mufu", "MUFU (exponentials)", _pipe("xu"), _percent),
    Quantity("fma", "FMA pipe", _pipe("fma"), _percent),
    Quantity("alu", "ALU pipe", _pipe("alu"), _percent),
    Quantity("issue", "issue slots", _ISSUE, _percent),
    Quantity("dram", "DRAM throughput", (r"dram__bytes\.sum\.per_second",), _rate),
    Quantity("dram_percent", "DRAM, of its peak", _DRAM, _percent),
    Quantity("l2_percent", "L2, of its peak", (rf"lts__throughput{_ELAPSED}",), _percent),
    Quantity("l2_hits", "L2 hit rate", (r"lts__t_sector_hit_rate\.pct",), _percent),
    Quantity("l1_percent", "L1 and shared memory, of its peak", (rf"l1tex__throughput{_ACTIVE}",), _percent),
    Quantity("conflicts", "shared-memory bank conflicts", _shared("bank_conflicts_pipe_lsu"), _count),
    Quantity("wavefronts", "shared-memory wavefronts", _shared("pipe_lsu_wavefronts"), _count),
    Quantity("occupancy", "warps active, of all", (rf"sm__warps_active{_ACTIVE}",), _percent),
    Quantity("registers", "registers a thread", (r"launch__registers_per_thread",), _count),
    Quantity("waves", "waves", (r"launch__waves_per_multiprocessor",), lambda value: f"{value:.2f}"),
)


def stalls(report: Report) -> dict[str, float]:
    """Warps that wait for each reason while one instruction is issued, the largest first."""
    found = {}
    for name, value in report.metrics.items():
        match = _STALL.fullmatch(name)
        if match and match[1] != "selected":
            found[match[1]] = value
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def as_json(report: Report) -> dict[str, Any]:
    """The digest; None for what the report does not hold."""
    values = {quantity.key: quantity.of(report) for quantity in QUANTITIES}
    values["duration"] = None if values["duration"] is None else values["duration"] * 1e-9
    return {
        "source": report.source,
        "kernel": report.kernel,
        "capability": report.device,
        **values,
        "stalls": stalls(report),
        "expected": report.expected,
        "of_roofline": of_roofline(report),
    }


def of_roofline(report: Report) -> float | None:
    """The roofline's time as a part of the kernel's."""
    bound = (report.expected or {}).get("roofline", {}).get("seconds")
    duration = QUANTITIES[0].of(report)
    return bound / (duration * 1e-9) if bound and duration else None


def show(to: Console, reports: Sequence[Report]) -> None:
    """One report, or two side by side with the change from the first to the second."""
    for report in reports:
        screen.say(to, f"{report.source}: {_short(report.kernel)}, capability {report.device}", "bold")
    to.print()
    two = len(reports) == 2
    headings = ["", *(["before", "after", "change"] if two else ["value"])]
    rows = []
    for quantity in QUANTITIES:
        values = [quantity.of(report) for report in reports]
        if any(value is not None for value in values):
            rows.append(_cells(quantity.label, values, quantity.show))
    named = [stalls(report) for report in reports]
    for reason in list(named[-1])[:_MOST_STALLS]:
        values = [found.get(reason) for found in named]
        rows.append(_cells(f"stall: {reason.replace('_', ' ')}", values, lambda value: f"{value:.2f}"))
    fractions = [of_roofline(report) for report in reports]
    if any(fraction is not None for fraction in fractions):
        rows.append(_cells("of the roofline", [f and 100 * f for f in fractions], _percent))
    to.print(screen.table(to, headings, rows))
    screen.say(
        to,
        "Pipes and issue: of the peak while the multiprocessors are active. A stall: warps of a scheduler that wait "
        "for that reason while one instruction is issued.",
        "dim",
    )
    _show_expected(to, reports[-1])


def _cells(label: str, values: Sequence[float | None], show: Callable[[float], str]) -> list[str]:
    cells = [label, *("-" if value is None else show(value) for value in values)]
    if len(values) == 2:
        before, after = values
        cells.append(f"{after / before - 1:+.1%}" if before and after is not None else "")
    return cells


def _show_expected(to: Console, report: Report) -> None:
    roofline = (report.expected or {}).get("roofline")
    if not roofline or not roofline["bounds"]:
        return
    to.print()
    screen.say(to, "Roofline", "bold")
    duration = QUANTITIES[0].of(report)
    rows = []
    for bound in roofline["bounds"]:
        part = f"{bound['seconds'] / (duration * 1e-9):.1%} of the duration" if duration else ""
        needed = screen.with_prefix(bound["amount"], bound["unit"])
        rows.append((bound["name"], needed, screen.time_text(bound["seconds"]), part))
    to.print(screen.table(to, ("resource", "needed", "time at its peak", ""), rows))


def _short(kernel: str) -> str:
    """Without the template arguments of CuTe, which fill screens."""
    return kernel if len(kernel) <= 100 else kernel[:97] + "..."
