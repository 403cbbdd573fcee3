"""Mark the start and end of a step's stages for all collectors.

One call marks a stage for every attached collector: NVTX (nvprof, Nsight Systems, Nsight Compute; also
without CUDA), the torch profiler (record_function), TAU (pytau) and CUPTI. A collector that is not attached
costs nothing.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, STAGES, UPDATE

# Set in the processes that a collector of NVTX starts.
_NVTX_COLLECTOR = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NVPROF_TMPDIR")


class Emitter(Protocol):
    """Passes ranges, which are strictly nested, and marks on to one collector."""

    def push(self, name: str) -> None: ...

    def pop(self, name: str) -> None: ...

    def mark(self, name: str) -> None: ...


class Range:
    """A stage as a context manager, made once and used for every batch."""

    def __init__(self, name: str, emitters: Sequence[Emitter]) -> None:
        self._name, self._emitters = name, emitters

    def __enter__(self) -> None:
        for emitter in self._emitters:
            emitter.push(self._name)

    def __exit__(self, *_: object) -> None:
        # In reverse order: a collector that times another's calls sees them nested.
        for emitter in reversed(self._emitters):
            emitter.pop(self._name)


class Markers:
    """The stages of a batch as context managers, entered one after the other, and the mark at its end."""

    def __init__(self, emitters: Sequence[Emitter]) -> None:
        self._emitters = emitters
        torch = [emitter for emitter in emitters if isinstance(emitter, TorchRanges)]
        self._always = len(torch) < len(emitters)
        self._switched = [emitter.is_on for emitter in torch]
        self.forward, self.backward, self.update = (Range(name, emitters) for name in STAGES)

    def are_recorded(self) -> bool:
        """Whether a collector records now; PyTorch's profiler is switched on and off."""
        return self._always or any(is_on() for is_on in self._switched)

    def begin(self) -> None:
        """Mark the begin of the first batch; each other one begins where the one before ends."""
        for emitter in self._emitters:
            if isinstance(emitter, _TauBatches):
                emitter.begin()

    def end_of_batch(self) -> None:
        for emitter in self._emitters:
            emitter.mark(END_OF_BATCH)


# Collectors within this process that are no library's: a recording by CUPTI. Markers that are open already
# go on without or with them.
COLLECTORS: list[Emitter] = []


def open_markers(environment: Mapping[str, str] = os.environ) -> Markers:
    """Markers for the collectors that are attached to this process."""
    emitters = (nvtx_emitter(environment), torch_emitter(), tau_emitter(), *COLLECTORS)
    return Markers([emitter for emitter in emitters if emitter is not None])


# --- a program of the user's --------------------------------------------------------------------------

LOAD, STEP = "Load", "Step"


class ProgramRange:
    """A stage of a user's own step, or the step, for ``profiling.watch`` or the attached collectors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        if not _LISTENER:
            set_listener(_Collectors(open_markers()))
        _LISTENER[0].push(self._name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _LISTENER[0].pop(self._name, whole=kind is None)


step, load, forward, backward, update = (
    ProgramRange(name) for name in (STEP, LOAD, FORWARD, BACKWARD, UPDATE)
)


class _Collectors:
    """The collectors of this process; a range that failed (a loader's StopIteration) is not ``whole``."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._ranges = {FORWARD: markers.forward, BACKWARD: markers.backward, UPDATE: markers.update}

    def push(self, name: str) -> None:
        if name in self._ranges:
            self._ranges[name].__enter__()

    def pop(self, name: str, whole: bool) -> None:
        if name in self._ranges:
            self._ranges[name].__exit__()
        elif name == STEP and whole:
            self._markers.end_of_batch()


_LISTENER: list[Any] = []


def set_listener(listener: Any) -> None:
    """Pass the ranges of the user's program to ``listener``, as to :class:`_Collectors`, from now on."""
    _LISTENER[:] = [listener]


# --- the torch profiler -------------------------------------------------------------------------------


class TorchRanges:
    """Ranges for a torch profiler, opened by ``enter`` only while one is on: each costs 10 microseconds."""

    def __init__(
        self, enter: Callable[[str], Any], leave: Callable[[Any], None], enabled: Callable[[], bool]
    ) -> None:
        self._enter, self._leave, self.is_on = enter, leave, enabled
        self._open: list[Any] = []

    def push(self, name: str) -> None:
        # What was pushed is popped, also when the profiler is switched on or off between.
        self._open.append(self._enter(name) if self.is_on() else None)

    def pop(self, name: str) -> None:
        opened = self._open.pop()
        if opened is not None:
            self._leave(opened)

    def mark(self, name: str) -> None:
        self.push(name)
        self.pop(name)


def torch_emitter() -> Emitter | None:
    """PyTorch's profiler, which may be switched on at any time; None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    from torch import autograd
    from torch.autograd import profiler

    # As torch.profiler.record_function, which takes twice as long on the way (benchmarks/training.py).
    return TorchRanges(
        autograd._record_function_with_args_enter,
        autograd._record_function_with_args_exit,
        lambda: profiler._is_profiler_enabled,
    )


# --- NVTX ---------------------------------------------------------------------------------------------


class Nvtx:
    """NVTX ranges and marks through functions that every collector of the last ten years supports."""

    def __init__(
        self, push: Callable[[str], Any], pop: Callable[[], Any], mark: Callable[[str], Any]
    ) -> None:
        self.push, self._pop, self.mark = push, pop, mark

    def pop(self, name: str) -> None:
        self._pop()


def nvtx_emitter(environment: Mapping[str, str]) -> Emitter | None:
    """NVTX for the collector that is attached to this process; None if none is, or no library is found."""
    # Not by the pip package nvtx: older collectors do not support its extended interface.
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            from torch.cuda import nvtx

            return Nvtx(nvtx.range_push, nvtx.range_pop, nvtx.mark)
    if not any(name in environment for name in _NVTX_COLLECTOR):
        return None
    try:
        library = ctypes.CDLL(ctypes.util.find_library("nvToolsExt") or "libnvToolsExt.so.1")
    except OSError:
        return None
    return Nvtx(
        lambda text: library.nvtxRangePushA(text.encode()),
        library.nvtxRangePop,
        lambda text: library.nvtxMarkA(text.encode()),
    )


# --- TAU ----------------------------------------------------------------------------------------------
#
# A stage is a timer of TAU, ``Forward Pass``; a batch is an event with its duration, ``Batch Duration (ns)``.
# Where TAU times every function of Python (tau_python) stages are events too, ``Forward Pass (ns)``: there a
# timer must end in the function that started it, or TAU aborts ("Runtime overlap"). Durations are the host's.

BATCH_DURATION = "Batch Duration"
_GROUP = "PYTORCH"
STAGE_EVENT = rf"^({BATCH_DURATION}|{'|'.join(STAGES)}) \((ns|us|ms|s)\)$"  # events that time stages
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Imported by tau_python: its own module up to Python 3.11, PerfStubs from 3.12 on.
_TIMES_PYTHON = ("ctau_impl", "perfstubs")


def stage_of_event(event: str) -> tuple[str, float]:
    """(stage, ns of the unit) of an event that :data:`STAGE_EVENT` matches; a batch's is at its end."""
    stage, _, unit = event.removesuffix(")").rpartition(" (")
    return (END_OF_BATCH if stage == BATCH_DURATION else stage), _UNITS_NS[unit]


class _TauBatches:
    """The event of a batch. Names are registered once: an unknown id crashes the process."""

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


class TauTimers(_TauBatches):
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


class TauEvents(_TauBatches):
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
    return TauEvents(pytau) if any(name in modules for name in _TIMES_PYTHON) else TauTimers(pytau)
