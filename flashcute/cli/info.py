"""``flashcute info``: what this build is and what it can do here."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

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


def _print_build(console: Console, info: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    build = info["build"]
    table.add_row("flashcute", info["version"])
    table.add_row("compiler", f"{build['compiler']}, {build['type']}")
    table.add_row("CUDA build", build["cuda_description"])
    table.add_row("CPU", f"{info['cpu']['isa']}, {info['cpu']['threads']} threads")
    count, why = info["gpu"]["count"], screen.why_no_gpu(info)
    table.add_row("GPUs", f"{count} ({why})" if why else str(count))
    table.add_row("library", info["python"]["library"])
    table.add_row("headers", info["python"]["include"])
    table.add_row("CMake package", info["python"]["cmake_dir"])
    console.print(table)


def _print_devices(console: Console, info: dict[str, Any]) -> None:
    table = Table(title="Devices", title_justify="left", title_style="bold")
    for heading in ("device", "name", "capability", "SMs", "shared memory", "L2", "usable"):
        table.add_column(heading, overflow="fold")
    for device in info["devices"]:
        gpu = device["type"] != "cpu"
        table.add_row(
            screen.device_label(device),
            device["name"],
            device["capability"] if gpu else "",
            str(device["multiprocessors"]) if gpu else "",
            f"{device['shared_memory_per_block'] / 1024:.0f} KiB" if gpu else "",
            f"{device['l2_bytes'] / 2**20:.0f} MiB" if gpu else "",
            "yes" if device["usable"] else screen.without_argument(device["reason"]),
        )
    console.print(table)


def _print_kernels(console: Console, info: dict[str, Any]) -> None:
    """One line for each kernel; on which devices of its type it runs, and why not on the others."""
    kinds = {kernel["name"]: kernel["device"] for kernel in info["kernels"]}
    answers: dict[str, list[str]] = {}
    for device in info["devices"]:
        for kernel in device["kernels"]:
            if kinds[kernel["name"]] != device["type"]:
                continue
            answer = "runs" if kernel["can_run"] else kernel["reason"]
            answers.setdefault(kernel["name"], []).append(f"{screen.device_label(device)}: {answer}")
    table = Table(title="Kernels", title_justify="left", title_style="bold")
    for heading in ("kernel", "dtype", "head dim", "mask", "tile", "stages", "threads", "shared memory"):
        table.add_column(heading, justify="left", no_wrap=True)
    table.add_column("here", overflow="fold")
    for kernel in info["kernels"]:
        gpu = kernel["device"] != "cpu"
        table.add_row(
            kernel["name"],
            kernel["dtype"],
            f"to {kernel['head_dim']}",
            kernel["mask_class"],
            f"{kernel['block_m']}x{kernel['block_n']}" if kernel["block_m"] else "by plan",
            str(kernel["stages"]) if gpu else "",
            str(kernel["threads"]) if gpu else "",
            f"{kernel['shared_memory'] / 1024:.0f} KiB" if gpu else "",
            "\n".join(answers.get(kernel["name"], ["no GPU here"])),
        )
    console.print(table)
