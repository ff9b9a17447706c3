"""Promises beyond one right answer: merging partial results, repeatability, isolation, and lengths that lie."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import support
from support import Problem, Strided, cases, close, close_lse, compute, ints, ramp, tensor

import flashcute

EVERYWHERE = pytest.mark.parametrize(("device", "dtype", "path"), cases())
INF = math.inf


def place(x, device, dtype="float32"):
    """An array of the device's framework: NumPy on the CPU, PyTorch on the GPU."""
    if device == "cpu":
        return np.ascontiguousarray(x, dtype=dtype)
    support.skip_without_cuda()
    return support.torch.tensor(np.asarray(x, dtype="float32"), device=device).to(getattr(support.torch, dtype))


ON_BOTH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


class TestMerge:
    @ON_BOTH
    @pytest.mark.parametrize(
        ("a", "b", "want"),
        [
            ((0, -INF), (0, -INF), (0, -INF)),
            ((0, -INF), (3, 1.5), (3, 1.5)),
            ((0, INF), (3, 1.5), (3, 1.5)),
            ((3, 1.5), (0, -INF), (3, 1.5)),
            ((3, 1.5), (0, INF), (3, 1.5)),
            ((0, INF), (0, INF), (0, -INF)),
            ((0, INF), (0, -INF), (0, -INF)),
            ((math.nan, -INF), (3, 1.5), (3, 1.5)),  # what an empty part holds is never looked at
            ((5, -INF), (math.nan, INF), (0, -INF)),
            ((math.nan, -1000.0), (3, 1.5), (math.nan, 1.5)),  # no weight is left of it, but it is not empty
            ((2, 0.0), (4, 0.0), (3, math.log(2))),
            ((2, 1000.0), (4, 0.0), (2, 1000.0)),
            ((2, -1000.0), (4, -1000.0), (3, -1000 + math.log(2))),
            ((1, math.log(3)), (5, 0.0), (2, math.log(4))),
            ((3, math.nan), (4, 0.0), (math.nan, math.nan)),  # nobody knows the weight of either then
            ((4, 0.0), (3, math.nan), (math.nan, math.nan)),
            ((3, math.nan), (0, -INF), (math.nan, math.nan)),
            ((0, INF), (3, math.nan), (math.nan, math.nan)),
            ((3, math.nan), (5, math.nan), (math.nan, math.nan)),
            ((2, 3.4e38), (4, 3.4e38), (3, 3.4e38)),
            ((2, -3.4e38), (4, -3.4e38), (3, -3.4e38)),
            ((2, -3.4e38), (4, 0.0), (4, 0.0)),
            ((2, -3.4e38), (0, -INF), (2, -3.4e38)),
        ],
    )
    def test_two_numbers(self, device, a, b, want):
        outs = [place(np.full((1, 2, 3, 8), x[0]), device) for x in (a, b)]
        lses = [place(np.full((1, 2, 3), x[1]), device) for x in (a, b)]
        out, lse = flashcute.merge_states(outs[0], lses[0], outs[1], lses[1])
        close(support.to_values(out), want[0])
        close(support.to_values(lse), want[1], scale=1e-4 / support.TOLERANCE["float32"] * max(1, abs(want[1])))

    @pytest.mark.parametrize("lse", [-1.0, 0.0, 0.3, 7.0])
    def test_the_largest_values_merge_to_themselves(self, lse):
        largest = np.full((1, 2, 3, 8), np.finfo(np.float32).max)
        parts = [np.full((1, 2, 3), x, np.float32) for x in (0.1, lse)]
        out, _ = flashcute.merge_states(largest, parts[0], largest, parts[1])
        np.testing.assert_array_equal(out, largest)

    @ON_BOTH
    @pytest.mark.parametrize("dtype", support.FLOATS)
    @pytest.mark.parametrize("layout", ["bhsd", "bshd"])
    def test_split_keys_merge_to_the_whole(self, device, dtype, layout, rng):
        q, k, v = (rng.standard_normal((2, 3, 40, 64)) for _ in range(3))
        order = (lambda x: x) if layout == "bhsd" else (lambda x: x.swapaxes(1, 2))
        kind = "torch"
        if device != "cpu":
            support.skip_without_cuda()
            if dtype == "float32":
                pytest.skip("no GPU kernel computes float32")
        pytest.importorskip("torch")
        tensors = [tensor(order(x), dtype).place(kind, device) for x in (q, k, v)]
        keys = 2 if layout == "bhsd" else 1
        part = [[x.narrow(keys, first, n) for x in tensors[1:]] for first, n in ((0, 13), (13, 27))]
        a = flashcute.attention(tensors[0], *part[0], layout=layout, return_lse=True)
        b = flashcute.attention(tensors[0], *part[1], layout=layout, return_lse=True)
        whole = flashcute.attention(*tensors, layout=layout, return_lse=True)
        out, lse = flashcute.merge_states(*a, *b, layout=layout)
        assert out.dtype == tensors[0].dtype
        assert tuple(out.shape) == tuple(tensors[0].shape)
        np.testing.assert_allclose(support.to_values(lse), support.to_values(whole[1]), rtol=1e-5, atol=1e-5)
        atol = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
        np.testing.assert_allclose(support.to_values(out), support.to_values(whole[0]), rtol=0, atol=atol)

    def test_mismatched_parts_are_rejected_by_name(self):
        out, lse = np.zeros((1, 2, 3, 8), "float32"), np.zeros((1, 2, 3), "float32")
        with pytest.raises(flashcute.BadShapeError, match="lse_a"):
            flashcute.merge_states(out, lse[:, :, :2], out, lse)
        with pytest.raises(flashcute.BadShapeError, match="out_b"):
            flashcute.merge_states(out, lse, out[:, :, :2], lse)
        with pytest.raises(flashcute.BadDtypeError, match="out_b"):
            flashcute.merge_states(out, lse, out.astype("float16"), lse)
        with pytest.raises(flashcute.BadDtypeError, match="lse_b"):
            flashcute.merge_states(out, lse, out, lse.astype("float64"))


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 3)}])
def test_runs_repeat_bitwise(device, dtype, path, options, rng):
    q, k, v = (rng.standard_normal((2, 4, 130, 64)) for _ in range(3))
    first, first_lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    for _ in range(10):
        again, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
        assert again.tobytes() == first.tobytes()
        assert lse.tobytes() == first_lse.tobytes()


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_a_sequence_is_bitwise_the_same_alone_and_in_a_batch(device, dtype, path, options, rng):
    q, k, v = (rng.standard_normal((7, h, 129, 64)) for h in (4, 2, 2))
    whole, lse = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    for b in (0, 3, 6):
        alone, alone_lse = compute(
            q[b : b + 1], k[b : b + 1], v[b : b + 1], path=path, device=device, dtype=dtype, options=options
        )
        assert alone[0].tobytes() == whole[b].tobytes()
        assert alone_lse[0].tobytes() == lse[b].tobytes()


@EVERYWHERE
def test_a_packed_member_is_bitwise_the_same_alone_and_in_a_batch(device, dtype, path, rng):
    lengths = [5, 64, 1, 130, 0, 77]
    cu = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = (rng.standard_normal((h, cu[-1], 64)) for h in (4, 2, 2))
    common = {"max_seqlen_q": 130, "max_seqlen_k": 130, "layout": "hsd", "causal": True}
    options = {"cu_seqlens_q": ints(cu), "cu_seqlens_k": ints(cu), **common}
    whole, _ = compute(q, k, v, path=path, device=device, dtype=dtype, options=options)
    for b in (1, 3, 5):
        part = slice(cu[b], cu[b + 1])
        options = {"cu_seqlens_q": ints([0, lengths[b]]), "cu_seqlens_k": ints([0, lengths[b]]), **common}
        alone, _ = compute(q[:, part], k[:, part], v[:, part], path=path, device=device, dtype=dtype, options=options)
        assert alone.tobytes() == np.ascontiguousarray(whole[:, part]).tobytes()


@EVERYWHERE
def test_members_find_their_rows_among_hundreds(device, dtype, path, rng):
    """Lengths of all kinds and no max_seqlen: every row has its member's mean, however the members lie."""
    lengths = rng.integers(0, 300, 200)
    lengths[rng.integers(0, 200, 40)] = 0
    cu = np.concatenate([[0], np.cumsum(lengths)])
    member = np.repeat(np.arange(200), lengths)
    v = np.broadcast_to((member % 61)[None, :, None], (2, cu[-1], 64))
    zeros = np.zeros((2, cu[-1], 64))
    options = {"cu_seqlens_q": ints(cu), "cu_seqlens_k": ints(cu), "layout": "hsd"}
    out, lse = compute(zeros, zeros, v, path=path, device=device, dtype=dtype, options=options)
    close(out, v, dtype)
    close_lse(lse, np.broadcast_to(np.log(lengths[member]), lse.shape))


@pytest.mark.parametrize("dtype", support.FLOATS)
@pytest.mark.parametrize("shape", [(1, 1, 300, 64), (3, 4, 70, 32), (1, 8, 1, 128)])
def test_the_number_of_threads_does_not_change_a_bit(dtype, shape, rng):
    q, k, v = (rng.standard_normal(shape) for _ in range(3))
    before = flashcute.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 8, 64):
            flashcute.set_num_threads(threads)
            assert flashcute.get_num_threads() == threads
            out, lse = compute(q, k, v, dtype=dtype, options={"causal": True})
            results.append(out.tobytes() + lse.tobytes())
    finally:
        flashcute.set_num_threads(before)
    assert len(set(results)) == 1


ISA_PROGRAM = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    import capi, problems, support
    print("isa", capi.info()["cpu"]["isa"])
    failures = [f for f in (problems.check(seed) for seed in range(20_000, 20_250)) if f]
    print("\\n".join(failures[:5]))
    sys.exit(bool(failures))
    """
)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512", "avx512_bf16"])
def test_every_instruction_set_agrees_with_float64(isa, root):
    """Each variant of the CPU kernels, as far as this processor has it."""
    environment = {**os.environ, "FLASHCUTE_CPU_ISA": isa}
    ran = subprocess.run(
        [sys.executable, "-c", ISA_PROGRAM, str(root / "tests")],
        env=environment, capture_output=True, text=True, timeout=300, cwd=root / "tests",
    )  # fmt: skip
    if f'(generic, avx2), given "{isa}"' in ran.stderr or f'(generic), given "{isa}"' in ran.stderr:
        pytest.skip(f"this processor has no {isa}, and the library says so")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    chosen = ran.stdout.splitlines()[0].split()[1]
    order = ["generic", "avx2", "avx512", "avx512_bf16"]
    assert order.index(chosen) <= order.index(isa)
    if chosen != isa:
        pytest.skip(f"this processor runs {chosen}")


@pytest.mark.parametrize("fault", [1, 2], ids=["out of memory", "launch failure"])
@pytest.mark.parametrize("path", ["functional", "descriptor"])
def test_failures_inside_surface_and_leave_out_alone(fault, path, rng):
    """Faults on demand, of flashcute/testing.h: the call raises, the output is untouched, the next call works."""
    import capi

    q, k, v = (rng.standard_normal((1, 2, 9, 16)).astype("float32") for _ in range(3))
    want = flashcute.attention(q, k, v)
    desc = flashcute.AttentionDescriptor(q, k, v)
    out = np.full_like(q, 7)
    call = (
        (lambda: flashcute.attention(q, k, v, out=out))
        if path == "functional"
        else (lambda: desc.run(q, k, v, out=out))
    )
    capi.check(capi.lib.flashcuteInjectFault(fault))
    try:
        with pytest.raises((flashcute.InternalError, MemoryError)):
            call()
        assert (out == 7).all()
    finally:
        capi.check(capi.lib.flashcuteInjectFault(0))
    assert np.array_equal(call(), want)


# -- lengths on the device that lie

GARBAGE = [-1, -(2**31), 2**31 - 1, 5, 0, 10**6]


@EVERYWHERE
@pytest.mark.parametrize("used", [[-1, 9], [2**31 - 1, -(2**31)], [8, 10**6], [0, 0]])
def test_wrong_used_lengths_are_clamped(device, dtype, path, used):
    q, k, options = np.zeros((2, 2, 4, 64)), np.zeros((2, 1, 7, 64)), {"seqused_k": ints(used)}
    out, lse = compute(q, k, ramp(2, 1, 7, 64), path=path, device=device, dtype=dtype, options=options)
    for b in range(2):
        n = min(max(used[b], 0), 7)
        close(out[b], max(0, n - 1) / 2 if n else 0, dtype, scale=4)
        close_lse(lse[b], math.log(n) if n else -INF)


def packed_problem(rng, dtype, cu_q, cu_k, used=None, **options):
    q, k, v = (tensor(rng.standard_normal((h, n, 64)), dtype) for h, n in ((4, 20), (2, 30), (2, 30)))
    options = {"cu_seqlens_q": ints(cu_q), "cu_seqlens_k": ints(cu_k), "layout": "hsd", "causal": True, **options}
    if used is not None:
        options["seqused_k"] = ints(used)
    return Problem(q, k, v, options, Strided((4, 20, 64), dtype))


def run_or_skip(problem, path, device, **extra):
    if device != "cpu":
        support.skip_without_cuda()
    kind = "numpy" if device == "cpu" and problem.name != "bfloat16" else "torch"
    try:
        return support.run(problem, path, kind, device, **extra)
    except flashcute.NotImplementedByKernelError as error:
        if device == "cpu":
            raise
        pytest.skip(str(error))


@EVERYWHERE
def test_random_garbage_lengths_never_touch_a_guard(device, dtype, path, rng):
    """Unchecked: results may mean nothing, but no byte outside the tensors is written and nothing crashes."""
    for _ in range(25):
        cu_q, cu_k = (rng.choice([*GARBAGE, 3, 10, 20, 30, 31], size=5) for _ in range(2))
        problem = packed_problem(rng, dtype, cu_q, cu_k, rng.choice(GARBAGE, size=4))
        outcome = run_or_skip(problem, path, device)
        assert not outcome.faults, (cu_q, cu_k, outcome.faults)


@EVERYWHERE
def test_members_that_end_before_they_start_are_empty(device, dtype, path, rng):
    problem = packed_problem(rng, dtype, [0, 8, 4, 20], [0, 10, 10, 25])
    outcome = run_or_skip(problem, path, device)
    assert not outcome.faults
    alone = problem.expected()
    close(outcome.out[:, :4], alone.out[:, :4], dtype, scale=4)


@EVERYWHERE
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"cu_seqlens_q": [0, 9, 5, 20]}, "cu_seqlens_q"),
        ({"cu_seqlens_q": [0, 9, 15, 21]}, "cu_seqlens_q"),
        ({"cu_seqlens_q": [-1, 9, 15, 20]}, "cu_seqlens_q"),
        ({"cu_seqlens_k": [0, 9, 15, 31]}, "cu_seqlens_k"),
        ({"cu_seqlens_k": [0, 9, 8, 30]}, "cu_seqlens_k"),
        ({"seqused_k": [10, 6, 14]}, "seqused_k"),
        ({"seqused_k": [9, 6, 16]}, "seqused_k"),
        ({"seqused_k": [9, -1, 15]}, "seqused_k"),
        ({"max_seqlen_q": 8}, "max_seqlen_q|cu_seqlens_q"),
        ({"max_seqlen_k": 14}, "max_seqlen_k|cu_seqlens_k"),
    ],
)
def test_checked_mode_raises_on_a_bad_length(device, dtype, path, options, name, rng):
    base = {"cu_q": [0, 9, 15, 20], "cu_k": [0, 9, 15, 30]}
    given = {k: v if isinstance(v, int) else ints(v) for k, v in options.items()}
    problem = packed_problem(rng, dtype, **base)
    outcome = run_or_skip(problem, path, device, checked=True)  # the good one passes
    assert problem.judge(outcome.out, outcome.lse)
    problem = packed_problem(rng, dtype, **base)
    problem.options.update(given)
    with pytest.raises(flashcute.BadParamError, match=name):
        run_or_skip(problem, path, device, checked=True)
    problem.out.fetch()
    assert problem.out.untouched().all(), "a rejected call wrote its output"


def test_the_environment_turns_checked_mode_on(root):
    program = textwrap.dedent(
        """
        import numpy as np, flashcute
        q = np.zeros((1, 1, 4, 8), "float32")
        try:
            flashcute.attention(q, q, q, seqused_k=np.array([9], "int32"))
        except flashcute.BadParamError as error:
            assert "seqused_k" in str(error)
            print("rejected")
        print(flashcute.attention(q, q, q, seqused_k=np.array([9], "int32"), checked=False).sum())
        """
    )
    for value, expected in (("1", ["rejected", "0.0"]), ("0", ["0.0"]), ("", ["0.0"])):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "FLASHCUTE_CHECKED": value},
            capture_output=True,
            text=True,
            cwd=root / "tests",
        )
        assert ran.stdout.split() == expected, (value, ran.stdout, ran.stderr)


@EVERYWHERE
def test_padding_of_the_batch_is_isolated(device, dtype, path, rng):
    """NaN in everything that belongs to no member, and rows of out that belong to none are left alone."""
    problem = packed_problem(rng, dtype, [2, 9, 15], [3, 13, 27], max_seqlen_q=7, max_seqlen_k=14)
    nan = support.encode(np.full(1, np.nan), dtype)[0]
    for t, (start, end) in ((problem.q, (2, 15)), (problem.k, (3, 27)), (problem.v, (3, 27))):
        t.raw[:, :start] = nan
        t.raw[:, end:] = nan
    outcome = run_or_skip(problem, path, device)
    assert not outcome.faults
    verdict = problem.judge(outcome.out, outcome.lse)
    assert verdict, verdict.message
    untouched = problem.out.untouched()
    assert untouched[:, :2].all()
    assert untouched[:, 15:].all()
    assert not untouched[:, 2:15].any()
