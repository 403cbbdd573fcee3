"""Results are whole files or none, what is damaged is named, and a run's state is known."""

import json
import os
import subprocess
import time

import psutil
import pytest

from analysis.frames.load import load
from jobs import machine, store
from jobs.by_hand import is_by_hand, new_directory
from jobs.run import Run, make_run
from jobs.run_fields import format_id
from jobs.store import (
    OWNER,
    STALE_S,
    Allreduce,
    Calibration,
    Manifest,
    claim,
    release,
    state_of,
    state_of_begun,
    this_owner,
)
from profiling import tables
from profiling.errors import UserError

RUN = make_run({"batches": 2})
MANIFEST = Manifest(run=RUN, repetition=0, exit_code=0, command=["x"], started="a", ended="b", seconds=1.0)


def test_a_record_is_read_back_as_it_was_written_also_one_of_a_later_release(tmp_path):
    allreduces = [Allreduce(nodes=1, ranks_per_node=2, network="eth", bus_bytes_per_s=1e9)]
    rates = {"gemm_flops_per_s": {1: 1e11, 2: 5e10}, "copy_bytes_per_s": {1: 1e10}}
    for record in (MANIFEST, Calibration(**rates, allreduces=allreduces, device="cpu", seconds=1.0)):
        store.write_record(tmp_path / "record.json", record)
        assert store.read_record(tmp_path / "record.json", type(record)) == record
        (tmp_path / "record.json").write_text(json.dumps({**json.loads(record.model_dump_json()), "news": 1}))
        assert store.read_record(tmp_path / "record.json", type(record)) == record


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    store.write_text(path, "before")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write_text(path, "after")
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_state_of_a_repository_is_read_without_writing_to_it(tmp_path):
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "file").write_text("as it was")
    git("init", "--quiet")
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    # The file is as it was, but for its date, which an ordinary status writes into the index.
    os.utime(tmp_path / "file", (1, 1))
    before = (tmp_path / ".git" / "index").read_bytes()
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), False)
    assert (tmp_path / ".git" / "index").read_bytes() == before
    (tmp_path / "mine.yaml").write_text("run: {}")  # a sweep file of the user's is no change of the code
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("changed")
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), True)


@pytest.fixture
def begun(tmp_path):
    """A run of a sweep that this process has claimed."""
    (tmp_path / store.SWEEP).write_text("{}")
    directory = tmp_path / format_id(Run(), 0)
    assert claim(directory, this_owner({})).ours
    return directory


def owned_by(directory, **changes):
    store.write_record(directory / OWNER, this_owner({}).model_copy(update=changes))
    return directory / OWNER


def test_a_run_of_a_living_process_is_running(begun, monkeypatch):
    assert state_of_begun(begun) == ("running", f"on {os.uname().nodename}")
    assert state_of(begun.parent / format_id(Run(), 1)) == "not started"
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)  # a clock that steps ends no process
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert state_of(begun) == "running" and not claim(begun, this_owner({})).ours


def test_a_run_whose_process_was_killed_or_is_another_one_by_now_was_interrupted(begun):
    child = subprocess.Popen(["true"])
    child.wait()
    for changes in ({"pid": child.pid}, {"process": "of an earlier boot"}):
        owned_by(begun, **changes)
        assert state_of_begun(begun) == ("interrupted", f"on {os.uname().nodename}")
    assert state_of(begun) == "interrupted"


@pytest.mark.parametrize(("code", "is_now"), [(0, "unusable"), (1, "failed"), (-9, "failed")])
def test_a_run_whose_name_says_how_it_ended_is_failed_or_not_complete_without_its_manifest(
    begun, code, is_now
):
    release(begun)
    ended = begun.rename(begun.with_name(f"{begun.name}_ret_{code}"))
    said = f"exit code {code}, manifest missing"
    assert state_of_begun(ended) == (is_now, said) and state_of(begun) == is_now
    with pytest.raises(UserError, match=f"1 {is_now}; .*_ret_{code}: {said}"):
        load(ended.parent)


def test_what_is_left_behind_is_claimed_once(begun, monkeypatch):
    """Two processes have seen a dead owner; the other one is faster."""
    mine, other = this_owner({}), this_owner({}).model_copy(update={"host": "n3"})
    dead = owned_by(begun, process="of an earlier boot").parent
    remove = store._remove_left
    claims = []

    def late(*words):
        monkeypatch.setattr(store, "_remove_left", remove)
        claims.append(claim(dead, other))
        return remove(*words)

    monkeypatch.setattr(store, "_remove_left", late)
    claims.append(claim(dead, mine))
    assert [one.ours for one in claims] == [True, False] and store.owner_of(dead) == other
    assert [path.name for path in dead.parent.iterdir() if path.name.startswith(".")] == []


def test_a_finished_result_is_never_replaced(tmp_path):
    tables.write(
        tables.as_table("batches", {"batch_index": [0, 1]}), tmp_path / "a_ret_0" / "rank_0000", "batches"
    )
    report = {"rank": 0, "world_size": 1, "hostname": "h", "device": "cpu", "backend": "single",
              "batches_done": 2, "images_done": 2, "losses_finite": True, "parameter_digest": ""}  # fmt: skip
    done = MANIFEST.model_copy(update={"ranks": [store.RankReport(**report)]})
    store.write_record(tmp_path / "a_ret_0" / "manifest.json", done)
    for ended in ("c", "d"):
        (tmp_path / "a").mkdir()
        assert store.finish(tmp_path / "a", done.model_copy(update={"ended": ended})) == tmp_path / "a_ret_0"
        assert store.read_record(tmp_path / "a_ret_0" / "manifest.json", Manifest).ended == "b"
    (tmp_path / "a_ret_0" / "manifest.json").write_text("{")
    (tmp_path / "a").mkdir()
    store.finish(tmp_path / "a", done.model_copy(update={"ended": "e"}))
    assert store.read_record(tmp_path / "a_ret_0" / "manifest.json", Manifest).ended == "e"
    assert (tmp_path / ".damaged-a_ret_0" / "manifest.json").read_text() == "{"


def test_on_another_host_a_run_is_running_as_long_as_it_gives_a_sign_of_life(begun):
    file = owned_by(begun, host="n3", job="812")
    assert state_of_begun(begun) == ("running", "on n3 (job 812)")
    long_ago = time.time() - STALE_S - 5
    os.utime(file, (long_ago, long_ago))
    assert state_of_begun(begun) == ("interrupted", "on n3 (job 812)")


def test_a_run_that_was_stopped_in_order_was_interrupted(begun, tmp_path):
    release(begun)
    assert state_of_begun(begun) == ("interrupted", "sweep stopped")
    (tmp_path / store.SWEEP).unlink()
    assert state_of_begun(begun) == ("interrupted", "by hand, unfinished")


# --- runs that a user starts by hand --------------------------------------------------------------------


def test_a_name_that_no_file_system_takes_is_shortened_and_still_unique(tmp_path):
    runs = [make_run({"image_size": 64, "data": f"/data/{letter * 300}"}) for letter in "ab"]
    names = [new_directory(run, tmp_path).name for run in runs]
    assert len(set(names)) == 2 and all(len(name) < 255 and "image_size" in name for name in names)


def test_a_directory_that_a_sweep_has_claimed_is_the_sweeps(tmp_path):
    assert is_by_hand(None) and is_by_hand(tmp_path)
    assert claim(tmp_path / format_id(Run(), 0), this_owner({})).ours
    assert not is_by_hand(tmp_path / format_id(Run(), 0))
