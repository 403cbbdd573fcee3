"""A tool's clock is set to that of the rank's batches, by planted shifts; a device's clock keeps time."""

import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from profiling.clocks import DeviceClock, align, open_clock, set_clock
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table, read, write
from train.loop import INSTANTS

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
    assert align(batches(), {name: column[1:] for name, column in markers(0).items()}, kernels()) is None
    assert align(batches(), NO_MARKERS, kernels()) is None
    assert align({name: column[:0] for name, column in batches().items()}, NO_MARKERS, on_device(0)) is None


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


# --- stage times, on the clock where the stages run ----------------------------------------------------


class FakeDevice:
    """A device's timing at its narrowest: elapsed times are 32-bit milliseconds, as those of CUDA events."""

    def __init__(self) -> None:
        self.now_ns, self.waits, self.events, self.recorded = 0, 0, 0, 0

    def event(self) -> "FakeEvent":
        self.events += 1
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.waits += 1


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device, self.synchronize = device, device.synchronize

    def record(self) -> None:
        self.at_ns, self.number = self.device.now_ns, self.device.recorded
        self.device.recorded += 1

    def query(self) -> bool:
        """The device is 200 events behind."""
        return self.number + 200 < self.device.recorded

    def elapsed_time(self, later: "FakeEvent") -> float:
        return float(np.float32((later.at_ns - self.at_ns) / 1e6))


def test_a_clock_of_one_gpu_ticks_in_its_stream_whichever_gpu_is_the_current_one(monkeypatch):
    waited, streams = Mock(), []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.elapsed_time = lambda later: 1.0

        def record(self, stream: str) -> None:
            streams.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index=0: f"of GPU {index}")
    monkeypatch.setattr(torch.cuda, "synchronize", waited)
    clock = open_clock("cuda", 1)
    clock.start()
    clock.tick()
    assert len(clock.instants_ns()) == 1
    assert set(streams) == {"of GPU 1"} and {call.args for call in waited.call_args_list} == {(1,)}


@pytest.mark.parametrize("ppm", [0, 30, -80])
def test_a_device_whose_clock_drifts_is_set_to_the_hosts_at_both_ends(ppm):
    device, truth = FakeDevice(), []
    clock = DeviceClock(device.event, device.synchronize, lambda: round(device.now_ns * (1 + ppm * 1e-6)))
    clock.start()
    for _ in range(100 * INSTANTS):
        device.now_ns += 100_000_000
        clock.tick()
        truth.append(device.now_ns * (1 + ppm * 1e-6))
    instants = clock.instants_ns()
    # A minute at 30 ppm would be 1.8 ms.
    assert np.abs((instants - instants[0]) - (np.array(truth) - truth[0])).max() < 20_000


@pytest.mark.parametrize("a_step", [8, 64, 0])
def test_device_instants_keep_their_precision_over_a_long_run_and_the_loop_never_waits(a_step):
    """With steps that settle, events are used again, and none is read that is not over."""
    device, truth, generator = FakeDevice(), [], np.random.default_rng(0)
    clock = DeviceClock(device.event, device.synchronize)
    clock.start()
    for number in range(2000 * INSTANTS):
        device.now_ns += int(generator.integers(1_000, 40_000_000))
        clock.tick()
        truth.append(device.now_ns)
        if a_step and number % a_step == a_step - 1:
            clock.settle()
    assert device.waits == 2 and (not a_step or device.events < 700)
    instants = clock.instants_ns()
    drift = (instants - instants[0]) - (np.array(truth) - truth[0])
    assert device.now_ns > 100e9  # so long that one elapsed time from the start would lose microseconds
    assert np.abs(np.diff(drift)).max() <= 2  # a stage is right to 2 ns
    assert abs(drift[-1]) < 20_000
    assert instants[0] == pytest.approx(time.time_ns(), abs=60e9)
