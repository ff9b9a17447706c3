"""Thousands of generated problems against float64, on the CPU and on a GPU."""

from __future__ import annotations

import collections

import problems
import pytest
import support

import flashcute

CPU_PROBLEMS, GPU_PROBLEMS, GPU_ANYTHING, CHUNK = 3200, 1300, 300, 100


@pytest.mark.parametrize(
    ("axes", "count"), [(problems.AXES, CPU_PROBLEMS), (problems.GPU_AXES, GPU_PROBLEMS)], ids=["cpu", "gpu"]
)
def test_problems_cover_every_pair_of_features(axes, count):
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


@pytest.mark.parametrize("start", range(0, CPU_PROBLEMS, CHUNK))
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
@pytest.mark.parametrize("start", range(0, GPU_PROBLEMS, CHUNK))
def test_gpu_agrees_with_float64(start, record_property):
    support.skip_without_cuda()
    failures, refused = [], collections.Counter()
    for seed in range(start, start + CHUNK):
        try:
            failures.append(problems.check(seed, "cuda"))
        except flashcute.NotImplementedByKernelError as error:
            refused[str(error)] += 1
    record_property("refused", dict(refused))
    report([f for f in failures if f], len(failures))
    # 13 chunks of at least 80 are more than 1,000 problems
    assert len(failures) >= 80, f"only {len(failures)} of {CHUNK} problems ran; refused: {refused.most_common(3)}"


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
