"""``flashcute info``: what this build is and what it can do here."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

import flashcute
from flashcute import _core
from flashcute.cli import screen


def collect() -> dict[str, Any]:
    """The library's own account, with what only Python knows."""
    info = dict(_core.info())
    info["python"] = {
        "include": flashcute.get_include(),
        "library": flashcute.get_library(),
        "cmake_dir": flashcute.get_cmake_dir(),
    }
    info["notes"] = screen.notes(info)
    return info


def run(as_json: bool) -> int:
    info = collect()
    if as_json:
        print(json.dumps(info, indent=2))
        return 0
    console = screen.console()
    _print_build(console, info)
    _print_devices(console, info)
    _print_kernels(console, info)
    screen.print_notes(console, info["notes"])
    return 0


def _print_build(to: Console, info: dict[str, Any]) -> None:
    build = info["build"]
    count, why = info["gpu"]["count"], screen.why_no_gpu(info)
    facts = {
        "flashcute": info["version"],
        "compiler": f"{build['compiler']}, {build['type']}",
        "CUDA build": build["cuda_description"],
        "CPU": f"{info['cpu']['isa']}, {info['cpu']['threads']} threads",
        "GPUs": f"{count or 'none'}; {why}" if why else str(count),
    }
    to.print(screen.table(to, ("", ""), [(f"{name:<13}", fact) for name, fact in facts.items()]))
    # On a line each, however long: paths are there to be copied.
    for name, path in (("library", "library"), ("headers", "include"), ("CMake package", "cmake_dir")):
        to.print(screen.plain(to, f"{name:<13}  {info['python'][path]}"), soft_wrap=True)


def _print_devices(to: Console, info: dict[str, Any]) -> None:
    rows = []
    for device in info["devices"]:
        gpu = device["type"] != "cpu"
        rows.append(
            (
                screen.device_label(device),
                "yes" if device["usable"] else "no, see below",
                device["name"],
                device["capability"] if gpu else "",
                str(device["multiprocessors"]) if gpu else "",
                f"{device['shared_memory_per_block'] / 1024:.0f} KiB" if gpu else "",
                f"{device['l2_bytes'] / 2**20:.0f} MiB" if gpu else "",
            )
        )
    headings = ("device", "usable", "name", "capability", "SMs", "shared memory", "L2")
    to.print()
    to.print(screen.table(to, headings, rows))


def _print_kernels(to: Console, info: dict[str, Any]) -> None:
    """One line for each kernel; on which devices of its type it runs, and below the table why not on the others."""
    answers, reasons = _answers(info)
    rows = []
    for kernel in info["kernels"]:
        gpu = kernel["device"] != "cpu"
        rows.append(
            (
                kernel["name"],
                answers.get(kernel["name"], "no GPU here"),
                f"to {screen.head_dims(kernel)}",
                f"{kernel['block_m']}x{kernel['block_n']}" if kernel["block_m"] else "by plan",
                kernel["dtype"],
                kernel["mask_class"],
                str(kernel["stages"]) if gpu else "",
                str(kernel["threads"]) if gpu else "",
                f"{kernel['shared_memory'] / 1024:.0f} KiB" if gpu else "",
            )
        )
    headings = ("kernel", "here", "head dim", "tile", "dtype", "mask", "stages", "threads", "shared memory")
    to.print()
    to.print(screen.table(to, headings, rows))
    for number, reason in enumerate(reasons, 1):
        screen.say(to, f"({number}) {reason}")


def _answers(info: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """For each kernel with a device of its type "runs on cuda:0" or "not on cuda:1 (2)"; and the numbered reasons."""
    kinds = {kernel["name"]: kernel["device"] for kernel in info["kernels"]}
    reasons: list[str] = []
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for device in info["devices"]:
        for kernel in device["kernels"]:
            if kinds[kernel["name"]] == device["type"]:
                reason = "" if kernel["can_run"] else screen.without_argument(kernel["reason"])
                found.setdefault(kernel["name"], {}).setdefault(reason, []).append(device)
    answers = {}
    for name, by_reason in found.items():
        lines = []
        for reason, devices in by_reason.items():
            if reason and reason not in reasons:
                reasons.append(reason)
            answer = f"not on {{}} ({reasons.index(reason) + 1})" if reason else "runs on {}"
            lines.append(answer.format(_labels(devices)))
        answers[name] = "\n".join(lines)
    return answers, reasons


def _labels(devices: list[dict[str, Any]]) -> str:
    """ "cuda:0", "cuda:0-7" or "cuda:0,2": the devices' names, which are of one type."""
    first, numbers = screen.device_label(devices[0]), [device["id"] for device in devices]
    if len(numbers) == 1:
        return first
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{first}-{numbers[-1]}"
    return f"cuda:{','.join(map(str, numbers))}"
