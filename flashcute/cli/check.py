"""``flashcute check``: attention on this machine's best device, compared with float64."""

from __future__ import annotations

import json
import secrets
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import flashcute
from flashcute import reference
from flashcute.cli import arithmetic, screen
from flashcute.cli import info as info_command
from flashcute.cli.cases import Case, Inputs, cases, draw, work
from flashcute.device_array import DeviceArray

Array = npt.NDArray[Any]

_SCORES = 1 << 19  # of the oracle, for one head of a long problem
_TIMED_SECONDS = 0.05  # for each of the batches of repeats
_TIMED_BATCHES = 3
_STYLE = {"pass": "green", "MISS": "bold red", "ERROR": "bold red", "no kernel": "dim"}


@dataclass
class Outcome:
    """One row of the table. `verdict` is a key of `_STYLE`."""

    case: Case
    verdict: str
    message: str
    kernel: str = ""
    seconds: float = 0.0
    tflops: float = 0.0
    error: float = 0.0
    allowed: float = 0.0

    @property
    def failed(self) -> bool:
        return self.verdict in ("MISS", "ERROR")


def run(device: str, quick: bool, seed: int | None, as_json: bool) -> int:
    started = time.perf_counter()
    seed = secrets.randbits(32) if seed is None else seed
    facts = info_command.collect()
    chosen = screen.choose_device(facts, device)
    if isinstance(chosen, str):
        to = screen.console(stderr=True)
        screen.say(to, f"flashcute check: {chosen}", "red")
        screen.print_notes(to, facts["notes"])
        return 2

    todo = cases("cpu" if chosen["type"] == "cpu" else "cuda", quick)
    lost = arithmetic.faults(screen.device_label(chosen))
    outcomes = _run_all(screen.device_label(chosen), todo, seed)
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps(_as_json(outcomes, lost, chosen, seed, seconds, facts), indent=2))
    else:
        _print(screen.console(), outcomes, lost, chosen, seed, seconds, facts)
    return 1 if lost or any(outcome.failed for outcome in outcomes) else 0


def _run_all(device: str, todo: Sequence[Case], seed: int) -> list[Outcome]:
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    to = screen.console(stderr=True)
    with Progress(*columns, console=to, transient=True, disable=not to.is_terminal) as progress:
        task = progress.add_task("comparing with float64", total=len(todo))
        for index, case in enumerate(todo):
            outcomes.append(_run_case(device, case, np.random.default_rng([seed, index])))
            progress.advance(task)
    return outcomes


def _run_case(device: str, case: Case, random: np.random.Generator) -> Outcome:
    inputs = draw(case, random)
    for name in ("q", "k", "v"):
        setattr(inputs, name, reference.round_to(getattr(inputs, name), case.dtype))
    try:
        return _compute(device, case, inputs, random)
    except flashcute.NotImplementedByKernelError as error:
        return Outcome(case, "no kernel", str(error))
    except flashcute.Error as error:
        if "FLASHCUTE_" in str(error):  # a bad environment variable, which is no fault of the case
            raise
        return Outcome(case, "ERROR", str(error))


def _compute(device: str, case: Case, inputs: Inputs, random: np.random.Generator) -> Outcome:
    # Memory of the library's own, so that a GPU needs no framework and bfloat16 no ml_dtypes.
    q, k, v = (DeviceArray.from_numpy(x, device, case.dtype) for x in (inputs.q, inputs.k, inputs.v))
    tensors = {name: DeviceArray.from_numpy(x, device) for name, x in inputs.tensors.items()}
    poison = np.full((*inputs.q.shape[:-1], case.head_dim[1]), np.nan, dtype=np.float32)
    out = DeviceArray.from_numpy(poison, device, case.dtype)
    lse = DeviceArray.from_numpy(np.full(_lse_shape(case, inputs.q.shape), np.nan, dtype=np.float32), device)

    desc = flashcute.AttentionDescriptor(q, k, v, out=out, return_lse=True, **case.options, **tensors)
    state: dict[str, Any] = {name: case.options[name] for name in ("seed",) if name in case.options}
    probs = None
    if case.options.get("return_probs"):
        unset = np.full((case.batch, case.heads[0], *case.seq), np.nan, dtype=np.float32)
        state["probs"] = probs = DeviceArray.from_numpy(unset, device)

    def launch() -> None:
        desc.run(q, k, v, out=out, lse=lse, **tensors, **state)

    launch()
    got, got_lse, got_probs = out.numpy(), lse.numpy(), None if probs is None else probs.numpy()
    seconds = _seconds(launch, out.synchronize)
    verdict = _judge(case, inputs, got, got_lse, got_probs, random)
    return Outcome(
        case,
        "pass" if verdict.ok else "MISS",
        verdict.message,
        kernel=desc.plan["kernel"],
        seconds=seconds,
        tflops=work(case, inputs.tensors) / seconds / 1e12,
        error=verdict.error,
        allowed=verdict.allowed,
    )


def _lse_shape(case: Case, q_shape: tuple[int, ...]) -> tuple[int, ...]:
    if case.options.get("layout") == "bshd":
        return (q_shape[0], q_shape[2], q_shape[1])
    return q_shape[:-1]


def _seconds(launch: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """One run's time: the best of a few batches of runs, each batch ended by one synchronisation."""

    def batch(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            launch()
        synchronize()
        return (time.perf_counter() - start) / count

    count = max(1, min(1000, int(_TIMED_SECONDS / max(batch(1), 1e-7))))
    return min(batch(count) for _ in range(_TIMED_BATCHES))


def _judge(
    case: Case, inputs: Inputs, out: Array, lse: Array, probs: Array | None, random: np.random.Generator
) -> reference.Verdict:
    if case.long:
        return _judge_sample(case, inputs, out, lse, random)
    options = {**case.options, **inputs.tensors}
    return reference.judge(out, lse, inputs.q, inputs.k, inputs.v, probs=probs, dtype=case.dtype, **options)


def _judge_sample(case: Case, inputs: Inputs, out: Array, lse: Array, random: np.random.Generator) -> reference.Verdict:
    """The first head of the first batch entry and the last of the last, on a sample of their rows."""
    rows = _sample(case.seq, random)
    group = case.heads[0] // case.heads[1]
    worst = reference.Verdict(True, 0.0, 1.0, "")
    for batch, of_q, of_k in ((0, slice(0, group), slice(0, 1)), (-1, slice(-group, None), slice(-1, None))):
        verdict = reference.judge(
            out[batch, of_q][:, rows],
            lse[batch, of_q][:, rows],
            inputs.q[batch, of_q],
            inputs.k[batch, of_k],
            inputs.v[batch, of_k],
            dtype=case.dtype,
            rows=rows,
            **case.options,
        )
        if not verdict.ok:
            head = "first" if batch == 0 else "last"
            return replace(
                verdict, message=f"{head} head, row counted among {len(rows)} sampled ones: {verdict.message}"
            )
        if verdict.error / verdict.allowed > worst.error / worst.allowed:
            worst = verdict
    unwritten = int(np.isnan(out).sum()) + int(np.isnan(lse).sum())
    if unwritten:
        return reference.Verdict(False, worst.error, worst.allowed, f"{unwritten} values are NaN or were not written")
    return worst


def _sample(seq: tuple[int, int], random: np.random.Generator) -> Array:
    """Query rows to compare: the first, the last, those at tile edges, and random ones."""
    edges = [0, 1, 63, 64, 127, 128, seq[0] // 2, seq[0] - 65, seq[0] - 64, seq[0] - 1]
    rest = random.choice(seq[0], max(16, _SCORES // seq[1]), replace=False)
    return np.unique(np.concatenate([edges, rest]))


# ---------------------------------------------------------------------------------------------------------------------
# Output


def _summary(outcomes: Sequence[Outcome]) -> str:
    def count(*verdicts: str) -> int:
        return sum(outcome.verdict in verdicts for outcome in outcomes)

    parts = [f"{count('pass')} passed", f"{count('MISS', 'ERROR')} failed"]
    if count("no kernel"):
        parts.append(f"{count('no kernel')} that no kernel of this device offers")
    return ", ".join(parts)


def _print(
    to: Console,
    outcomes: Sequence[Outcome],
    lost: Sequence[str],
    device: dict[str, Any],
    seed: int,
    seconds: float,
    facts: dict[str, Any],
) -> None:
    label = screen.device_label(device)
    name = f"{facts['cpu']['isa']}, {facts['cpu']['threads']} threads" if label == "cpu" else device["name"]
    screen.say(to, f"flashcute {facts['version']} on device {label} ({name}), seed {seed}", "bold")
    to.print()
    _print_table(to, outcomes)
    to.print()
    screen.say(
        to,
        "shape: batch x heads (of q/of k, v) x length of q x length of k, v x head dim (of q, k/of v). "
        "error: the largest, as a part of what is allowed.",
        "dim",
    )
    for outcome in outcomes:
        if outcome.failed:
            case = outcome.case
            screen.say(to, f"{case.shape_text()} {case.dtype} {case.feature_text()}: {outcome.message}", "red")
    for sentence in lost:
        screen.say(to, f"Arithmetic: {sentence}.", "red")
    screen.print_notes(to, facts["notes"])
    if label == "cpu" and screen.why_no_gpu(facts):
        screen.say(to, f"No GPU was used: {screen.why_no_gpu(facts)}.", "dim")
    failed = bool(lost) or any(outcome.failed for outcome in outcomes)
    screen.say(to, f"{_summary(outcomes)} in {seconds:.0f} s", "bold red" if failed else "bold green")


_NUMBERS = ("time", "TFLOP/s", "error")
_COLUMNS = ("shape", "dtype", "features", "kernel", *_NUMBERS, "verdict")


def _print_table(to: Console, outcomes: Sequence[Outcome]) -> None:
    """Two lines for each outcome at most, with no word broken: a table, or pairs of lines on a narrow console."""
    rows = [_cells(outcome) for outcome in outcomes]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _COLUMNS}
    room = to.width - sum(widths.values()) + widths["features"] - screen.GAP * (len(_COLUMNS) - 1)
    if all(_lines(row["features"], room) <= 2 for row in rows):
        _print_wide(to, outcomes, rows)
    else:
        _print_narrow(to, outcomes, rows, widths)


def _print_wide(to: Console, outcomes: Sequence[Outcome], rows: Sequence[dict[str, str]]) -> None:
    table = screen.empty_table(to)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "features")
    for outcome, row in zip(outcomes, rows, strict=True):
        cells = [screen.plain(to, row[name]) for name in _COLUMNS[:-1]]
        table.add_row(*cells, Text(row["verdict"], style=_STYLE[outcome.verdict]))
    to.print(table)


def _print_narrow(
    to: Console, outcomes: Sequence[Outcome], rows: Sequence[dict[str, str]], widths: dict[str, int]
) -> None:
    gap = " " * screen.GAP

    def line(row: dict[str, str], style: str) -> Text:
        cells = [f"{row[name]:<{widths[name]}}" for name in ("shape", "dtype")]
        cells += [f"{row[name]:>{widths[name]}}" for name in _NUMBERS]
        return Text(screen.plain(to, gap.join([*cells, ""]))) + Text(row["verdict"], style=style)

    heading = line({name: name for name in _COLUMNS}, "")
    to.print(heading, style="bold")
    to.print(f"{gap}kernel{gap}features", style="bold")
    to.print(("-" if to.options.ascii_only else "─") * min(to.width, len(heading) + 2))
    for outcome, row in zip(outcomes, rows, strict=True):
        to.print(line(row, _STYLE[outcome.verdict]))
        to.print(gap + gap.join(text for text in (row["kernel"], outcome.case.feature_text(of_heads=False)) if text))


def _lines(text: str, width: int) -> int:
    return len(textwrap.wrap(text, width, break_long_words=False)) if width >= 12 else len(text)


def _cells(outcome: Outcome) -> dict[str, str]:
    case = outcome.case
    ran = outcome.verdict in ("pass", "MISS")
    return {
        "shape": case.shape_text(),
        "dtype": case.dtype,
        "features": case.feature_text(),
        "kernel": outcome.kernel,
        "time": screen.time_text(outcome.seconds) if ran else "",
        "TFLOP/s": f"{outcome.tflops:.3g}" if ran else "",
        "error": f"{outcome.error / outcome.allowed:.0%}" if ran and outcome.allowed else "",
        "verdict": outcome.verdict,
    }


def _as_json(
    outcomes: Sequence[Outcome],
    lost: Sequence[str],
    device: dict[str, Any],
    seed: int,
    seconds: float,
    facts: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": facts["version"],
        "device": screen.device_label(device),
        "device_name": device["name"],
        "seed": seed,
        "seconds": seconds,
        "ok": not lost and not any(outcome.failed for outcome in outcomes),
        "arithmetic": list(lost),
        "notes": facts["notes"],
        "cases": [
            {
                "batch": outcome.case.batch,
                "heads": outcome.case.heads,
                "seq": outcome.case.seq,
                "head_dim": outcome.case.head_dim,
                "dtype": outcome.case.dtype,
                "features": outcome.case.feature_text(),
                "kernel": outcome.kernel,
                "seconds": outcome.seconds,
                "tflops": outcome.tflops,
                "error": outcome.error,
                "allowed": outcome.allowed,
                "verdict": outcome.verdict,
                "message": outcome.message,
            }
            for outcome in outcomes
        ],
    }
