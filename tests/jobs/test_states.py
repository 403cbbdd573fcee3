"""What is said of a run that has not ended: is it running, was it interrupted, or not started?"""

import os
import subprocess
import time

import pytest

from analysis.frames.load import load
from jobs import store
from jobs.run import Run
from jobs.store import OWNER, STALE_S, claim, release, state_of, state_of_begun, this_owner
from profiling.errors import UserError

ELSEWHERE = {"host": "n3", "job": "812"}


@pytest.fixture
def begun(tmp_path):
    """A run of a sweep that this process has claimed."""
    (tmp_path / store.SWEEP).write_text("{}")
    directory = store.running_directory(tmp_path, Run(), 0)
    assert claim(directory, this_owner({})).ours
    return directory


def owned_by(directory, **changes):
    store.write_record(directory / OWNER, this_owner({}).model_copy(update=changes))
    return directory / OWNER


def test_a_run_of_a_living_process_is_running(begun):
    assert state_of_begun(begun) == ("running", f"on {os.uname().nodename}")
    assert state_of(begun.parent, Run(), 0) == "running"
    assert state_of(begun.parent, Run(), 1) == "not started"


def test_a_run_whose_process_was_killed_or_is_another_one_by_now_was_interrupted(begun):
    child = subprocess.Popen(["true"])
    child.wait()
    owned_by(begun, pid=child.pid)
    state, why = state_of_begun(begun)
    assert state == state_of(begun.parent, Run(), 0) == "interrupted"
    assert why == f"on {os.uname().nodename}"
    owned_by(begun, started=1.0)
    assert state_of_begun(begun) == (state, why)


@pytest.mark.parametrize(("code", "is_now"), [(0, "unusable"), (1, "failed"), (-9, "failed")])
def test_a_run_whose_name_says_how_it_ended_is_failed_or_not_complete_without_its_manifest(
    begun, code, is_now
):
    release(begun)
    ended = begun.rename(begun.with_name(f"{begun.name}_ret_{code}"))
    said = f"exit code {code}, manifest missing"
    assert state_of_begun(ended) == (is_now, said) and state_of(ended.parent, Run(), 0) == is_now
    with pytest.raises(UserError, match=f"1 {is_now}; .*_ret_{code}: {said}"):
        load(ended.parent)


def test_on_another_host_a_run_is_running_as_long_as_it_gives_a_sign_of_life(begun):
    file = owned_by(begun, **ELSEWHERE)
    assert state_of_begun(begun) == ("running", "on n3 (job 812)")
    long_ago = time.time() - STALE_S - 5
    os.utime(file, (long_ago, long_ago))
    state, why = state_of_begun(begun)
    assert (state, why) == ("interrupted", "on n3 (job 812)")


def test_a_run_that_was_stopped_in_order_was_interrupted_and_one_by_hand_may_be_running(begun, tmp_path):
    release(begun)
    state, why = state_of_begun(begun)
    assert (state, why) == ("interrupted", "sweep stopped")
    (tmp_path / store.SWEEP).unlink()
    state, why = state_of_begun(begun)
    assert state == "interrupted" and "by hand" in why
