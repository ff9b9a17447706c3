"""``flashcute bench``: speed and memory beside whatever other libraries are installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flashcute.cli import info as info_command
from flashcute.cli import screen
from flashcute.cli.roofline import Machine, present_gpu

if TYPE_CHECKING:
    from flashcute.bench.record import Run

_HOST_BATCHES = 50
_SIZES = ("seqs", "dims", "dim_v", "masks", "dtypes", "batch", "tokens", "heads", "heads_k", "lengths", "data")
_UNUSED = {  # flags that a mode has no use for
    "forward": ("lengths",),
    "decode": ("masks", "tokens", "lengths", "data"),
    "varlen": ("batch", "data"),
    "features": ("masks", "lengths", "data"),
    "memory": ("rounds", "peers", "lengths", "backend", "data"),
    "host": (*_SIZES, "peers", "backend"),
}
_MISS = 1


class _StopError(Exception):
    """One sentence that ends the command."""


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.saved:
            return _show_saved(arguments)
        if importlib.util.find_spec("torch") is None:
            raise _StopError("needs PyTorch, which is not installed: pip install 'flashcute[torch]'")
        return _measure(arguments)
    except _StopError as stop:
        screen.say(screen.console(stderr=True), f"flashcute bench: {stop}", "red")
        return 2


def _measure(arguments: argparse.Namespace) -> int:
    facts = info_command.collect()
    device = screen.choose_device(facts, arguments.device)
    if isinstance(device, str):
        raise _StopError(device)
    _refuse_unused(arguments)
    folder = _folder(arguments.output)
    gpu = device["type"] != "cpu"
    if gpu:
        _require_torch_cuda(device)

    from flashcute.bench import libraries, problems, record, sweep

    label = screen.device_label(device)
    threads = arguments.threads or facts["cpu"]["threads"]
    name = device["name"] if gpu else f"CPU with {facts['cpu']['isa']}, {threads} threads"
    try:
        chosen, absent = libraries.find(gpu, arguments.peers, arguments.mode, arguments.backend or "auto")
    except ValueError as error:
        raise _StopError(str(error)) from None
    sizes = problems.Sizes(
        seqs=arguments.seqs, dims=arguments.dims, dim_v=arguments.dim_v, masks=arguments.masks,
        dtypes=arguments.dtypes, batch=arguments.batch, tokens=arguments.tokens, heads=arguments.heads,
        heads_k=arguments.heads_k, lengths=arguments.lengths, data=arguments.data,
    )  # fmt: skip
    if arguments.load == "sustained" and not gpu:
        raise _StopError("--load: expected rested on a CPU, given sustained")
    if arguments.batch and arguments.tokens:
        raise _StopError("--tokens: expected without --batch, which it takes the place of")
    if gpu and "float32" in (arguments.dtypes or ()):
        raise _StopError("--dtypes: expected float16 or bfloat16 on a GPU, given float32")
    if arguments.heads and arguments.heads_k and arguments.heads % arguments.heads_k:
        raise _StopError(f"--heads-k: expected a divisor of {arguments.heads}, given {arguments.heads_k}")
    made = sweep.new_run(
        arguments.mode, label, name, record.UNITS[arguments.mode],
        seed=arguments.seed, rounds=arguments.rounds, load=arguments.load, span=arguments.span,
    )  # fmt: skip
    if arguments.mode in ("memory", "host"):  # which have contestants of their own
        chosen, absent = [], []
    made.versions.update({library.name: library.find() for library in chosen if not library.name.startswith("SDPA")})
    with sweep.settings(label, arguments.threads):
        _fill(made, arguments, sizes, chosen, _machines(made, device))
    if arguments.json:
        print(json.dumps(made.as_json(), indent=1))
    else:
        _print(made, absent)
    _write([made], folder, quiet=arguments.json)
    return _MISS if any(row.status == "wrong" for row in made.rows) else 0


def _refuse_unused(arguments: argparse.Namespace) -> None:
    for name in _UNUSED.get(arguments.mode, ()):
        if getattr(arguments, name) is not None:
            raise _StopError(f"--{name.replace('_', '-')}: {arguments.mode} has no use for it")
    for name in ("seqs", "dims", "dtypes"):
        values = getattr(arguments, name) or ()
        if arguments.mode == "features" and len(values) > 1:
            raise _StopError(f"--{name}: features takes one, given {len(values)}")


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
            sweep.measure(
                made, todo, chosen, machine_of, rounds=arguments.rounds, seed=arguments.seed, step=step,
                span=arguments.span if arguments.load == "sustained" else None,
            )  # fmt: skip


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
    """Refused before anything is measured, and not when that is done."""
    if output is None:
        return None
    folder = pathlib.Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _StopError(f"--output: cannot make the folder {output}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _StopError(f"--output: expected a folder that can be written, given {output}")
    return folder


def _write(runs: Sequence[Run], folder: pathlib.Path | None, *, quiet: bool) -> None:
    """Saves the runs and their plots and tells, unless quiet, what was written and what could not be."""
    if folder is None:
        return
    from flashcute.bench import plots

    to = screen.console()
    for made in runs:
        path = folder / _file_name(made)
        try:
            made.save(path)
            sentences = [f"Written: {path}", *(f"Written: {png}" for png in plots.save(made, folder))]
        except plots.MissingError as error:
            sentences = [f"Written: {path}", f"No plot: {error}"]
        except OSError as error:
            raise _StopError(f"--output: cannot write {error.filename or path}: {error.strerror}") from None
        for sentence in [] if quiet else sentences:
            screen.say(to, sentence)


def _file_name(made: Run) -> str:
    return f"bench-{made.mode}-{made.device.partition(':')[0]}.json"


def _print(made: Run, sentences: list[str]) -> None:
    from flashcute.bench import report

    report.show(screen.console(), made, sentences)


def _show_saved(arguments: argparse.Namespace) -> int:
    from flashcute.bench import record

    try:
        runs = [record.load(pathlib.Path(name)) for name in arguments.saved]
    except ValueError as error:
        raise _StopError(f"--from: {error}") from None
    except OSError as error:
        raise _StopError(f"--from: cannot read {error.filename}: {error.strerror}") from None
    names = [_file_name(made) for made in runs]
    if arguments.output and len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise _StopError(f"--output: expected runs of different modes or devices, given two that would become {again}")
    folder = _folder(arguments.output)
    if arguments.json:
        print(json.dumps([made.as_json() for made in runs], indent=1))
        _write(runs, folder, quiet=True)
        return 0
    for made in runs:
        _print(made, [])
        _write([made], folder, quiet=False)
    if len({made.id for made in runs}) > 1:
        screen.say(
            screen.console(),
            "No ratio is quoted between these runs: clocks, heat and neighbours differ from one run to the next. "
            "Measure both in one run for that.",
            "yellow",
        )
    return 0
