"""`flashcute explain`, `bench` and `profile`, as far as a machine without a GPU can run them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from test_cli import cli

import flashcute
from flashcute.architectures import ARCHITECTURES, find_architecture
from flashcute.cli import digest, flags, problem, roofline, screen
from flashcute.cli import info as info_command
from flashcute.cli.cases import Case, visible_pairs

HAS_KERNELS = info_command.collect()["build"]["cuda"]
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="this build has no CUDA kernels to plan for")


def python(*words):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=pathlib.Path(__file__).parent, timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def explained(*arguments):
    ran = cli("explain", "--json", *arguments)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


# ---------------------------------------------------------------------------------------------------------------------
# Problems from flags, and what they cost


def case_from(*words):
    import argparse

    parser = argparse.ArgumentParser()
    flags.add_problem(parser)
    return problem.case_of(parser.parse_args(words))


def brute_force_pairs(case, lengths):
    left, right = case.options.get("window", (-1, -1))
    right = 0 if case.options.get("causal") else right
    count = 0
    for seq_q, seq_k in lengths:
        d = 0 if case.options.get("alignment") == "top_left" else seq_k - seq_q
        for i in range(seq_q):
            for j in range(seq_k):
                count += (left < 0 or j >= i + d - left) and (right < 0 or j <= i + d + right)
    return count


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
    pairs = brute_force_pairs(case, lengths)
    assert visible_pairs(case, tensors) == pairs
    machine = roofline.named_gpu(ARCHITECTURES["h100"])
    found = roofline.roofline(case, tensors, machine)
    assert found.exps == 4 * pairs
    assert found.flop == 2 * 4 * pairs * (8 + 24)


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
    for word in ("kernel", "tile", "workspace", "Passed over", "Roofline", "the bound"):
        assert word in ran.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arch", "z80"], "--arch: expected a100"),
        (["--device", "tpu"], "--device: expected auto, cpu, cuda or cuda:N, given tpu"),
        (["--window", "5"], "expected LEFT,RIGHT"),
        (["--device", "cpu", "--heads", "6", "--heads-k", "4"], "heads"),
        (["--device", "cuda:63"], "--device cuda:63"),
    ],
)
def test_explain_refuses_in_one_sentence(words, says):
    ran = cli("explain", *words)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


# ---------------------------------------------------------------------------------------------------------------------
# bench

TINY = ("--device", "cpu", "--seqs", "33", "64", "--dims", "16", "--rounds", "2", "--heads", "2", "--heads-k", "1")


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """One run of each mode that a CPU has."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    every = [*TINY, "--dtypes", "float32", "--output", str(folder)]
    commands = [["bench", mode, *every] for mode in ("forward", "decode", "varlen", "memory", "features")]
    ran = python("-c", f"from flashcute.cli import main\nimport sys\nsys.exit(max(map(main, {commands})))")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.mark.parametrize("mode", ["forward", "decode", "varlen", "features"])
def test_bench_measures_in_turns(benched, mode):
    saved = json.loads((benched / f"bench-{mode}-cpu.json").read_text())
    assert saved["reference"]
    assert saved["versions"]["flashcute"] == flashcute.__version__
    assert {row["run"] for row in saved["rows"]} == {saved["id"]}
    ours = [row for row in saved["rows"] if row["library"] == "flashcute"]
    assert {row["status"] for row in ours} == {"ok"}
    assert all(0 <= row["error"] < 1e-4 for row in ours)
    assert len({row["error"] for row in ours}) > len(ours) // 2, "errors look made up"
    for row in saved["rows"]:
        if row["status"] == "ok":
            times = row["eager"]
            assert 0 < times["best"] <= times["low"] <= times["median"] <= times["high"]
            assert times["rounds"] == 2
        else:
            assert row["reason"]
    peers = [row for row in saved["rows"] if row["library"] == "SDPA" and row["status"] == "ok"]
    assert len(peers) >= len(ours) / 3


def test_bench_counts_the_true_work(benched):
    rows = json.loads((benched / "bench-forward-cpu.json").read_text())["rows"]
    causal = next(row for row in rows if "causal" in row["problem"]["panel"] and row["problem"]["x"] == 33)
    assert causal["work"] == 4 * 2 * (33 * 34 / 2) * 16
    decode = json.loads((benched / "bench-decode-cpu.json").read_text())["rows"][0]
    assert decode["work"] == 4 * (2 * 2 * 16 + 2 * 33 * 16)


def test_bench_memory_grows_linearly_beside_the_textbook(tmp_path):
    pytest.importorskip("torch")
    sizes = ("--device", "cpu", "--seqs", "1024", "2048", "--dims", "32", "--heads", "4", "--masks", "full")
    ran = cli("bench", "memory", *sizes, "--dtypes", "float32", "--json")
    if ran.returncode == 2 and "/proc/self" in ran.stderr:
        pytest.skip(ran.stderr)
    peaks = {(r["library"], r["problem"]["x"]): r["peak_bytes"] for r in json.loads(ran.stdout)["rows"]}
    assert peaks["textbook", 2048] >= 4 * 4 * 2048**2
    assert peaks["textbook", 2048] > 3 * peaks["textbook", 1024]
    assert peaks["flashcute", 2048] < peaks["textbook", 2048] / 8


@pytest.mark.parametrize("mode", ["forward", "decode", "varlen", "features", "memory"])
def test_bench_draws_plots(benched, mode):
    picture = benched / f"bench-{mode}-cpu.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_plots_have_labels_units_legends_and_a_roofline(benched):
    pytest.importorskip("torch")
    from flashcute.bench import plots, record

    figure = plots._draw_lines(record.load(benched / "bench-forward-cpu.json"))
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert "tokens" in axes.get_xlabel()
        assert "FLOP/s" in axes.get_ylabel()
        assert axes.get_title()
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert {"flashcute", "SDPA"} <= set(names)
        assert any("roofline" in name for name in names)
        styles = [(line.get_color(), line.get_marker()) for line in axes.lines]
        assert len(set(styles)) == len(styles)


def test_saved_runs_are_shown_again_without_ratios_between_them(benched):
    first, second = str(benched / "bench-forward-cpu.json"), str(benched / "bench-varlen-cpu.json")
    ran = cli("bench", "--from", first)
    assert ran.returncode == 0, ran.stderr
    assert "SDPA" in ran.stdout
    assert "No ratio" not in ran.stdout
    ran = cli("bench", "--from", first, second)
    assert "No ratio is quoted between these runs" in ran.stdout


def test_a_ratio_of_two_runs_is_refused(benched):
    pytest.importorskip("torch")
    from flashcute.bench import record

    run = record.load(benched / "bench-forward-cpu.json")
    rows = run.problems()[0][1]
    ours = next(row for row in rows if row.library == "flashcute")
    theirs = next(row for row in rows if row.library == "SDPA")
    assert record.speed_ratio(ours, theirs) == pytest.approx(theirs.eager.median / ours.eager.median)
    with pytest.raises(record.DifferentRunsError, match=run.id):
        record.speed_ratio(ours, dataclasses.replace(theirs, run="another"))
    other = next(row for row in run.problems()[1][1] if row.library == "SDPA")
    with pytest.raises(record.DifferentRunsError, match="problem"):
        record.speed_ratio(ours, other)


WRONG = """
import sys
import flashcute
from flashcute.cli import main
real = flashcute.AttentionDescriptor
class Wrong:
    def __init__(self, *a, **o):
        self.real = real(*a, **{**o, "causal": False})
        self.plan, self.workspace_size = self.real.plan, self.real.workspace_size
    def run(self, *a, **o):
        return self.real.run(*a, **o)
flashcute.AttentionDescriptor = Wrong
sys.exit(main(["bench", "--device", "cpu", "--seqs", "64", "--dims", "16", "--masks", "causal", "--rounds", "1"]))
"""


def test_a_wrong_result_gets_no_figure():
    pytest.importorskip("torch")
    ran = python("-c", WRONG)
    assert ran.returncode == 1, ran.stderr
    assert "WRONG" in ran.stdout
    assert "differs from float64" in ran.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "tpu"], "--device: expected"),
        (["--device", "cpu", "--peers", "FA9"], "--peers: expected some of SDPA, given FA9"),
        (["--device", "cpu", "--heads", "6", "--heads-k", "4"], "--heads-k: expected a divisor of 6, given 4"),
        (["--from", "missing.json"], "cannot read missing.json"),
        (["--from", __file__], "expected a run saved by"),
    ],
)
def test_bench_refuses_in_one_sentence(words, says):
    pytest.importorskip("torch")
    ran = cli("bench", *words)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("missing", "says"), [("torch", "needs PyTorch"), ("matplotlib", "No plot: plots need matplotlib")]
)
def test_a_missing_extra_is_named(missing, says, tmp_path):
    pytest.importorskip("torch")
    hide = f"""
import importlib.util, sys
sys.modules["{missing}"] = None
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "{missing}" else real(name, *a)
from flashcute.cli import main
sys.exit(main({["bench", *TINY, "--dtypes", "float32", "--output", str(tmp_path)]}))
"""
    ran = python("-c", hide)
    assert says in ran.stdout + ran.stderr
    assert "pip install 'flashcute[" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_scripts_keep_their_flags(root):
    pytest.importorskip("torch")
    words = ["--dtype", "float32", "--seq", "64", "--head-dim", "16", "--mask", "full", "--runs", "2", "--threads", "1"]
    ran = python(str(root / "benchmarks" / "bench_cpu.py"), *words)
    assert ran.returncode == 0, ran.stderr
    assert "float32, head dim 16, full" in ran.stdout


# ---------------------------------------------------------------------------------------------------------------------
# profile


def raw_page(**changes):
    """A raw page as ncu prints it: remarks, names, units, then a line for each kernel."""
    metrics = {
        "gpu__time_duration.sum": ("ns", "1,250,000"),
        "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active": ("%", "40.5"),
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": ("%", "61.25"),
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": ("%", "33"),
        "dram__bytes.sum.per_second": ("byte/s", "250,000,000,000"),
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "0.5"),
        "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio": ("inst", "1.75"),
        "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio": ("inst", "9"),
        "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1"),
        **changes,
    }
    names = ["ID", "Kernel Name", "CC", *metrics]
    rows = [names, ["", "", "", *(unit for unit, _ in metrics.values())]]
    rows.append(["0", "void attention_kernel<Config<half_t, 64>>(Params)", "9.0", *(v for _, v in metrics.values())])
    return "==PROF== a remark\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n"


def test_the_digest_reads_a_raw_page():
    report = digest.parse(raw_page(), "x.ncu-rep")
    found = digest.as_json(report)
    assert found["duration"] == pytest.approx(1.25e-3)
    assert found["tensor"] == 61.25, "cycles, which count slow instructions in full, go before instructions"
    assert found["mufu"] == 33
    assert found["dram"] == 250e9
    assert found["l2_percent"] is None, "what the report does not hold is not made up"
    assert list(found["stalls"].items()) == [("math_pipe_throttle", 1.75), ("barrier", 0.5)]


def test_the_digest_compares_two_reports(tmp_path):
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(raw_page())
    after.write_text(raw_page(**{"gpu__time_duration.sum": ("ns", "1,000,000")}))
    expected = {"roofline": {"seconds": 0.5e-3, "bounds": []}}
    after.with_suffix(".json").write_text(json.dumps(expected))
    ran = cli("profile", "--report", str(before), str(after))
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if line.startswith("duration"))
    assert "1.25 ms" in line
    assert "1.00 ms" in line
    assert "-20.0%" in line
    line = next(line for line in ran.stdout.splitlines() if line.startswith("of the roofline"))
    assert line.split() == ["of", "the", "roofline", "-", "50.0%"]
    ran = cli("profile", "--report", str(after), "--json")
    assert json.loads(ran.stdout)[0]["of_roofline"] == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "==ERROR== broken\n", '"ID","Kernel Name"\n"",""\n'])
def test_the_digest_refuses_what_is_no_raw_page(text, tmp_path):
    page = tmp_path / "page.csv"
    page.write_text(text)
    ran = cli("profile", "--report", str(page))
    assert ran.returncode == 2
    assert "expected the raw page of an ncu report" in ran.stderr
    assert "Traceback" not in ran.stderr


FAKE_NCU = """#!/usr/bin/env python3
import sys
print({text!r})
if {writes} and "--export" in sys.argv:
    open(sys.argv[sys.argv.index("--export") + 1], "w").close()
    open({log!r}, "w").write("\\n".join(sys.argv))
"""


def fake_ncu(folder, text, writes):
    program = folder / "ncu"
    program.write_text(FAKE_NCU.format(text=text, writes=writes, log=str(folder / "command")))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A machine that seems to have a GPU: profile plans for it and hands the launch to ncu."""
    facts = info_command.collect()
    card = {
        "type": "nvidia", "id": 0, "name": "NVIDIA H100 80GB HBM3", "usable": True, "reason": "", "capability": "9.0",
        "multiprocessors": 132, "shared_memory_per_block": 232448, "l2_bytes": 50 << 20, "clock_khz": 1980000,
        "memory_bytes_per_second": 3352320000000, "kernels": [{"name": "any", "can_run": True, "reason": ""}],
    }  # fmt: skip
    facts["devices"].append(card)
    monkeypatch.setattr(info_command, "collect", lambda: facts)
    real = problem.descriptor_of
    monkeypatch.setattr(problem, "descriptor_of", lambda case, tensors, device, **o: real(case, tensors, "h100", **o))


@needs_kernels
def test_profile_runs_one_launch_with_the_clocks_left_alone(on_a_gpu, tmp_path, capsys):
    from flashcute.cli import main

    ncu = fake_ncu(tmp_path, raw_page(), True)
    report = tmp_path / "out.ncu-rep"
    words = ["--ncu", ncu, "--output", str(report), "--seq", "512", "--head-dim", "64", "--causal", "--window=99,-1"]
    assert main(["profile", *words, "--warmup", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["tensor"] == 61.25
    assert found["expected"]["plan"]["kernel"] == "sm80_hd64_bfloat16_banded"
    assert 0 < found["of_roofline"] < 1
    command = (tmp_path / "command").read_text().split("\n")
    for flag, value in (("--clock-control", "none"), ("--launch-skip", "4"), ("--launch-count", "1"), ("--runs", "5")):
        assert command[command.index(flag) + 1] == value
    assert {"--causal", "--window=99,-1", "WarpStateStats"} <= set(command)
    assert main(["profile", *words]) == 2, "a report is not overwritten unasked"
    assert "exists" in capsys.readouterr().err


@needs_kernels
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "may not read the GPU's performance counters",
        ),
        ("==WARNING== No kernels were profiled.", "--kernel"),
        ("==ERROR== something else", "ncu wrote no report: something else"),
    ],
)
def test_profile_says_why_there_is_no_report(on_a_gpu, text, says, tmp_path, capsys):
    from flashcute.cli import main

    words = ["--ncu", fake_ncu(tmp_path, text, False), "--output", str(tmp_path / "out.ncu-rep")]
    assert main(["profile", *words]) == 2
    complaint = capsys.readouterr().err
    assert says in complaint.replace("\n", " ")


def test_profile_without_a_gpu_or_ncu(monkeypatch, tmp_path):
    if any(device["usable"] and device["type"] != "cpu" for device in info_command.collect()["devices"]):
        pytest.skip("there is a GPU")
    ran = cli("profile")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("flashcute profile: profiling needs a GPU: ")
    report = tmp_path / "a.ncu-rep"
    report.write_bytes(b"")
    ran = cli("profile", "--report", str(report), PATH="/nowhere")
    assert ran.returncode == 2
    assert "ncu" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_profiled_program_runs_problems_with_everything():
    words = ["--lengths", "10", "0", "30", "--with", "mask", "sinks", "alibi_slopes", "--softcap", "3", "--window=-1,3"]
    for layout in ("bhsd", "bshd"):
        ran = python(
            "-m", "flashcute.cli.launch", "--device", "cpu", "--runs", "2", "--lse", "--layout", layout, *words
        )
        assert ran.returncode == 0, ran.stderr


def test_numbers_with_prefixes():
    assert screen.with_prefix(989.4e12, "FLOP/s") == "989 TFLOP/s"
    assert screen.with_prefix(1.2345e9, "B") == "1.23 GB"
    assert screen.with_prefix(12, "B") == "12 B"
    assert screen.with_prefix(999.9e9, "B") == "1.00 TB"
