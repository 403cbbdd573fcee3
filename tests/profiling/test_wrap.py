"""Commands under every tool, as token lists; and real nsys and nvprof where they are."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.execute import Execution
from jobs.launchers.local import Local
from jobs.points import Sweep
from jobs.run import make_run
from profiling.capture_range import RANGE, VARIABLE, RangeCapture
from profiling.convert import read, recognise
from profiling.errors import UserError
from profiling.tables import as_table, write
from profiling.tools import TOOLS, Options, Step, check_mode, open_capture, tool
from profiling.wrap import add_findings, collect_output, main, rank_of, wrapped, wraps
from tests.profiling.samples import nsys_database, nvprof_database

COMMAND = ["python", "-m", "train", "--batches", "10"]
RAW = Path("/results/a run/rank_0003/raw")
NSYS = ["nsys", "profile", "--trace=cuda,nvtx,osrt,mpi", "--sample=none", "--cpuctxsw=none",
        "--force-overwrite=true", "--output", f"{RAW}/nsys"]  # fmt: skip
TAU = ["tau_exec", "-T", "mpi,python,pthread"]
TOKENS = {
    ("nvprof", Options()): ["nvprof", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nvprof", Options(first_batch=5)):
        ["nvprof", "--profile-from-start", "off", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nvprof", Options("timing")): ["nvprof", "--csv", "--log-file", f"{RAW}/nvprof.csv"],
    ("nvprof", Options("analysis-metrics", ".*gemm.*")):
        ["nvprof", "--kernels", ".*gemm.*", "--analysis-metrics", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nsys", Options()): NSYS,
    ("nsys", Options(first_batch=5)): [*NSYS, "--capture-range=nvtx", f"--nvtx-capture={RANGE}",
                                       "--capture-range-end=stop", "--kill=none"],
    ("tau", Options()): TAU,
    ("tau", Options(gpu=True)): ["tau_exec", "-T", "mpi,python,pthread,cupti", "-cupti"],
    ("tau", Options("ebs")): [*TAU, "-ebs"],
    ("tau", Options("io")): [*TAU, "-io"],
    ("vtune", Options()): ["vtune", "-collect", "hotspots", "-result-dir", f"{RAW}/vtune", "-quiet",
                           "-finalization-mode=none", "--"],
    ("vtune", Options("hw-hotspots")):
        ["vtune", "-collect", "hotspots", "-result-dir", f"{RAW}/vtune", "-quiet", "-knob",
         "sampling-mode=hw", "-finalization-mode=none", "--"],
    ("vtune", Options("uarch")): ["vtune", "-collect", "uarch-exploration", "-result-dir", f"{RAW}/vtune",
                                  "-quiet", "-finalization-mode=none", "--"],
    ("vtune", Options("memory-access")): ["vtune", "-collect", "memory-access", "-result-dir", f"{RAW}/vtune",
                                          "-quiet", "-finalization-mode=none", "--"],
    ("vtune", Options("aps")): ["aps", f"--result-dir={RAW}/vtune"],
    ("horovod", Options()): [],
    ("none", Options()): [],
}  # fmt: skip


@pytest.mark.parametrize(("name", "options"), TOKENS)
def test_the_command_under_each_tool(name, options):
    assert tool(name).wrap(COMMAND, RAW, options) == [*TOKENS[name, options], *COMMAND]


def test_nvprofs_metrics_and_ncus_counters_come_after_their_filter():
    words = tool("nvprof").wrap(COMMAND, RAW, Options("metrics", "gemm"))
    metrics = words[words.index("--metrics") + 1].split(",")
    assert words.index("--kernels") < words.index("--metrics")
    assert {"achieved_occupancy", "ipc", "gld_efficiency", "gst_efficiency", "dram_utilization"} <= set(
        metrics
    )
    words = tool("ncu").wrap(COMMAND, RAW, Options("auto", "gemm", first_batch=2))
    assert words[words.index("--kernel-name") + 1] == "regex:gemm" and "--launch-count" in words
    assert words[words.index("--profile-from-start") + 1] == "off" and words[-len(COMMAND) :] == COMMAND
    assert "sm__inst_executed_pipe_tensor.sum" in words[words.index("--metrics") + 1]
    assert tool("ncu").wrap(COMMAND, RAW, Options("full"))[-len(COMMAND) - 2 : -len(COMMAND)] == [
        "--set",
        "full",
    ]


def test_tau_python_brings_its_own_interpreter():
    words = tool("tau").wrap(COMMAND, RAW, Options("python"))
    assert words == ["tau_python", "-T", "mpi,python,pthread", "-tau-python-interpreter=python", *COMMAND[1:]]


def test_percent_signs_in_a_path_are_no_patterns():
    raw = Path("/results/50%p/raw")
    assert tool("nvprof").wrap([], raw, Options())[-1] == "/results/50%%p/raw/nvprof.sql"
    assert tool("nsys").wrap([], raw, Options())[-1] == "/results/50%%p/raw/nsys"


def test_variables_of_each_tool():
    variables = {name: tool(name).environment(RAW, Options(first_batch=3)) for name in TOOLS
                 if hasattr(tool(name), "environment")}  # fmt: skip
    assert variables == {
        "nvprof": {VARIABLE: "cuda"},
        "nsys": {VARIABLE: "nvtx", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        "tau": {"PROFILEDIR": str(RAW), "TAU_PROFILE_FORMAT": "profile"},
        "ncu": {VARIABLE: "cuda"},
        "horovod": {"HOROVOD_TIMELINE": f"{RAW}/timeline.json"},
    }
    assert tool("nsys").environment(RAW, Options()) == {}  # all is recorded
    assert tool("horovod").environment(RAW, Options("cycles"))["HOROVOD_TIMELINE_MARK_CYCLES"] == "1"


LAUNCHERS = {
    "torchrun and the local launcher": {"RANK": "3", "LOCAL_RANK": "1"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    "MVAPICH": {"MV2_COMM_WORLD_RANK": "3"},
    "Slurm": {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
    "MPICH, Intel MPI": {"PMI_RANK": "3", "MPI_LOCALRANKID": "1"},
    "mpirun in an allocation": {"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_rank_under_every_launcher(launcher):
    assert rank_of(LAUNCHERS[launcher]) == 3
    assert rank_of({}) == 0


def test_a_command_is_wrapped_only_for_tools_that_watch_from_outside():
    out = Path("/results/run")
    assert wrapped("none", COMMAND, out, "auto", 5, False) == COMMAND
    assert wrapped("torch", COMMAND, out, "auto", 5, False) == COMMAND
    asked = wrapped("nvprof", COMMAND, out, "gpu", 0, False, "metrics", "gemm|conv")
    assert asked[asked.index("--mode") : asked.index("--")] == ["--mode", "metrics", "--kernels", "gemm|conv"]
    assert wrapped("nsys", COMMAND, out, "cpu", 5, True) == [
        "python", "-m", "profiling.wrap", "--tool", "nsys", "--out", "/results/run", "--device", "cpu",
        "--first-batch", "5", "--keep-raw", "--", *COMMAND[1:],
    ]  # fmt: skip
    assert [name for name in TOOLS if wraps(name)] == ["nvprof", "nsys", "tau", "ncu", "vtune", "horovod"]


def test_a_sweep_starts_its_ranks_under_the_runs_profiler(tmp_path):
    sweep = Sweep(name="s", run={"profile": ["none", "nsys"]})
    execution = Execution(sweep, tmp_path, Local(), keep_raw=True)
    runs = [make_run({"profile": name, "batches": 10}) for name in ("none", "nsys")]
    plain, watched = (execution.command(run, tmp_path) for run in runs)
    assert plain[1:3] == ["-m", "train"]
    assert watched[1:7] == ["-m", "profiling.wrap", "--tool", "nsys", "--out", str(tmp_path)]
    end = watched.index("--")
    assert watched[7:end] == ["--device", "auto", "--first-batch", "5", "--keep-raw"]
    assert sorted({*watched[end + 1 :]} - {*plain}) == ["--profile", "nsys"]


# --- starting and ending ----------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program on the PATH in a tool's place: it runs what stands after ``--``, or does what it is told."""

    def put(name, body):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\nimport os, shutil, subprocess, sys\n{body}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return put


RUN = f"\nsys.exit(subprocess.call(sys.argv[sys.argv.index({sys.executable!r}):]))\n"


def test_what_the_tool_wrote_becomes_the_ranks_tables(tmp_path, fake, monkeypatch):
    made = nvprof_database(tmp_path / "made.sql")
    fake("nvprof", f"shutil.copy({str(made)!r}, sys.argv[sys.argv.index('-o') + 1])" + RUN)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    out = tmp_path / "run"
    (out / "rank_0003").mkdir(parents=True)
    (out / "rank_0003" / "rank.json").write_text('{"rank": 3, "findings": ["of the loader"]}')
    code = "import os; print(os.environ['SCALEPROF_CAPTURE'])"
    assert main(["--tool", "nvprof", "--out", str(out), "--first-batch", "7", "--", "-c", code]) == 0
    kernels = pq.read_table(out / "rank_0003" / "kernels.parquet").to_pandas()
    assert set(kernels["rank"]) == {3} and sorted(kernels["batch_index"].dropna().unique()) == [7, 8, 9]
    findings = json.loads((out / "rank_0003" / "rank.json").read_text())["findings"]
    assert findings[0] == "of the loader" and any("no input shapes" in finding for finding in findings)
    assert not (out / "rank_0003" / "raw").exists()  # it may hold the environment


def test_the_programs_exit_code_is_handed_on_and_nothing_is_converted(tmp_path, fake):
    fake("nvprof", RUN)
    assert main(["--tool", "nvprof", "--out", str(tmp_path), "--", "-c", "raise SystemExit(3)"]) == 3
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_tool_that_wrote_nothing_is_said_to_have(tmp_path, fake):
    fake("nvprof", RUN)
    with pytest.raises(UserError, match="profiler nvprof wrote nothing"):
        main(["--tool", "nvprof", "--out", str(tmp_path), "--", "-c", "pass"])


def test_horovods_timeline_is_written_by_rank_0_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["--tool", "horovod", "--out", str(tmp_path), "--", "-c", "pass"]) == 0
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="profiler horovod wrote nothing"):
        main(["--tool", "horovod", "--out", str(tmp_path), "--", "-c", "pass"])


def test_what_the_tool_wrote_is_set_to_the_clock_of_the_batches(tmp_path, fake):
    made = nvprof_database(tmp_path / "made.sql")
    fake("nvprof", f"shutil.copy({str(made)!r}, sys.argv[sys.argv.index('-o') + 1])" + RUN)
    rank = tmp_path / "run" / "rank_0000"
    start = np.arange(3) * 1000 + 5_000_000_000  # on another clock than the database's
    stages = {"load_ns": 0, "forward_ns": 95, "backward_ns": 100, "update_ns": 100}
    columns = {"batch_index": np.arange(3), "start_ns": start, "end_ns": start + 1000}
    columns |= {"attributed": np.ones(3, bool), **{name: np.full(3, took) for name, took in stages.items()}}
    write(as_table("batches", {"rank": np.zeros(3, int), **columns}), rank, "batches")
    (rank / "rank.json").write_text('{"rank": 0, "findings": []}')
    assert main(["--tool", "nvprof", "--out", str(tmp_path / "run"), "--", "-c", "pass"]) == 0
    kernels = pq.read_table(rank / "kernels.parquet").to_pandas()
    kernels = kernels[kernels["batch_index"].notna()]  # copies without a launch have none
    assert set(kernels["batch_index"]) == {0, 1, 2}
    assert ((kernels["start_ns"] - 5_000_000_000) // 1000 == kernels["batch_index"]).all()
    findings = json.loads((rank / "rank.json").read_text())["findings"]
    assert (
        "nvprof: its clock was set to that of the batches by kernels of each pass, to within 1 us" in findings
    )


def test_nsys_that_ends_before_it_starts_anything_is_started_again(tmp_path, fake, capfd):
    made = nsys_database(tmp_path / "made.sqlite")
    tries = tmp_path / "tries"
    body = (
        f"open({str(tries)!r}, 'a').write('x')\n"
        f"if sys.argv[1] == 'export': shutil.copy({str(made)!r}, sys.argv[4].split('=')[1]); sys.exit()\n"
        f"if len(open({str(tries)!r}).read()) < 3: sys.exit(1)\n"
        "open(sys.argv[sys.argv.index('--output') + 1] + '.nsys-rep', 'w').write('report')"
    )
    fake("nsys", body + RUN)
    assert main(["--tool", "nsys", "--out", str(tmp_path / "run"), "--", "-c", "pass"]) == 0
    assert tries.read_text() == "xxxx" and capfd.readouterr().err.count("once more") == 2
    assert pq.read_table(tmp_path / "run/rank_0000/markers.parquet").num_rows == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tool", "nsis"], "no profiler 'nsis' wraps a command; did you mean 'nsys'"),
        (["--tool", "torch"], "no profiler 'torch' wraps a command"),
        (["--tool", "nsys"], "nothing to run"),
        (
            ["--tool", "nvprof", "--mode", "timings", "--", "-c", "pass"],
            "no mode 'timings'; did you mean 'timing'",
        ),
        (["--tool", "ncu", "--", "-c", "pass"], "profile ncu needs ncu on the PATH"),
    ],
)
def test_wrong_use_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=message):
        main(["--out", str(tmp_path), *arguments])


def test_every_tools_usual_mode_is_one_of_its_modes():
    for name in TOOLS:
        if wraps(name):
            check_mode(name, "auto")
            assert all(tool(name).wrap(COMMAND, RAW, Options(mode)) for mode in tool(name).MODES)


def test_an_import_that_fails_is_said_with_the_programs_last_word(tmp_path, fake):
    fake("nsys", "")
    fake("QdstrmImporter", "print('Processing', file=sys.stderr); sys.exit('Error: broken stream')")
    raw = tmp_path / "rank_0000" / "raw"
    raw.mkdir(parents=True)
    (raw / "nsys.qdstrm").write_text("broken")
    with pytest.raises(UserError, match=r"made no .*nsys\.nsys-rep \(Error: broken stream\)") as error:
        collect_output("nsys", raw, 0, Options())
    assert "\n" not in str(error.value)


def test_steps_are_what_the_tools_need():
    made = {name: tool(name).finish(RAW, Options()) for name in ("nsys", "vtune")}
    assert [step.makes.name for step in made["nsys"]] == ["nsys.nsys-rep", "nsys.sqlite"]
    assert [step.argv[1] for step in made["vtune"]] == ["-finalize", "-report"]
    assert all(isinstance(step, Step) for steps in made.values() for step in steps)


def test_findings_of_a_rank_without_a_report_are_not_written(tmp_path):
    add_findings(tmp_path / "rank.json", ["something"])
    assert not list(tmp_path.iterdir())


# --- inside the process -----------------------------------------------------------------------------------


def test_a_recording_that_nobody_waits_for_is_not_switched(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in ("nsys", "nvprof", "ncu"):
        capture = open_capture(name, tmp_path, 0)
        capture.start(None, 3)
        capture.stop()
        assert capture.write() == []


def test_a_range_without_a_library_is_a_finding():
    capture = RangeCapture({VARIABLE: "nvtx"})
    capture.start()
    assert "no library emits any" in capture.write()[0]


def test_a_profiler_of_gpus_is_not_switched_on_a_cpu_and_that_is_said(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    capture = RangeCapture({VARIABLE: "cuda"})
    capture.start(None, 3)
    capture.stop()
    assert "this rank has none: nothing is recorded" in capture.write()[0]


# --- the real tools ---------------------------------------------------------------------------------------

needs_nvprof = pytest.mark.skipif(shutil.which("nvprof") is None, reason="nvprof is not installed")
needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
needs_tau = pytest.mark.skipif(shutil.which("tau_exec") is None, reason="TAU is not installed")


@needs_nvprof
@pytest.mark.parametrize("mode", tool("nvprof").MODES)
def test_the_real_nvprof_knows_every_option(mode, tmp_path):
    command = tool("nvprof").wrap(
        [sys.executable, "-c", "print('ran')"], tmp_path, Options(mode, "gemm.*", 3)
    )
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = answer.stdout + answer.stderr
    assert "invalid option" not in said
    # Without a GPU it cannot count, and says so in other words.
    assert "ran" in answer.stdout or "metrics" in mode


@needs_nvprof
def test_a_run_without_a_gpu_is_an_empty_result_with_nvprofs_own_words(tmp_path):
    command = tool("nvprof").wrap([sys.executable, "-c", "pass"], tmp_path, Options("timing"))
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    path = tmp_path / "nvprof.csv"
    assert recognise(path) == "nvprof"
    findings = read(path).findings
    assert any(
        "No profile data collected" in finding or "GPU profiling skipped" in finding for finding in findings
    )


def train_under(name, out, *flags, batches=6, first=0, ranks=1, environment=()):
    """Train for real under a tool, as the local launcher starts it; the ranks' directories."""
    run = [
        "-m",
        "train",
        "--model",
        "resnet18",
        "--batch",
        "2",
        "--batches",
        str(batches),
        "--image-size",
        "32",
        "--gpus-per-node",
        str(ranks),
        "--profile",
        name,
        "--attribute-from",
        str(first),
        "--out",
        str(out),
        *flags,
    ]
    command = wrapped(name, [sys.executable, *run], out, "cpu", first, True)
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
              "SCALEPROF_RENDEZVOUS": (out / "meet").absolute().as_uri(), **dict(environment)}  # fmt: skip
    out.mkdir(parents=True)
    with (out / "log.txt").open("w") as log:
        children = [
            subprocess.Popen(command, stdout=log, stderr=log,
                             env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]  # fmt: skip
        codes = [child.wait(timeout=300) for child in children]
    assert codes == [0] * ranks, (out / "log.txt").read_text()[-2000:]
    return [out / f"rank_{rank:04d}" for rank in range(ranks)]


def stage_errors(directory):
    """How far each marker stands from where the batches' own clock saw it, as parts of the batch."""
    batches = pq.read_table(directory / "batches.parquet").to_pandas()
    batches = batches[batches["attributed"]].reset_index(drop=True)
    markers = pq.read_table(directory / "markers.parquet").to_pandas()
    forward = batches["start_ns"] + batches["load_ns"]
    backward = forward + batches["forward_ns"]
    update = backward + batches["backward_ns"]
    seen = {
        "Forward Pass": (forward, backward), "Backward Pass": (backward, update),
        "Model Update": (update, update + batches["update_ns"]), "End of Batch": (batches["end_ns"],) * 2,
    }  # fmt: skip
    errors = []
    for name, (start, end) in seen.items():
        mine = markers[markers["name"] == name].reset_index(drop=True)
        assert len(mine) == len(batches), (name, len(mine), len(batches))
        took = batches["end_ns"] - batches["start_ns"]
        errors += [(mine["start_ns"] - start).abs() / took, (mine["end_ns"] - end).abs() / took]
    return np.concatenate(errors)


@needs_nsys
@pytest.mark.parametrize(("ranks", "first"), [(2, 0), (1, 3)])
def test_the_real_nsys_finds_every_marker_of_every_batch_on_every_rank(ranks, first, tmp_path):
    for directory in train_under("nsys", tmp_path / "run", first=first, ranks=ranks):
        errors = stage_errors(directory)
        # Where another process takes the core between two clock readings, that one reading is off.
        assert np.median(errors) < 0.01 and np.mean(errors < 0.01) > 0.9, errors
        assert pq.read_table(directory / "markers.parquet")["kind"].to_pylist().count("mark") == 6 - first
        report = directory / "raw" / "nsys.nsys-rep"
        assert recognise(report) == "nsys"
        for path in directory.glob("*.parquet"):
            assert b"PATH" not in path.read_bytes()  # the report holds the environment, the tables do not


@needs_tau
def test_the_real_tau_times_every_stage_on_every_rank(tmp_path):
    for rank, directory in enumerate(train_under("tau", tmp_path / "run", ranks=2)):
        intervals = pq.read_table(directory / "intervals.parquet").to_pandas()
        assert set(intervals["rank"]) == {rank}
        calls = intervals[intervals["thread"] == 0].set_index("function")["calls"]
        assert calls["Forward Pass"] == calls["End of Batch"] == 6


@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed (make horovod)")
def test_the_real_horovod_times_every_gradient_of_every_batch(tmp_path):
    ranks = train_under(
        "horovod",
        tmp_path / "run",
        "--backend",
        "horovod",
        ranks=2,
        environment={"HOROVOD_CONTROLLER": "gloo"},
    )
    batches = pq.read_table(ranks[0] / "batches.parquet").to_pandas().set_index("batch_index")
    kernels = pq.read_table(ranks[0] / "kernels.parquet").to_pandas()
    reduced = kernels[(kernels["name"] == "hvd:allreduce") & kernels["layer"].notna()]
    # ResNet18's 62 parameters of 11,689,512 elements.
    assert reduced.groupby("batch_index").size().to_dict() == dict.fromkeys(range(6), 62)
    assert reduced.groupby("batch_index")["bytes"].sum().tolist() == [4 * 11_689_512] * 6
    its = batches.loc[reduced["batch_index"]]
    assert (reduced["start_ns"].to_numpy() >= its["start_ns"].to_numpy()).all()
    findings = [json.loads((rank / "rank.json").read_text())["findings"] for rank in ranks]
    assert [
        finding for finding in findings[0] if finding.startswith("horovod: its clock is that of the batches")
    ]
    assert findings[1] == [] and not (ranks[1] / "kernels.parquet").exists()  # rank 0 writes for all
