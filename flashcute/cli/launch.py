"""What `flashcute profile` runs under the profiler: one problem, launched a few times, without any framework."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

import flashcute
from flashcute.cli import flags, problem
from flashcute.cli.cases import draw_optional
from flashcute.device_array import DeviceArray

_DRAWN = 1 << 20  # values that are drawn; larger tensors repeat them, since drawing takes longer than all else


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flashcute.cli.launch", description=__doc__)
    parser.add_argument("--runs", type=flags.whole(1), default=1)
    parser.add_argument("--device", default="cuda:0")
    flags.add_problem(parser)
    arguments = parser.parse_args(argv)
    case, lengths = problem.case_of(arguments)
    random = np.random.default_rng(0)
    shapes = problem.tensors_of(case, arguments.device)
    values = random.standard_normal(_DRAWN, dtype=np.float32)

    def array(name: str) -> DeviceArray:
        return DeviceArray.from_numpy(np.resize(values, shapes[name].shape), arguments.device, case.dtype)

    q, k, v = (array(name) for name in "qkv")
    optional = {**draw_optional(case, random), **lengths}
    tensors = {name: DeviceArray.from_numpy(x, arguments.device) for name, x in optional.items()}
    seed = {name: value for name, value in case.options.items() if name == "seed"}
    descriptor = flashcute.AttentionDescriptor(
        q, k, v, **tensors, **case.options, **problem.longest(lengths), return_lse=arguments.lse
    )
    for _ in range(arguments.runs):
        result = descriptor.run(q, k, v, **tensors, **seed)
    (result[0] if isinstance(result, tuple) else result).synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
