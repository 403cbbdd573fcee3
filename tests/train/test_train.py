"""``python -m train`` as users and sweeps start it: its ranks, files, exit codes, its one line of error."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch

from analysis.frames.load import load
from jobs import ROOT, store
from jobs.failures import Ended, read_reports
from jobs.run import NO_HOROVOD, has_horovod, make_run
from jobs.store import Manifest, check_run
from profiling import tables
from profiling.errors import UserError
from profiling.wrap import WATCHERS
from tests.analysis.commands import run as run_analysis
from tests.train.many_runs import LEFT, LOG, RUNS, by_forked_pair, by_one_pair
from train import __main__ as command
from train import rank as ranks
from train.__main__ import in_world
from train.world import World

pytestmark = pytest.mark.long

PARAMETERS = 1_235_496  # of SqueezeNet 1.1
BATCHES, FIRST = 4, 2


def pair_of(folder, **fields):
    """A tiny run of two ranks."""
    tiny = {"gpus_per_node": 2, "device": "cpu", "model": "squeezenet1_1", "image_size": 32, "batch": 4,
            "workers": 0, "loader": "pytorch", "data": str(folder), "batches": BATCHES,
            "learning_rate": 0.01}  # fmt: skip
    return make_run({**tiny, **fields})


def batches_of(out: Path, rank: int):
    return tables.read(tables.rank_directory(out, rank), "batches").to_pandas()


# --- two ranks ----------------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "again": {"profile": "torch", "attribute_from": FIRST},
    "other seed": {"seed": 1},
    "fp16": {"grad": "fp16", "profile": "torch", "attribute_from": FIRST},
    "bf16": {"grad": "bf16", "profile": "torch", "attribute_from": FIRST},
}
ENDLESS = {"loader": "synthetic", "batches": 100_000}


class Trained(NamedTuple):
    """What two ranks left for each of VARIANTS, and how they ended: one was killed in the run after these."""

    outs: dict[str, Path]
    ended: Ended
    log: str


@pytest.fixture(scope="module")
def trained(data_set, tmp_path_factory) -> Trained:
    """All of it from one pair of processes, started as a sweep on this machine does."""
    folder, killed = tmp_path_factory.mktemp("variants"), []
    runs = {name: pair_of(data_set, **fields) for name, fields in {**VARIANTS, "endless": ENDLESS}.items()}

    def kill_rank_1_once_it_trains_without_end():
        # Any batch: progress is said a few times a second, so none is sure to be named.
        if not killed and f"/{ENDLESS['batches']} loss" in (folder / LOG).read_text():
            killed.append(rank_process(1, folder / RUNS).kill())

    outs, ended = by_one_pair(runs, folder, kill_rank_1_once_it_trains_without_end)
    log = (folder / LOG).read_text()
    assert killed, f"{ended.reason}\n{log}"
    return Trained({name: outs[name] for name in VARIANTS}, ended, log)


@pytest.fixture
def variants(trained) -> dict[str, Path]:
    return trained.outs


def test_two_ranks_train_and_leave_what_a_sweep_asks_of_them(trained, data_set):
    run, out = pair_of(data_set), trained.outs["plain"]
    assert f"step {BATCHES}/{BATCHES} loss" in trained.log
    assert f"images/s over all {BATCHES} steps\nresults: {out}\n" in trained.log
    assert [report.rank for report in store.read_record(out / store.MANIFEST, Manifest).ranks] == [0, 1]
    reports, wrong = read_reports(out, run)
    assert wrong == ""
    check_run(run, reports, out)
    assert [report.rank for report in reports] == [report.local_rank for report in reports] == [0, 1]
    assert {report.backend for report in reports} == {"ddp/gloo"}
    assert reports[0].training_flops_per_image and reports[1].training_flops_per_image is None
    for rank in range(2):
        rows = batches_of(out, rank)
        assert rows.batch_index.tolist() == list(range(BATCHES)) and (rows["rank"] == rank).all()
        stages = rows[["load_ns", "forward_ns", "backward_ns", "update_ns"]].sum(axis=1)
        assert (stages > 0).all() and (stages <= rows.end_ns - rows.start_ns).all()
        assert (rows.start_ns[1:].to_numpy() >= rows.end_ns[:-1].to_numpy()).all()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names in /proc only")
def test_a_rank_that_has_ended_leaves_no_thread_to_pythons_exit(trained):
    # One that still releases a tensor then aborts the process (pytorch/pytorch#190489).
    assert trained.log.count(f"{LEFT}0\n") == trained.log.count(LEFT) == 2 * len(VARIANTS)


def losses_of(out: Path) -> list[list[float]]:
    return [batches_of(out, rank).loss.tolist() for rank in range(2)]


def digests_of(out: Path) -> list[str]:
    reports, wrong = read_reports(out, make_run({"gpus_per_node": 2}))
    assert wrong == ""
    return [report.parameter_digest for report in reports]


def test_two_ranks_repeat_themselves_given_the_seed(variants):
    assert losses_of(variants["again"]) == losses_of(variants["plain"])
    assert digests_of(variants["again"]) == digests_of(variants["plain"])
    for one, other in zip(losses_of(variants["again"]), losses_of(variants["other seed"]), strict=True):
        assert not set(one) & set(other)
    for out in variants.values():  # ranks see different pictures, and end with equal parameters
        first, second = losses_of(out)
        assert not set(first) & set(second) and digests_of(out)[0] == digests_of(out)[1]
    assert len({digests_of(out)[0] for out in variants.values()}) == len(VARIANTS) - 1  # one was done twice


@pytest.mark.parametrize(("name", "size"), [("again", 4), ("fp16", 2), ("bf16", 2)])
def test_the_precision_of_gradients_rounds_them_and_is_what_is_on_the_wire(variants, name, size):
    exact, rounded = losses_of(variants["again"]), losses_of(variants[name])
    for rank in range(2):
        assert rounded[rank][0] == exact[rank][0] and (rounded[rank][1] != exact[rank][1]) is (size == 2)
        assert rounded[rank][1] == pytest.approx(exact[rank][1], rel=0.01)
        kernels = tables.read(tables.rank_directory(variants[name], rank), "kernels").to_pandas()
        sent = kernels[kernels.name == "gloo:all_reduce"].groupby("batch_index").bytes.sum()
        assert sent.to_dict() == dict.fromkeys(range(FIRST, BATCHES), PARAMETERS * size)


def test_horovod_over_gloo_has_the_losses_of_ddp(variants, data_set, tmp_path, ready):
    if not has_horovod():
        pytest.skip("Horovod is not installed (make horovod)")
    out = by_forked_pair({"horovod": pair_of(data_set, backend="horovod")}, tmp_path, ready)["horovod"]
    assert {report.backend for report in read_reports(out, pair_of(data_set))[0]} == {"horovod/gloo"}
    for ours, ddps in zip(losses_of(out), losses_of(variants["plain"]), strict=True):
        assert ours == pytest.approx(ddps, rel=1e-6)


def test_a_table_of_two_profiled_ranks_has_a_row_a_rank_and_what_a_cpu_does_not_tell(variants):
    ran = run_analysis("analysis.utilization", variants["again"], "--format", "csv")
    assert ran.code == 0, ran.err
    assert [(row["gpus_per_node"], row["rank"]) for row in ran.csv] == [("2", "0"), ("2", "1")]
    for row in ran.csv:
        assert int(row["attributed_steps"]) == BATCHES - FIRST and float(row["communication_pct"]) > 0
        assert row["sm_efficiency_pct"] == "" and "a CPU has no" in row["unknown"]


def test_a_killed_rank_is_the_reason_and_the_other_ends_quietly(trained):
    assert trained.ended.reason.startswith("rank 1 ") and "SIGKILL" in trained.ended.reason
    assert "Traceback" not in trained.log and "scaleprof: error" not in trained.log


def rank_process(rank: int, argument: Path) -> psutil.Process:
    """The process of one of our ranks, by its command and environment."""
    for process in psutil.Process().children():
        if str(argument) in process.cmdline() and process.environ().get("RANK") == str(rank):
            return process
    raise AssertionError(f"rank {rank} does not run")


# --- what the flags say, and who started the ranks ----------------------------------------------------


def test_the_run_says_how_many_ranks_the_launcher_started():
    world, unsaid = World(5, 8, 1, 4, "file:///x", "Slurm"), Namespace(nodes=None, gpus_per_node=None)
    run = in_world(make_run({}), unsaid, world)
    assert (run.nodes, run.gpus_per_node) == (2, 4)
    said = make_run({"nodes": 4, "gpus_per_node": 2})
    assert in_world(said, Namespace(nodes="4", gpus_per_node=None), world) == said
    with pytest.raises(UserError, match=r"1 x 4 ranks requested, 1 started .*; use torchrun"):
        in_world(make_run({"gpus_per_node": 4}), Namespace(nodes=None, gpus_per_node="4"), World())


# --- wrong use: one line, exit code 2 -----------------------------------------------------------------

TINY = ["--image-size", "64", "--batch", "2", "--batches", "6"]


@pytest.fixture
def train_tiny(train_here):
    """``python -m train`` in this process, of six small batches if nothing else is said."""
    return lambda *flags: train_here(*TINY, "--threads", "1", *flags)


def one_line(ran: tuple[int, str, str]) -> str:
    """The one line of error of a command that ended with exit code 2."""
    code, _, said = ran
    assert code == 2 and len(said.splitlines()) == 1 and said.startswith("scaleprof: error: "), ran
    return said


def test_wrong_use_ends_before_pytorch_is_imported():
    """A user who mistypes a flag waits a moment, not seconds, and is answered in a line."""
    flags = ["--batch-size", "3"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "train", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    imported = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    (said,) = set(done.stderr.splitlines()) - set(imported)
    assert done.returncode == 2 and said.startswith("scaleprof: error: ") and "--batch-size" in said
    assert imported and not any(line.rpartition("|")[2].strip() == "torch" for line in imported)


SMALL = ("--model", "squeezenet1_1", "--loader", "synthetic", "--learning-rate", "1e-4", "--batches", "2")


def test_each_run_by_hand_has_a_folder_of_its_own_and_all_are_one_set_of_results(
    train_tiny, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    others = [(), (), ("--batches", "3")]
    printed = [train_tiny(*SMALL, *flags)[1] for flags in others]
    folders = [text.partition("results: ")[2].split()[0] for text in printed]
    assert len(set(folders)) == len(others) and all(Path(folder).is_dir() for folder in folders)
    study = load(Path("results/by-hand"))
    assert sorted(source.path for source in study.sources) == sorted(map(Path, folders))
    assert sorted(source.fields["batches"] for source in study.sources) == [2, 2, 3]
    assert {source.repetition for source in study.sources} == {0, 1}
    assert load(Path(folders[0])).sources[0].manifest.command[1:3] == ["-m", "train"]


def test_a_run_by_hand_that_is_refused_leaves_no_folder(train_tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_tiny(*SMALL, "--loader", "pytorch", "--data", "/nowhere")[0] == 2
    assert train_tiny(*SMALL, "--loader", "pytorch", "--data", "/nowhere", "--out", "mine")[0] == 2
    assert list(tmp_path.iterdir()) == []
    # What the first step finds: the folder is there by then.
    too_small = ("--model", "resnet18", "--loader", "synthetic", "--batch", "1", "--image-size", "32")
    assert "take batch 1" in one_line(train_tiny(*too_small))
    assert "take batch 1" in one_line(train_tiny(*too_small, "--out", "mine"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine" / "rank_0000" / "raw").mkdir(parents=True)  # a profiler's
    assert "take batch 1" in one_line(train_tiny(*too_small, "--out", "mine"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "rank_0000", "raw"]
    (tmp_path / "mine" / "rank_0000" / "raw").rmdir()  # the folder is the user's, and stays
    assert "take batch 1" in one_line(train_tiny(*too_small, "--out", "mine"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    (tmp_path / "train.py").touch()
    assert "other files (mine, train.py)" in one_line(train_tiny(*SMALL, "--out", str(tmp_path)))


NO_MEMORY = (
    "out of memory: not enough memory for batch 2 of 64 x 64 images through squeezenet1_1; lower --batch or "
    "--image-size"
)
STOPS = signal.SIGINT, signal.SIGTERM
ENDS = {
    "error": (ValueError("broken\nat length"), 1, "rank crash: ValueError: broken"),
    "peers lost": (ranks.PeersLost("another rank has failed"), 1, "rank crash: another rank has failed"),
    "no memory": (torch.OutOfMemoryError("CUDA out of memory."), 1, NO_MEMORY),
    "wrong data": (UserError("a.jpg cannot be decoded"), 2, "a.jpg cannot be decoded"),
    "Ctrl-C": (signal.SIGINT, 130, "stopped by Ctrl-C"),
    "SIGTERM": (signal.SIGTERM, 130, "stopped by SIGTERM"),
}


@pytest.mark.parametrize(("how", "exit_code", "reason"), ENDS.values(), ids=ENDS)
def test_a_run_by_hand_that_ends_early_says_why_in_its_manifest(
    train_tiny, tmp_path, monkeypatch, how, exit_code, reason
):
    def fails(run, *others):
        if isinstance(how, UserError):
            others[-1](0, torch.zeros(()))  # a step is done
        if isinstance(how, Exception):
            raise how
        os.kill(os.getpid(), how)
        time.sleep(60)

    before = [signal.getsignal(number) for number in STOPS]
    monkeypatch.setattr(ranks.loop, "train", fails)
    monkeypatch.chdir(tmp_path)
    if isinstance(how, ValueError):
        with pytest.raises(ValueError, match="broken"):
            train_tiny(*SMALL)
    else:
        assert train_tiny(*SMALL)[0] == exit_code
    (manifest,) = (tmp_path / "results" / "by-hand").glob("run_*/manifest.json")
    read = store.read_record(manifest, Manifest)
    assert (read.exit_code, read.reason) == (exit_code, reason)
    with pytest.raises(UserError, match=re.escape(reason)):
        load(Path("results/by-hand"))
    assert [signal.getsignal(number) for number in STOPS] == before


def test_a_used_out_is_replaced_only_by_overwrite(train_tiny, tmp_path, monkeypatch):
    out = tmp_path / "mine"
    assert train_tiny(*SMALL, "--out", str(out))[0] == 0
    (out / "notes.txt").write_text("the user's")
    before = (out / "manifest.json").read_text()
    code, _, said = train_tiny(*SMALL, "--batches", "3", "--out", str(out))
    assert code == 2 and len(said.splitlines()) == 1
    assert f"--out {out} already holds a run" in said and "--overwrite" in said
    assert (out / "manifest.json").read_text() == before
    # One that ends before its first step is done takes nothing away, whether it was refused or has failed.
    too_small = ("--model", "resnet18", "--batch", "1", "--image-size", "32")
    assert train_tiny(*SMALL, *too_small, "--out", str(out), "--overwrite")[0] == 2
    with monkeypatch.context() as short:
        short.setattr(ranks.loop, "train", lambda *_: torch.empty(1 << 60))
        assert train_tiny(*SMALL, "--out", str(out), "--overwrite")[0] == 1
    assert (out / "manifest.json").read_text() == before and len(load(out).sources) == 1
    code, printed, _ = train_tiny(*SMALL, "--batches", "3", "--out", str(out), "--overwrite")
    assert code == 0 and f"results: {out}" in printed
    assert len(batches_of(out, 0)) == 3 and (out / "notes.txt").exists()
    assert load(out).sources[0].fields["batches"] == 3


def test_where_horovod_is_absent_a_line_says_so_and_ddp_trains(train_tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "has_horovod", lambda: False)
    code, _, said = train_tiny(*SMALL, "--backend", "horovod", "--out", str(tmp_path))
    assert code == 0 and NO_HOROVOD in said
    (report,), _ = read_reports(tmp_path, make_run({}))
    assert report.backend == "ddp/gloo"


def test_a_loss_that_is_not_finite_is_exit_code_1(train_tiny, tmp_path):
    flags = ("--batches", "6", "--learning-rate", "100", "--out", str(tmp_path))
    code, printed, said = train_tiny(*SMALL, *flags)
    assert code == 1 and "learning_rate" in said
    assert json.loads((tmp_path / "manifest.json").read_text())["exit_code"] == 1
    assert len(said.splitlines()) == 1 and "done:" not in printed


def test_a_profiler_that_is_not_around_a_run_by_hand_is_told_at_its_start(train_tiny, monkeypatch):
    def begins(*_):
        raise UserError("begins")

    monkeypatch.setattr(command, "train", begins)
    for name in WATCHERS:
        monkeypatch.delenv(name, raising=False)
    first, last = train_tiny(*SMALL, "--profile", "nsys")[2].splitlines()
    assert first.startswith("scaleprof: profile nsys") and "begins" in last
    assert len(train_tiny(*SMALL, "--profile", "torch")[2].splitlines()) == 1
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "libToolsInjection64.so")
    assert len(train_tiny(*SMALL, "--profile", "nsys")[2].splitlines()) == 1
