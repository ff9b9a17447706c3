"""PNG plots of a run: one panel for each dtype, head dim and mask, one line for each library, the roofline drawn in."""

from __future__ import annotations

import pathlib
from typing import Any

from flashcute.bench.record import Row, Run

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ too. One look in every plot.
_LOOKS = {
    "flashcute": ("#0072B2", "o"),
    "SDPA-FA2": ("#D55E00", "s"),
    "SDPA": ("#D55E00", "s"),
    "textbook": ("#D55E00", "s"),
    "SDPA-cuDNN": ("#009E73", "^"),
    "SDPA-efficient": ("#56B4E9", "X"),
    "FA3": ("#CC79A7", "D"),
    "FA4": ("#E69F00", "v"),
    "FlashInfer": ("#7F3C1D", "P"),
}
_UNKNOWN = ("#555555", "*")
_ROOFLINE, _REFERENCE = "#000000", "#777777"
_DASH_DOT = (0, (5, 1, 1, 1))
_SCALE = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s"), "B": (2.0**20, "MiB")}
_LENGTHS = {"varlen": "length of the longest member", "decode": "length of k and v"}
_SLOW = 1e12  # FLOP/s below which GFLOP/s read better


class MissingError(ImportError):
    """matplotlib is not installed."""


def save(run: Run, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the run's plots and returns their paths; none for a run of host times. Raises MissingError."""
    if run.unit not in _SCALE or not run.rows:
        return []
    try:
        import matplotlib
    except ImportError:
        raise MissingError("plots need matplotlib, which is not installed: pip install 'flashcute[bench]'") from None
    matplotlib.use("Agg")
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
    looks = {library: _LOOKS.get(library, _UNKNOWN) for library in run.libraries()}
    return {library: {"color": colour, "marker": marker} for library, (colour, marker) in looks.items()}


def _title(run: Run) -> str:
    """Two lines, which fit a single panel."""
    what = {"decode": "decode, one query token", "varlen": "packed lengths", "memory": "peak memory of a call"}
    drawn = ("torch", *run.libraries())
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if name in drawn)
    return f"{what.get(run.mode, run.mode)} on {run.device_name}\n{versions}; {run.started[:10]}"


def _legend(figure: Any, named: dict[str, Any], columns: int) -> None:
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(columns, len(named)), fontsize=9)


def _handles(figure: Any) -> dict[str, Any]:
    return {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}


def _draw_lines(run: Run) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    panels, styles, (scale, unit) = _panels(run), _styles(run), _scale(run)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.6 * columns + 1.2, 3.9 * lines + 1.3), layout="constrained")
    figure.suptitle(_title(run), fontsize=11)
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
        axes.set_title(panel, fontsize=11)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [_length_text(x) for x in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(_length_label(run, rows))
        axes.set_ylabel(f"peak memory of a call ({unit})" if run.unit == "B" else f"speed ({unit})")
        if run.unit == "B":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    _legend(figure, _handles(figure), 2 * columns)
    return figure


def _length_label(run: Run, rows: list[Row]) -> str:
    label = f"{_LENGTHS.get(run.mode, 'sequence length')} (tokens)"
    tokens = {row.problem["batch"] * row.problem["seq"][0] for row in rows}
    if run.mode in ("forward", "memory") and len(tokens) == 1 and len(rows) > len(run.libraries()):
        label += f"; {tokens.pop()} tokens in each batch"
    return label


def _rooflines(run: Run, rows: list[Row], scale: float) -> list[tuple[str, dict[int, float], Any]]:
    """Label, rate at each x, line style: the device's, and that of flashcute's kernel where it is another."""

    def rates(seconds: str) -> dict[int, float]:
        timed = [(row, getattr(row, seconds)) for row in rows]
        return {row.problem["x"]: row.work / least / scale for row, least in timed if least}

    kernel, device = rates("roofline_seconds"), rates("device_roofline_seconds")
    if run.device == "cpu":
        lines: list[tuple[str, dict[int, float], Any]] = [("roofline, measured", kernel, "--")]
    elif run.unit == "B/s" or kernel == device:
        lines = [("roofline", kernel, "--")]
    else:
        lines = [("roofline of the device", device, "--"), ("roofline of flashcute's kernel", kernel, _DASH_DOT)]
    return [line for line in lines if line[1]]


def _draw_limits(axes: Any, run: Run, rows: list[Row], lengths: list[int], scale: float) -> None:
    """The rooflines, and what the machine reached in the same run."""
    for label, rates, style in _rooflines(run, rows, scale):
        axes.plot(lengths, [rates.get(x) for x in lengths], color=_ROOFLINE, linestyle=style, label=label)
    if run.device == "cpu":
        return  # its roofline is what it reached
    for name, rate in run.reference.items():
        kind, _, dtype = name.partition(" ")
        if not dtype or dtype == rows[0].problem["dtype"]:
            label = {"product": "matrix product", "copy": "copy of memory", "read": "sum over memory"}[kind]
            label += ", measured"
            style = "-." if kind == "read" else ":"
            axes.axhline(rate / scale, color=_REFERENCE, linestyle=style, label=label)


def _draw_features(run: Run) -> Any:
    """A group of bars for each feature, of the libraries that have it, and its roofline across the group."""
    from matplotlib.figure import Figure

    styles, (scale, unit) = _styles(run), _scale(run)
    groups = [(problem["label"], rows) for problem, rows in run.problems()]
    figure = Figure(figsize=(9, 0.45 * len(groups) + 2.2), layout="constrained")
    figure.suptitle(f"{_title(run)}\n{run.rows[0].problem['panel']}", fontsize=11)
    axes = figure.subplots()
    height = 0.8 / len(styles)
    for place, (_, rows) in enumerate(groups):
        able = [row for row in rows if row.rate is not None]
        for i, row in enumerate(able):
            middle = place + (i - (len(able) - 1) / 2) * height
            colour = styles[row.library]["color"]
            axes.barh(middle, (row.rate or 0.0) / scale, 0.92 * height, color=colour, label=row.library)
        for label, rates, style in _rooflines(run, rows, scale):
            axes.vlines(list(rates.values()), place - 0.45, place + 0.45, color=_ROOFLINE, linestyle=style, label=label)
    for name, rate in run.reference.items():
        axes.axvline(rate / scale, color=_REFERENCE, linestyle=":", label=f"matrix {name}, measured")
    axes.set_yticks(range(len(groups)), [label for label, _ in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"speed ({unit}, visible pairs counted)")
    axes.set_ylabel("feature")
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)
    found = _handles(figure)
    named = {label: found[label] for label in [*styles, *found] if label in found}
    _legend(figure, named, 4)
    return figure


def _length_text(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
