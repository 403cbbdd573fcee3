"""Take the time at points of a training loop without slowing it down.

On a GPU, CUDA events are recorded into the stream and read later, so the loop does not wait. On a CPU the
clock is read directly.
"""

import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

# Between the clocks of a device and its host; what differs by more was not read when it was meant to be.
MOST_DRIFT = 5e-4


class HostClock:
    """The host's monotonic clock, for stages that run on the host."""

    def __init__(self) -> None:
        self._ticks = array("q")
        self._add = self._ticks.append
        self._epoch_ns = 0

    def start(self) -> None:
        """Batches are to follow: tie the clock to the epoch."""
        # Set against the epoch once: the wall clock may be adjusted while the loop runs.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def tick(self) -> None:
        """An instant is now."""
        self._add(time.perf_counter_ns())

    def settle(self) -> None:
        """Read some instants that are over, so that a long loop does not keep an event for each."""

    def instants_ns(self) -> np.ndarray:
        """All instants in ns since the epoch, shape (ticks,)."""
        return np.asarray(self._ticks, dtype=np.int64) + self._epoch_ns


class DeviceClock:
    """Events in the device's stream; nothing waits for them until the loop has ended.

    ``make_event``: as ``torch.cuda.Event(enable_timing=True)``; ``synchronize``: waits for the device;
    ``now_ns``: the host's monotonic clock.

    A device's oscillator is off from the host's by some 30 ppm: 1.8 ms in a minute. So both are read at the
    end again, and what lies between is stretched.
    """

    # Events that are not read yet, while the device is behind; what is read at a time, or twice what came.
    _PENDING, _AT_ONCE = 512, 32

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make_event, self._synchronize, self._now_ns = make_event, synchronize, now_ns
        self._steps_ms = array("d")  # between neighbours that were read
        self._events: list[Any] = []  # the last that was read, and those that were not
        self._spare: list[Any] = []
        self._ticks = self._settled = 0  # all, and those before the last settle()
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
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        self._events.append(event)
        self._ticks += 1

    def settle(self) -> None:
        came, self._settled = self._ticks - self._settled, self._ticks
        over = len(self._events) - self._PENDING
        if over > 0:
            self._read(min(over, max(self._AT_ONCE, 2 * came)), lambda event: event.query())

    def _read(self, most: int, is_over: Callable[[Any], bool] = lambda event: True) -> None:
        events, count = self._events, 0
        while count < most and is_over(events[count + 1]):
            # Elapsed times come as 32-bit milliseconds: between neighbours they keep their half microsecond;
            # from the first event they would lose it within seconds.
            self._steps_ms.append(events[count].elapsed_time(events[count + 1]))
            count += 1
        self._spare += events[:count]
        del events[:count]

    def instants_ns(self) -> np.ndarray:
        on_host_ns = self._tie() - self._start_ns
        self._read(len(self._events) - 1)
        steps_ns = np.rint(np.asarray([0.0, *self._steps_ms]) * 1e6).astype(np.int64)
        elapsed_ns = np.cumsum(steps_ns)
        late_ns = on_host_ns - int(elapsed_ns[-1])
        if abs(late_ns) <= MOST_DRIFT * elapsed_ns[-1]:
            elapsed_ns += np.rint(elapsed_ns * (late_ns / max(1, elapsed_ns[-1]))).astype(np.int64)
        return (elapsed_ns + self._epoch_ns)[1:-1]


Clock = HostClock | DeviceClock


def open_clock(device_type: str, index: int | None = None) -> Clock:
    """The clock on which stages of a device run; ``index``: of the GPU, if it need not be the current one."""
    if device_type == "cpu":
        return HostClock()
    import torch

    if index is None:
        return DeviceClock(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)

    class Event(torch.cuda.Event):
        # In the current stream of one GPU, whichever GPU is the current one.
        def record(self, stream: Any = None) -> None:
            super().record(stream or torch.cuda.current_stream(index))

    return DeviceClock(lambda: Event(enable_timing=True), lambda: torch.cuda.synchronize(index))
