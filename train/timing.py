"""When did each stage of each batch begin and end, without slowing the loop that is timed?

On a GPU the loop records events into the device's stream and goes on; their times are read after the loop. On
a CPU the stages run where the clock is read, so it is read directly. Both give six instants a batch: it
begins; Forward Pass, Backward Pass and Model Update begin; the update ends; the batch ends.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

# Between the clocks of a device and its host; what differs by more was not read when it was meant to be.
MOST_DRIFT = 5e-4
INSTANTS = 6  # a batch: it begins, forward begins, backward begins, update begins, update ends, it ends


class Clock(Protocol):
    """What the training loop asks of a clock."""

    def start(self) -> None:
        """Batches are to follow: tie the clock to the epoch."""

    def tick(self) -> None:
        """One of the batch's instants is now (six a batch, in order)."""

    def instants_ns(self) -> np.ndarray:
        """All instants in ns since the epoch, shape (6 x batches,)."""


class HostClock:
    """The host's monotonic clock, for stages that run on the host."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._epoch_ns = 0

    def start(self) -> None:
        # Set against the epoch once: the wall clock may be adjusted while the loop runs.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def tick(self) -> None:
        self._ticks.append(time.perf_counter_ns())

    def instants_ns(self) -> np.ndarray:
        return np.asarray(self._ticks, dtype=np.int64) + self._epoch_ns


class DeviceClock:
    """Events in the device's stream; nothing waits for them until the loop has ended.

    Args:
        make_event: a new timing event with ``record()``, ``synchronize()`` and ``elapsed_time(later)`` in ms
            (``torch.cuda.Event(enable_timing=True)``).
        synchronize: waits for the device.
        now_ns: the host's monotonic clock.

    A device's oscillator is off from the host's by some 30 ppm: 1.8 ms in a minute. So both are read at the
    end again, and what lies between is stretched.
    """

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make_event, self._synchronize, self._now_ns = make_event, synchronize, now_ns
        self._events: list[Any] = []
        self._epoch_ns = self._start_ns = 0

    def start(self) -> None:
        # The one synchronisation: it ties the first event, and so the device's time, to the host's.
        self._start_ns = self._tie()
        self._epoch_ns = time.time_ns()

    def _tie(self) -> int:
        """An event that is over now, by the host's clock."""
        self._synchronize()
        self.tick()
        self._synchronize()
        return self._now_ns()

    def tick(self) -> None:
        event = self._make_event()
        event.record()
        self._events.append(event)

    def instants_ns(self) -> np.ndarray:
        on_host_ns = self._tie() - self._start_ns
        # Elapsed times come as 32-bit milliseconds: between neighbours they keep their half microsecond; from
        # the first event they would lose it within seconds.
        steps_ms = [a.elapsed_time(b) for a, b in zip(self._events, self._events[1:], strict=False)]
        steps_ns = np.rint(np.asarray([0.0, *steps_ms]) * 1e6).astype(np.int64)
        elapsed_ns = np.cumsum(steps_ns)
        late_ns = on_host_ns - int(elapsed_ns[-1])
        if abs(late_ns) <= MOST_DRIFT * elapsed_ns[-1]:
            elapsed_ns += np.rint(elapsed_ns * (late_ns / max(1, elapsed_ns[-1]))).astype(np.int64)
        return (elapsed_ns + self._epoch_ns)[1:-1]


def open_clock(device_type: str) -> Clock:
    """The clock on which stages of a device run."""
    if device_type == "cpu":
        return HostClock()
    import torch

    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)


def batch_columns(
    instants_ns: np.ndarray, rank: int, images: int, losses: Sequence[float], recordings: Sequence[range]
) -> dict[str, Any]:
    """The columns of the ``batches`` table (:mod:`profiling.tables`).

    Args:
        instants_ns: shape (6 x batches,), as a clock gives them.
        images: of one batch.
        recordings: the batches that a profiler recorded.
    """
    start, forward, backward, update, updated, end = instants_ns.reshape(-1, INSTANTS).T
    batches = len(start)
    index = np.arange(batches)
    return {
        "rank": np.full(batches, rank),
        "batch_index": index,
        "start_ns": start,
        "load_ns": forward - start,
        "forward_ns": backward - forward,
        "backward_ns": update - backward,
        "update_ns": updated - update,
        "end_ns": end,
        "images": np.full(batches, images),
        "loss": np.asarray(losses, dtype=float),
        "attributed": np.isin(index, [batch for recording in recordings for batch in recording]),
    }


def process_age_ns() -> int:
    """How long this process has lived, to a hundredth of a second."""
    try:
        # Field 22, in ticks since the machine started; psutil adds that start's date, in whole seconds.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        return int((time.time() - psutil.Process().create_time()) * 1e9)
