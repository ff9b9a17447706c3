"""forward, decode, varlen and features: every library on every problem, in turns."""

from __future__ import annotations

import contextlib
import datetime
import platform
import secrets
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import flashcute
from flashcute.bench import accuracy, clocks, libraries
from flashcute.bench.clocks import Contestant
from flashcute.bench.problems import DTYPES, Inputs, Problem, draw
from flashcute.bench.record import Row, Run, Times
from flashcute.cli.cases import work
from flashcute.cli.roofline import Machine, compulsory_bytes, roofline

_GPU_ROUNDS, _CPU_PEAK_ROUNDS, _LOAD_ROUNDS = 30, 30, 3
_PRODUCT = {"cuda": 8192, "cpu": 1024}
_COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}

Step = Callable[[str], None]  # told of each problem before it is measured


def new_run(mode: str, device: str, device_name: str, unit: str, **conditions: Any) -> Run:
    return Run(
        id=secrets.token_hex(8),
        mode=mode,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        device=device,
        device_name=device_name,
        host=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        versions={"flashcute": flashcute.__version__, "torch": str(torch.__version__), "numpy": np.__version__},
        unit=unit,
        conditions=conditions,
    )


@contextlib.contextmanager
def settings(device: str, threads: int | None) -> Iterator[None]:
    """Equal threads for every library, no gradients, the GPU that was asked for; all as it was at the end."""
    before = (torch.get_num_threads(), flashcute.get_num_threads())
    count = threads or before[1]
    gpu = device.startswith("cuda")
    backends: Any = torch.backends.cuda  # whose functions have no types
    kinds = ("flash", "cudnn", "mem_efficient", "math")
    enabled = {kind: getattr(backends, f"{kind}_sdp_enabled")() for kind in kinds}
    try:
        if not gpu:
            torch.set_num_threads(count)
            flashcute.set_num_threads(count)
        with torch.no_grad(), torch.cuda.device(device) if gpu else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(before[0])
        flashcute.set_num_threads(before[1])
        for kind, was in enabled.items():
            getattr(backends, f"enable_{kind}_sdp")(was)


def measure(
    run: Run,
    problems: list[Problem],
    chosen: list[libraries.Library],
    machine_of: Callable[[str, str], Machine],
    *,
    rounds: int | None,
    seed: int,
    step: Step,
    span: float | None = None,
) -> None:
    """Fills run.rows. `machine_of(dtype, family)` gives the roofline's rates. span: seconds of load for each library in
    each turn; None for rested runs."""
    gpu = run.device.startswith("cuda")
    if run.unit == "B/s":
        step("copying and reading memory")
        run.reference.update(memory_rates(run.device, rounds))
    else:
        for dtype in dict.fromkeys(problem.case.dtype for problem in problems):
            step(f"the matrix product in {dtype}")
            run.reference[f"product {dtype}"] = product_rate(run.device, dtype, rounds)
    for problem in problems:
        step(f"{problem.panel}, {problem.label or problem.x}")
        try:
            inputs = draw(problem, run.device, seed)
            run.rows += _measure_one(run, inputs, chosen, machine_of, rounds, gpu, span)
            del inputs
        except RuntimeError as error:
            if not clocks.no_memory(error):
                raise
            facts = problem.facts()
            run.rows += [
                Row(run.id, facts, library.name, "no", "the device has too little memory") for library in chosen
            ]
        if gpu:
            torch.cuda.empty_cache()


def _measure_one(
    run: Run,
    inputs: Inputs,
    chosen: list[libraries.Library],
    machine_of: Callable[[str, str], Machine],
    rounds: int | None,
    gpu: bool,
    span: float | None,
) -> list[Row]:
    case = inputs.problem.case
    amount = compulsory_bytes(case, inputs.lengths) if run.unit == "B/s" else work(case, inputs.lengths)
    sample = accuracy.sample(inputs)
    textbook = sample.textbook_rms()
    entries: dict[str, libraries.Entry] = {}
    facts: dict[str, dict[str, Any]] = {}
    for library in chosen:
        about = facts[library.name] = {"status": "no", "work": amount}
        try:
            entry = library.prepare(inputs)
        except libraries.CannotDoError as error:
            about["reason"] = str(error)
            continue
        error_size, rms_error = sample.errors(entry.result())
        about.update(error=error_size, rms_error=rms_error, kernel=entry.kernel)
        allowed = accuracy.TOLERANCE[case.dtype]
        if not error_size <= allowed:
            about.update(
                status="wrong", reason=f"differs from float64 by {error_size:.3g}, where {allowed:g} is allowed"
            )
            continue
        about["status"] = "ok"
        entries[library.name] = entry
    if span is None:
        eager, replay = _times(entries, facts, rounds, gpu)
    else:
        eager, replay = {}, {}
        _under_load(run, entries, facts, rounds, span)
    family = "sm80" if gpu and facts["flashcute"].get("kernel", "").startswith("sm80") else ""
    kernel, device = (roofline(case, inputs.lengths, machine_of(case.dtype, name)).bound for name in (family, ""))
    return [
        Row(
            run=run.id,
            problem=inputs.problem.facts(),
            library=name,
            eager=Times.of(eager[name]) if name in eager else None,
            replay=Times.of(replay[name]) if name in replay else None,
            roofline_seconds=kernel.seconds if kernel else None,
            device_roofline_seconds=device.seconds if device else None,
            textbook_rms=textbook,
            **about,
        )
        for name, about in facts.items()
    ]


def _under_load(
    run: Run, entries: dict[str, libraries.Entry], facts: dict[str, dict[str, Any]], rounds: int | None, span: float
) -> None:
    """Adds each library's times, clock and power."""
    contestants: dict[str, Contestant] = {}
    for name, entry in entries.items():
        try:
            contestants[name] = clocks.replayed(entry.contestant)
        except RuntimeError as error:
            facts[name].update(status="no", reason=f"cannot be captured, says “{libraries.in_short(error)}”")
            torch.cuda.synchronize()
    if not contestants:
        return
    uuid = torch.cuda.get_device_properties(run.device).uuid
    for name, turns in clocks.sustained(contestants, rounds or _LOAD_ROUNDS, span, f"GPU-{uuid}").items():
        known = [turn for turn in turns if turn.megahertz is not None and turn.watts is not None]
        facts[name]["sustained"] = Times.of([turn.seconds for turn in turns])
        if known:
            facts[name]["megahertz"] = statistics.median(turn.megahertz or 0.0 for turn in known)
            facts[name]["watts"] = statistics.median(turn.watts or 0.0 for turn in known)


def _times(
    entries: dict[str, libraries.Entry], facts: dict[str, dict[str, Any]], rounds: int | None, gpu: bool
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Eager times and replays, all of them in the same turns."""
    if not entries:
        return {}, {}
    eager = {name: entry.contestant for name, entry in entries.items()}
    if not gpu:
        return clocks.cpu_seconds(eager, rounds), {}
    contestants: dict[str, Contestant] = dict(eager)
    for name, contestant in eager.items():
        try:
            contestants[f"{name} replayed"] = clocks.replayed(contestant)
        except RuntimeError as error:
            facts[name]["reason"] = f"cannot be captured, says “{libraries.in_short(error)}”"
            torch.cuda.synchronize()
    times = clocks.gpu_seconds(contestants, rounds or _GPU_ROUNDS)
    replay = {name: times[f"{name} replayed"] for name in eager if f"{name} replayed" in times}
    return {name: times[name] for name in eager}, replay


def product_rate(device: str, dtype: str, rounds: int | None) -> float:
    """FLOP/s of PyTorch's matrix product, under the rules of the run."""
    n = _PRODUCT[device.partition(":")[0]]
    a, b = (torch.randn(n, n, device=device).to(DTYPES[dtype]) for _ in range(2))
    c = torch.empty_like(a)
    return 2.0 * n**3 / _typical(device, lambda: torch.matmul(a, b, out=c), rounds)


def memory_rates(device: str, rounds: int | None) -> dict[str, float]:
    """B/s of a copy on the device, read and written bytes together, and of a sum, which only reads."""
    count = _COPIED_BYTES[device.partition(":")[0]]
    source = torch.zeros(count // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    total = torch.empty((), dtype=torch.float32, device=device)
    copied = _typical(device, lambda: target.copy_(source), rounds)
    read = _typical(device, lambda: torch.sum(source, dim=0, out=total), rounds)
    return {"copy": 2.0 * count / copied, "read": count / read}


def _typical(device: str, call: Callable[[], object], rounds: int | None) -> float:
    """Seconds: the median on a GPU; on a CPU the best, which is what its roofline is made of."""
    if not device.startswith("cuda"):
        return Times.of(clocks.cpu_seconds({"": Contestant(call)}, max(rounds or 0, _CPU_PEAK_ROUNDS))[""]).best
    replayed = clocks.replayed(Contestant(call))
    return Times.of(clocks.gpu_seconds({"": replayed}, rounds or _GPU_ROUNDS)[""]).median
