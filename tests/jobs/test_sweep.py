"""A sweep runs what is not done, keeps what is, names what failed or cannot start, and loses nothing."""

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from jobs import execute, failures, store
from jobs.execute import Execution, SweepRecord, calibrate, record_sweep, run_sweep, speed_of
from jobs.launchers.base import Local, why_not_on
from jobs.processes import Process
from jobs.run import NO_HOROVOD, Run, make_run
from jobs.site import Container, Site
from jobs.store import LEFT_OUT, Allreduce, Calibration, claim, this_owner
from jobs.sweep import main, parser, read_request
from jobs.sweep_file import Sweep, SweepRun, expand
from profiling import tables
from profiling.errors import UserError
from profiling.findings import Finding
from tests.builders import a_folder, ended_runs
from tests.jobs.scripted import HERE, Scripted, execution, make_sweep, manifests, run_all, whole
from tests.jobs.scripted import batches_of_ranks as batches_of_ranks  # a fixture

pytestmark = pytest.mark.long


def test_every_run_ends_with_a_manifest_without_secrets_and_a_second_call_does_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for name in ("AWS_SECRET_ACCESS_KEY", "NCCL_API_TOKEN", "SLURM_JWT", "CUDA_AUTH_KEY"):
        monkeypatch.setenv(name, "hush")
    work = execution(tmp_path / "nodes[dim]2")
    assert run_all(work) == 0
    # Without a terminal the bar is a line a run; 2 images per rank take 250 ms.
    said, first = capsys.readouterr().err, manifests(work)
    speeds = {"1": "8.00", "2": "16.0"}
    lines = re.findall(r"^\[(\d)/4\] 1 node x (\d) .*\(run_.*\n  250 ms/step, (.*) images/s", said, re.M)
    assert [number for number, *_ in lines] == ["1", "2", "3", "4"]
    assert all(speed == speeds[ranks] for _, ranks, speed in lines)
    # Its calibration, which fails here, says where its log is.
    (log,) = re.findall(r"calibration failed: [^(]* \(log: (\S+/log\.txt)\)", said)
    assert Path(log).is_file()
    assert len(first) == 4
    for manifest in first.values():
        assert manifest.done and manifest.reason == "" and "hush" not in manifest.model_dump_json()
        assert manifest.environment["NCCL_DEBUG"] == "INFO"
        assert manifest.environment["WORLD_SIZE"] == str(manifest.run.world_size)
        assert manifest.command[1:3] == ["-m", "train"]
        assert manifest.git_revision and manifest.git_dirty is not None
        assert manifest.host["hostname"] and manifest.host["cpu"] and manifest.versions["torch"]
        assert manifest.started < manifest.ended and len(manifest.ranks) == manifest.run.world_size
    assert run_all(work) == 0
    said = capsys.readouterr().err
    assert "done: 4 of 4" in said and "nodes[dim]2" in said  # the folder's name is no markup
    assert {name: m.ended for name, m in manifests(work).items()} == {n: m.ended for n, m in first.items()}


@pytest.mark.parametrize(
    ("misbehave", "code", "reason"),
    [
        ("error", 2, "no data folder nowhere; give --data"),
        ("traceback", 1, "RuntimeError: the arithmetic is off"),
        ("die", -11, "rank 0 was killed by signal 11 (SIGSEGV)"),
        ("hang", 124, "time limit: 4 s"),
        ("few", 1, "steps done: 1 of 3 (rank 0)"),
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
    monkeypatch.setattr(execute, "gather_stacks", lambda *given: failures.gather_stacks(*given) + odd)
    run = {"batches": 3, "data": ".", "loader": ["pytorch", "synthetic"], "gpus_per_node": 2}
    limit_s = 4 if misbehave == "hang" else 60  # the others' runs end by themselves, on a busy machine later
    work = execution(tmp_path, misbehave, run=run, time_limit_s=limit_s, order="given")
    assert run_all(work) == 1
    failed = [m for m in manifests(work).values() if not m.done]
    assert [(m.exit_code, m.run.loader) for m in failed] == [(code, "pytorch")]
    assert reason in failed[0].reason and (odd in failed[0].reason) is (misbehave == "hang")
    assert [m.run.loader for m in manifests(work).values() if m.done] == ["synthetic"]
    (log,) = (tmp_path / "s").glob(f"run_*_ret_{code}/log.txt")
    assert ("in main" in log.read_text().partition("ranks 0-1:")[2]) is (misbehave == "hang")
    said = capsys.readouterr().err
    assert reason in said and f"_ret_{code}/log.txt" in said.replace("\n", "")


def test_a_failed_run_is_tried_again_and_what_is_done_is_kept(tmp_path, capsys):
    assert run_all(execution(tmp_path, "error")) == 2
    said = re.findall(r"^failed: \S+: (.*)$", capsys.readouterr().err, re.MULTILINE)
    assert len(said) == 2 and said[0] == said[1]
    done_before = {n: m.ended for n, m in manifests(execution(tmp_path)).items() if m.done}
    assert run_all(execution(tmp_path)) == 0
    after = manifests(execution(tmp_path))
    assert sum(m.done for m in after.values()) == 4
    assert {n: after[n].ended for n in done_before} == done_before


def test_a_call_for_some_runs_of_a_sweep_keeps_what_is_known_of_the_whole(tmp_path):
    work = execution(tmp_path, run={"loader": ["synthetic", "pytorch"], "gpus_per_node": [1, 2], "data": "."})
    work.directory.mkdir(parents=True)
    sweep_runs, _ = expand(work.sweep)
    first, *others = sweep_runs
    lacking = replace(others[0], reason="no such loader here")
    recorded = []
    other = execution(tmp_path, run={"loader": "synthetic", "gpus_per_node": [1, 2]})
    for asked, left, by in ((sweep_runs, [lacking], work), ([first], [], work), ([first], [], other)):
        record_sweep(replace(by, sweep_runs=asked), left)
        recorded.append(store.read_record(work.directory / store.SWEEP, SweepRecord))
    whole, some, changed = recorded
    assert sorted(some.order) == sorted(whole.order) and len(whole.order) == 4
    assert some.excluded == whole.excluded != []
    assert (changed.order, changed.excluded) == ([first.id], [])


def test_done_runs_of_other_settings_are_never_taken_for_these(finished):
    before = manifests(execution(finished))
    with pytest.raises(UserError, match="batches 3, and the sweep now says 4"):
        run_all(execution(finished, run={"batches": 4, "batch": 2, "loader": "synthetic"}))
    assert manifests(execution(finished)) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory, batches_of_ranks) -> Path:
    """A sweep all of whose runs are done, made once; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    assert run_all(execution(folder)) == 0
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (Path.unlink, "manifest.json"), (cut, "manifest.json"), (a_folder, "manifest.json"),
        (Path.unlink, "rank_0000/batches.parquet"), (cut, "rank_0000/batches.parquet"),
        (flip_a_bit, "rank_0000/batches.parquet"),
    ],
)  # fmt: skip
def test_a_damaged_result_is_kept_aside_and_its_run_alone_repeated(tmp_path, finished, capsys, damage, file):
    work = execution(shutil.copytree(finished, tmp_path, dirs_exist_ok=True))
    before = {name: one.ended for name, one in manifests(work).items()}
    directory = ended_runs(work.directory)[0]
    damage(directory / file)
    assert sorted(work.state(run) for run in expand(work.sweep)[0]) == ["done", "done", "done", "unusable"]
    assert run_all(work) == 0
    after = {name: one.ended for name, one in manifests(work).items()}
    assert len(after) == 4 and [name for name in after if after[name] != before[name]] == [directory.name]
    assert (work.directory / f".damaged-{directory.name}" / "log.txt").is_file()
    assert run_all(work) == 0 and capsys.readouterr().err.count("damaged, repeated") == 1


class Calibrating(Scripted):
    """Its calibration leaves peaks the second time that it is tried; each time, whose its folder is."""

    def processes(self, run, command, directory):
        if "train.calibrate" not in command:
            return super().processes(run, command, directory)
        out, tries = command[command.index("--out") + 1], directory.parent / "tries"
        tried = f"cat {directory}/owner.json >>{tries}; [ $(grep -c pid {tries}) = 2 ] || exit 1"
        peaks = '{"gemm_flops_per_s": {}, "copy_bytes_per_s": {}, "device": "cpu", "seconds": 1}'
        return [Process(["sh", "-c", f"{tried}; echo '{peaks}' >{out}"], {})]


def test_a_calibration_that_fails_is_repeated_at_once(tmp_path, capsys):
    work = Execution(make_sweep(run={"batches": 3, "batch": 2}), tmp_path / "s", Calibrating())
    assert run_all(work) == 0
    said = capsys.readouterr().err
    assert said.count("measuring peaks") == 1 and "calibration failed" not in said
    # While it is under way its folder has an owner; then nothing is left of it.
    assert f'"pid": {os.getpid()},' in (work.directory / "tries").read_text()
    assert (work.directory / "calibration.json").exists()
    assert not list(work.directory.glob(".calibration-*"))


def test_repetitions_that_scatter_are_said_while_the_sweep_runs(tmp_path, monkeypatch, capsys):
    steps_ns = {0: 1.2e8, 1: 1e8, 2: 9e8}
    monkeypatch.setattr(execute, "step_of", lambda folder: (steps_ns[int(folder.name.split("_")[1])], 2))
    work = execution(tmp_path, run={"batches": 3, "batch": [2, 4]}, repetitions=3, order="given")
    assert run_all(work) == 0
    assert capsys.readouterr().err.count("largest factor 1.2") == 2
    assert speed_of(tmp_path / "run_1_config_x", make_run({"batch": 2})).startswith("100 ms/step")


def test_runs_this_machine_cannot_run_are_counted_by_reason(tmp_path, capsys):
    run = {"loader": ["synthetic", "dali-gpu"], "gpus_per_node": [1, 3], "batches": 2}
    assert run_all(execution(tmp_path, run=run)) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert {int(count) for count in re.findall(r"(\d) runs?: ", said)} == {1, 2} and LEFT_OUT not in said
    assert run_all(execution(tmp_path, run=run, unavailable="skip")) == 0
    assert execute.print_plan(whole(execution(tmp_path, run=run, unavailable="skip"))) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert LEFT_OUT in said and "dali-gpu" in said
    record = store.read_record(tmp_path / "s" / "sweep.json", execute.SweepRecord)
    assert len(record.excluded) == 3 and len(record.order) == 4


def test_what_a_container_holds_is_not_looked_for_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run({"profile": "tau", "profile_mode": "python"})
    assert len(list(why_not_on(HERE, run))) == 1
    assert not list(why_not_on(HERE, run, sees_programs=False))
    (tmp_path / "s.yaml").write_text("run: {model: resnet999}")
    arguments = parser().parse_args([str(tmp_path / "s.yaml")])
    with pytest.raises(UserError, match="invalid model 'resnet999'"):
        read_request(arguments, Site())
    box = Container(runtime="apptainer", image="/images/newer.sif")
    assert read_request(arguments, Site(container=box))[0].sweep_runs


def test_a_sweep_is_read_before_its_launcher_is_opened(tmp_path, monkeypatch, capsys):
    (tmp_path / "site.yaml").write_text("network: {eth: {}}\nmpi: {hostfile: /no/hosts}")
    words = ["sweep", str(tmp_path / "s.yaml"), "--launcher=mpirun", f"--site={tmp_path / 'site.yaml'}"]
    monkeypatch.setattr("sys.argv", [*words, "--print=directory"])
    (tmp_path / "s.yaml").write_text("run: {backend: [ddp, horovod]}")
    monkeypatch.setattr("jobs.sweep.has_horovod", lambda: False)
    assert main() == 0
    assert capsys.readouterr() == ("results/s\n", "")
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(UserError, match="hostfile"):
        main()
    assert capsys.readouterr().err.count(NO_HOROVOD) == 1
    for text, says in (
        ("{nodez: 1}", "did you mean 'nodes'"),
        ("{network: [IB, eth]}", "network IB is not in"),
    ):
        (tmp_path / "s.yaml").write_text(f"run: {text}")
        with pytest.raises(UserError, match=says):
            main()


def test_data_that_are_not_there_are_known_before_the_first_run_and_said_once(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run = {"batches": 3, "data": [str(tmp_path / "none"), str(tmp_path / "empty")], "batch": [2, 4],
           "loader": ["synthetic", "pytorch"]}  # fmt: skip
    work = execution(tmp_path, run=run)
    assert execute.print_plan(whole(work)) == 4
    said = " ".join(capsys.readouterr().err.split())
    wrong = f"2 runs: there is no data folder {tmp_path / 'none'}; correct --data (in a sweep file: `data`)"
    assert said.count(wrong) == 1
    assert said.count(f"2 runs: {tmp_path / 'empty'} holds no images") == 1
    only = {"batches": 3, "data": str(tmp_path / "none"), "loader": "pytorch", "batch": [2, 4]}
    work = execution(tmp_path, run=only)
    for sweep in (execute.print_plan, run_sweep):
        with pytest.raises(UserError, match="no run can start here: 2 runs: there is no data folder"):
            sweep(whole(work))
    assert not work.directory.exists()


# --- what does the user of a sweep see while it runs? --------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        # One step of the four was slow: its mean, 250 ms, says nothing of the others.
        (0, "100 ms/step, 160 images/s (median of 4)"),
        (3, "100 ms/step, 160 images/s (median of 3)"),
        (7, "900 ms/step, 17.8 images/s (median of 1)"),
        (8, "100 ms/step, 160 images/s (median of 4)"),
    ],
)
def test_a_runs_speed_is_one_median_and_says_of_which_steps(tmp_path, recorded, said):
    steps_ms = [900, 900, 900, 100, 100, 100, 100, 700]
    starts_ms = [sum(steps_ms[:index]) for index in range(8)]
    rows = {
        "rank": [0] * 8, "batch_index": range(8), "attributed": [index >= 8 - recorded for index in range(8)],
        "start_ns": [start * 10**6 for start in starts_ms],
        "end_ns": [(start + took) * 10**6 for start, took in zip(starts_ms, steps_ms, strict=True)],
    }  # fmt: skip
    tables.write(tables.as_table("batches", rows), tmp_path / "rank_0000", "batches")
    assert speed_of(tmp_path, Run(batches=8, batch=8, nodes=2)) == said


# --- when are a machine's peaks measured, and with the ranks of which runs? ----------------------------

WAITED = Finding("calibration_disturbed", data={"pct": 12.0})
PEAKS = Calibration(gemm_flops_per_s={1: 1.0}, copy_bytes_per_s={1: 1.0}, device="cpu", seconds=1.0)


def runs_of(*nodes: int, **fields):
    return [make_run({"nodes": count, "network": "ib", **fields}) for count in nodes]


def knowing(*exchanges: tuple[int, int, str]) -> Calibration:
    made = [
        Allreduce(nodes=nodes, ranks_per_node=ranks, network=network, bus_bytes_per_s=1.0)
        for nodes, ranks, network in exchanges
    ]
    return PEAKS.model_copy(update={"allreduces": made})


@dataclass(frozen=True)
class Noting(Local):
    """Ranks that add what they would measure to the record, as train.calibrate does."""

    asked: list = field(default_factory=list)

    def processes(self, run, command, directory):
        self.asked.append((run.nodes, run.ranks_per_node, "--allreduce" in command))
        path = Path(command[command.index("--out") + 1])
        earlier = store.read_calibration(path)
        made = knowing((run.nodes, run.ranks_per_node, run.network)).beside(earlier)
        made.findings = earlier.findings if earlier else [WAITED]
        write = f"open({str(path)!r}, 'w').write({made.model_dump_json()!r})"
        return [Process([sys.executable, "-c", write], {})]


def test_jobs_of_one_sweep_each_measure_what_is_missing_for_their_nodes(tmp_path, capsys):
    """As slurm/submit.sh starts them: one node first."""
    launcher = Noting()
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, launcher)
    for nodes in (1, 2, 2, 4):
        todo = [SweepRun(run, 0) for run in runs_of(nodes, profile="torch")]
        calibrate(work, todo, Console(stderr=True), this_owner({}))
    assert launcher.asked == [(1, 1, False), (2, 1, True), (4, 1, True)]
    found = json.loads((tmp_path / store.CALIBRATION).read_text())["allreduces"]
    assert [(one["nodes"], one["network"]) for one in found] == [(1, "ib"), (2, "ib"), (4, "ib")]
    said = capsys.readouterr().err
    assert said.count("measuring peaks") == said.count("measuring allreduce 2x1-ib") == 1
    assert "".join(said.split()).count("".join(str(WAITED).split())) == 1


def test_what_another_sweep_measures_is_left_to_it(tmp_path):
    launcher = Noting()
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, launcher)
    assert claim(tmp_path / ".calibration-peaks", this_owner({})).ours
    calibrate(work, [SweepRun(run, 0) for run in runs_of(1)], Console(stderr=True), this_owner({}))
    assert launcher.asked == []
