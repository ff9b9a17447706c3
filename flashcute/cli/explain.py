"""``flashcute explain``: how a problem would be run, why so, and what it costs at the least."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console

import flashcute
from flashcute.architectures import Architecture, find_architecture
from flashcute.cli import info as info_command
from flashcute.cli import problem, roofline, screen
from flashcute.cli.cases import Array, Case

_MOST_REGISTERS, _REGISTERS = 255, 65536  # of a thread, of a multiprocessor


@dataclass(frozen=True)
class Explanation:
    """`plan` is None where `why_no_plan` says why."""

    case: Case
    device: str
    plan: dict[str, Any] | None
    why_no_plan: str
    machine: roofline.Machine
    roofline: roofline.Roofline

    def as_json(self) -> dict[str, Any]:
        case, machine = self.case, self.machine
        return {
            "version": flashcute.__version__,
            "problem": {
                "batch": case.batch,
                "heads": case.heads,
                "seq": case.seq,
                "head_dim": case.head_dim,
                "dtype": case.dtype,
                "features": case.feature_text(),
            },
            "device": self.device,
            "plan": self.plan,
            "why_no_plan": self.why_no_plan,
            "machine": {"name": machine.name, "where_from": machine.where_from},
            "roofline": self.roofline.as_json(),
        }


def run(arguments: argparse.Namespace) -> int:
    facts = info_command.collect()
    case, tensors = problem.case_of(arguments)
    explained = explain(case, tensors, facts, arguments.device, arguments.arch, lse=arguments.lse)
    if isinstance(explained, str):
        screen.say(screen.console(stderr=True), f"flashcute explain: {explained}", "red")
        return 2
    if arguments.json:
        print(json.dumps(explained.as_json(), indent=2))
    else:
        _print(screen.console(), explained)
    return 0


def explain(
    case: Case, tensors: dict[str, Array], facts: dict[str, Any], device: str, arch: str | None, *, lse: bool = False
) -> Explanation | str:
    """The explanation, or a sentence that says why there is no such device."""
    card = None if arch is None else find_architecture(arch)
    if arch is not None and card is None:
        return f"--arch: expected a100, a10, l40s, h100, h200, sm_80, sm_86, sm_89 or sm_90, given {arch}"
    entry: dict[str, Any] = {}
    if card is None:
        chosen = screen.choose_device(facts, device)
        if isinstance(chosen, str):
            return chosen
        entry = chosen
    label = screen.device_label(entry) if card is None else card.key
    plan, why = None, ""
    try:
        plan = problem.descriptor_of(case, tensors, label, return_lse=lse).plan
    except flashcute.NotImplementedByKernelError as error:
        why = str(error)
        if card is not None and not facts["build"]["cuda"]:
            why = f"{screen.why_no_gpu(facts)}, so there is no plan for a GPU"
    machine = _machine(card, entry, case, facts, plan["family"] if plan else "")
    return Explanation(case, label, plan, why, machine, roofline.roofline(case, tensors, machine, lse=lse))


def _machine(
    card: Architecture | None, entry: dict[str, Any], case: Case, facts: dict[str, Any], family: str
) -> roofline.Machine:
    if card is not None:
        return roofline.named_gpu(card, family)
    if entry["type"] == "cpu":
        return roofline.this_cpu(case.dtype, facts["cpu"]["isa"])
    return roofline.present_gpu(entry, family)


# ---------------------------------------------------------------------------------------------------------------------
# Output


def _print(to: Console, explained: Explanation) -> None:
    case, machine = explained.case, explained.machine
    screen.say(to, f"{case.shape_text()} {case.dtype}, {case.feature_text()}, on {machine.name}", "bold")
    screen.say(
        to, "shape: batch x heads (of q/of k, v) x length of q x length of k, v x head dim (of q, k/of v)", "dim"
    )
    if explained.plan is None:
        to.print()
        screen.say(to, f"No plan: {explained.why_no_plan}", "yellow")
    else:
        _print_plan(to, explained.plan)
    _print_roofline(to, explained)


def _print_plan(to: Console, plan: dict[str, Any]) -> None:
    rows = [(f"{name:<13}", text) for name, text in _plan_facts(plan).items()]
    to.print()
    screen.say(to, "Plan", "bold")
    to.print(screen.table(to, ("", ""), rows))
    by_reason: dict[str, list[str]] = {}
    for other in plan["passed_over"]:
        by_reason.setdefault(other["reason"], []).append(other["kernel"])
    if by_reason:
        to.print()
        screen.say(to, "Passed over", "bold")
        ordered = sorted(by_reason.items(), key=lambda each: not each[0].startswith("could do it"))
        to.print(screen.table(to, ("because", "kernels"), [(reason, _names_text(names)) for reason, names in ordered]))


def _names_text(names: list[str]) -> str:
    return "\n".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _plan_facts(plan: dict[str, Any]) -> dict[str, str]:
    gpu = plan["device"]["type"] != "cpu"
    facts = {
        "kernel": f"{plan['kernel']}: family {plan['family']}, head dims to {screen.head_dims(plan)}",
        "mask": "banded: tiles out of bounds are skipped" if plan["mask_class"] == "banded" else "full: no bounds",
        "tile": f"{plan['block_m']} query rows x {plan['block_n']} keys",
    }
    if gpu:
        facts["stages"] = f"{plan['stages']} of k and v"
        facts["grid"] = f"{plan['grid']} blocks of {plan['threads']} threads"
        facts["waves"] = (
            f"{plan['waves']:.2f}: {plan['blocks_per_multiprocessor']} blocks on each of "
            f"{plan['device']['multiprocessors']} multiprocessors at a time"
        )
        facts["shared memory"] = f"{plan['shared_memory'] / 1024:.1f} KiB a block"
        facts["registers"] = _registers(plan)
    else:
        facts["grid"] = f"{plan['grid']} independent tiles, on {plan['threads']} threads at most"
    facts["splits"] = "1: no kernel of this version splits the keys of a row"
    staged = f", copied first: {', '.join(plan['staged'])}" if plan["staged"] else ""
    facts["workspace"] = f"{plan['workspace']} bytes{staged}"
    return facts


def _registers(plan: dict[str, Any]) -> str:
    if "registers" in plan:
        spilled = plan["local_memory"]
        return f"{plan['registers']} a thread" + (f", {spilled} bytes of local memory" if spilled else "")
    most = min(_MOST_REGISTERS, _REGISTERS // (plan["threads"] * plan["min_blocks"]) if plan["threads"] else 0)
    return f"at most {most} a thread, for which it was compiled; how many it takes is known where such a GPU is"


def _print_roofline(to: Console, explained: Explanation) -> None:
    found, machine = explained.roofline, explained.machine
    to.print()
    screen.say(to, "Roofline", "bold")
    rows = [
        (
            each.name,
            screen.with_prefix(each.amount, each.unit),
            screen.with_prefix(each.per_second, f"{each.unit}/s"),
            screen.time_text(each.seconds),
            "the bound" if each is found.bound else "",
        )
        for each in found.bounds
    ]
    to.print(screen.table(to, ("resource", "needed", "peak", "time", ""), rows))
    if found.bound is not None and found.bound.seconds > 0:
        rate = found.flop / found.bound.seconds
        screen.say(
            to,
            f"At the bound, {found.bound.name}: {screen.time_text(found.bound.seconds)}, "
            f"{screen.with_prefix(rate, 'FLOP/s')}; "
            f"{found.flop / max(found.bytes, 1):.0f} FLOP for each byte.",
        )
    if machine.flop_per_second is None:
        screen.say(to, f"The tensor throughput of {machine.name} is not known here.", "yellow")
    screen.say(to, f"Peaks: {machine.where_from}.", "dim")
