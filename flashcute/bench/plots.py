"""PNG plots of a run: one panel for each dtype, head dim and mask, one line for each library, the roofline drawn in."""

from __future__ import annotations

import pathlib
from typing import Any

from flashcute.bench.record import Row, Run

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_ROOFLINE, _REFERENCE = "#000000", "#777777"
_SCALE = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s"), "B": (2.0**20, "MiB")}
_LENGTHS = {"varlen": "length of the longest member", "decode": "length of k and v"}
_SLOW = 1e12  # FLOP/s below which GFLOP/s read better


class MissingError(ImportError):
    """matplotlib is not installed."""


def save(run: Run, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the run's plots and returns their paths; none for a run of host times. Raises MissingError."""
    try:
        import matplotlib
    except ImportError:
        raise MissingError("plots need matplotlib, which is not installed: pip install 'flashcute[bench]'") from None
    matplotlib.use("Agg")
    if run.unit not in _SCALE or not run.rows:
        return []
    draw = _draw_features if run.mode == "features" else _draw_lines
    path = folder / f"bench-{run.mode}-{run.device.partition(':')[0]}.png"
    figure = draw(run)
    figure.savefig(path, dpi=120)
    return [path]


def _panels(run: Run) -> list[str]:
    return list(dict.fromkeys(row.problem["panel"] for row in run.rows))


def _scale(run: Run) -> tuple[float, str]:
    rates = [row.rate for row in run.rows if row.rate]
    if run.unit == "FLOP/s" and rates and max(rates) < _SLOW:
        return 1e9, "GFLOP/s"
    return _SCALE[run.unit]


def _value(row: Row) -> float | None:
    return row.peak_bytes if row.peak_bytes is not None else row.rate


def _styles(run: Run) -> dict[str, dict[str, Any]]:
    return {
        library: {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
        for i, library in enumerate(run.libraries())
    }


def _title(run: Run) -> str:
    what = {"decode": "one query token", "varlen": "packed lengths", "memory": "peak memory of a call"}
    versions = f"flashcute {run.versions['flashcute']}, torch {run.versions['torch']}"
    return f"{what.get(run.mode, run.mode)} on {run.device_name} ({versions})"


def _draw_lines(run: Run) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    panels, styles, (scale, unit) = _panels(run), _styles(run), _scale(run)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.2 * lines + 0.9), layout="constrained")
    figure.suptitle(_title(run))
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        rows = [row for row in run.rows if row.problem["panel"] == panel]
        lengths = sorted({row.problem["x"] for row in rows})
        for library, style in styles.items():
            points = [(row.problem["x"], _value(row)) for row in rows if row.library == library]
            points = [(x, y / scale) for x, y in points if y is not None]
            if points:
                width = 2.4 if library == "flashcute" else 1.4
                axes.plot(*zip(*points, strict=True), label=library, linewidth=width, markersize=6, **style)
        _draw_limits(axes, run, rows, lengths, scale)
        axes.set_title(panel)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [_length_text(x) for x in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"{_LENGTHS.get(run.mode, 'sequence length')} (tokens)")
        axes.set_ylabel(f"peak memory of a call ({unit})" if run.unit == "B" else f"speed ({unit})")
        if run.unit == "B":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    named = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(4, len(named)), fontsize=9)
    return figure


def _draw_limits(axes: Any, run: Run, rows: list[Row], lengths: list[int], scale: float) -> None:
    """The roofline, and what the machine reached in the same run."""
    roof = {row.problem["x"]: row.work / row.roofline_seconds / scale for row in rows if row.roofline_seconds}
    if roof:
        measured = run.device == "cpu"
        what = "roofline, from the best matrix product and copy" if measured else "roofline of the device"
        axes.plot(lengths, [roof.get(x) for x in lengths], color=_ROOFLINE, linestyle="--", label=what)
        if measured:
            return
    for name, rate in run.reference.items():
        kind, _, dtype = name.partition(" ")
        if not dtype or dtype == rows[0].problem["dtype"]:
            label = {"product": "matrix product", "copy": "copy of memory", "read": "sum over memory"}[kind]
            label += ", measured"
            style = "-." if kind == "read" else ":"
            axes.axhline(rate / scale, color=_REFERENCE, linestyle=style, label=label)


def _draw_features(run: Run) -> Any:
    from matplotlib.figure import Figure

    styles, (scale, unit) = _styles(run), _scale(run)
    features = list(dict.fromkeys(row.problem["label"] for row in run.rows))
    figure = Figure(figsize=(9, 0.55 * len(features) + 2), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(styles)
    for i, (library, style) in enumerate(styles.items()):
        rows = [row for row in run.rows if row.library == library]
        own = [(features.index(row.problem["label"]), row.rate / scale) for row in rows if row.rate is not None]
        if own:
            places = [place + (i - (len(styles) - 1) / 2) * height for place, _ in own]
            axes.barh(places, [rate for _, rate in own], height, label=library, color=style["color"])
    for name, rate in run.reference.items():
        axes.axvline(rate / scale, color=_REFERENCE, linestyle=":", label=f"matrix {name}, measured")
    axes.set_yticks(range(len(features)), features)
    axes.invert_yaxis()
    axes.set_xlabel(f"speed ({unit}, visible pairs counted)")
    axes.set_ylabel("feature")
    axes.set_title(f"{_title(run)}\n{run.rows[0].problem['panel']}", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _length_text(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
