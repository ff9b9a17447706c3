"""`flashcute explain`: plans, what problems cost, and plans for GPUs that are not here."""

from __future__ import annotations

import argparse
import dataclasses
import json

import numpy as np
import pytest
import support
from test_cli import cli

import flashcute
from flashcute.architectures import ARCHITECTURES, find_architecture
from flashcute.cli import flags, problem, roofline, screen
from flashcute.cli import info as info_command
from flashcute.cli.cases import Case, seen_keys, visible_pairs

HAS_KERNELS = info_command.collect()["build"]["cuda"]
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="this build has no CUDA kernels to plan for")


def explained(*arguments):
    ran = cli("explain", "--json", *arguments)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def case_from(*words):
    parser = argparse.ArgumentParser()
    flags.add_problem(parser)
    return problem.case_of(parser.parse_args(words))


def brute_force_pairs(case, lengths):
    """The visible pairs, and the keys from the first to the last that is seen."""
    left, right = case.options.get("window", (-1, -1))
    right = 0 if case.options.get("causal") else right
    count = seen = 0
    for seq_q, seq_k in lengths:
        d = 0 if case.options.get("alignment") == "top_left" else seq_k - seq_q
        keys = [
            j
            for i in range(seq_q)
            for j in range(seq_k)
            if (left < 0 or j >= i + d - left) and (right < 0 or j <= i + d + right)
        ]
        count += len(keys)
        seen += max(keys) + 1 - min(keys) if keys else 0
    return count, seen


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        (["--seq", "17"], [(17, 17)]),
        (["--seq-q", "5", "--seq-k", "12", "--causal", "--batch", "2"], [(5, 12)] * 2),
        (["--seq-q", "12", "--seq-k", "5", "--causal"], [(12, 5)]),
        (["--seq-q", "12", "--seq-k", "5", "--causal", "--alignment", "top_left"], [(12, 5)]),
        (["--seq", "20", "--window=3,1"], [(20, 20)]),
        (["--seq-q", "3", "--seq-k", "40", "--window=4,-1"], [(3, 40)]),
        (["--lengths", "3", "0", "9", "--causal"], [(3, 3), (0, 0), (9, 9)]),
    ],
)
def test_work_is_that_of_the_visible_pairs(words, lengths):
    case, tensors = case_from(*words, "--heads", "4", "--head-dim", "8", "--head-dim-v", "24")
    pairs, seen = brute_force_pairs(case, lengths)
    assert visible_pairs(case, tensors) == pairs
    assert seen_keys(case, tensors) == seen
    machine = roofline.named_gpu(ARCHITECTURES["h100"])
    found = roofline.roofline(case, tensors, machine)
    assert found.exps == 4 * pairs
    assert found.flop == 2 * 4 * pairs * (8 + 24)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (0, -1), (0, 0), (3, -1), (-1, 2), (2, 1), (9, 9)])
def test_work_at_every_corner(window, alignment):
    for seq in ((q, k) for q in range(8) for k in range(8)):
        case = Case("bfloat16", 3, (1, 1), seq, (8, 8), {"window": window, "alignment": alignment})
        pairs, seen = brute_force_pairs(case, [seq] * 3)
        assert (visible_pairs(case, {}), seen_keys(case, {})) == (pairs, seen), seq


@pytest.mark.parametrize(("batch", "n"), [(1, 10**11), (10**9, 10)])
def test_work_of_any_size_takes_no_time(batch, n):
    words = ("--device", "cpu", "--heads", "1", "--head-dim", "8", "--batch", str(batch), "--seq", str(n), "--causal")
    assert explained(*words)["roofline"]["exponentials"] == pytest.approx(batch * n * (n + 1) / 2)


def test_bytes_are_those_that_must_move():
    case = Case("bfloat16", 2, (8, 2), (1, 1000), (64, 128))
    q_and_out, kv = 2 * 8 * (64 + 128) * 2, 2 * 2 * 1000 * (64 + 128) * 2
    assert roofline.compulsory_bytes(case, {}) == q_and_out + kv
    assert roofline.compulsory_bytes(case, {}, lse=True) == q_and_out + kv + 4 * 8 * 2
    windowed = dataclasses.replace(case, options={"window": (99, 0)})
    assert roofline.compulsory_bytes(windowed, {}) == q_and_out + kv / 10
    used = {"seqused_k": np.array([1000, 0], dtype=np.int32)}
    short = dataclasses.replace(case, tensors=("seqused_k",))
    assert roofline.compulsory_bytes(short, used) == q_and_out + kv / 2 + 8


@pytest.mark.parametrize(("key", "tflops"), [("a100", 312), ("h100", 989), ("h200", 989), ("l40s", 366), ("a10", 125)])
def test_peaks_are_the_makers(key, tflops):
    machine = roofline.named_gpu(ARCHITECTURES[key])
    assert machine.flop_per_second == pytest.approx(tflops * 1e12, rel=0.005)


def test_mma_sync_is_a_lower_roof_on_hopper_alone():
    assert roofline.named_gpu(ARCHITECTURES["a100"], "sm80").family_flop_per_second is None
    hopper = roofline.named_gpu(ARCHITECTURES["h100"], "sm80")
    assert hopper.family_flop_per_second < hopper.flop_per_second


def test_names_of_architectures():
    assert find_architecture("sm_90") is find_architecture("SM90") is find_architecture("h100")
    assert find_architecture("sm80").key == "a100"
    assert find_architecture("cpu") is None
    assert find_architecture("cuda:0") is None
    assert flashcute.TensorDescriptor((1, 2, 3, 4), device="H100").device == "h100"


def test_weights_and_block_masks_are_bytes_too():
    case, tensors = case_from("--seq-q", "130", "--seq-k", "300", "--heads", "4", "--head-dim", "8", "--batch", "2")
    plain = roofline.compulsory_bytes(case, tensors)
    probs, tensors = case_from(
        "--seq-q", "130", "--seq-k", "300", "--heads", "4", "--head-dim", "8", "--batch", "2", "--probs"
    )
    assert roofline.compulsory_bytes(probs, tensors) == plain + 4 * 2 * 4 * 130 * 300
    masked = dataclasses.replace(case, tensors=("block_mask",))
    assert roofline.compulsory_bytes(masked, {}) == plain + 2 * 4 * 2 * 3


def test_numbers_with_prefixes():
    assert screen.with_prefix(989.4e12, "FLOP/s") == "989 TFLOP/s"
    assert screen.with_prefix(1.2345e9, "B") == "1.23 GB"
    assert screen.with_prefix(12, "B") == "12 B"
    assert screen.with_prefix(999.9e9, "B") == "1.00 TB"


# ---------------------------------------------------------------------------------------------------------------------
# explain


def test_explain_on_the_cpu():
    found = explained("--device", "cpu", "--causal", "--seq", "300", "--head-dim", "64", "--dtype", "float32")
    assert found["device"] == "cpu"
    assert found["plan"]["kernel"] == "cpu_float32"
    assert found["plan"]["passed_over"]
    pairs = 300 * 301 / 2
    assert found["roofline"]["flop"] == 4 * 16 * pairs * 64
    assert {bound["name"] for bound in found["roofline"]["bounds"]} == {"products", "memory"}
    assert found["roofline"]["seconds"] == max(bound["seconds"] for bound in found["roofline"]["bounds"])


@needs_kernels
@pytest.mark.parametrize(("arch", "multiprocessors"), [("h100", 132), ("sm_90", 132), ("a100", 108), ("sm_80", 108)])
def test_explain_plans_for_a_gpu_that_is_not_here(arch, multiprocessors):
    found = explained("--arch", arch, "--batch", "2", "--heads", "8", "--seq", "1000", "--head-dim", "64", "--causal")
    plan = found["plan"]
    assert plan["device"]["multiprocessors"] == multiprocessors
    assert plan["mask_class"] == "banded"
    assert plan["grid"] == 2 * 8 * -(-1000 // plan["block_m"])
    assert plan["waves"] == pytest.approx(plan["grid"] / (multiprocessors * plan["blocks_per_multiprocessor"]))
    assert "registers" not in plan, "nobody can know them without the GPU"
    names = {bound["name"] for bound in found["roofline"]["bounds"]}
    assert {"tensor cores", "exponentials", "memory"} <= names


@needs_kernels
def test_a_small_multiprocessor_holds_fewer_blocks():
    """head_dim 128 takes more than half of the 100 KiB that an A10 has."""
    words = ("--head-dim", "128", "--seq", "4096")
    assert explained("--arch", "a10", *words)["plan"]["blocks_per_multiprocessor"] == 1
    assert explained("--arch", "a100", *words)["plan"]["blocks_per_multiprocessor"] == 2


@needs_kernels
def test_a_descriptor_of_an_architecture_plans_and_does_not_run():
    q = flashcute.TensorDescriptor((2, 4, 100, 64), dtype="float16", device="a100")
    desc = flashcute.AttentionDescriptor(q, q, q)
    assert desc.plan["family"] == "sm80"
    real = np.zeros((2, 4, 100, 64), dtype=np.float16)
    with pytest.raises(flashcute.BadParamError, match="an architecture to plan for"):
        desc.run(real, real, real)


@needs_kernels
@pytest.mark.parametrize("heads", [2**30, 2**33 - 1])  # the tiles of the latter are more than 63 bits count
def test_a_grid_beyond_the_hardwares_is_refused(heads):
    q = flashcute.TensorDescriptor((heads, 2**20, 1), dtype="float16", device="a100")
    starts = flashcute.TensorDescriptor((2**30 + 1,), dtype="int32", device="a100")
    with pytest.raises(flashcute.NotImplementedByKernelError, match="is above 2147483647"):
        flashcute.AttentionDescriptor(
            q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=1, max_seqlen_k=1, layout="hsd"
        )


@needs_kernels
def test_a_backend_is_one_family_of_kernels():
    problem = ("--arch", "h100", "--seq", "1024", "--head-dim", "128")
    assert explained(*problem)["plan"]["family"] == "sm90"
    found = explained(*problem, "--backend", "sm80")
    assert found["plan"]["family"] == "sm80"
    assert {"sm90_hd128_bfloat16_full"} < {
        other["kernel"] for other in found["plan"]["passed_over"] if "backend sm80 excludes" in other["reason"]
    }


@needs_kernels
def test_what_the_gpu_kernels_lack_is_refused_by_name():
    problem = ("--arch", "h100", "--seq", "1024")
    assert explained(*problem, "--head-dim", "256")["plan"]
    found = explained(*problem, "--head-dim", "257")
    assert found["plan"] is None
    assert "): head_dim 257 is above 256 (" in found["why_no_plan"]  # of all reasons the most telling one comes first
    assert len(found["why_no_plan"]) < 600


@needs_kernels
@pytest.mark.parametrize("arch", ["a100", "a10", "h100"])
@pytest.mark.parametrize("head_dim", ["32", "64", "96", "128", "192", "256"])
def test_block_masks_take_the_kernels_of_all_features_and_weights_any(arch, head_dim):
    problem = ("--arch", arch, "--seq", "1024", "--head-dim", head_dim)
    plan = explained(*problem, "--with", "block_mask")["plan"]
    assert "_any" in plan["kernel"]
    assert any("a block mask needs a kernel of mask class any" in other["reason"] for other in plan["passed_over"])
    usual, with_weights = explained(*problem)["plan"], explained(*problem, "--probs")["plan"]
    assert with_weights["staged"] == ["q"], "weights are made of q after out is written, which may be q"
    assert with_weights["workspace"] > usual["workspace"]
    assert {**with_weights, "staged": [], "workspace": usual["workspace"]} == usual


def test_explain_says_why_there_is_no_plan():
    ran = cli("explain", "--arch", "h100", "--dtype", "float32")
    assert ran.returncode == 0, ran.stderr
    assert "No plan: " in ran.stdout
    assert "float32" in ran.stdout if HAS_KERNELS else "no CUDA kernels" in ran.stdout
    assert "exponentials" in ran.stdout, "the roofline needs no kernel"


@pytest.mark.parametrize("columns", ["80", "160"])
def test_explain_in_words(columns):
    ran = cli("explain", "--device", "cpu", "--seq", "256", COLUMNS=columns, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert max(map(len, ran.stdout.splitlines())) <= int(columns)
    for word in ("kernel", "tile", "workspace", "Passed over", "Roofline", "At the bound, products: "):
        assert word in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arch", "z80"], "--arch: expected a100"),
        (["--device", "tpu"], "--device: expected auto, cpu, cuda or cuda:N, given tpu"),
        (["--window", "5"], "expected LEFT,RIGHT"),
        (["--lengths", "3", "4", "--batch", "2"], "--lengths: expected without --batch and --seq"),
        (["--lengths", "3", "4", "--seq-k", "9"], "--lengths: expected without --batch and --seq"),
        (["--device", "cpu", "--heads", "6", "--heads-k", "4"], "heads"),
        (["--device", "cuda:63"], "--device cuda:63"),
    ],
)
def test_explain_refuses_in_one_sentence(words, says):
    ran = cli("explain", *words)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.gpu
def test_explain_asks_the_gpu_for_registers():
    support.skip_without_cuda()
    found = explained("--device", "cuda:0", "--seq", "4096", "--head-dim", "64")
    plan = found["plan"]
    assert 32 <= plan["registers"] <= 255
    assert plan["blocks_per_multiprocessor"] >= 1
    at_once = plan["blocks_per_multiprocessor"] * plan["device"]["multiprocessors"]
    assert plan["waves"] == pytest.approx(plan["grid"] / at_once)
    assert plan["device"]["clock_khz"] > 500_000
    assert plan["device"]["memory_bytes_per_second"] > 1e11
