"""`flashcute profile`: the digest of reports, and how ncu is run; with a stand-in for ncu."""

from __future__ import annotations

import json
import pathlib

import pytest
from test_cli import cli, python

from flashcute.cli import digest, main, problem
from flashcute.cli import info as info_command

HAS_KERNELS = info_command.collect()["build"]["cuda"]
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="this build has no CUDA kernels to plan for")


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


# Raw pages of Nsight Compute 2025.3.1, cut to the columns of the digest and a few more, of one causal problem of 275
# GFLOP on an H100 at two head dims; and what `explain` said there. The expected figures below are those of the pages.
REAL = pathlib.Path(__file__).parent / "data"
HD128, HD64 = (REAL / f"h100_hd{dim}_causal.csv" for dim in (128, 64))


def read(page):
    return digest.parse(page.read_text(), page.name)


def test_the_digest_of_a_real_report():
    report = read(HD128)
    assert report.kernel == "void attention_kernel<Config<bfloat16_t, 128, 2>>(Params)"
    assert report.device == "9.0"
    found = digest.as_json(report)
    assert {key: found[key] for key in (quantity.key for quantity in digest.QUANTITIES)} == {
        "duration": pytest.approx(763.808e-6),
        "clock": 1_824_625_920.39,
        "tensor": 58.68,
        "mufu": 19.16,
        "fma": 6.84,
        "alu": 16.58,
        "issue": 33.44,
        "dram": 352_115_966_316.14,
        "dram_percent": 10.50,
        "l2_percent": 33.91,
        "l2_hits": 85.34,
        "l1_percent": 62.05,
        "conflicts": 966_854,
        "wavefronts": 109_278_375,
        "occupancy": 12.42,
        "registers": 255,
        "waves": 7.76,
    }
    reasons = list(found["stalls"].items())
    assert reasons[:4] == [
        ("wait", 2.47), ("short_scoreboard", 0.75), ("math_pipe_throttle", 0.59), ("barrier", 0.44),
    ]  # fmt: skip
    assert "selected" not in found["stalls"]
    # Warps of a scheduler for each instruction issued: those that wait, and the one that issues.
    assert sum(found["stalls"].values()) + 1 == pytest.approx(5.94, abs=0.03)


@pytest.mark.parametrize("page", [HD128, HD64], ids=lambda page: page.stem)
def test_a_real_report_agrees_with_the_roofline(page):
    """What the counters say and what `explain` expects, at the clock of the profiled launch, are the same machine."""
    report, expected = read(page), json.loads(page.with_suffix(".json").read_text())
    found = digest.as_json(report)
    bounds = {bound["name"]: bound["seconds"] / found["duration"] for bound in expected["roofline"]["bounds"]}
    slower = expected["plan"]["device"]["clock_khz"] * 1e3 / found["clock"]
    assert 100 * bounds["tensor cores by mma.sync"] * slower == pytest.approx(found["tensor"], rel=0.1)
    assert 100 * bounds["exponentials"] * slower == pytest.approx(found["mufu"], rel=0.1)
    assert found["dram"] * found["duration"] == pytest.approx(expected["roofline"]["bytes"], rel=0.02)
    assert found["registers"] == expected["plan"]["registers"]
    assert found["waves"] == pytest.approx(expected["plan"]["waves"], abs=0.01)


def test_two_real_reports_are_compared():
    ran = cli("profile", "--report", str(HD128), str(HD64))
    assert ran.returncode == 0, ran.stderr
    lines = {line[:35].strip(): line[35:].split() for line in ran.stdout.splitlines()}
    assert lines["duration"] == ["763.8", "µs", "814.9", "µs", "+6.7%"]
    assert lines["SM clock"] == ["1825", "MHz", "1835", "MHz", "+0.6%"]
    assert lines["MUFU (exponentials)"] == ["19.2%", "35.3%", "+84.3%"]
    assert lines["shared-memory bank conflicts"] == ["966,854", "1,275,064", "+31.9%"]
    assert lines["of the roofline"] == ["51.3%", "48.1%", "-6.3%"]
    shown = [name for name in lines if name.startswith("stall: ")]
    assert shown[:3] == ["stall: wait", "stall: math pipe throttle", "stall: short scoreboard"], "by the second report"
    assert lines["stall: mio throttle"] == ["0.03", "0.18", "+500.0%"]
    assert "48.1% of the duration" in ran.stdout


@pytest.mark.parametrize("text", ["", "==ERROR== broken\n", '"ID","Kernel Name"\n"",""\n'])
def test_the_digest_refuses_what_is_no_raw_page(text, tmp_path):
    page = tmp_path / "page.csv"
    page.write_text(text)
    ran = cli("profile", "--report", str(page))
    assert ran.returncode == 2
    assert "expected the raw page of an ncu report" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "beside", ["[]", '{"roofline": [1, 2]}', '{"roofline": {"seconds": "x", "bounds": [{"name": 3}]}}', "{"]
)
def test_another_file_of_the_report_s_name_is_no_roofline(beside, tmp_path):
    page = tmp_path / "page.csv"
    page.write_text(HD128.read_text())
    page.with_suffix(".json").write_text(beside)
    ran = cli("profile", "--report", str(page))
    assert ran.returncode == 0, ran.stderr
    assert "763.8" in ran.stdout
    assert "roofline" not in ran.stdout.lower()


def test_a_report_is_compared_in_one_way():
    ran = cli("profile", "--report", str(HD128), "--compare", str(HD64))
    assert ran.returncode == 2
    assert "--compare: expected without --report" in ran.stderr


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
    ncu = fake_ncu(tmp_path, raw_page(), True)
    report = tmp_path / "out.ncu-rep"
    words = ["--ncu", ncu, "--output", str(report), "--seq", "512", "--head-dim", "64", "--causal", "--window=99,-1"]
    assert main(["profile", *words, "--warmup", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["tensor"] == 61.25
    assert found["expected"]["plan"]["kernel"] == "sm90_hd64_bfloat16_banded"
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
