"""A conversion that is interrupted, killed or refused: what that costs, and what is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.frames.load import load
from profiling.convert import Counts, convert
from profiling.errors import UserError
from tests.profiling.traced_jobs import Planted, trace_of

RANKS = 4


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    for rank in range(RANKS):
        trace_of(Planted(ranks=RANKS), rank).write(tmp_path / "raw" / f"rank_{rank}.json")
    return tmp_path / "raw"


# As the command, but one file does this to the process that converts it.
COMMAND = """
import os, signal, sys, time
from profiling import convert
from profiling.traces import units
real = units._convert
def one(unit):
    if unit.path.name == "rank_2.json":
        {act}
    return real(unit)
units._convert = one
if __name__ == "__main__":
    convert.run_command(convert.main)
"""


def command(tmp_path: Path, raw: Path, act: str, *options: str) -> subprocess.CompletedProcess:
    script = tmp_path / "command.py"
    script.write_text(COMMAND.format(act=act))
    return subprocess.run(
        [sys.executable, script, raw, "--out", tmp_path / "out", *options], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(Path.cwd())}, start_new_session=True,
    )  # fmt: skip


def test_a_file_that_kills_its_process_costs_only_itself(raw, tmp_path):
    done = command(tmp_path, raw, "os.kill(os.getpid(), signal.SIGKILL)", "--jobs", "2")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{raw / 'rank_2.json'}: " in done.stderr
    assert sorted(path.name for path in (tmp_path / "out" / "raw").glob("rank_*")) == [
        "rank_0000", "rank_0001", "rank_0003",
    ]  # fmt: skip
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_is_one_line_and_leaves_nothing_half_written(raw, tmp_path, jobs):
    # As from a terminal: to all processes, be they at work or still starting.
    done = command(tmp_path, raw, "os.killpg(0, signal.SIGINT); time.sleep(600)", "--jobs", jobs)
    assert (done.returncode, done.stderr) == (130, "scaleprof: error: interrupted\n")
    assert not list((tmp_path / "out").rglob("*"))


def test_a_conversion_that_was_killed_is_not_taken_for_results(raw, tmp_path):
    done = command(tmp_path, raw, "os.kill(os.getpid(), signal.SIGKILL)", "--jobs", "1")
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="is not complete"):
        load(tmp_path / "out")
    assert convert([raw], out=tmp_path / "out", jobs=1) == Counts(RANKS)
    assert not list((tmp_path / "out").glob(".*"))
