"""A sweep runs what is not done, keeps what is, names what failed, and loses nothing."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import pytest

from benchmarks.scripted_ranks import leave_out_calibration
from jobs import execute, hangs, queue, store, sweep_record
from jobs.claims import claim
from jobs.execute import run_sweep
from jobs.execution import Execution
from jobs.launchers.base import Process, why_node_cannot
from jobs.launchers.local import Local
from jobs.machine import Machine
from jobs.outcome import make_manifest
from jobs.owner import OWNER, this_owner
from jobs.processes import TimeIsUp
from jobs.run import make_run
from jobs.site import Container, Site
from jobs.store import Manifest
from jobs.sweep import AS_SUBMITTED, parser, read_request, this_command
from jobs.sweep_file import Sweep
from jobs.sweep_runs import expand
from profiling import tables
from profiling.errors import UserError
from tests.ended_runs import ended_runs

pytestmark = pytest.mark.long

WITH_DALI = frozenset({"nvidia.dali"})
HERE = Machine("here", "os", "cpu", cores=2, memory_bytes=1, gpus=(), driver=None, libraries=WITH_DALI)


@pytest.fixture(scope="module", autouse=True)
def batches_of_ranks(tmp_path_factory):
    """What scripted ranks leave as their batches, made once."""
    folder = tmp_path_factory.mktemp("batches")
    for rank, batches in product(range(2), range(1, 5)):
        rows = {
            "rank": [rank] * batches, "batch_index": list(range(batches)), "loss": [1.0] * batches,
            "start_ns": [index * 250_000_000 for index in range(batches)],
            "end_ns": [index * 250_000_000 + 250_000_000 for index in range(batches)],
            "attributed": [False] * batches,
        }  # fmt: skip
        written = tables.write(tables.as_table("batches", rows), folder, "batches")
        written.rename(folder / f"{batches}_of_{rank}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHES_OF_RANKS", str(folder))
        yield


@dataclass(frozen=True)
class Scripted(Local):
    """The local launcher, with tests/jobs/scripted_rank.py in the place of ``python -m train``."""

    machine: Machine = HERE
    misbehave: str = ""

    def processes(self, run, command, directory):
        if "train.calibrate" in command:
            command = [sys.executable, "-c", "raise SystemExit(1)"]
        scripted = ["tests.jobs.scripted_rank" if token == "train" else token for token in command]
        ranks = super().processes(run, scripted, directory)
        return [Process(r.argv, {**r.environment, "MISBEHAVE": self.misbehave}) for r in ranks]


def make_sweep(**values) -> Sweep:
    run = {"batches": 3, "batch": 2, "data": ".", "loader": ["synthetic", "pytorch"], "gpus_per_node": [1, 2]}
    return Sweep.model_validate({"name": "s", "repetitions": 1, "run": run, "order_seed": 1, **values})


def execution(directory: Path, misbehave: str = "", **values) -> Execution:
    return Execution(make_sweep(**values), directory / "s", Scripted(misbehave=misbehave))


def run_all(work: Execution) -> int:
    return run_sweep(work, *expand(work.sweep)).failed


def manifests(work: Execution) -> dict[str, Manifest]:
    return {path.name: store.read_record(path / "manifest.json", Manifest)
            for path in ended_runs(work.directory)}  # fmt: skip


def test_every_run_ends_with_a_manifest_and_a_second_call_does_nothing(tmp_path, capsys):
    work = execution(tmp_path / "nodes[dim]2")
    assert run_all(work) == 0
    # Without a terminal the bar is a line a run.
    lines = capsys.readouterr().err.splitlines()
    runs = [(line, below) for line, below in pairwise(lines) if "(run_" in line]
    assert [line.split()[0] for line, _ in runs] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    # Of 2 images per rank in 250 ms.
    speeds = {True: "16.0", False: "8.00"}
    assert [below for _, below in runs] == [
        f"  about 250 ms per step, {speeds['1 node x 2 ranks' in line]} images/s (median of the last 2 steps)"
        for line, _ in runs
    ]
    first = manifests(work)
    # Its calibration, which fails here, says where its log is.
    (log,) = re.findall(r"calibration failed: .*? Log: (\S+/log\.txt)\. Without", " ".join(lines))
    assert Path(log).is_file()
    assert len(first) == 4 and all(m.done and m.reason == "" for m in first.values())
    assert run_all(work) == 0
    said = "".join(capsys.readouterr().err.splitlines())
    assert "nothing to do: every run of" in said and "is done (4)" in said
    assert "nodes[dim]2" in said  # the folder's name is no markup
    assert {name: m.ended for name, m in manifests(work).items()} == {n: m.ended for n, m in first.items()}


def test_a_manifest_says_where_the_figures_come_from_and_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("NCCL_API_TOKEN", "hush")
    work = execution(tmp_path)
    run_all(work)
    for directory in ended_runs(work.directory):
        text = (directory / "manifest.json").read_text()
        assert "hush" not in text
        manifest = Manifest.model_validate_json(text)
        assert manifest.environment["NCCL_DEBUG"] == "INFO"
        assert manifest.environment["WORLD_SIZE"] == str(manifest.run.world_size)
        assert manifest.command[1:3] == ["-m", "train"]
        assert manifest.git_revision and manifest.git_dirty is not None
        assert manifest.host["hostname"] and manifest.host["cpu"] and manifest.versions["torch"]
        assert manifest.started < manifest.ended
        assert len(manifest.ranks) == manifest.run.world_size


@pytest.mark.parametrize(
    ("misbehave", "code", "reason"),
    [
        ("error", 2, "no data folder nowhere; give --data"),
        ("traceback", 1, "RuntimeError: the arithmetic is off"),
        ("die", -11, "rank 0 was killed by signal 11 (SIGSEGV)"),
        ("hang", 124, "time limit of 4 s; its log says where"),
        ("few", 1, "rank 0 did 1 of 3 steps"),
        ("nan", 1, "not finite"),
        ("diverge", 1, "ranks 0 and 1 ended with different parameters"),
        ("silent", 1, "rank 1 left no report"),
    ],
)
def test_a_failed_run_keeps_its_log_and_reason_and_the_others_still_run(
    tmp_path, monkeypatch, capsys, misbehave, code, reason
):
    monkeypatch.setattr("jobs.processes.GRACE_S", 0.3)
    odd = "; rank 7 has not started"  # two ranks have none
    monkeypatch.setattr(queue, "gather_stacks", lambda *given: hangs.gather_stacks(*given) + odd)
    run = {"batches": 3, "data": ".", "loader": ["pytorch", "synthetic"], "gpus_per_node": 2}
    limit_s = 4 if misbehave == "hang" else 60  # the others' runs end by themselves, on a busy machine later
    work = execution(tmp_path, misbehave, run=run, time_limit_s=limit_s, order="given")
    assert run_all(work) == 1
    failed = [m for m in manifests(work).values() if not m.done]
    assert [(m.exit_code, m.run.loader) for m in failed] == [(code, "pytorch")]
    assert reason in failed[0].reason and (odd in failed[0].reason) is (misbehave == "hang")
    assert [m.run.loader for m in manifests(work).values() if m.done] == ["synthetic"]
    (log,) = (tmp_path / "s").glob(f"run_*_ret_{code}/log.txt")
    assert ("in main" in log.read_text().partition("ranks 0-1 were here:")[2]) is (misbehave == "hang")
    said = capsys.readouterr().err
    assert reason in said and f"_ret_{code}/log.txt" in said.replace("\n", "")


def test_a_failed_run_is_tried_again_and_what_is_done_is_kept(tmp_path, capsys):
    assert run_all(execution(tmp_path, "error")) == 2
    said = re.findall(r"^failed: \S+: (.*)$", capsys.readouterr().err, re.MULTILINE)
    assert said == ["no data folder nowhere; give --data", "for the same reason as before"]
    done_before = {n: m.ended for n, m in manifests(execution(tmp_path)).items() if m.done}
    assert run_all(execution(tmp_path)) == 0
    after = manifests(execution(tmp_path))
    assert sum(m.done for m in after.values()) == 4
    assert {n: after[n].ended for n in done_before} == done_before


def test_runs_this_machine_cannot_run_are_counted_by_reason(tmp_path, capsys):
    run = {"loader": ["synthetic", "dali-gpu"], "gpus_per_node": [1, 3], "batches": 2}
    assert run_all(execution(tmp_path, run=run)) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "2 runs: loader dali-gpu needs a GPU" in said
    assert "1 run: 3 ranks per node requested, but this machine has 2 CPU cores and no GPU: without" in said
    assert run_all(execution(tmp_path, run=run, unavailable="skip")) == 0
    record = store.read_record(tmp_path / "s" / "sweep.json", sweep_record.SweepRecord)
    assert len(record.excluded) == 3 and len(record.order) == 4


def test_a_call_for_some_runs_of_a_sweep_keeps_what_is_known_of_the_whole(tmp_path):
    work = execution(tmp_path, run={"loader": ["synthetic", "pytorch"], "gpus_per_node": [1, 2], "data": "."})
    work.directory.mkdir(parents=True)
    sweep_runs, _ = expand(work.sweep)
    first, *others = sweep_runs
    lacking = execute.Excluded(others[0], "no such loader here")
    recorded = []
    other = execution(tmp_path, run={"loader": "synthetic", "gpus_per_node": [1, 2]})
    for asked, left, by in ((sweep_runs, [lacking], work), ([first], [], work), ([first], [], other)):
        sweep_record.record_sweep(by, asked, left)
        recorded.append(store.read_record(work.directory / store.SWEEP, sweep_record.SweepRecord))
    whole, some, changed = recorded
    assert sorted(some.order) == sorted(whole.order) and len(whole.order) == 4
    assert some.excluded == whole.excluded != []
    assert (changed.order, changed.excluded) == ([first.id], [])


def test_a_tool_that_is_not_on_the_path_is_known_before_its_runs_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = {"batches": 3, "batch": 2, "profile": ["none", "tau"]}
    work = execution(tmp_path, run=run)
    execute.print_plan(work, *expand(work.sweep))
    said = capsys.readouterr()
    missing = "1 run: profile tau needs tau_exec on the PATH (see python -m jobs.doctor)"
    assert missing in " ".join(said.err.split()) and "profiling.wrap" not in said.out
    assert run_all(work) == 1
    assert run_all(execution(tmp_path, run=run, unavailable="skip")) == 0


def test_a_dry_run_begins_with_what_there_is_to_do_and_how_long_it_may_take(tmp_path, capsys):
    work = execution(tmp_path)
    execute.print_plan(work, *expand(work.sweep))
    assert capsys.readouterr().err.splitlines()[0] == f"4 runs to do, 0 done, in {tmp_path}/s"
    run_all(work)
    first, *others = ended_runs(work.directory)
    for directory in others:
        manifest = store.read_record(directory / "manifest.json", Manifest)
        store.write_record(directory / "manifest.json", manifest.model_copy(update={"seconds": 200.0}))
    store.remove(first)
    capsys.readouterr()
    execute.print_plan(work, *expand(work.sweep))
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == f"1 run to do (about 3 min), 3 done, in {tmp_path}/s"
    assert said.out.count("# 1 of 1: ") == 1


def test_what_a_container_holds_is_not_looked_for_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run({"profile": "tau", "profile_mode": "python"})
    assert "needs tau_python on the PATH" in (why_node_cannot(run, HERE) or "")
    assert why_node_cannot(run, HERE, sees_programs=False) is None


def test_models_that_a_container_holds_are_not_looked_for_outside(tmp_path):
    (tmp_path / "s.yaml").write_text("run: {model: resnet999}")
    arguments = parser().parse_args([str(tmp_path / "s.yaml")])
    with pytest.raises(UserError, match="invalid model 'resnet999'"):
        read_request(arguments, Site())
    box = Container(runtime="apptainer", image="/images/newer.sif")
    assert read_request(arguments, Site(container=box)).sweep_runs


def test_data_that_are_not_there_are_known_before_the_first_run_and_said_once(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run = {"batches": 3, "data": [str(tmp_path / "none"), str(tmp_path / "empty")], "batch": [2, 4],
           "loader": ["synthetic", "pytorch"]}  # fmt: skip
    work = execution(tmp_path, run=run)
    assert execute.print_plan(work, *expand(work.sweep)) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f"2 runs: there is no data folder {tmp_path / 'none'}") == 1
    assert said.count(f"2 runs: no images in {tmp_path / 'empty'}") == 1
    only = {"batches": 3, "data": str(tmp_path / "none"), "loader": "pytorch", "batch": [2, 4]}
    work = execution(tmp_path, run=only)
    for sweep in (execute.print_plan, run_sweep):
        with pytest.raises(UserError, match="no run can start here: 2 runs: there is no data folder"):
            sweep(work, *expand(work.sweep))
    assert not work.directory.exists()


def test_a_loader_without_data_is_known_before_the_first_run(tmp_path):
    work = execution(tmp_path, run={"loader": "pytorch"})
    with pytest.raises(UserError, match="1 run: loader pytorch needs data: a folder of"):
        execute.print_plan(work, *expand(work.sweep))


def test_where_nothing_can_run_one_line_says_why(tmp_path):
    with pytest.raises(UserError, match="no run can start here: 1 run: 8 nodes"):
        run_all(execution(tmp_path, run={"nodes": 8}))
    assert not (tmp_path / "s").exists()


def test_done_runs_of_other_settings_are_never_taken_for_these(tmp_path):
    run_all(execution(tmp_path))
    before = manifests(execution(tmp_path))
    changed = execution(tmp_path, run={"batches": 4, "batch": 2, "loader": "synthetic"})
    with pytest.raises(UserError, match="batches 3, and the sweep now says 4"):
        run_all(changed)
    assert manifests(execution(tmp_path)) == before


def test_a_run_is_done_only_if_its_manifest_says_so(tmp_path):
    work = execution(tmp_path)
    run_all(work)
    directory = ended_runs(work.directory)[0]
    (directory / "manifest.json").unlink()
    states = [work.state(run) for run in expand(work.sweep)[0]]
    assert sorted(states) == ["done", "done", "done", "failed"]
    assert run_all(work) == 0
    assert all(m.done for m in manifests(work).values()) and len(manifests(work)) == 4


DRIVER = """
import sys
from pathlib import Path
from tests.jobs.test_sweep import execution, run_all
run_all(execution(Path(sys.argv[1]), "hang", order="given"))
"""


def test_a_killed_sweep_resumes_at_its_first_unfinished_run(tmp_path, root):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=root,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    work = execution(tmp_path)
    deadline = time.monotonic() + 600
    while not any("pytorch" in d.name and "_ret_" not in d.name for d in (tmp_path / "s").glob("run_*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = {n: m.ended for n, m in manifests(work).items()}
    assert 1 <= len(done) < 4
    assert run_all(work) == 0
    after = manifests(work)
    assert len(after) == 4 and {n: after[n].ended for n in done} == done
    assert not [
        d.name for d in work.directory.iterdir() if d.name.startswith("run_") and "_ret_" not in d.name
    ]


INTERRUPTED = """
import sys
from jobs import sweep
from profiling.errors import run_command
from tests.jobs.test_sweep import Scripted
Scripted.open = classmethod(lambda cls, site, environment: cls(misbehave="hang"))
sweep.LAUNCHERS["local"] = Scripted
run_command(sweep.main)
"""


def heed_ctrl_c():
    """A shell's background processes, and all that they start, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_says_that_runs_are_ended_and_with_which_command_to_resume(tmp_path, root, monkeypatch):
    (tmp_path / "my sweep.yaml").write_text("run: {batches: 3, batch: 2, loader: pytorch, data: .}\nname: s")
    words = [str(tmp_path / "my sweep.yaml"), "--out", str(tmp_path)]
    sweep = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *words], cwd=root, stderr=subprocess.PIPE,
                             text=True, preexec_fn=heed_ctrl_c)  # fmt: skip
    deadline = time.monotonic() + 600
    while not any((tmp_path / "s").glob("run_*/log.txt")):
        assert time.monotonic() < deadline and sweep.poll() is None
        time.sleep(0.05)
    sweep.send_signal(signal.SIGINT)
    said = [line for line in sweep.communicate(timeout=600)[1].splitlines() if "interrupted" in line]
    assert sweep.returncode == 130
    resume = f"python -m jobs.sweep '{tmp_path}/my sweep.yaml' --out {tmp_path}"
    assert this_command(words) == resume
    monkeypatch.setenv(AS_SUBMITTED, "sbatch slurm/sweep.sh mine.yaml")
    assert this_command(words) == "sbatch slurm/sweep.sh mine.yaml"
    assert said == [
        "interrupted: ending runs ...", f"scaleprof: error: interrupted; to resume: {resume}"
    ]  # fmt: skip


def test_a_signal_is_not_lost_while_a_run_is_being_finished(tmp_path, monkeypatch):
    def loses_exceptions(*arguments):
        with suppress(BaseException):  # as an import does that a library begins in C
            os.kill(os.getpid(), signal.SIGUSR1)
        return make_manifest(*arguments)

    monkeypatch.setattr("jobs.queue.make_manifest", loses_exceptions)
    work = execution(tmp_path)
    with pytest.raises(TimeIsUp):
        run_all(work)
    (only,) = manifests(work).values()
    assert only.done


class Calibrating(Scripted):
    """Its calibration leaves peaks the second time that it is tried; each time, whose its folder is."""

    def processes(self, run, command, directory):
        if "train.calibrate" not in command:
            return super().processes(run, command, directory)
        out = command[command.index("--out") + 1]
        tried = f"cat {directory}/owner.json >>{out}.tries; [ $(grep -c pid {out}.tries) = 2 ] || exit 1"
        return [Process(["sh", "-c", f"{tried}; echo '{{}}' >{out}"], {})]


def test_a_calibration_that_fails_is_repeated_at_once_and_says_how_long_it_took(tmp_path, capsys):
    work = Execution(make_sweep(run={"batches": 3, "batch": 2}), tmp_path / "s", Calibrating())
    assert run_all(work) == 0
    said = capsys.readouterr().err
    assert said.count("measuring this machine's peak rates") == 1
    assert "calibration failed, will be repeated: " in said and "calibration failed: " not in said
    assert "\n  it took about 0 s\n" in said
    # While it is under way its folder has an owner; then nothing is left of it.
    assert f'"pid": {os.getpid()},' in (work.directory / "calibration.json.tries").read_text()
    assert not list(work.directory.glob(".calibration-*"))


class Stopped(Scripted):
    """Asked to stop when the first run is claimed, and none of its ranks is started."""

    def processes(self, run, command, directory):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().processes(run, command, directory)


def test_a_stop_between_claim_and_start_leaves_no_run_claimed(tmp_path):
    work = Execution(make_sweep(), tmp_path / "s", Stopped(misbehave="hang"))
    work.directory.mkdir()
    leave_out_calibration(work.directory)
    with pytest.raises(KeyboardInterrupt):
        run_all(work)
    assert not list(work.directory.glob("run_*/owner.json"))


@contextmanager
def beating(file: Path) -> Iterator[None]:
    """A living sweep touches its owner's file now and then."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            os.utime(file)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("other", "who", "shared"),
    [
        ({}, f"process {os.getpid()} on {os.uname().nodename}", "this machine"),
        ({"host": "n3", "job": "812"}, "job 812", "the network"),
    ],
    ids=["of this machine", "of another job"],
)
def test_a_second_sweep_says_whose_runs_it_skips_and_does_the_others(tmp_path, capsys, other, who, shared):
    work = execution(tmp_path)
    claimed = [work.running(sweep_run) for sweep_run in expand(work.sweep)[0][:2]]
    for directory in claimed:
        assert claim(directory, this_owner({}).model_copy(update=other)).ours
    with beating(claimed[0] / OWNER), beating(claimed[1] / OWNER):
        assert run_all(work) == 0
    said = capsys.readouterr().err
    assert said.count("works on this sweep, too") == 1
    line = (
        f"{who} works on this sweep, too: runs that it has claimed are skipped; runs at the same time share "
        f"{shared}, which disturbs the measurement\n"
    )
    assert 0 <= said.find(line) < said.index("[1/4]")
    assert len(manifests(work)) == 2 and all(directory.is_dir() for directory in claimed)
    assert "2 of the 4 requested runs of" in said and "running in another sweep: 2 runs" in said


def test_a_second_sweep_of_other_runs_says_that_the_first_is_at_work(tmp_path, capsys):
    """They share the machine, whichever runs each of them does."""
    work = execution(tmp_path)
    sweep_runs = expand(work.sweep)[0]
    claimed = work.running(sweep_runs[0])
    assert claim(claimed, this_owner({})).ours
    with beating(claimed / OWNER):
        assert not run_sweep(work, sweep_runs[1:2], []).failed
    said = capsys.readouterr().err
    assert said.count("works on this sweep, too") == 1 and said.index("works on") < said.index("[1/1]")


def test_a_full_disk_ends_in_one_line_and_what_is_finished_stays(tmp_path, root):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "scaleprof-test", str(disk)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("a small disk cannot be made here (mounting needs root)")
    try:
        assert run_all(execution(disk)) == 0
        before = manifests(execution(disk))
        filler = disk / "filler"
        with pytest.raises(OSError), filler.open("wb") as file:
            while True:
                file.write(os.urandom(4096))
                file.flush()
        code = "import sys; from pathlib import Path; from tests.jobs.test_sweep import *;"
        code += "from profiling.errors import run_command;"
        code += f"run_command(lambda: run_all(execution(Path({str(disk)!r}), repetitions=2)))"
        ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True,
                               check=False)  # fmt: skip
        assert ended.returncode in (1, 2)
        assert "No space left" in ended.stderr and "Traceback" not in ended.stderr
        filler.unlink()
        assert {n: m for n, m in manifests(execution(disk)).items() if n in before} == before
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_local_launcher_gives_each_rank_its_place_and_its_share_of_the_cores(tmp_path):
    run = make_run({"gpus_per_node": 2})
    first, second = Local(HERE).processes(run, ["python", "-m", "train"], tmp_path)
    assert first.argv == second.argv == ["python", "-m", "train"]
    assert first.environment == {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "SCALEPROF_RENDEZVOUS": f"{tmp_path.as_uri()}/rendezvous",
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "10000",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    assert second.environment["RANK"] == second.environment["LOCAL_RANK"] == "1"


def test_a_rank_has_as_many_threads_as_it_is_told_whatever_the_number_of_ranks(tmp_path):
    for ranks in (1, 2):
        run = make_run({"gpus_per_node": ranks, "threads": 1})
        for process in Local(HERE).processes(run, ["python"], tmp_path):
            assert process.environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("gpus", "values", "says"),
    [
        (0, {"nodes": 2}, "2 nodes requested"),
        (0, {"device": "gpu"}, "no usable GPU"),
        (0, {"loader": "dali-gpu"}, "needs a GPU"),
        (0, {"graph": True}, "graph true needs a GPU, and this machine has none; use graph false"),
        (1, {"graph": True}, None),
        (0, {"gpus_per_node": 3}, "2 CPU cores"),
        (
            0,
            {"profile": "nvprof"},
            "profile nvprof records GPU activity only, and this run computes on the CPU",
        ),
        (1, {"profile": "ncu", "device": "cpu"}, "profile ncu records GPU activity only"),
        (1, {"profile": "nvprof"}, None),
        (0, {"profile": "nsys"}, None),
        (1, {"gpus_per_node": 2}, "this machine has 1"),
        (2, {"gpus_per_node": 2, "profile": "ncu"}, "a collective of 2 ranks would never end: use one rank"),
        (1, {"gpus_per_node": 2, "device": "cpu"}, None),
        (1, {"loader": "dali-gpu", "data": "."}, None),
    ],
)
def test_the_local_launcher_says_why_it_cannot(gpus, values, says, tmp_path, monkeypatch):
    for name in ("nsys", "nvprof", "ncu"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = Machine("h", "o", "c", 2, 1, ("NVIDIA H200",) * gpus, None, WITH_DALI)
    answer = Local(machine).cannot(make_run(values))
    assert answer is None if says is None else says in answer
