"""What a run measured, as plain data: rows that know their run, so that no ratio mixes two."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1  # of the saved JSON
_TIMES = ("replay", "eager", "sustained")  # fields of Row
UNITS = {"forward": "FLOP/s", "varlen": "FLOP/s", "features": "FLOP/s", "decode": "B/s", "memory": "B", "host": "s"}


class DifferentRunsError(ValueError):
    """A ratio was asked of times that were not taken in turns."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, over the rounds of a run."""

    median: float
    best: float
    low: float  # a tenth of the rounds were faster
    high: float  # a tenth were slower
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        ordered = sorted(seconds)
        tenth = (len(ordered) - 1) / 10
        return cls(
            statistics.median(ordered), ordered[0], ordered[round(tenth)], ordered[round(9 * tenth)], len(ordered)
        )

    @property
    def spread(self) -> float:
        """Half the width of the middle four fifths, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True)
class Row:
    """One library on one problem."""

    run: str  # the run's id
    problem: dict[str, Any]  # dtype, batch, heads, seq, head_dim, features, and "x", its place on the axis of plots
    library: str
    status: str  # "ok", "wrong" or "no"
    reason: str = ""  # unless ok
    kernel: str = ""
    work: float = 0.0  # FLOP, or bytes where the run's unit is GB/s
    replay: Times | None = None  # of a CUDA graph
    eager: Times | None = None
    sustained: Times | None = None  # under load, without pauses
    megahertz: float | None = None  # of the multiprocessors under that load, and the power that the card drew
    watts: float | None = None
    error: float | None = None  # the largest against float64
    rms_error: float | None = None  # root mean square, against float64
    textbook_rms: float | None = None  # that of online softmax in the same type, without shortcuts
    peak_bytes: float | None = None
    roofline_seconds: float | None = None  # by the instructions of flashcute's kernel
    device_roofline_seconds: float | None = None  # by any; None in runs saved before it was kept

    @property
    def times(self) -> Times | None:
        """By which speed is judged: under load where that was asked for, otherwise replays where there are any."""
        return self.sustained or self.replay or self.eager

    @property
    def rate(self) -> float | None:
        """Work a second."""
        return self.work / self.times.median if self.status == "ok" and self.times else None


@dataclass
class Run:
    """Everything measured in one go, in one process, on one device."""

    id: str
    mode: str
    started: str  # UTC, ISO 8601
    device: str
    device_name: str
    host: str
    versions: dict[str, str]
    unit: str  # "FLOP/s", "B/s", "B" (memory) or "s" (host)
    conditions: dict[str, Any]
    reference: dict[str, float] = field(default_factory=dict)  # name to rate: the matrix product, a copy
    rows: list[Row] = field(default_factory=list)

    def problems(self) -> list[tuple[dict[str, Any], list[Row]]]:
        """The rows of each problem, in the order in which they were measured."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(json.dumps(row.problem, sort_keys=True), []).append(row)
        return [(rows[0].problem, rows) for rows in groups.values()]

    def libraries(self) -> list[str]:
        return list(dict.fromkeys(row.library for row in self.rows))

    def as_json(self) -> dict[str, Any]:
        return {"flashcute_bench": FORMAT, **asdict(self)}

    def save(self, path: pathlib.Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")


def speed_ratio(ours: Row, theirs: Row, *, eager: bool = False) -> float | None:
    """How many times as fast `ours` is, None where one of the two has no such time.

    Raises DifferentRunsError unless both are of one problem and one run: from run to run, clocks, heat and neighbours
    differ.
    """
    if ours.run != theirs.run:
        raise DifferentRunsError(
            f"speed_ratio(theirs): expected a row of the run {ours.run}, whose times were taken in turns, given one of "
            f"the run {theirs.run}"
        )
    if ours.problem != theirs.problem:
        raise DifferentRunsError("speed_ratio(theirs): expected a row of the same problem, given one of another")
    a, b = (row.eager if eager else row.times for row in (ours, theirs))
    same_clock = eager or all(
        (getattr(ours, x) is None) == (getattr(theirs, x) is None) for x in ("sustained", "replay")
    )
    if a is None or b is None or not same_clock or ours.status != "ok" or theirs.status != "ok":
        return None
    return b.median / a.median


def best_peer(rows: Iterable[Row]) -> Row | None:
    """The fastest row that is not flashcute's own."""
    others = [row for row in rows if row.library != "flashcute" and row.rate is not None]
    return max(others, key=lambda row: row.rate or 0.0, default=None)


def load(path: pathlib.Path) -> Run:
    """A run saved by Run.save. Raises ValueError with one sentence where the file is something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.pop("flashcute_bench")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"expected a run saved by `flashcute bench --output`, given {path}") from None
    if version != FORMAT:
        raise ValueError(
            f"expected a run of format {FORMAT}, given {path} of format {version}, which another version saved"
        )
    try:
        rows = [
            Row(**{**row, **{k: Times(**row[k]) for k in _TIMES if row.get(k) is not None}}) for row in data.pop("rows")
        ]
        run = Run(**data, rows=rows)
        if _is_whole(run):
            return run
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    raise ValueError(f"expected a run as `flashcute bench --output` saved it, given {path}, which was altered or cut")


def _is_whole(run: Run) -> bool:
    """Whether tables and plots can be made of it."""
    texts = [run.id, run.mode, run.started, run.device, run.device_name, *run.versions, *run.versions.values()]
    numbers = [*run.reference.values()]
    for row in run.rows:
        texts += [row.library, row.reason, *(row.problem[key] for key in ("dtype", "panel", "label"))]
        numbers += [row.problem["x"], row.problem["batch"], *row.problem["seq"]] if run.mode != "host" else []
        numbers += [row.work, *(asdict(row.times).values() if row.times else ())]
        numbers += [x for x in (row.peak_bytes, row.roofline_seconds, row.device_roofline_seconds) if x is not None]
        if row.run != run.id or row.status not in ("ok", "wrong", "no"):
            return False
        if row.status == "ok" and (row.peak_bytes if run.unit == "B" else row.times) is None:
            return False
    return (
        UNITS.get(run.mode) == run.unit
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(number, (int, float)) for number in numbers)
    )
