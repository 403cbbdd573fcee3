"""Stage times: five instants a batch, on the clock where the stages run."""

import time

import numpy as np
import pytest

from profiling import tables
from profiling.step_clock import DeviceClock
from train.loop import INSTANTS, Recorded


def test_stages_lie_between_a_batchs_instants_and_what_is_between_batches_in_none():
    # begin, load 10, forward 20, backward 30, update 5, rest 1; a profiler starts in 700; the same again
    instants = np.cumsum([1000, 10, 20, 30, 5, 1, 700, 10, 20, 30, 5, 1])
    columns = Recorded(instants, [2.0, 1.0]).columns(rank=3, images=8, recordings=[range(1, 2)])
    rows = tables.as_table("batches", columns).to_pylist()
    assert [row["start_ns"] for row in rows] == [1000, 1766]
    assert [row["end_ns"] for row in rows] == [1066, 1832]
    for row in rows:
        assert (row["load_ns"], row["forward_ns"], row["backward_ns"], row["update_ns"]) == (10, 20, 30, 5)
        assert row["rank"] == 3 and row["images"] == 8
    assert [row["attributed"] for row in rows] == [False, True]
    assert [row["loss"] for row in rows] == [2.0, 1.0]


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
