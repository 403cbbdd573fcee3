"""Dumps of PyTorch's Flight Recorder: the rank that is behind is named, and no code runs."""

import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.failures import gather_stacks
from jobs.store import LOG, OWNER
from profiling.errors import UserError
from profiling.flight_recorder import main, read, read_all, waits
from tests.profiling.watching import ROOT, Forks, variables
from train.torchrun import meet
from train.torchrun import variables as torchruns
from train.world import World

HANGING = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
values = torch.ones(16)
dist.all_reduce(values)
if dist.get_rank() < 2:
    dist.broadcast(values, 0, group=pair)
open(f"{os.environ['PLACE']}/here_{dist.get_rank()}", "w")
if dist.get_rank() == 2:
    time.sleep(600)
dist.all_reduce(values)
"""


def test_ranks_that_hang_leave_dumps_and_the_reason_names_the_rank_behind(forks: Forks, tmp_path: Path):
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(HANGING)
    port = meet(World(size=1))
    more = {"TORCH_FR_BUFFER_SIZE": "100", "PLACE": str(tmp_path)}
    out.mkdir()
    (out / OWNER).write_text("{}")  # as a sweep does
    children = [
        forks.parent.start(
            tmp_path / f"{rank}.txt", "profiling.watch", f"--out={out}", program, folder=ROOT,
            environment={**variables(), **torchruns(World(rank, 3, rank, 3), port), **more},
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        until(lambda: len([*tmp_path.glob("here_*")]) == 3)
        time.sleep(0.5)
        for child in children:
            os.kill(child.pid, signal.SIGUSR1)
        until(lambda: len(read_all_if_whole(out)) == 3)
        reason = gather_stacks(out, 3)
    finally:
        for child in children:
            child.kill()
            child.wait(60)
    (wait,) = waits(read_all([out]))
    assert (wait.group, wait.number, list(wait.calls.values())) == ("default_pg", 2, [[0, 1]])
    assert wait.behind == {"1: gloo:all_reduce at program.py:6": [2]}
    assert reason == f"; {wait}" and str(wait) in (out / LOG).read_text()


def until(condition: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def read_all_if_whole(out: Path) -> dict:
    try:
        return read_all([out])
    except UserError:
        return {}


# --- as NCCL's recorder writes them ---------------------------------------------------------------------


def call(number: int, group: str = "0", state: str = "completed", name: str = "nccl:all_reduce", **more: Any):
    return {
        "process_group": (group, "default_pg" if group == "0" else "tensor"), "collective_seq_id": number,
        "profiling_name": name, "state": state, "retired": state == "completed", "is_p2p": False,
        "input_sizes": [[16]], "frames": [{"filename": "/a/train.py", "line": 7, "name": "step"}], **more,
    }  # fmt: skip


def written(folder: Path, of_ranks: dict[int, list[dict]], ranks: str = "[0, 1, 2, 3]") -> Path:
    folder.mkdir(exist_ok=True)
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks},
              "1": {"name": "1", "desc": "tensor", "ranks": "[2, 3]"}}  # fmt: skip
    for rank, entries in of_ranks.items():
        dump = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def test_the_group_whose_missing_rank_waits_nowhere_comes_first(tmp_path, capsys):
    """Rank 3 computes; rank 2 waits for it in a group of two, the others wait for rank 2."""
    waiting = call(5, state="started")
    of_ranks = {0: [call(4), waiting], 1: [call(4), waiting], 2: [call(4), call(9, "1", "scheduled")]}
    folder = written(tmp_path / "dumps", {**of_ranks, 3: [call(4), call(8, "1")]})
    first, second = waits(read_all([folder]))
    last = "nccl:all_reduce at train.py:7"
    assert (first.group, first.number, first.behind) == ("tensor", 9, {f"8: {last}": [3]})
    assert (second.number, second.behind) == (5, {f"4: {last}": [2, 3]})
    assert main([str(folder)]) == 0 and capsys.readouterr().out.count("\n") == 3
    (folder / "nccl_trace_rank_3").unlink()
    assert waits(read_all([folder]))[0].behind == {"no dump": [3]}


def test_unlike_calls_of_one_number_are_told_apart_and_done_or_sent_ones_are_not_waited_for(tmp_path):
    unlike = {rank: [call(5, state="started", name=f"nccl:{name}")] for rank, name in enumerate("aab")}
    (wait,) = waits(read_all([written(tmp_path / "unlike", unlike, "[0, 1, 2]")]))
    assert list(wait.calls.values()) == [[0, 1], [2]] and not wait.behind
    sent = {rank: [call(1), call(1, state="started", is_p2p=True)] for rank in (0, 1)}
    assert waits(read_all([written(tmp_path / "sent", sent, "[0, 1]")])) == []


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return Path.touch, (self.target,)


def test_a_dump_that_would_run_code_or_is_damaged_is_refused(tmp_path):
    files = {
        "evil": pickle.dumps({"entries": [], "pg_config": Evil(tmp_path / "ran")}),
        "cut": pickle.dumps({"entries": [call(1)]})[:-20],
        "other": pickle.dumps([1, 2]),
        "empty": b"",
        "huge": b"\x80\x02}r\xff\xff\xff\xef.",  # a number that the reader in C makes room for: 60 GB
    }
    for name, content in files.items():
        (tmp_path / f"{name}_0").write_bytes(content)
        with pytest.raises(UserError, match="no dump of the Flight Recorder"):
            read(tmp_path / f"{name}_0")
    assert not (tmp_path / "ran").exists()
