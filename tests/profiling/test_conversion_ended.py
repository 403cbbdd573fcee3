"""A conversion that was ended: what is done stays done, and the same call again does the rest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiling.convert import convert
from profiling.errors import Interrupted, UserError
from profiling.identity import Identity
from profiling.traces import conversion, one_unit, unchanged
from profiling.traces.conversion import busy_with, not_kept, share_of, wait_for_others
from profiling.traces.one_unit import convert_unit
from profiling.traces.records import Outcome, Unit, keep, kept
from profiling.traces.summary import Counts
from profiling.traces.units import units_of
from tests.profiling.test_convert_many import tables_below
from tests.profiling.traced_jobs import Planted, trace_of

RANKS = 4


def write_traces(folder: Path, ranks: int = RANKS) -> Path:
    for rank in range(ranks):
        trace_of(Planted(ranks=ranks), rank).write(folder / f"rank_{rank}.json")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return write_traces(tmp_path / "raw")


def test_the_same_call_again_does_the_rest(raw, tmp_path, monkeypatch, capsys):
    assert convert([raw], out=tmp_path / "whole", jobs=1) == Counts(RANKS)
    out = tmp_path / "out"
    for unit in (units := units_of([raw], None, out))[:2]:
        convert_unit(unit)  # then the job was ended
    assert not_kept(units) == units[2:]
    read = []
    monkeypatch.setattr(
        one_unit, "tables_of", lambda unit, real=one_unit.tables_of: (read.append(unit), real(unit))[1]
    )
    capsys.readouterr()
    at_sigterm = signal.getsignal(signal.SIGTERM)
    assert convert([raw], out=out, jobs=1) == Counts(RANKS)
    assert signal.getsignal(signal.SIGTERM) == at_sigterm
    assert read == units[2:] and f"resuming: 2 of {RANKS} files are converted" in capsys.readouterr().err
    assert tables_below(out) == tables_below(tmp_path / "whole")
    assert not list(out.glob(".*"))


def test_what_has_changed_since_is_converted_anew(raw, tmp_path):
    units = units_of([raw], None, tmp_path / "out")
    for unit in units:
        convert_unit(unit)
    assert kept(units[0]) == convert_unit(units[0])
    os.utime(units[0].path, ns=(1, 1))
    (units[1].scratch / "outcome.json").write_text("{")
    (rank,) = units[2].scratch.glob("rank_*")
    rank.rename(tmp_path / "moved")
    asked_otherwise = units_of([raw], None, tmp_path / "out", "step.*")
    assert [kept(unit) is None for unit in (*units, asked_otherwise[3])] == [True, True, True, False, True]


def test_a_damaged_file_leaves_nothing_behind(raw, tmp_path):
    (raw / "rank_1.json").write_text('{"traceEvents": [{"ph": "X", "na')
    out = tmp_path / "out"
    assert convert([raw], out=out, jobs=1) == Counts(RANKS - 1, 1)
    assert not list(out.glob(".*"))


def test_of_a_trace_that_was_ended_in_the_middle_or_failed_nothing_is_kept(raw, tmp_path, monkeypatch):
    ended, failed, *_ = units_of([raw], None, tmp_path / "out")

    def leave_half(unit: Unit) -> Outcome:
        (unit.scratch / "rank_0000").mkdir(parents=True)
        (unit.scratch / "rank_0000" / "half.parquet").touch()
        return Outcome(unit.target, error="it is damaged")

    leave_half(ended)
    assert convert_unit(ended).ranks and not list(ended.scratch.rglob("half.parquet"))
    monkeypatch.setattr(one_unit, "tables_of", leave_half)
    assert convert_unit(failed).error and not failed.scratch.exists()


def test_a_conversion_that_is_ended_names_what_is_left(raw, tmp_path):
    code = "import os, signal\nfrom profiling import convert\nfrom profiling.traces import one_unit\n"
    code += "real = one_unit.tables_of\n"
    code += "def one(unit):\n    if unit.path.name == 'rank_2.json': os.kill(os.getpid(), signal.SIGTERM)\n"
    code += "    return real(unit)\none_unit.tables_of = one\n"
    code += f"convert.convert([convert.Path({str(raw)!r})], out=convert.Path('out'), jobs=1)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    left = f"ended before 2 of {RANKS} files were converted: rank_2.json, rank_3.json"
    line = f"scaleprof: error: {left}; run the same command again to resume\n"
    assert (ended.returncode, ended.stderr) == (1, line)


def test_ctrl_c_says_how_much_is_converted_and_that_the_same_command_resumes(raw, tmp_path, monkeypatch):
    def interrupted_at_the_last(unit: Unit, real=one_unit.tables_of) -> Outcome:
        if unit.path.name == "rank_3.json":
            raise KeyboardInterrupt
        return real(unit)

    monkeypatch.setattr(one_unit, "tables_of", interrupted_at_the_last)
    said = r"^interrupted: 3 of 4 files are converted; run the same command again to resume$"
    with pytest.raises(Interrupted, match=said) as interrupted:
        convert([raw], out=tmp_path / "out", jobs=1)
    assert interrupted.value.exit_code == 130


def as_rank(monkeypatch, rank: int, size: int, step: int = 0) -> None:
    task = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(step), "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": f"1(x{size})",
        "SLURM_NODEID": str(rank),
    }  # fmt: skip
    for name, value in task.items():
        monkeypatch.setenv(name, value)


def as_rank_of_mpich(monkeypatch, rank: int, size: int) -> None:
    """MPICH's launcher does not say which launch it is."""
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", str(size))


@pytest.mark.parametrize("as_rank", [as_rank, as_rank_of_mpich])
def test_ranks_share_the_files_and_the_first_places_them(raw, tmp_path, monkeypatch, capsys, as_rank):
    assert convert([raw], out=tmp_path / "whole", jobs=1) == Counts(RANKS)
    (raw / "rank_1.json").write_text("{")
    out = tmp_path / "out"
    for rank in (2, 1, 0):
        as_rank(monkeypatch, rank, 3)
        answer = convert([raw], out=out)
        assert (answer is None) is (rank > 0)
    said = capsys.readouterr().err
    assert answer == Counts(RANKS - 1, 1) and "rank_1.json" in said and "resuming" not in said
    ranks = {path: rows for path, rows in tables_below(tmp_path / "whole").items() if "rank_0001" not in path}
    assert tables_below(out) == ranks and not list(out.glob(".*"))


def test_no_two_ranks_write_the_record_of_a_file_that_is_to_be_converted_again(raw, tmp_path, monkeypatch):
    out = tmp_path / "out"
    convert([raw], out=out, jobs=1)
    written = []

    def noted(path, record, real=unchanged.write_record):
        written.append((path, record.made_by))
        real(path, record)

    monkeypatch.setattr(unchanged, "write_record", noted)
    for rank in (2, 1, 0):
        as_rank(monkeypatch, rank, 3)
        convert([raw], out=out, overwrite=True)
    forgotten = [path for path, made_by in written if not made_by]
    assert len(forgotten) == len(set(forgotten)) == RANKS


def test_where_a_rank_was_lost_its_files_are_named_and_the_rest_is_kept(raw, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(conversion, "LOST_S", 0.2)
    monkeypatch.setattr(conversion, "_LOOK_S", 0.01)
    out = tmp_path / "out"
    as_rank(monkeypatch, 0, 2)
    with pytest.raises(UserError, match=r"ended before 2 of 4 files were converted: rank_1.json, rank_3"):
        convert([raw], out=out)
    as_rank(monkeypatch, 1, 2, step=1)
    assert convert([raw], out=out) is None
    as_rank(monkeypatch, 0, 2, step=1)
    read = []
    monkeypatch.setattr(one_unit, "tables_of", read.append)
    assert convert([raw], out=out) == Counts(RANKS) and not read
    assert f"resuming: 2 of {RANKS} files are converted" in capsys.readouterr().err


def test_a_rank_that_is_at_work_is_waited_for(raw, tmp_path, monkeypatch):
    unit = units_of([raw], None, tmp_path / "out")[0]
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 0.9 * conversion.LOST_S
        if now[0] < 3 * conversion.LOST_S:
            unit.scratch.mkdir(parents=True, exist_ok=True)
            (unit.scratch / "busy").touch()
            os.utime(unit.scratch / "busy", (now[0], now[0]))
        else:
            keep(unit, Outcome(unit.target, error="it is damaged"), "7/0")

    monkeypatch.setattr(conversion, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert wait_for_others([unit], "7/0") == []


def test_a_rank_is_seen_to_be_at_work_before_the_first_rows_of_a_trace(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_BEAT_S", 0.001)
    unit = units_of([raw], None, tmp_path / "out")[0]
    until = time.monotonic() + 30
    with busy_with(unit):
        while not (unit.scratch / "busy").exists():
            assert time.monotonic() < until


def test_traces_in_folders_of_like_names_do_not_share_their_tables(tmp_path):
    targets = [tmp_path / "a" / "b-c", tmp_path / "a-b" / "c"]
    assert len({Unit(target, None, target, out=tmp_path).scratch for target in targets}) == 2


def test_a_failure_of_an_earlier_launch_is_tried_again(raw, tmp_path):
    unit = units_of([raw], None, tmp_path / "out")[0]
    whole = unit.path.read_bytes()
    unit.path.write_text("{")
    os.utime(unit.path, ns=(1, 1))
    assert convert_unit(unit, "7/0").error and kept(unit, "7/0") and not kept(unit, "7/1") and not kept(unit)
    unit.path.write_bytes(whole)
    assert not convert_unit(unit, "7/0").error  # it has changed


def test_the_largest_files_are_dealt_first(tmp_path):
    for number, size in enumerate([1, 50, 7, 40, 3, 30]):
        (tmp_path / f"{number}").write_bytes(b"x" * size)
    units = [Unit(path, None, path) for path in sorted(tmp_path.iterdir())]
    shares = [[unit.path.name for unit in share_of(Identity(rank, 3), units)] for rank in range(3)]
    assert shares == [["1", "2"], ["3", "4"], ["5", "0"]]
