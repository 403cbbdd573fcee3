"""What each node can do: ranks of several nodes measure it together, as jobs.check starts them."""

import itertools
import sys
from pathlib import Path

import pytest

from jobs import check as command
from jobs import store
from jobs.failures import Ended
from jobs.launchers.base import Local
from jobs.run import make_run
from jobs.store import Check, read_record
from tests.analysis.commands import one_line_error, run
from tests.train.many_runs import fork
from train.check import ROUNDS, SIZES, pairings


@pytest.mark.parametrize("nodes", [*range(2, 10), 32, 33])
def test_all_pairs_meet_once_and_those_that_meet_at_the_same_time_share_no_node(nodes):
    meetings = pairings(nodes)
    assert sorted(itertools.chain(*meetings)) == list(itertools.combinations(range(nodes), 2))
    for pairs in meetings:
        assert len(pairs) == nodes // 2 and len(set(itertools.chain(*pairs))) == 2 * len(pairs)
    assert pairings(1) == []


@pytest.mark.long
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
