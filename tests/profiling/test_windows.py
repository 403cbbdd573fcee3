"""A recording attributed some batches at a time gives what it gives as a whole."""

import sqlite3

import numpy as np
import pytest

from benchmarks.gpu_databases import make_batches, write_nsys, write_nvprof
from profiling.attribution import events, windows
from profiling.tools import tool
from tests.profiling.traces import Trace, training_step

STREAMS = {name: tool(name).stream for name in ("nsys", "nvprof", "torch")}


def tables_of(tool, path):
    """(rows of each table in order of time, findings, number of pieces of ``kernels``)."""
    findings, rows, pieces = [], {}, 0
    for name, piece in STREAMS[tool](path, findings):
        rows.setdefault(name, []).extend(piece.to_pylist())
        pieces += name == "kernels"
    orders = {"kernels": "start_ns stream correlation name", "markers": "start_ns end_ns name",
              "memory": "time_ns", "synchronizations": "start_ns thread"}  # fmt: skip
    for name, some in rows.items():
        some.sort(key=lambda row, name=name: [str(row[key]).zfill(20) for key in orders[name].split()])
    return rows, findings, pieces


@pytest.fixture
def narrow(monkeypatch):
    """Windows of very few rows."""

    def set_rows(rows):
        monkeypatch.setattr(events, "KEPT_ROWS", rows)
        monkeypatch.setattr(windows, "ROWS", rows)

    return set_rows


def assert_same(tool, path, narrow, rows, least=3):
    whole = tables_of(tool, path)
    narrow(rows)
    found = tables_of(tool, path)
    assert whole[2] == 1 and found[2] >= least
    assert found[1] == whole[1]
    assert set(found[0]) == set(whole[0])  # a window may lack a table
    for name, some in whole[0].items():
        assert len(found[0][name]) == len(some)
        # The first that differ; all of them would be too many to show.
        assert (
            next((pair for pair in zip(found[0][name], some, strict=True) if pair[0] != pair[1]), None)
            is None
        )


@pytest.mark.parametrize(("tool", "make"), [("nsys", write_nsys), ("nvprof", write_nvprof)])
def test_a_database_in_windows_gives_the_same_tables(tool, make, tmp_path, narrow):
    path = make(tmp_path / "rank3.sqlite", make_batches(24, 60, 1_000_000, seed=1))
    assert_same(tool, path, narrow, 300)


def long_trace(tmp_path, steps=30):
    trace, at = Trace(baseTimeNanoseconds=10**18), 1000.0
    trace.range("## the whole training ##", 900, 1e6)
    for _ in range(steps):
        at = training_step(trace, at)
        change = {
            "Device Type": 1,
            "Device Id": 0,
            "Bytes": 64,
            "Total Allocated": 128,
            "Total Reserved": 256,
        }
        trace.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "args": change}
        )
    return trace.write(tmp_path / "trace.json")


def test_a_trace_in_windows_gives_the_same_tables(tmp_path, narrow):
    assert_same("torch", long_trace(tmp_path), narrow, 60)


def test_a_real_trace_in_windows_gives_the_same_tables(narrow, shared_data):
    assert_same("torch", shared_data / "kineto/nccl_data.json.gz", narrow, 500, least=2)


def test_a_collective_that_is_open_at_the_end_of_a_window_counts_once(tmp_path, narrow):
    trace = Trace(distributedInfo={"rank": 0, "world_size": 2})
    for batch in range(30):
        at = 1000.0 * (batch + 1)
        trace.range("Forward Pass", at, at + 300)
        for place in range(4):
            trace.host("aten::mm", at + 10 * place, at + 10 * place + 5)
        trace.range("Backward Pass", at + 300, at + 600)
        trace.range("Model Update", at + 600, at + 700)
        trace.range("gloo:all_reduce", at + 500, at + 1300, thread=2)  # ends in the next batch
        trace.range("End of Batch", at + 990, at + 990)
    assert_same("torch", trace.write(tmp_path / "trace.json"), narrow, 40)


def test_without_marks_and_ranges_windows_are_spans_of_time(tmp_path, narrow):
    path = write_nsys(tmp_path / "rank0.sqlite", make_batches(20, 60, 1_000_000, seed=2))
    with sqlite3.connect(path) as connection:
        connection.execute("delete from NVTX_EVENTS")
    assert_same("nsys", path, narrow, 200)


def launches(tmp_path, correlation, name="rank0.sqlite"):
    work = make_batches(20, 60, 1_000_000, seed=3)
    work.correlation = correlation(work.correlation)
    return write_nvprof(tmp_path / name, work)


def test_threads_that_launch_at_once_are_told_apart_at_the_ends_of_windows(tmp_path, narrow):
    def swapped(number):
        number = number.copy()
        for end in range(58, len(number) - 4, 60):  # the last launches of a batch, the first of the next
            number[end : end + 4] = number[end : end + 4][[2, 3, 0, 1]]
        return number

    assert_same("nvprof", launches(tmp_path, swapped), narrow, 300)


def test_launches_whose_numbers_do_not_rise_leave_the_recording_whole(tmp_path, narrow, monkeypatch):
    path = launches(tmp_path, lambda number: np.random.default_rng(0).permutation(number))
    whole = tables_of("nvprof", path)
    narrow(300)
    assert tables_of("nvprof", path)[0] == whole[0]  # each number looked up
    monkeypatch.setattr(windows, "_MOST_DISPUTED", 100)
    assert tables_of("nvprof", path) == whole


def test_work_whose_launch_was_not_recorded_is_kept_once(tmp_path, narrow):
    path = write_nvprof(tmp_path / "rank0.sqlite", make_batches(20, 60, 1_000_000, seed=4))
    with sqlite3.connect(path) as connection:
        connection.execute("delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId % 7 = 0")
    assert_same("nvprof", path, narrow, 300)
