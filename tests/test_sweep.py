"""Thousands of generated problems against float64, on the CPU and on a GPU."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os

import problems
import pytest
import support

import flashcute

CPU_PROBLEMS, GPU_PROBLEMS, GPU_ANYTHING, CHUNK = 3200, 1500, 300, 100
MOST_PROCESSES = 8  # with a context on the GPU each


def pytest_generate_tests(metafunc):
    if "start" in metafunc.fixturenames:
        metafunc.parametrize("start", range(0, metafunc.config.getoption("problems") or CPU_PROBLEMS, CHUNK))


@pytest.mark.parametrize(
    ("axes", "usual"), [(problems.AXES, CPU_PROBLEMS), (problems.GPU_AXES, GPU_PROBLEMS)], ids=["cpu", "gpu"]
)
def test_problems_cover_every_pair_of_features(axes, usual, pytestconfig):
    count = pytestconfig.getoption("problems") or usual
    if count < usual:
        pytest.skip(f"{count} problems are not meant to cover them")
    missing = set(problems.pairs(axes))
    assert len(missing) > 1000
    for seed in range(count):
        pick = list(problems.recipe(seed, axes).items())
        missing.difference_update((a, x, b, y) for n, (a, x) in enumerate(pick) for b, y in pick[n + 1 :])
        if not missing:
            break
    assert not missing, f"{len(missing)} pairs of features are never tested, such as {sorted(missing)[:3]}"


def test_a_problem_is_made_by_its_number_alone():
    for seed in (0, 17, 1234):
        (pick, a), (again, b) = problems.make(seed), problems.make(seed)
        assert pick == again
        assert a.options.keys() == b.options.keys()
        assert (a.q.buffer.tobytes(), a.v.buffer.tobytes()) == (b.q.buffer.tobytes(), b.v.buffer.tobytes())


def report(failures: list[str], ran: int) -> None:
    shown = "\n".join(failures[:8])
    assert not failures, f"{len(failures)} of {ran} problems disagree; run one again with its line:\n{shown}"


def test_cpu_agrees_with_float64(start):
    failures = [f for f in (problems.check(seed) for seed in range(start, start + CHUNK)) if f]
    report(failures, CHUNK)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_cpu_agrees_on_long_sequences(threads):
    before = flashcute.get_num_threads()
    flashcute.set_num_threads(threads)
    try:
        seeds = range(30_000 + 25 * threads, 30_000 + 25 * threads + 25)
        report([f for f in (problems.check(seed, "cpu", problems.LONG_AXES) for seed in seeds) if f], len(seeds))
    finally:
        flashcute.set_num_threads(before)


@pytest.mark.gpu
def test_gpu_agrees_with_float64(pytestconfig, record_property):
    """In processes side by side, since the oracle takes most of the time. No kernel may refuse any of the problems.

    A third as many again are of what the mask classes without extras take.
    """
    support.skip_without_cuda()
    count = pytestconfig.getoption("problems") or GPU_PROBLEMS
    shares = [
        (range(start, min(start + CHUNK, end)), axes)
        for axes, end in ((problems.GPU_AXES, count), (problems.LEAN_AXES, count // 3))
        for start in range(0, end, CHUNK)
    ]
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(shares))
    failures, refused = [], []
    with concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for job in [pool.submit(problems.check_many, seeds, "cuda", axes) for seeds, axes in shares]:
            wrong, no_kernel = job.result()
            failures += wrong
            refused += no_kernel
    record_property("problems", count)
    report(failures, count)
    assert not refused, f"no kernel took {len(refused)} of {count} problems, such as {refused[:3]}"


@pytest.mark.gpu
def test_gpu_is_right_or_refuses():
    """Problems over every feature: a GPU kernel either refuses by name or agrees."""
    support.skip_without_cuda()
    failures, refused = [], collections.Counter()
    for seed in range(10_000, 10_000 + GPU_ANYTHING):
        try:
            failures.append(problems.check(seed, "cuda", problems.AXES_ON_GPU))
        except flashcute.NotImplementedByKernelError as error:
            assert len(str(error)) > 20, f"seed {seed}: a refusal without reasons: {error}"
            refused[str(error)] += 1
    report([f for f in failures if f], len(failures))
