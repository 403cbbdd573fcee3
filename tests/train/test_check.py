"""What each node, and a machine at best, can do: ranks measure it together, as commands start them."""

import itertools
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from jobs import check as command
from jobs import store
from jobs.failures import Ended
from jobs.launchers.base import Local
from jobs.run import make_run
from jobs.store import Allreduce, Calibration, Check, read_record, write_record
from tests.analysis.commands import one_line_error, run
from tests.train.many_runs import fork
from train import calibrate
from train.backends import Backend
from train.check import ROUNDS, SIZES, pairings
from train.world import World

pytestmark = pytest.mark.long


@pytest.mark.parametrize("nodes", [*range(2, 10), 32, 33])
def test_all_pairs_meet_once_and_those_that_meet_at_the_same_time_share_no_node(nodes):
    meetings = pairings(nodes)
    assert sorted(itertools.chain(*meetings)) == list(itertools.combinations(range(nodes), 2))
    for pairs in meetings:
        assert len(pairs) == nodes // 2 and len(set(itertools.chain(*pairs))) == 2 * len(pairs)
    assert pairings(1) == []


def test_three_ranks_on_nodes_of_their_own(tmp_path, ready):
    tiny = {"model": "squeezenet1_1", "batch": 2, "image_size": 32, "device": "cpu", "threads": 1}
    run_of_nodes = make_run({"gpus_per_node": 3, **tiny})
    out, log = tmp_path / store.CHECK, tmp_path / "log.txt"
    words = ["-m", "tests.train.on_nodes", "check", f"--out={out}", *command.to_flags(run_of_nodes)]
    processes = Local().processes(run_of_nodes, [sys.executable, *words], tmp_path)
    assert fork(processes, log, ready) == [0, 0, 0], log.read_text()
    record = read_record(out, Check)
    assert [rank.node for rank in record.ranks] == ["n0", "n1", "n2"]
    for rank in record.ranks:
        figures = (rank.gemm_flops_per_s, rank.copy_bytes_per_s, rank.steps_per_s)
        assert all(len(values) == ROUNDS and min(values) > 0 for values in figures)
    sizes = [link.size for link in record.together]
    assert sizes == SIZES[: len(sizes)] and all(link.nodes == ["n0", "n1", "n2"] for link in record.together)
    there = sorted((pair.nodes, pair.size) for pair in record.pairs)
    assert there == [
        (list(of), size) for of in itertools.combinations(("n0", "n1", "n2"), 2) for size in sizes
    ]
    assert all(len(pair.bus_bytes_per_s) == ROUNDS and min(pair.bus_bytes_per_s) > 0 for pair in record.pairs)


def test_the_command_starts_a_rank_per_gpu_and_answers(tmp_path, monkeypatch):
    started: list[list[str]] = []

    def run_processes(processes, *_):
        started.extend(process.argv for process in processes)
        (tmp_path / "a b" / store.CHECK).touch()
        return Ended(0)

    monkeypatch.setattr(command, "run_processes", run_processes)
    monkeypatch.setattr("os.execv", lambda _, words: started.append(words))
    flags = ("--device", "cpu", "--gpus-per-node", "2", "--format", "csv", "--out", tmp_path / "a b")
    answer = run("jobs.check", *flags)
    assert answer.code == 0, answer.err
    (first, second, answering) = started
    assert first == second and first[1:3] == ["-m", "train.check"] and "--gpus-per-node=2" in first
    assert "--device=cpu" in first and "--model=resnet18" in first
    assert answering[1:] == ["-m", "analysis.check", str(tmp_path / "a b"), "--format", "csv"]


def test_what_cannot_start_or_fails_is_one_line(tmp_path, monkeypatch):
    assert "slurm" in one_line_error(run("jobs.check", "--launcher", "slurm", "--out", tmp_path))
    monkeypatch.setattr(command.sys, "executable", str(Path("/bin/false")))
    failed = run("jobs.check", "--device", "cpu", "--out", tmp_path)
    assert failed.code == 1 and len(failed.err.splitlines()) == 2


CPU = torch.device("cpu")
NONE = {"bus_bytes_per_s": 0.0}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(calibrate, "GEMM_SIZE", {"cpu": 64})
    monkeypatch.setattr(calibrate, "COPY_BYTES", {"cpu": 1 << 16})


@pytest.mark.parametrize(("ranks", "counts"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_no_more_than_three_seconds_are_spent(small, ranks, counts, monkeypatch):
    """The seconds that are given to each measurement, added up; what they take is not timed here."""
    seconds = []
    monkeypatch.setattr(calibrate.Timed, "rate", lambda _, share: seconds.append(share) or 1.0)
    monkeypatch.setattr(calibrate, "allreduce_rates", lambda _, share: seconds.append(share) or [1.0])
    before = torch.get_num_threads()
    found = calibrate.calibrate(World(0, ranks, 0, ranks), CPU, "fp32", Alone())
    torch.set_num_threads(before)
    assert sum(seconds) == pytest.approx(calibrate.TOTAL_S) and calibrate.TOTAL_S <= 2
    assert list(found.gemm_flops_per_s) == list(found.copy_bytes_per_s) == counts
    assert [one.exchange for one in found.allreduces] == ([(1, ranks, "")] if ranks > 1 else [])


class Alone:
    def barrier(self):
        pass


@pytest.mark.parametrize(("waited", "threads", "share"), [(4.0, 1, ["100%"]), (0.0, 1, []), (4.0, 64, [])])
def test_peaks_that_were_measured_while_others_used_the_cpu_are_said_to_be_doubtful(
    small, monkeypatch, waited, threads, share
):
    """Of more threads than there are cores nothing is said: they wait for each other."""
    readings = iter([1.0, 1.0 + waited])
    monkeypatch.setattr(calibrate, "waited_s", lambda: next(readings, None))
    monkeypatch.setattr(calibrate, "TOTAL_S", 0.02)
    before = torch.get_num_threads()
    found = calibrate.calibrate(World(0, 1, 0, 1), CPU, "fp32", Alone(), threads)
    torch.set_num_threads(before)
    assert [finding.data["why"].split()[-1] for finding in found.findings] == share


def test_two_ranks_as_a_sweep_starts_them(tmp_path, ready):
    run = make_run({"gpus_per_node": 2, "device": "cpu"})
    out, log = tmp_path / "calibration.json", tmp_path / "log.txt"
    words = ["calibrate", "--out", str(out), "--device", "cpu"]
    command = [sys.executable, "-m", "tests.train.on_nodes", *words]
    assert fork(Local().processes(run, command, tmp_path), log, ready) == [0, 0], log.read_text()
    found = read_record(out, Calibration)
    assert set(found.gemm_flops_per_s) == set(found.copy_bytes_per_s) == {1, 2}
    assert [one.exchange for one in found.allreduces] == [(1, 2, "")]
    rates = [*found.gemm_flops_per_s.values(), *found.copy_bytes_per_s.values()]
    assert all(1e6 < value < 1e15 for value in (*rates, found.allreduces[0].bus_bytes_per_s))
    assert found.device == "cpu" and found.precision == "fp32" and found.seconds > 0
    # An allreduce alone keeps the peaks, and what other ranks have measured.
    other = Allreduce(nodes=2, ranks_per_node=4, network="ib", bus_bytes_per_s=7.0)
    known = found.model_copy(update={"allreduces": [other, found.allreduces[0].model_copy(update=NONE)]})
    write_record(out, known)
    assert fork(Local().processes(run, [*command, "--allreduce"], tmp_path), log, ready) == [0, 0]
    later = read_record(out, Calibration)
    assert later.gemm_flops_per_s == found.gemm_flops_per_s
    assert [one.exchange for one in later.allreduces] == [(2, 4, "ib"), (1, 2, "")]
    assert later.allreduces[0] == other and later.allreduces[1].bus_bytes_per_s > 1e6


@pytest.mark.parametrize(("error", "left_by"), [(None, "close"), (KeyboardInterrupt, "abandon")])
def test_a_backend_is_closed_and_after_an_error_abandoned(monkeypatch, error, left_by):
    left = []
    for name in ("close", "abandon"):
        monkeypatch.setattr(Backend, name, lambda _, name=name: left.append(name))
    with suppress(KeyboardInterrupt), Backend():
        if error:
            raise error
    assert left == [left_by]
