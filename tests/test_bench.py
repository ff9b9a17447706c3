"""`flashcute bench`: runs, their plots, and what they refuse."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
import support
from test_cli import cli, python

import flashcute


def tiny(mode, device="cpu"):
    """Small sizes, by the flags that the mode has."""
    seqs = ["33"] if mode == "features" else ["33", "64"]
    rounds = [] if mode == "memory" else ["--rounds", "2"]
    if mode == "host":
        return ["--device", device, *rounds]
    return ["--device", device, "--seqs", *seqs, "--dims", "16", *rounds, "--heads", "2", "--heads-k", "1"]


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """One run of each mode that a CPU has."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    every = ["--dtypes", "float32", "--output", str(folder)]
    commands = [["bench", mode, *tiny(mode), *every] for mode in ("forward", "decode", "varlen", "memory", "features")]
    ran = python("-c", f"from flashcute.cli import main\nimport sys\nsys.exit(max(map(main, {commands})))")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.mark.parametrize("mode", ["forward", "decode", "varlen", "features"])
def test_values_may_have_a_head_dim_of_their_own(mode):
    problems = pytest.importorskip("flashcute.bench.problems")
    found = problems.problems(mode, problems.Sizes(dims=(192, 64), dim_v=128), gpu=True)
    assert {problem.case.head_dim for problem in found} == {(192, 128)} | ({(64, 128)} if mode != "features" else set())
    assert all("head dim 192/128" in p.panel or "head dim 64/128" in p.panel for p in found)


def test_bench_takes_distributions_and_tells_errors_beside_the_textbooks():
    ran = cli("bench", *tiny("forward"), "--dtypes", "bfloat16", "--data", "normal", "sink", "wide4.5", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [row for row in json.loads(ran.stdout)["rows"] if row["library"] == "flashcute"]
    assert {row["problem"]["data"] for row in rows} == {"normal", "sink", "wide4.5"}
    assert all(0 < row["rms_error"] <= 1.5 * row["textbook_rms"] for row in rows)
    shown = cli("bench", *tiny("forward"), "--dtypes", "float32", "--data", "late")
    assert "late data" in shown.stdout
    assert "Root mean square errors" in shown.stdout


@pytest.mark.gpu
def test_bench_under_load():
    support.skip_without_cuda()
    words = ["--seqs", "1024", "--dims", "64", "--masks", "full", "--rounds", "2", "--load", "sustained"]
    ran = cli("bench", *words, "--span", "0.1", "--peers", "SDPA-FA2", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for row in json.loads(ran.stdout)["rows"]:
        assert row["sustained"]["rounds"] == 2
        assert 0 < row["sustained"]["median"] < 0.1
        assert row["megahertz"] is None or row["megahertz"] > 100


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


def test_each_round_begins_with_another():
    pytest.importorskip("torch")
    from flashcute.bench import clocks

    called: list[str] = []
    contestants = {name: clocks.Contestant(functools.partial(called.append, name)) for name in "abc"}
    times = clocks.cpu_seconds(contestants, 4)
    assert "".join(called) == "abc" + "abc" + "bca" + "cab" + "abc", "one untimed round, then four"
    assert {name: len(seconds) for name, seconds in times.items()} == dict.fromkeys("abc", 4)


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
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"flashcute", "SDPA"} <= set(names)
    assert any("roofline" in name for name in names)
    for axes in figure.axes:
        assert "tokens" in axes.get_xlabel()
        assert "FLOP/s" in axes.get_ylabel()
        assert axes.get_title()
        assert len(axes.lines) >= 3
        styles = [(line.get_color(), line.get_marker()) for line in axes.lines]
        assert len(set(styles)) == len(styles)


def on_a_gpu(run, device_factor):
    """The run, as if a GPU whose roofline is higher by this factor than that of flashcute's kernel had made it."""
    rows = [
        dataclasses.replace(row, device_roofline_seconds=row.roofline_seconds / device_factor)
        for row in run.rows
    ]  # fmt: skip
    return dataclasses.replace(run, device="cuda:0", device_name="NVIDIA H100 80GB HBM3", rows=rows)


@pytest.mark.parametrize("mode", ["forward", "features"])
@pytest.mark.parametrize(
    ("factor", "named"), [(1.0, {"roofline"}), (1.5, {"roofline of the device", "roofline of flashcute's kernel"})]
)
def test_plots_tell_the_two_rooflines_apart(benched, mode, factor, named):
    from flashcute.bench import plots, record

    draw = plots._draw_features if mode == "features" else plots._draw_lines
    figure = draw(on_a_gpu(record.load(benched / f"bench-{mode}-cpu.json"), factor))
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {name for name in names if "roofline" in name} == named
    assert "matrix product" in " ".join(names)


@pytest.mark.parametrize("mode", ["forward", "decode", "varlen", "features", "memory"])
def test_nothing_in_a_plot_is_cut(benched, mode):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from flashcute.bench import plots, record

    run = record.load(benched / f"bench-{mode}-cpu.json")
    if mode != "memory":
        run = on_a_gpu(run, 1.5)
    run.versions.update(FA3="0.0.3", torch="2.11.0+cu130")
    run.rows[:] = [*run.rows, *(dataclasses.replace(row, library="FA3") for row in run.rows if row.library != "FA3")]
    figure = plots._draw_features(run) if mode == "features" else plots._draw_lines(run)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    page = figure.bbox
    for what in (figure._suptitle, figure.legends[0], *figure.axes):
        box = what.get_tightbbox(renderer)
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, what
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, what


def test_a_library_looks_the_same_in_every_plot():
    pytest.importorskip("torch")
    from flashcute.bench import libraries, plots

    every = [libraries.own(), *libraries.GPU_LIBRARIES]
    assert {library.name for library in every} <= set(plots._LOOKS)
    assert len({plots._LOOKS[library.name] for library in every}) == len(every)


def test_memory_is_measured_with_the_batch_held():
    pytest.importorskip("torch")
    from flashcute.bench.problems import Sizes, problems

    assert {problem.case.batch for problem in problems("memory", Sizes(), True)} == {1}
    assert {problem.case.batch for problem in problems("memory", Sizes(batch=3), True)} == {3}
    assert len({problem.case.batch for problem in problems("forward", Sizes(), True)}) > 1


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (
            "set_params_fprop, /build/hopper/flash_api_stable.cpp:231, This flash attention build does not support "
            "local attention.\nException raised from here",
            "This flash attention build does not support local attention",
        ),
        ("No available kernel. Aborting execution.", "No available kernel"),
        ("Expected query.dtype: float, got key.dtype: half", "Expected query.dtype: float, got key.dtype: half"),
        ("", "RuntimeError"),
        ("many words " * 50, ("many words " * 12).strip() + " many …"),
    ],
)
def test_what_a_library_complains_of_is_one_short_clause(raised, shown):
    pytest.importorskip("torch")
    from flashcute.bench.libraries import in_short

    assert in_short(RuntimeError(raised)) == shown


def test_a_missing_library_is_named_once_with_its_package(monkeypatch):
    pytest.importorskip("torch")
    from flashcute.bench import libraries

    def import_module(name):
        raise ModuleNotFoundError("No module named 'flash_attn'")

    monkeypatch.setattr(libraries.importlib, "import_module", import_module)
    found, absent = libraries.find(True, ["FA4"], "forward")
    assert [library.name for library in found] == ["flashcute"]
    assert len(absent) == 1
    assert absent[0].count("flash_attn") == 1
    assert "flash-attn-4" in absent[0]


def test_remarks_take_one_line_for_each_library(benched):
    ran = cli("bench", "--from", str(benched / "bench-features-cpu.json"))
    assert ran.returncode == 0, ran.stderr
    remarks = [line for line in ran.stdout.splitlines() if line.startswith("SDPA: ")]
    assert len(remarks) == 1
    assert "no window (window 511,0); " in remarks[0]
    assert "no ALiBi (ALiBi, causal)" in remarks[0]


def test_saved_runs_are_shown_again_without_ratios_between_them(benched):
    first, second = str(benched / "bench-forward-cpu.json"), str(benched / "bench-varlen-cpu.json")
    ran = cli("bench", "--from", first)
    assert ran.returncode == 0, ran.stderr
    assert "SDPA" in ran.stdout
    assert "No ratio" not in ran.stdout
    ran = cli("bench", "--from", first, second)
    assert "No ratio is quoted between these runs" in ran.stdout


def test_saved_runs_need_no_pytorch_and_are_written_with_json_too(benched, tmp_path):
    saved = benched / "bench-forward-cpu.json"
    words = ["bench", "--from", str(saved), "--json", "--output", str(tmp_path)]
    ran = python(
        "-c", f"import sys\nsys.modules['torch'] = None\nfrom flashcute.cli import main\nsys.exit(main({words}))"
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [json.loads(saved.read_text())]
    assert (tmp_path / saved.name).read_bytes() == saved.read_bytes()
    assert (tmp_path / "bench-forward-cpu.png").stat().st_size > 10_000


def test_no_saved_run_overwrites_another(benched, tmp_path):
    saved = str(benched / "bench-forward-cpu.json")
    ran = cli("bench", "--from", saved, saved, "--output", str(tmp_path))
    assert ran.returncode == 2
    assert "two that would become bench-forward-cpu.json" in ran.stderr
    assert not list(tmp_path.iterdir())


def altered(change):
    def alter(data):
        change(data)
        return data

    return alter


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (altered(lambda run: run.update(flashcute_bench=2)), "of format 2, which another version saved"),
        (altered(lambda run: run.update(mode="../forward")), "altered or cut"),
        (altered(lambda run: run.update(unit="B")), "altered or cut"),
        (altered(lambda run: run.update(versions=None)), "altered or cut"),
        (altered(lambda run: run.update(started=None)), "altered or cut"),
        (altered(lambda run: run.update(more=1)), "altered or cut"),
        (altered(lambda run: run["rows"][0].update(run="another")), "altered or cut"),
        (altered(lambda run: run["rows"][0].update(eager=None)), "altered or cut"),
        (altered(lambda run: run["rows"][0]["eager"].update(median="fast")), "altered or cut"),
        (altered(lambda run: run["rows"][0]["problem"].pop("panel")), "altered or cut"),
        (lambda run: [run], "expected a run saved by"),
    ],
)
def test_a_saved_run_that_is_none_is_refused(benched, tmp_path, alter, says):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(alter(json.loads((benched / "bench-forward-cpu.json").read_text()))))
    ran = cli("bench", "--from", str(path))
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("mode", ["forward", "decode", "memory"])
def test_a_narrow_table_keeps_its_figures(benched, mode):
    ran = cli("bench", "--from", str(benched / f"bench-{mode}-cpu.json"), COLUMNS="60")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    heading = next(line for line in lines if line.startswith("problem"))
    assert "flashcute" in heading
    assert ("textbook" if mode == "memory" else "SDPA") in heading


@pytest.mark.parametrize("mode", ["forward", "memory"])
def test_what_does_not_fit_into_memory_is_a_reason(mode, tmp_path):
    pytest.importorskip("torch")
    sizes = ("--device", "cpu", "--seqs", "64", str(1 << 50), "--dims", "16", "--heads", "1", "--masks", "full")
    rounds = () if mode == "memory" else ("--rounds", "1")
    ran = cli("bench", mode, *sizes, "--dtypes", "float32", *rounds, "--json")
    if ran.returncode == 2 and "/proc/self" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {row["status"] for row in rows if row["problem"]["x"] == 64} == {"ok"}
    long = [row for row in rows if row["problem"]["x"] > 64]
    assert len(long) == 2
    assert all(row["status"] == "no" and "too little memory" in row["reason"] for row in long)


def test_figures_are_shown_before_they_are_written(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "bench-host-cpu.json").mkdir()
    ran = cli("bench", "host", "--device", "cpu", "--rounds", "2", "--calls", "2", "--output", str(tmp_path))
    assert ran.returncode == 2
    assert "flashcute.attention" in ran.stdout
    assert "cannot write" in ran.stderr
    assert "bench-host-cpu.json" in ran.stderr


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path, monkeypatch):
    from flashcute.cli import bench

    monkeypatch.setattr(bench.os, "access", lambda *_: False)
    with pytest.raises(bench._StopError, match="--output: expected a folder that can be written"):
        bench._folder(str(tmp_path))


def test_host_times_speak_of_no_plot(tmp_path):
    pytest.importorskip("torch")
    words = ["bench", "host", "--device", "cpu", "--rounds", "2", "--calls", "2", "--output", str(tmp_path)]
    ran = python("-c", f"import sys\nsys.modules['matplotlib'] = None\nfrom flashcute.cli import main\nmain({words})")
    assert "Written" in ran.stdout
    assert "plot" not in ran.stdout


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
        (["--device", "cpu", "--batch", "2", "--tokens", "64"], "--tokens: expected without --batch"),
        (["decode", "--masks", "causal"], "--masks: decode has no use for it"),
        (["host", "--heads-k", "2"], "--heads-k: host has no use for it"),
        (["memory", "--backend", "cpu"], "--backend: memory has no use for it"),
        (["features", "--seqs", "64", "128"], "--seqs: features takes one, given 2"),
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
sys.exit(main({["bench", *tiny("forward"), "--dtypes", "float32", "--output", str(tmp_path)]}))
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


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["forward", "decode", "varlen", "features", "memory", "host"])
def test_bench_on_the_gpu(mode, tmp_path):
    support.skip_without_cuda()
    ran = cli("bench", mode, *tiny(mode, "cuda"), "--output", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = json.loads((tmp_path / f"bench-{mode}-cuda.json").read_text())["rows"]
    ours = [row for row in rows if row["library"].startswith(("flashcute", "AttentionDescriptor"))]
    assert {row["status"] for row in ours} == {"ok"}, "no feature is refused"
    if mode in ("forward", "decode", "varlen", "features"):
        assert all(row["replay"]["median"] > 0 and row["eager"]["median"] > 0 for row in ours)
        assert all(row["roofline_seconds"] < row["replay"]["median"] for row in ours)


@pytest.mark.parametrize("lengths", ["uniform", "equal", "zipf"])
def test_packed_members_use_up_the_tokens_and_are_the_same_every_time(lengths):
    problems = pytest.importorskip("flashcute.bench.problems")
    members = problems.member_lengths(16384, 4096, lengths)
    assert members == problems.member_lengths(16384, 4096, lengths)
    assert sum(members) == 16384
    least = {"uniform": 256, "equal": 4096, "zipf": 16}[lengths]
    assert least <= min(members[:-1])
    assert max(members) <= 4096
    assert len(set(members)) > 3 or lengths == "equal"


def test_lengths_are_of_varlen_alone():
    ran = cli("bench", "forward", "--lengths", "zipf")
    assert ran.returncode == 2
    assert "--lengths: forward has no use for it" in ran.stderr
