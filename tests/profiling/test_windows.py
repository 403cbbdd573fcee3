"""A recording attributed some batches at a time gives what it gives as a whole."""

import sqlite3

import numpy as np
import pytest

from benchmarks.gpu_databases import make_batches, write_nsys, write_nvprof
from profiling.attribution import events, windows
from profiling.tools import tool
from tests.profiling.traces import Trace, tensors, training_step

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


# what writes it, what is deleted of it, and how many rows a window has
DATABASES = {
    "nsys": (write_nsys, "", 300),
    "nvprof": (write_nvprof, "", 300),
    "without marks and ranges": (write_nsys, "delete from NVTX_EVENTS", 200),
    "launches missing": (
        write_nvprof, "delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId % 7 = 0", 300
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DATABASES)
def test_a_database_in_windows_gives_the_same_tables(case, tmp_path, narrow):
    make, statement, rows = DATABASES[case]
    path = make(tmp_path / "rank3.sqlite", make_batches(24, 60, 1_000_000, seed=1))
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    assert_same("nsys" if make is write_nsys else "nvprof", path, narrow, rows)


def test_a_trace_in_windows_gives_the_same_tables(tmp_path, narrow):
    trace, at = Trace(baseTimeNanoseconds=10**18), 1000.0
    trace.range("## the whole training ##", 900, 1e6)
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]"}
    change = {"Device Type": 1, "Device Id": 0, "Bytes": 64, "Total Allocated": 128, "Total Reserved": 256}
    for _ in range(30):
        at = training_step(trace, at)
        trace.events.append({**memory, "ts": at, "args": change})
    assert_same("torch", trace.write(tmp_path / "trace.json"), narrow, 60)


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


@pytest.mark.parametrize("open_all_along", [False, True])
def test_operators_without_steps_are_cut_where_none_is_open(tmp_path, narrow, open_all_along):
    trace = Trace()
    for number in range(200):
        at = 100.0 * number * (number > 50)  # those of two threads overlap, but for pauses
        trace.host("aten::linear", at, at + 60, more=tensors([4, 8], [8, 2]))
        trace.host("aten::addmm", at + 10, at + 50, more=tensors([4, 8], [8, 2]))
        trace.host("aten::relu", at + 30, at + 90, thread=2, more=tensors([4, 2]))
    if open_all_along:
        trace.host("aten::main", 0, 1e6, thread=3)
    path = trace.write(tmp_path / "trace.json")
    if not open_all_along:
        return assert_same("torch", path, narrow, 60)
    narrow(60)
    assert tables_of("torch", path)[2] == 1


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
