"""A tool's clock is set to that of the rank's batches: planted shifts are found, within the residual."""

import numpy as np
import pytest

from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table, read, write
from profiling.tool_clock import align, set_clock

MS = 1_000_000
START = 1_790_000_000 * 10**9
COUNT, FIRST = 8, 4
LOAD, PASSES = 10 * MS, (30 * MS, 50 * MS, 8 * MS)  # forward, backward, update; 100 ms in all


def batches(attributed_from=FIRST):
    start = START + np.arange(COUNT) * 100 * MS
    columns = {
        "rank": np.zeros(COUNT, int), "batch_index": np.arange(COUNT), "start_ns": start,
        "end_ns": start + 100 * MS, "attributed": np.arange(COUNT) >= attributed_from,
        "load_ns": np.full(COUNT, LOAD), "forward_ns": np.full(COUNT, PASSES[0]),
        "backward_ns": np.full(COUNT, PASSES[1]), "update_ns": np.full(COUNT, PASSES[2]),
    }  # fmt: skip
    return columns


def stage_edges(batch):
    return START + batch * 100 * MS + LOAD + np.concatenate([[0], np.cumsum(PASSES)])


def markers(shift, slack=5_000, names=(FORWARD, BACKWARD, UPDATE)):
    """The stages of the attributed batches, ``slack`` ns within its edges, on a clock ``shift`` behind."""
    rows = []
    for batch in range(FIRST, COUNT):
        edges = stage_edges(batch) - shift
        rows += [(name, edges[place] + slack, edges[place + 1] - slack) for place, name in enumerate(names)]
        rows.append((END_OF_BATCH, edges[3] + 1 * MS, edges[3] + 1 * MS))
    name, start, end = zip(*rows, strict=True)
    return {"name": np.array(name, object), "start_ns": np.array(start), "end_ns": np.array(end)}


def kernels(rows=()):
    """Rows of (batch, start, end, class, direction, device)."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    batch, start, end, kind, direction, device = (np.array(column) for column in columns)
    return {
        "batch_index": batch.astype(int), "start_ns": start.astype(np.int64),
        "duration_ns": end.astype(np.int64) - start.astype(np.int64), "class": kind.astype(object),
        "direction": direction.astype(object), "device": device.astype(int),
    }  # fmt: skip


def on_device(shift, slack=20_000):
    rows = []
    for batch in range(FIRST, COUNT):
        edges = stage_edges(batch) - shift
        for place, direction in enumerate(("fprop", "bprop")):
            for at in np.linspace(edges[place] + slack, edges[place + 1] - slack - MS, 5):
                rows.append((batch, at, at + MS, "gemm", direction, 0))
        # Neither copies nor collectives say when a pass was: they run beside it.
        rows.append((batch, edges[0] - 8 * MS, edges[0] - 7 * MS, "memcpy", "fprop", 0))
        rows.append((batch, edges[2] - MS, edges[2] + 5 * MS, "communication", "bprop", 0))
    return kernels(rows)


NO_MARKERS = {"name": np.array([], object), "start_ns": np.array([], int), "end_ns": np.array([], int)}


def test_clocks_that_run_apart_have_it_in_their_residual():
    rows = markers(0)
    drift = np.linspace(0, 60 * MS, len(rows["start_ns"])).astype(int)
    found = align(batches(), rows | {name: rows[name] + drift for name in ("start_ns", "end_ns")}, kernels())
    assert 10 * MS < found.residual_ns < 60 * MS


def test_marks_that_are_not_of_every_batch_tell_nothing():
    rows = {name: column[1:] for name, column in markers(0).items()}
    assert align(batches(), rows, kernels()) is None
    assert align(batches(), NO_MARKERS, kernels()) is None
    empty = {name: column[:0] for name, column in batches().items()}
    assert align(empty, NO_MARKERS, on_device(0)) is None


# --- of a rank's directory ----------------------------------------------------------------------------


def lay(directory, own_markers=None, own_kernels=None):
    write(as_table("batches", batches()), directory, "batches")
    for name, columns in (("markers", own_markers), ("kernels", own_kernels)):
        if columns is not None:
            ranks = {"rank": np.zeros(len(columns["start_ns"]), int)}
            if name == "kernels":
                index = [None if batch < 0 else batch for batch in columns["batch_index"].tolist()]
                columns = {**columns, "batch_index": index}
            write(as_table(name, ranks | columns), directory, name)
    return directory


@pytest.mark.parametrize("shift", [-3 * 10**9, 10**15, 40 * MS])
def test_the_tables_are_shifted_and_the_residual_is_said(tmp_path, shift):
    (said,) = set_clock(lay(tmp_path, markers(shift), kernels()), "nsys")
    assert said.code == "clock_aligned" and said.data["residual_ns"] <= 5_000
    found = read(tmp_path, "markers").to_pandas()
    for name in ("start_ns", "end_ns"):
        assert np.abs(found[name].to_numpy() - markers(0)[name]).max() <= said.data["residual_ns"] + 1
    assert set_clock(tmp_path, "nsys") == []
    assert read(tmp_path, "markers").to_pandas().equals(found)


@pytest.mark.parametrize("shift", [-3 * 10**9, 10**15, 40 * MS])
def test_kernels_and_launches_are_shifted_together(tmp_path, shift):
    own = on_device(shift)
    own |= {"launch_ns": own["start_ns"] - 3_000, "launch_end_ns": own["start_ns"] - 1_000}
    waits = {"start_ns": own["start_ns"][:2], "end_ns": own["start_ns"][:2] + 500}
    # The host runs ahead of the device.
    write(as_table("synchronizations", waits), lay(tmp_path, markers(-20 * MS), own), "synchronizations")
    (said,) = set_clock(tmp_path, "nsys")
    tables = {"kernels": own, "synchronizations": waits}
    shifts = {
        (read(tmp_path, table)[name].to_numpy() - columns[name]).tolist()[row]
        for table, columns in tables.items()
        for name in columns
        if name.endswith("_ns") and name != "duration_ns"
        for row in range(2)
    }
    (found,) = shifts
    assert abs(found - shift) <= said.data["residual_ns"] + 1 and said.data["residual_ns"] <= 21_000


def test_collectives_of_a_tool_without_batches_get_theirs(tmp_path):
    """As Horovod records them, on the clock of the epoch."""
    begun = [START - 500 * MS, *(stage_edges(batch)[1] for batch in range(COUNT))]
    rows = [(-1, at, at + 15 * MS, "communication", "none", -1) for at in begun]
    assert set_clock(lay(tmp_path, own_kernels=kernels(rows)), "horovod") == []
    assert read(tmp_path, "kernels")["batch_index"].to_pylist() == [None, *range(COUNT)]
