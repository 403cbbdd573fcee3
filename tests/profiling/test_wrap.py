"""Commands under every tool, as token lists; and what becomes of what a tool in its place wrote."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.execute import Execution
from jobs.launchers.base import Local
from jobs.run import make_run
from jobs.run_fields import to_flags
from jobs.sweep_file import Sweep
from profiling.convert import convert
from profiling.errors import UserError
from profiling.tables import as_table, write
from profiling.tools import TOOLS, Options, check_can_record, read, recognise, tool
from profiling.tools.nvidia import RANGE, VARIABLE
from profiling.wrap import main, wrapped, wraps
from tests.profiling.samples import VTUNE, VTUNE_MEMORY, nsys_database, nvprof_database

pytestmark = pytest.mark.long
COMMAND = ["python", "-m", "train", "--batches", "10"]
RAW = Path("/results/a run/rank_0003/raw")
NSYS = ["nsys", "profile", "--trace=cuda,nvtx,osrt,mpi", "--sample=none", "--cpuctxsw=none",
        "--cuda-graph-trace=node", "--force-overwrite=true", "--output", f"{RAW}/nsys"]  # fmt: skip
TAU = ["tau_exec", "-T", "python"]
HOTSPOTS = ["vtune", "-collect", "hotspots", "-result-dir", f"{RAW}/vtune", "-quiet"]
TOKENS = {
    ("nvprof", Options()): ["nvprof", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nvprof", Options(first_batch=5)):
        ["nvprof", "--profile-from-start", "off", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nvprof", Options("timing")): ["nvprof", "--csv", "--log-file", f"{RAW}/nvprof.csv"],
    ("nvprof", Options("analysis-metrics", ".*gemm.*")):
        ["nvprof", "--kernels", "::.*gemm.*:", "--analysis-metrics", "-f", "-o", f"{RAW}/nvprof.sql"],
    ("nsys", Options()): NSYS,
    ("nsys", Options(first_batch=5)): [*NSYS, "--capture-range=nvtx", f"--nvtx-capture={RANGE}",
                                       "--capture-range-end=stop", "--kill=none"],
    ("tau", Options()): TAU,
    ("tau", Options(gpu=True)): ["tau_exec", "-T", "python,cupti", "-cupti"],
    ("tau", Options("ebs")): [*TAU, "-ebs"],
    ("tau", Options("io")): [*TAU, "-io"],
    ("vtune", Options()): [*HOTSPOTS, "-finalization-mode=none", "--"],
    ("vtune", Options("hw-hotspots")):
        [*HOTSPOTS, "-knob", "sampling-mode=hw", "-finalization-mode=none", "--"],
    ("vtune", Options("memory-consumption", metrics="-knob sampling-interval=50 -strategy a:trace")):
        ["vtune", "-collect", "memory-consumption", "-result-dir", f"{RAW}/vtune-mc", "-quiet", "-knob",
         "sampling-interval=50", "-strategy", "a:trace", "-finalization-mode=none", "--"],
    ("vtune", Options(metrics="-finalization-mode=deferred")):
        [*HOTSPOTS, "-finalization-mode=deferred", "--"],
    ("vtune", Options(metrics="-finalization-mode=fast")):
        [*HOTSPOTS, "-finalization-mode=fast", "--"],
    ("horovod", Options()): [],
    ("none", Options()): [],
}  # fmt: skip


@pytest.mark.parametrize(("name", "options"), TOKENS)
def test_the_command_under_each_tool(name, options):
    assert tool(name).wrap(COMMAND, RAW, options) == [*TOKENS[name, options], *COMMAND]


def test_nvprofs_metrics_and_ncus_counters_come_after_their_filter():
    def after(words, option):
        return words[words.index(option) + 1]

    words = tool("nvprof").wrap(COMMAND, RAW, Options("metrics", "gemm"))
    assert words.index("--kernels") < words.index("--metrics")
    metrics = {"achieved_occupancy", "ipc", "gld_efficiency", "gst_efficiency", "dram_utilization"}
    assert metrics <= set(after(words, "--metrics").split(","))
    assert tool("nvprof").wrap(COMMAND, RAW, Options("metrics", metrics="ipc"))[1:3] == ["--metrics", "ipc"]
    words = tool("ncu").wrap(COMMAND, RAW, Options("auto", "gemm", first_batch=2))
    assert after(words, "--kernel-name") == "regex:gemm" and "--launch-count" in words
    assert after(words, "--profile-from-start") == "off" and words[-len(COMMAND) :] == COMMAND
    # Durations are those of training, and nobody's clock stays set when it is killed.
    assert after(words, "--clock-control") == "none"
    pipes = {"sm__inst_executed_pipe_tensor.sum", "sm__pipe_tensor_cycles_active.sum"}
    assert pipes < set(after(words, "--metrics").split(","))
    words = tool("ncu").wrap(COMMAND, RAW, Options("full", metrics="lts__t_bytes.sum"))
    assert words[words.index("--set") :] == ["--set", "full", "--metrics", "lts__t_bytes.sum", *COMMAND]
    words = tool("ncu").wrap(COMMAND, RAW, Options("full"))
    assert words[words.index("--set") :] == ["--set", "full", *COMMAND]


def test_tau_python_brings_its_own_interpreter():
    words = tool("tau").wrap(COMMAND, RAW, Options("python"))
    assert words == ["tau_python", "-T", "python", "-tau-python-interpreter=python", *COMMAND[1:]]


def test_percent_signs_in_a_path_are_no_patterns():
    raw = Path("/results/50%p/raw")
    assert tool("nvprof").wrap([], raw, Options())[-1] == "/results/50%%p/raw/nvprof.sql"
    assert tool("nsys").wrap([], raw, Options())[-1] == "/results/50%%p/raw/nsys"


def test_variables_of_each_tool():
    needed = {name: tool(name).environment(RAW, Options(first_batch=3, rank=5)) for name in TOOLS}
    variables = {name: some for name, some in needed.items() if some}
    assert variables == {
        "nvprof": {VARIABLE: "cuda"},
        "nsys": {VARIABLE: "nvtx", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        "tau": {"PROFILEDIR": str(RAW), "TAU_PROFILE_FORMAT": "profile", "TAU_PROFILE": "1", "TAU_TRACE": "0",
                "TAU_SET_NODE": "5", "TAU_THROTTLE": "0"},
        "ncu": {VARIABLE: "cuda"},
        "horovod": {"HOROVOD_TIMELINE": f"{RAW}/timeline.json"},
        "inspector": {"NCCL_PROFILER_PLUGIN": "inspector", "NCCL_INSPECTOR_ENABLE": "1",
                      "NCCL_INSPECTOR_DUMP_DIR": str(RAW), "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
                      "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500"},
    }  # fmt: skip
    # Where every function of Python is timed, those that are called too often are to be left out.
    assert "TAU_THROTTLE" not in tool("tau").environment(RAW, Options("python"))
    assert tool("nsys").environment(RAW, Options()) == {}  # all is recorded
    assert tool("horovod").environment(RAW, Options("cycles"))["HOROVOD_TIMELINE_MARK_CYCLES"] == "1"


def test_a_sweep_starts_its_ranks_under_the_runs_profiler_if_that_watches_from_outside(tmp_path):
    wrapping = [name for name in TOOLS if wraps(name)]
    assert wrapping == ["nvprof", "nsys", "tau", "ncu", "vtune", "horovod", "inspector"]
    sweep = Sweep(name="s", run={"profile": ["none", "nsys"]})
    execution = Execution(sweep, tmp_path, Local(), keep_raw=True)
    runs = [make_run({"profile": name, "batches": 10}) for name in ("none", "nsys")]
    plain, watched = (execution.command(run, tmp_path) for run in runs)
    assert plain[1:3] == ["-m", "train"]
    assert watched[1:7] == ["-m", "profiling.wrap", "--tool", "nsys", "--out", str(tmp_path)]
    end = watched.index("--")
    assert watched[7:end] == ["--device", "auto", "--first-batch", "5", "--keep-raw"]
    assert sorted({*watched[end + 1 :]} - {*plain}) == ["--profile=nsys"]
    counted = make_run({"profile": "nvprof", "profile_mode": "metrics", "profile_kernels": "gemm|conv",
                        "profile_metrics": "ipc,gld_efficiency"})  # fmt: skip
    words = execution.command(counted, tmp_path)
    words = words[: words.index("--")]
    assert words[words.index("--mode") + 1] == "metrics"
    assert words[words.index("--kernels") + 1] == "gemm|conv"
    assert "--metrics=ipc,gld_efficiency" in words


# --- starting and ending ----------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program on the PATH in a tool's place: it runs what stands after ``--``, or does what it is told."""

    def put(name, body):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        # By a shell, because a path with a blank cannot stand behind #!.
        code = program.with_suffix(".py")
        code.write_text(f"import os, shutil, subprocess, sys\n{body}")
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(code))} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return put


NVPROF = ["--tool", "nvprof", "--device", "gpu"]
LAUNCHED = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}  # by mpirun
RUN = f"\nsys.exit(subprocess.call(sys.argv[sys.argv.index({sys.executable!r}):]))\n"


def test_what_the_tool_wrote_becomes_the_ranks_tables(tmp_path, fake, monkeypatch):
    made = nvprof_database(tmp_path / "made.sql")
    fake("nvprof", f"shutil.copy({str(made)!r}, sys.argv[sys.argv.index('-o') + 1])" + RUN)
    # A rank of MPICH's mpirun, whose daemon on this node srun started as its task 1.
    of_daemon = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
    for name, value in (LAUNCHED | of_daemon).items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    (out / "rank_0003").mkdir(parents=True)
    (out / "rank_0003" / "rank.json").write_text('{"rank": 3, "findings": ["of the loader"]}')
    code = "import os; print(os.environ['SCALEPROF_CAPTURE'])"
    assert main([*NVPROF, "--out", str(out), "--first-batch", "7", "--", "-c", code]) == 0
    kernels = pq.read_table(out / "rank_0003" / "kernels.parquet").to_pandas()
    assert set(kernels["rank"]) == {3} and sorted(kernels["batch_index"].dropna().unique()) == [7, 8, 9]
    findings = json.loads((out / "rank_0003" / "rank.json").read_text())["findings"]
    assert findings[0] == "of the loader" and len(findings) > 1
    assert not (out / "rank_0003" / "raw").exists()  # it may hold the environment


# VTune: what it collects, it finalizes once, and reports only then.
FAKE_VTUNE = """
result = sys.argv[sys.argv.index('-result-dir') + 1]
if '-collect' in sys.argv:
    os.makedirs(result)
    open(os.path.join(result, os.path.basename(result) + '.vtune'), 'w').close()
    if '-finalization-mode=full' in sys.argv:
        open(os.path.join(result, 'done'), 'w').close()
    sys.exit(subprocess.call(sys.argv[sys.argv.index('--') + 1:]))
done = os.path.join(result, 'done')
if '-finalize' in sys.argv:
    sys.exit(os.path.exists(done) or open(done, 'w').close())
kind = sys.argv[sys.argv.index('-report') + 1]
with open(sys.argv[sys.argv.index('-report-output') + 1], 'w') as file:
    file.write(REPORTS[kind] if os.path.exists(done) else '')
"""


@pytest.mark.parametrize(
    ("finalization", "later"), [("", False), ("full", False), ("deferred", True), ("none", True)]
)
@pytest.mark.parametrize(
    ("mode", "table", "column", "values"),
    [("auto", "intervals", "exclusive_ns", [12.5e9, 2.5e9]),
     ("memory-consumption", "atomics", "mean", [88_100_000, 88_100_000, 21, 2_000_000, 0, 20, 1_200_000])],
)  # fmt: skip
def test_vtune_finalizes_in_the_job_or_later(
    mode, table, column, values, finalization, later, tmp_path, fake, monkeypatch, capsys
):
    reports = {"hotspots": VTUNE, "top-down": VTUNE_MEMORY}
    fake("vtune", f"REPORTS = {reports!r}{FAKE_VTUNE}")
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    out, options = tmp_path / "run", ["-knob sampling-interval=50"]
    options += [f"-finalization-mode={finalization}"] if finalization else []
    options = ["--mode", mode, f"--metrics={' '.join(options)}"]
    assert main(["--tool", "vtune", *options, "--out", str(out), "--", "-c", "pass"]) == 0
    rank = out / "rank_0003"
    assert (str(rank / "raw") in capsys.readouterr().err) == later
    if later:
        assert not list(rank.glob("*.parquet"))
        assert convert([out], jobs=1).converted == 1
    else:
        assert not (rank / "raw").exists()
    (found,) = rank.rglob(f"{table}.parquet")
    rows = pq.read_table(found).to_pylist()
    assert [row[column] for row in rows] == values and {row["rank"] for row in rows} == {3}


def test_a_result_of_vtune_is_read_where_no_report_of_it_is(tmp_path, fake, monkeypatch):
    reports = {"hotspots": VTUNE}
    fake("vtune", f"REPORTS = {reports!r}{FAKE_VTUNE}")
    runs = [tmp_path / "runs" / name for name in ("reported", "later")]
    for run, options in zip(runs, ("", "-finalization-mode=none"), strict=True):
        command = ["--tool", "vtune", f"--metrics={options}", "--out", str(run), "--keep-raw"]
        assert main([*command, "--", "-c", "pass"]) == 0
    shutil.copy(__file__, runs[1])
    raw = [run / "rank_0000" / "raw" for run in runs]
    found = {path: recognise(path) for path in (tmp_path / "runs", *runs, *raw, raw[1] / "vtune")}
    assert found == {**dict.fromkeys(found), raw[1] / "vtune": "vtune"}
    with pytest.raises(UserError, match="is a folder"):
        read(tmp_path / "runs")
    assert not (raw[1] / "vtune" / "done").exists()
    for there in (False, True):
        with nullcontext() if there else monkeypatch.context() as elsewhere:
            if not there:
                elsewhere.setenv("PATH", str(tmp_path))
            done = [convert([run], out=tmp_path / f"out {there}", jobs=1) for run in runs]
        assert [(one.converted, one.failed) for one in done] == [(1, 0), (int(there), 0)]


@pytest.mark.parametrize(
    ("code", "says"),
    [(0, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"),
     (1, "==7== Warning: see https://developer.nvidia.com/NVSOLN1000 for permissions")],
)  # fmt: skip
def test_a_driver_that_refuses_counters_is_told_with_the_line_that_grants_them(tmp_path, fake, code, says):
    fake("ncu", f"open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({says!r})\nsys.exit({code})")
    with pytest.raises(UserError, match=r"ncu has no permission .* `options nvidia NVreg_Restrict"):
        main(["--tool", "ncu", "--device", "gpu", "--out", str(tmp_path), "--", "-c", "pass"])


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
    assert main([*NVPROF, "--out", str(tmp_path / "run"), "--", "-c", "pass"]) == 0
    kernels = pq.read_table(rank / "kernels.parquet").to_pandas()
    kernels = kernels[kernels["batch_index"].notna()]  # copies without a launch have none
    assert set(kernels["batch_index"]) == {0, 1, 2}
    assert ((kernels["start_ns"] - 5_000_000_000) // 1000 == kernels["batch_index"]).all()


def test_a_report_of_nsys_is_exported_and_read(tmp_path, fake):
    made = nsys_database(tmp_path / "made.sqlite")
    body = (
        f"if sys.argv[1] == 'export': shutil.copy({str(made)!r}, sys.argv[4].split('=')[1]); sys.exit()\n"
        "open(sys.argv[sys.argv.index('--output') + 1] + '.nsys-rep', 'w').write('report')"
    )
    fake("nsys", body + RUN)
    assert main(["--tool", "nsys", "--out", str(tmp_path / "run"), "--", "-c", "pass"]) == 0
    assert pq.read_table(tmp_path / "run/rank_0000/markers.parquet").num_rows == 12


@pytest.mark.parametrize(
    ("tool_name", "mode", "refused"),
    [("ncu", "auto", True), ("ncu", "full", True), ("nvprof", "metrics", True),
     ("nvprof", "analysis-metrics", True), ("nvprof", "auto", False), ("nsys", "auto", False),
     ("torch", "auto", False)],
)  # fmt: skip
def test_counters_of_several_ranks_are_refused_before_their_collectives_wait(tool_name, mode, refused):
    check_can_record(tool_name, Options(mode, gpu=True), here=False)
    with pytest.raises(UserError, match="use one rank") if refused else nullcontext():
        check_can_record(tool_name, Options(mode, gpu=True, world_size=2), here=False)


# --- real nsys, nvprof, TAU and Horovod where they are: do they know our options, and see what our -----

needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
needs_tau = pytest.mark.skipif(shutil.which("tau_exec") is None, reason="TAU is not installed")


def train_under(name, out, *flags, mode="auto", batches=6, first=0, ranks=1, environment=()):
    """Train for real under a tool, as the local launcher starts it; the ranks' directories."""
    fields = {"model": "resnet18", "batch": 2, "batches": batches, "image_size": 32, "gpus_per_node": ranks,
              "profile": name, "profile_mode": mode, "attribute_from": first}  # fmt: skip
    run = ["-m", "train", *to_flags(make_run(fields)), f"--out={out}", *flags]
    command = wrapped(name, [sys.executable, *run], out, "cpu", first, True, mode)
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
              "SCALEPROF_RENDEZVOUS": (out / "meet").absolute().as_uri(), **dict(environment)}  # fmt: skip
    out.mkdir(parents=True)
    with (out / "log.txt").open("w") as log:
        children = [
            subprocess.Popen(command, stdout=log, stderr=log,
                             env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            codes = [child.wait(timeout=150) for child in children]
        finally:
            for child in children:
                child.terminate()  # and with it all that it started
    assert codes == [0] * ranks, (out / "log.txt").read_text()[-2000:]
    return [out / f"rank_{rank:04d}" for rank in range(ranks)]


def train_under_nsys(out, **options):
    """The same under nsys, which now and then loses its own agent on a busy machine: then once more."""
    try:
        return train_under("nsys", out, **options)
    except subprocess.TimeoutExpired:
        return train_under("nsys", out.with_name("again"), **options)


def stage_errors(directory):
    """How far each marker's start and end, by batch, stand from where the batches' own clock saw them.

    As parts of the batch: a series for each end of each marker.
    """
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
    return errors


@needs_nsys
@pytest.mark.parametrize(("ranks", "first"), [(1, 3), pytest.param(2, 0, marks=pytest.mark.wide)])
def test_the_real_nsys_finds_every_marker_of_every_batch_on_every_rank(ranks, first, tmp_path):
    for directory in train_under_nsys(tmp_path / "run", first=first, ranks=ranks):
        errors = stage_errors(directory)
        # Where another process takes the core between two clock readings, that one reading is off. A wrong
        # clock would move all of them; a mark of another batch, all of one kind, by a whole stage or step.
        assert np.median(np.concatenate(errors)) < 0.01, errors
        assert max(min(one) for one in errors) < 0.05, errors
        assert pq.read_table(directory / "markers.parquet")["kind"].to_pylist().count("mark") == 6 - first
        assert recognise(directory / "raw" / "nsys.nsys-rep") == "nsys"
        for path in directory.glob("*.parquet"):
            assert b"PATH" not in path.read_bytes()  # the report holds the environment, the tables do not


@needs_tau
@pytest.mark.parametrize("mode", tool("tau").modes)
def test_the_real_tau_times_every_stage_and_batch_on_every_rank(mode, tmp_path):
    for rank, directory in enumerate(train_under("tau", tmp_path / "run", mode=mode, ranks=2)):
        intervals = pq.read_table(directory / "intervals.parquet").to_pandas()
        atomics = pq.read_table(directory / "atomics.parquet").to_pandas().set_index("event")
        assert set(intervals["rank"]) == {rank}
        calls = intervals[intervals["thread"] == 0].set_index("function")["calls"]
        forward = atomics["count"]["Forward Pass (ns)"] if mode == "python" else calls["Forward Pass"]
        assert forward == atomics["count"]["Batch Duration (ns)"] == 6
        batches = pq.read_table(directory / "batches.parquet").to_pandas()
        own_ns = (batches["end_ns"] - batches["start_ns"]).mean()
        assert atomics["mean"]["Batch Duration (ns)"] == pytest.approx(own_ns, rel=0.05)


@pytest.mark.wide
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed (make horovod)")
def test_the_real_horovod_times_every_gradient_of_every_batch(tmp_path):
    gloo = {"HOROVOD_CONTROLLER": "gloo"}
    ranks = train_under("horovod", tmp_path / "run", "--backend", "horovod", ranks=2, environment=gloo)
    batches = pq.read_table(ranks[0] / "batches.parquet").to_pandas().set_index("batch_index")
    kernels = pq.read_table(ranks[0] / "kernels.parquet").to_pandas()
    reduced = kernels[(kernels["name"] == "hvd:allreduce") & kernels["layer"].notna()]
    # ResNet18's 62 parameters of 11,689,512 elements.
    assert reduced.groupby("batch_index").size().to_dict() == dict.fromkeys(range(6), 62)
    assert reduced.groupby("batch_index")["bytes"].sum().tolist() == [4 * 11_689_512] * 6
    its = batches.loc[reduced["batch_index"]]
    assert (reduced["start_ns"].to_numpy() >= its["start_ns"].to_numpy()).all()
    findings = [json.loads((rank / "rank.json").read_text())["findings"] for rank in ranks]
    # Where Horovod stops before its writer, the ends of the last collective (after training) are not written.
    assert {finding["code"] for finding in findings[0]} <= {"not_recorded"} and findings[1] == []
    assert not (ranks[1] / "kernels.parquet").exists()  # rank 0 writes for all
