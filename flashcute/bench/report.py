"""A run as a table in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from flashcute.bench.record import Row, Run, best_peer, speed_ratio
from flashcute.cli import screen

_AIMS = {"flashcute.attention": 10e-6, "AttentionDescriptor.run, out given": 3e-6}  # seconds of a call, mode host

_TERA, _GIGA = 1e12, 1e9


def show(to: Console, run: Run, absent: list[str] | None = None) -> None:
    """`absent`: sentences on libraries that were looked for and not found."""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    screen.say(to, f"{run.mode} on {run.device} ({run.device_name}), {run.started}, run {run.id}", "bold")
    screen.say(to, versions, "dim")
    to.print()
    if run.mode == "host":
        _show_host(to, run)
        return
    if run.unit == "B":
        _show_memory(to, run)
    else:
        _show_speed(to, run)
    for sentence in _remarks(run) + (absent or []):
        screen.say(to, sentence, "dim")


def _show_speed(to: Console, run: Run) -> None:
    rates = [row.rate for row in run.rows if row.rate]
    scale, unit = (_GIGA, "GB/s") if run.unit == "B/s" else (_TERA, "TFLOP/s")
    if run.unit == "FLOP/s" and rates and max(rates) < _TERA:
        scale, unit = _GIGA, "GFLOP/s"
    libraries = run.libraries()
    replayed = any(row.replay for row in run.rows)
    headings = ["problem", run.mode if run.mode == "features" else "length", *libraries, "to the best peer"]
    if replayed:
        headings.append("eager")
    rows = []
    for problem, measured in run.problems():
        by_library = {row.library: row for row in measured}
        ours, peer = by_library.get("flashcute"), best_peer(measured)
        cells = [problem["panel"], problem["label"] or str(problem["x"])]
        cells += [_rate_text(by_library.get(library), scale) for library in libraries]
        cells.append(_ratio_text(ours, peer, eager=False))
        if replayed:
            cells.append(_ratio_text(ours, peer, eager=True))
        rows.append(cells)
    to.print(_table(to, headings, rows))
    timed = "replays of a CUDA graph, and the ratio of eager calls beside" if replayed else "calls"
    rounds = {row.times.rounds for row in run.rows if row.times}
    counts = "-".join(str(n) for n in sorted({min(rounds), max(rounds)})) if rounds else "0"
    screen.say(
        to,
        f"{unit}, medians of {counts} rounds in turns, ± half the width of the middle four fifths; {timed}. "
        "Ratios are speeds, of this run alone.",
        "dim",
    )
    if any(row.megahertz for row in run.rows):
        screen.say(to, "Under load: each library without a pause in turns, then its clock and the card's power.", "dim")
    if any(row.problem.get("data", "normal") != "normal" for row in run.rows):
        _show_errors(to, run)
    for name, rate in run.reference.items():
        what = {"copy": "a copy (read and written)", "read": "a sum (read)"}.get(name, f"the matrix {name}")
        screen.say(to, f"In the same run, {what}: {screen.with_prefix(rate, run.unit)}", "dim")


def _show_errors(to: Console, run: Run) -> None:
    """Root mean square errors beside the textbook's."""
    libraries, rows = run.libraries(), []
    for problem, measured in run.problems():
        by_library = {row.library: row for row in measured}
        textbook = measured[0].textbook_rms
        cells = [problem["panel"], problem["label"] or str(problem["x"])]
        for library in libraries:
            error = by_library[library].rms_error if library in by_library else None
            cells.append(f"{error / textbook:.2f}" if error is not None and textbook else "-")
        cells.append(f"{textbook:.2e}" if textbook else "-")
        rows.append(cells)
    to.print(_table(to, ["problem", "length", *libraries, "textbook"], rows))
    screen.say(
        to,
        "Root mean square errors against float64, as multiples of those of online softmax with weights of the same "
        "type, whose own stand in the last column.",
        "dim",
    )


def _table(to: Console, headings: list[str], rows: list[list[str]]) -> Table:
    """Where the console is narrow the problems are folded, before a column is left out."""
    if not screen.fits(to, headings, rows):
        rows = [[row[0].replace(", ", ",\n"), *row[1:]] for row in rows]
    return screen.table(to, headings, rows)


def _rate_text(row: Row | None, scale: float) -> str:
    if row is None or row.status == "no":
        return "-"
    if row.status == "wrong":
        return "WRONG"
    assert row.rate is not None and row.times is not None
    rate = row.rate / scale
    shown = f"{rate:.0f}" if rate >= 999.5 else f"{rate:#.3g}".rstrip(".")
    load = f" {row.megahertz:.0f} MHz {row.watts:.0f} W" if row.megahertz and row.watts else ""
    return f"{shown} ±{row.times.spread:.0%}{load}"


def _ratio_text(ours: Row | None, theirs: Row | None, *, eager: bool) -> str:
    if ours is None or theirs is None:
        return ""
    ratio = speed_ratio(ours, theirs, eager=eager)
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if eager else f"{ratio:.2f} {theirs.library}"


def _show_memory(to: Console, run: Run) -> None:
    libraries = run.libraries()
    rows = []
    for problem, measured in run.problems():
        by_library = {row.library: row for row in measured}
        cells = [problem["panel"], str(problem["x"])]
        for library in libraries:
            peak = by_library[library].peak_bytes
            cells.append("-" if peak is None else f"{peak / 2**20:.1f}")
        rows.append(cells)
    to.print(_table(to, ["problem", "length", *(f"{library}, MiB" for library in libraries)], rows))
    what = "resident memory" if run.device == "cpu" else "memory of PyTorch's allocator"
    screen.say(to, f"Peak {what} above that of the inputs, the result included.", "dim")


def _show_host(to: Console, run: Run) -> None:
    rows = []
    for row in run.rows:
        assert row.eager is not None
        aim = _AIMS.get(row.library) if run.device != "cpu" else None
        cells = (f"{row.eager.median * 1e6:.2f}", f"{row.eager.best * 1e6:.2f}", f"{aim * 1e6:g}" if aim else "")
        rows.append((row.library, *cells))
    to.print(screen.table(to, ("call", "median µs", "best µs", "at most µs"), rows))


def _remarks(run: Run) -> list[str]:
    """Why cells are empty: one line for each library, each reason once."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in run.rows:
        if row.reason:
            place = row.problem["label"] or f"{row.problem['panel']}, {row.problem['x']}"
            reasons.setdefault(row.library, {}).setdefault(row.reason, []).append(place)
    sentences = []
    for library, by_reason in reasons.items():
        clauses = [f"{reason} ({_some(places)})" for reason, places in by_reason.items()]
        sentences.append(f"{library}: {'; '.join(clauses)}")
    return sentences


def _some(places: list[str]) -> str:
    return ", ".join(places) if len(places) <= 3 else f"{places[0]} and {len(places) - 1} more"
