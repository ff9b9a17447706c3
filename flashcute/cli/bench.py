"""``flashcute bench``: speed and memory beside whatever other libraries are installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flashcute.cli import info as info_command
from flashcute.cli import screen
from flashcute.cli.roofline import Machine, present_gpu

if TYPE_CHECKING:
    from flashcute.bench.record import Run

_UNITS = {"forward": "FLOP/s", "varlen": "FLOP/s", "features": "FLOP/s", "decode": "B/s", "memory": "B", "host": "s"}
_HOST_BATCHES = 50
_MISS = 1


class _StopError(Exception):
    """One sentence that ends the command."""


def run(arguments: argparse.Namespace) -> int:
    try:
        if importlib.util.find_spec("torch") is None:
            raise _StopError("needs PyTorch, which is not installed: pip install 'flashcute[torch]'")
        if arguments.saved:
            return _show_saved(arguments)
        return _measure(arguments)
    except _StopError as stop:
        screen.say(screen.console(stderr=True), f"flashcute bench: {stop}", "red")
        return 2


def _measure(arguments: argparse.Namespace) -> int:
    facts = info_command.collect()
    device = screen.choose_device(facts, arguments.device)
    if isinstance(device, str):
        raise _StopError(device)
    folder = _folder(arguments.output)
    gpu = device["type"] != "cpu"
    if gpu:
        _require_torch_cuda(device)

    from flashcute.bench import libraries, problems, sweep

    label = screen.device_label(device)
    threads = arguments.threads or facts["cpu"]["threads"]
    name = device["name"] if gpu else f"CPU with {facts['cpu']['isa']}, {threads} threads"
    try:
        chosen, absent = libraries.find(gpu, arguments.peers, arguments.mode)
    except ValueError as error:
        raise _StopError(str(error)) from None
    sizes = problems.Sizes(
        seqs=arguments.seqs, dims=arguments.dims, masks=arguments.masks, dtypes=arguments.dtypes,
        batch=arguments.batch, tokens=arguments.tokens, heads=arguments.heads, heads_k=arguments.heads_k,
    )  # fmt: skip
    if gpu and "float32" in (arguments.dtypes or ()):
        raise _StopError("--dtypes: expected float16 or bfloat16 on a GPU, given float32")
    if arguments.heads and arguments.heads_k and arguments.heads % arguments.heads_k:
        raise _StopError(f"--heads-k: expected a divisor of {arguments.heads}, given {arguments.heads_k}")
    made = sweep.new_run(
        arguments.mode, label, name, _UNITS[arguments.mode], seed=arguments.seed, rounds=arguments.rounds
    )
    if arguments.mode in ("memory", "host"):  # which have contestants of their own
        chosen, absent = [], []
    made.versions.update({library.name: library.find() for library in chosen if not library.name.startswith("SDPA")})
    with sweep.settings(label, arguments.threads):
        _fill(made, arguments, sizes, chosen, _machines(made, device))
    written = _write(made, folder)
    if arguments.json:
        print(json.dumps(made.as_json(), indent=1))
    else:
        _print(made, absent, written)
    return _MISS if any(row.status == "wrong" for row in made.rows) else 0


def _fill(made: Run, arguments: argparse.Namespace, sizes: Any, chosen: list[Any], machine_of: Any) -> None:
    from flashcute.bench import host, memory, problems, sweep

    gpu = made.device != "cpu"
    if made.mode == "host":
        with _progress(1) as step:
            host.measure(made, batches=arguments.rounds or _HOST_BATCHES, calls=arguments.calls, step=step)
        return
    todo = problems.problems(made.mode, sizes, gpu)
    with _progress(len(todo) + len({problem.case.dtype for problem in todo})) as step:
        if made.mode == "memory":
            try:
                memory.measure(made, todo, seed=arguments.seed, step=step)
            except memory.CannotMeasureError as error:
                raise _StopError(str(error)) from None
        else:
            sweep.measure(made, todo, chosen, machine_of, rounds=arguments.rounds, seed=arguments.seed, step=step)


def _machines(made: Run, device: dict[str, Any]) -> Callable[[str, str], Machine]:
    """The roofline's rates for a dtype and a kernel's family: a GPU's peaks, or what a CPU reached in this very run."""

    def rates(dtype: str, family: str) -> Machine:
        if device["type"] != "cpu":
            return present_gpu(device, family)
        memory = max((made.reference[name] for name in ("copy", "read") if name in made.reference), default=None)
        product = made.reference.get(f"product {dtype}")
        return Machine(made.device_name, "measured in this run", product, None, None, memory)

    return rates


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    to = screen.console(stderr=True)
    with Progress(*columns, console=to, transient=True, disable=not to.is_terminal) as progress:
        task = progress.add_task("", total=total)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=1 if begun else 0)
            begun = True

        yield step


def _require_torch_cuda(device: dict[str, Any]) -> None:
    import torch

    if not torch.cuda.is_available():
        raise _StopError(f"the installed PyTorch {torch.__version__} cannot use {screen.device_label(device)}")


def _folder(output: str | None) -> pathlib.Path | None:
    if output is None:
        return None
    folder = pathlib.Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _StopError(f"--output: cannot make the folder {output}: {error.strerror}") from None
    return folder


def _write(made: Run, folder: pathlib.Path | None) -> list[str]:
    """Saves the run and its plots; sentences on what was written and what could not be."""
    if folder is None:
        return []
    from flashcute.bench import plots

    path = folder / f"bench-{made.mode}-{made.device.partition(':')[0]}.json"
    made.save(path)
    sentences = [f"Written: {path}"]
    try:
        sentences += [f"Written: {png}" for png in plots.save(made, folder)]
    except plots.MissingError as error:
        sentences.append(f"No plot: {error}")
    return sentences


def _print(made: Run, sentences: list[str], written: list[str]) -> None:
    from flashcute.bench import report

    to = screen.console()
    report.show(to, made, sentences)
    for sentence in written:
        screen.say(to, sentence)


def _show_saved(arguments: argparse.Namespace) -> int:
    from flashcute.bench import record

    try:
        runs = [record.load(pathlib.Path(name)) for name in arguments.saved]
    except ValueError as error:
        raise _StopError(f"--from: {error}") from None
    except OSError as error:
        raise _StopError(f"--from: cannot read {error.filename}: {error.strerror}") from None
    folder = _folder(arguments.output)
    if arguments.json:
        print(json.dumps([made.as_json() for made in runs], indent=1))
        return 0
    for made in runs:
        _print(made, [], _write(made, folder) if folder else [])
    if len({made.id for made in runs}) > 1:
        screen.say(
            screen.console(),
            "No ratio is quoted between these runs: clocks, heat and neighbours differ from one run to the next. "
            "Measure both in one run for that.",
            "yellow",
        )
    return 0
