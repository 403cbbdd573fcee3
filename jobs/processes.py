"""How do a run's processes start, how are they watched, and how does none outlive the run?

The one place that starts processes. Each has a session of its own, so that ending it ends what it started.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.launchers.base import Process

EXIT_TIME_LIMIT = 124  # as timeout(1) has it
GRACE_S = 5.0  # for ranks to say why they end, after the first has died or been asked to
POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How a run's processes ended: the first bad exit code (negative: a signal), and why, in one line."""

    exit_code: int
    reason: str = ""


def run_processes(
    processes: Sequence[Process],
    log: Path,
    time_limit_s: float,
    cwd: Path,
    on_tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Start all, wait for all; ``log`` takes what they print.

    When one dies, or the time limit has passed, or this process is asked to stop, the others are ended:
    first asked, then killed with all that they started.
    """
    children: list[subprocess.Popen] = []
    with log.open("ab") as output, _terminated_as_interrupt():
        try:
            for process in processes:
                children.append(_start(process, output.fileno(), cwd))
            return _watch(children, time.monotonic() + time_limit_s, time_limit_s, on_tick)
        finally:
            _end(children)


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
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


# Looked up before the fork: after it, in the child, loading a library could deadlock.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(
    children: list[subprocess.Popen], deadline: float, limit_s: float, on_tick: Callable[[], None]
) -> Ended:
    while True:
        on_tick()
        codes = [child.poll() for child in children]
        bad = [(code, rank) for rank, code in enumerate(codes) if code]
        if bad:
            _wait(children, GRACE_S)
            # A rank that was killed (its code is negative) is why others gave up at the same time.
            code, rank = min(bad)
            return Ended(code, _death(rank, code))
        if all(code == 0 for code in codes):
            return Ended(0)
        if time.monotonic() > deadline:
            return Ended(EXIT_TIME_LIMIT, f"did not end within its time limit of {limit_s:g} s")
        time.sleep(POLL_S)


def _death(rank: int, code: int) -> str:
    if code < 0:
        return f"rank {rank} was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"rank {rank} ended with exit code {code}"


def _wait(children: list[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(POLL_S)


def _end(children: list[subprocess.Popen]) -> None:
    """End every process group: ask, wait, kill. Groups of ended ranks too: a data worker may live on."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            try:
                os.killpg(child.pid, number)
            except (ProcessLookupError, PermissionError):
                continue  # the group is empty (macOS says so with EPERM)
        if number == signal.SIGTERM:
            _wait(children, GRACE_S)
    for child in children:
        child.wait()


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """A batch system's SIGTERM ends a run as Ctrl-C does: in order, and so that it can be resumed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
