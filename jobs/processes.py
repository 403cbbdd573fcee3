"""Start the processes of a run, watch them, and end all of them with the run.

All processes are started here. Each has its own session, so that ending it ends its children too.
"""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobs import ROOT
from jobs.failures import Ended, death_of

EXIT_TIME_LIMIT = 124  # as timeout(1) has it
EXIT_HANG = 123
GRACE_S = 5.0  # for ranks to say why they end, after the first has died or been asked to
# A launcher that is killed leaves its ranks on other nodes behind: it has longer, past Slurm's KillWait.
LAUNCHER_GRACE_S = 45.0
POLL_S = 0.05
STACKS_S = 3.0  # for hanging ranks to write where they are
# Ranks write their stacks at it (train.__main__); every launcher hands it on to its ranks.
STACKS_SIGNAL = signal.SIGUSR1
_STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_LOOK_S = 1.0  # between two looks at whether a run gets on
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Process:
    """A process to start: its arguments, what is added to the environment, and what it is to the user."""

    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "rank"


class TimeIsUp(KeyboardInterrupt):
    """The batch system will soon end this job: stop in order, so that the next one goes on."""


@dataclass(frozen=True)
class Limits:
    """When a run is ended from outside."""

    time_s: float
    hang_s: float = 0.0  # without a sign of life; 0: never
    sign_of_life: Callable[[], Hashable] = lambda: None  # a value that changes as the run gets on


def run_processes(
    processes: Sequence[Process], log: Path, limits: Limits, cwd: Path = ROOT,
    on_tick: Callable[[], None] = lambda: None,
) -> Ended:  # fmt: skip
    """Start all, wait for all; when one dies, a limit has passed, or a stop is asked for, end the others."""
    children: list[subprocess.Popen] = []
    with stopped_in_order():
        try:
            with log.open("ab") as output:
                for process in processes:
                    with unheard():
                        children.append(_start(process, output.fileno(), cwd))
            return _wait_for(processes, children, limits, on_tick)
        finally:
            _end(children, LAUNCHER_GRACE_S if any(each.name != "rank" for each in processes) else GRACE_S)


def _wait_for(
    processes: Sequence[Process], children: Sequence[subprocess.Popen], limits: Limits,
    on_tick: Callable[[], None],
) -> Ended:  # fmt: skip
    started = last_sign = looked = time.monotonic()
    sign: Hashable = None
    while True:
        codes = [child.poll() for child in children]
        if bad := [(code, index) for index, code in enumerate(codes) if code]:
            _wait(children, GRACE_S)
            # A rank that was killed (its code is negative) is why others gave up at the same time.
            code, index = min(bad)
            name = processes[index].name
            return Ended(code, death_of(f"rank {index}" if name == "rank" else name, code), process=index)
        if all(code == 0 for code in codes):
            return Ended(0)
        now = time.monotonic()
        if now - started > limits.time_s:
            _have_stacks_written(children)
            return Ended(EXIT_TIME_LIMIT, f"{limits.time_s:g} s (time_limit_s)", "time limit")
        if limits.hang_s and now - looked >= _LOOK_S:
            looked = now
            if (newer := limits.sign_of_life()) != sign:
                sign, last_sign = newer, now
            if now - last_sign > limits.hang_s:
                _have_stacks_written(children)
                return Ended(EXIT_HANG, f"no step for {limits.hang_s:g} s after step {sign or 0}", "hang")
        on_tick()
        stop_if_asked()
        time.sleep(POLL_S)


def _have_stacks_written(children: Sequence[subprocess.Popen]) -> None:
    for child in children:
        child.send_signal(STACKS_SIGNAL)
    _wait(children, STACKS_S)


def _end(children: Sequence[subprocess.Popen], grace_s: float) -> None:
    """End every process group: ask, wait, kill. Groups of ended ranks too: a data worker may live on."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with suppress(ProcessLookupError, PermissionError):  # it is empty (macOS says so with EPERM)
                os.killpg(child.pid, number)
        if number == signal.SIGTERM:
            _wait(children, grace_s)
    for child in children:
        child.wait()


def _start(process: Process, output: int, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        process.argv,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **process.environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        # Should this process be killed without a chance to end its children, the kernel ends them.
        preexec_fn=_prepare_child,
    )


# Looked up before the fork: after it, in the child, loading a library could deadlock.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _prepare_child() -> None:
    for number in _STOPPING:
        if callable(signal.getsignal(number)):  # the handlers of this process are not its
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def unheard() -> Iterator[None]:
    """Signals that stop the run wait: what their handler raises in the middle of a fork is lost, and what it
    raises before a child is noted leaves that child behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    _STOP.unheard += 1
    try:
        yield
    finally:
        _STOP.unheard -= 1
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Another thread, which blocks nothing, may have taken the signal.
    if not _STOP.unheard:
        stop_if_asked()


def _wait(children: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(POLL_S)


@dataclass
class _Stop:
    """What a signal has asked for in the outermost :func:`stopped_in_order`."""

    asked: type[KeyboardInterrupt] | None = None
    depth: int = 0  # how many of these are entered
    unheard: int = 0  # how many of :func:`unheard`


_STOP = _Stop()


@contextmanager
def stopped_in_order() -> Iterator[None]:
    """A batch system's SIGTERM stops as Ctrl-C does, its SIGUSR1 (time is nearly up) with TimeIsUp.

    A second Ctrl-C while the runs end is not heard: it would leave their processes behind.
    """

    def interrupt(number: int, _: object) -> None:
        # Once is enough: the stopping itself is not to be interrupted.
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        why = "time limit" if number == signal.SIGUSR1 else "interrupted"
        # Ending may take seconds. To stderr past Python's buffers, which may be in the middle of a line.
        with suppress(OSError):
            os.write(2, f"\n{why}: ending runs ...\n".encode())
        _STOP.asked = TimeIsUp if number == signal.SIGUSR1 else KeyboardInterrupt
        if not _STOP.unheard:
            raise _STOP.asked

    before = {number: signal.getsignal(number) for number in _STOPPING}
    _STOP.depth += 1
    try:
        for number in before:
            if (number, before[number]) != (signal.SIGINT, signal.SIG_IGN):  # of a shell's background jobs
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            # Time that is nearly up when all is done would end this process as if it had done nothing.
            # A handler, not SIG_IGN, which the processes that are started later would inherit.
            late = number == signal.SIGUSR1 and handler is signal.SIG_DFL
            signal.signal(number, (lambda *_: None) if late else handler)
            if late:  # Python gives handlers up before it has ended
                atexit.register(signal.signal, number, signal.SIG_IGN)
        _STOP.depth -= 1
        if not _STOP.depth:
            _STOP.asked = None


def stop_if_asked() -> None:
    """Raise once more what a signal asked for: each loop that waits calls it.

    Python drops what a handler raises in some places (a destructor, a callback), and the signal comes once.
    """
    if _STOP.asked is not None:
        raise _STOP.asked
