"""How does TAU hear of a batch's stages, and what are they called in its profile?

A stage is a timer of TAU, ``Forward Pass``; a batch is an event, ``Batch Duration (ns)``, triggered with its
duration. Where TAU times every function of Python (tau_python) stages are events too, ``Forward Pass (ns)``:
there a timer must end in the function that started it, or TAU aborts ("Runtime overlap").

A duration is the host's. Of a batch on a GPU it is how long the host took to issue it.
"""

import sys
import time
from collections.abc import Container
from typing import Any

from profiling.schemas import END_OF_BATCH, STAGES

BATCH_DURATION = "Batch Duration"
_GROUP = "PYTORCH"
STAGE_EVENT = rf"^({BATCH_DURATION}|{'|'.join(STAGES)}) \((ns|us|ms|s)\)$"  # events that time stages
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Imported by tau_python: its own module up to Python 3.11, PerfStubs from 3.12 on.
_TIMES_PYTHON = ("ctau_impl", "perfstubs")


def stage_of_event(event: str) -> tuple[str, float]:
    """Which stage an event times that :data:`STAGE_EVENT` matches, and the ns of its unit.

    The event of a whole batch is triggered at its end: ``End of Batch``.
    """
    stage, _, unit = event.removesuffix(")").rpartition(" (")
    return (END_OF_BATCH if stage == BATCH_DURATION else stage), _UNITS_NS[unit]


class _BatchMarker:
    """What both ways have in common: the event of a batch.

    Names are registered once: an unknown id crashes the process.
    """

    def __init__(self, pytau: Any) -> None:
        self._pytau = pytau
        self._batch = pytau.registerEvent(f"{BATCH_DURATION} (ns)")
        self._began_ns = time.perf_counter_ns()

    def begin(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def mark(self, name: str) -> None:
        # No timer that is stopped at once: TAU switches off what was called often and took no time, and then
        # ``stop`` ends whatever else runs.
        now_ns = time.perf_counter_ns()
        self._pytau.event(self._batch, now_ns - self._began_ns)
        self._began_ns = now_ns


class TauTimers(_BatchMarker):
    """Stages as timers. They must be nested and closed: an open one would lose the thread's profile."""

    def __init__(self, pytau: Any) -> None:
        super().__init__(pytau)
        # A timer that is off does not start, but its stop ends another. TAU up to 2.35.1 switches all groups
        # off where it finds "--profile" and a word among the program's arguments.
        pytau.enableGroupName(_GROUP)
        self._timers = {name: pytau.profileTimer(name, "", _GROUP) for name in STAGES}

    def push(self, name: str) -> None:
        self._pytau.start(self._timers[name])

    def pop(self, name: str) -> None:
        self._pytau.stop(self._timers[name])


class TauEvents(_BatchMarker):
    """Stages as events, triggered at their ends: nothing of TAU's is open between two calls."""

    def __init__(self, pytau: Any) -> None:
        super().__init__(pytau)
        self._events = {name: pytau.registerEvent(f"{name} (ns)") for name in STAGES}
        self._pushed_ns: list[int] = []

    def push(self, name: str) -> None:
        self._pushed_ns.append(time.perf_counter_ns())

    def pop(self, name: str) -> None:
        self._pytau.event(self._events[name], time.perf_counter_ns() - self._pushed_ns.pop())


def tau_emitter(modules: Container[str] = sys.modules) -> TauTimers | TauEvents | None:
    """TAU, where it has started this process: its module is found only there."""
    try:
        import pytau
    except ImportError:
        return None
    times_python = any(name in modules for name in _TIMES_PYTHON)
    return TauEvents(pytau) if times_python else TauTimers(pytau)
