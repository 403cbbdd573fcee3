"""A recording attributed some batches at a time gives what it gives as a whole."""

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu_databases import make_batches, write_nsys, write_nvprof
from profiling.attribution import events, windows
from profiling.attribution.batch_times import find_period
from profiling.convert import main
from profiling.errors import UserError
from profiling.readers.files import Origin
from profiling.tables import read
from profiling.tools import tool
from profiling.traced_job import read_job
from tests.builders import data_of
from tests.profiling.traced_jobs import START_US, Planted, trace_of
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
        unlike = (pair for pair in zip(found[0][name], some, strict=True) if pair[0] != pair[1])
        assert next(unlike, None) is None


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
def test_operators_without_steps_are_cut_where_none_is_open(tmp_path, narrow, monkeypatch, open_all_along):
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
    monkeypatch.setattr(windows, "MOST_OPERATORS", 500)
    with pytest.raises(UserError, match=r"trace\.json: 601 operators without steps"):
        tables_of("torch", path)


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


# --- a period of the kernels: planted ones are found, what is none is refused --------------------------

UPDATE = 900  # an optimizer's kernel


def batch_of(generator, layers, forward, backward):
    """Names of a batch's kernels: an embedding, layers alike, a loss, the layers back, the optimizer."""
    layer = generator.integers(0, 40, forward).tolist()
    back = generator.integers(100, 140, backward).tolist()
    return [500, 501, *layer * layers, 600, 601, 602, *back * layers, 700, UPDATE, UPDATE, UPDATE]


def times_of(names, step=10):
    start = np.arange(len(names)) * step
    return np.array(names), start, start + step - 2


@given(
    seed=st.integers(0, 10**6), layers=st.integers(1, 12), forward=st.integers(3, 12),
    backward=st.integers(4, 20), batches=st.integers(4, 12), head=st.integers(0, 30),
)  # fmt: skip
def test_a_planted_period_is_found_whatever_its_layers(seed, layers, forward, backward, batches, head):
    one = batch_of(np.random.default_rng(seed), layers, forward, backward)
    # The recording may begin within a batch.
    names, start, end = times_of((one * (batches + 1))[len(one) - min(head, len(one)) :])
    found = find_period(names, start, end, [UPDATE])
    assert found is not None
    assert found.kernels == len(one)
    first = min(head, len(one)) % len(one)
    assert found.edges_ns[:-1].tolist() == [
        10 * (first + number * len(one)) for number in range(len(found.edges_ns) - 1)
    ]
    assert len(found.edges_ns) - 1 >= batches


NONE = {
    "the layers of one step": lambda generator: batch_of(generator, generator.integers(8, 41), 10, 14),
    "nothing recurs": lambda generator: generator.integers(0, 30, 3000).tolist(),
    "two batches are too few": lambda generator: batch_of(generator, 4, 6, 9) * 2,
}


@pytest.mark.parametrize("case", NONE)
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_what_does_not_recur_is_refused(case, seed):
    names, start, end = times_of(NONE[case](np.random.default_rng(seed)))
    assert find_period(names, start, end, [UPDATE]) is None


def test_some_kernels_that_come_and_go_lower_the_confidence_and_keep_the_batches():
    one = batch_of(np.random.default_rng(1), 6, 8, 12)
    several = [list(one) for _ in range(10)]
    several[4].insert(30, 999)  # an allocation is set to zero, once
    names, start, end = times_of([name for batch in several for name in batch])
    found = find_period(names, start, end, [UPDATE])
    assert found is not None and 0.9 < found.confidence < 1
    assert len(found.edges_ns) - 1 == 10
    assert found.edges_ns[5] == 10 * (5 * len(one) + 1)


def test_without_an_optimizer_batches_are_cut_at_the_longest_pause():
    names, start, end = times_of([*range(20)] * 6)
    start, end = start + np.arange(len(start)) // 20 * 5000 + 7, end + np.arange(len(end)) // 20 * 5000 + 7
    found = find_period(names[13:], start[13:], end[13:])
    assert found is not None
    assert found.edges_ns[0] == start[20]


@pytest.fixture
def unmarked(tmp_path):
    """A converted trace of which nothing marks the batches; a GEMM of its own in each of 6 layers."""
    trace = trace_of(Planted(ranks=1, batches=0), 0)
    for number in range(8):
        at = START_US + 1000 * number
        for layer in range(12):
            kernel = at + 50 * layer
            trace.kernel(f"sgemm_{layer % 6}", kernel, kernel + 5, kernel + 45)
        trace.kernel("void multi_tensor_apply_kernel<float>(float)", at + 700, at + 710, at + 760)
    trace.write(tmp_path / "one.json")
    assert main([str(tmp_path / "one.json"), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out" / "one"


def test_batches_of_an_unmarked_trace_are_told_by_their_kernels_and_it_is_said(unmarked, capsys):
    job = read_job(unmarked)
    assert (job.batches_from, job.batches_confidence) == ("a period of the kernels", 1.0)
    by = {"by": "a period of the kernels", "recurring_pct": 100}
    assert data_of(job.findings, "steps_unmarked") == [by]
    rows = read(unmarked / "rank_0000", "batches").to_pylist()
    assert len(rows) == 8 and rows[1]["end_ns"] - rows[1]["start_ns"] == 1_000_000
    assert rows[0]["start_ns"] == round(START_US + 5) * 1000
    assert np.bincount(read(unmarked / "rank_0000", "kernels")["batch_index"].to_numpy()).tolist() == [13] * 8


def test_periods_of_real_traces_are_the_batches_that_are_marked_in_them(shared_data):
    for name, batches in (("nccl_data", 3), ("resnet50_v100_dims_old_schema", 6), ("resnet_kineto", 30)):
        pieces = list(
            tool("torch").stream(shared_data / "kineto" / f"{name}.json.gz", [], Origin(batches=True))
        )
        kernels = next(piece for table, piece in pieces if table == "kernels").to_pandas()
        marked = next(piece for table, piece in pieces if table == "batches").to_pandas()
        works = kernels[~kernels["class"].isin(["communication", "memcpy", "memset", "loader"])]
        works = works[works.stream == works.stream.value_counts().idxmax()].sort_values("start_ns")
        number = works.name.astype(str).factorize()[0]
        updates = np.unique(number[works["class"] == "optimizer"]).tolist()
        start = works.start_ns.to_numpy()
        found = find_period(number, start, start + works.duration_ns.to_numpy(), updates)
        assert found is not None and len(found.edges_ns) - 1 >= batches - 1, name
        # Each begins in another batch of those that are marked.
        of = np.searchsorted(marked.end_ns.to_numpy(), found.edges_ns[:-1], side="right")
        assert len(set(of.tolist())) == len(of), name
