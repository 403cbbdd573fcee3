"""End a rank's process after a failure, without waiting for ranks that do not know of it."""

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from profiling.errors import EXIT_FAILED, run_command
from profiling.process_facts import has_group


def leave_at_once(code: int) -> NoReturn:
    """End this process and leave it to the kernel to free what it holds.

    A rank that has failed would wait for the others to take NCCL apart with it. Others end as Python does,
    for the sake of profilers (python -m cProfile -m train).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_and_leave(main: Callable[[], int | None]) -> None:
    """Run a rank's command as :func:`run_command` does; a rank that fails says why and waits for no other.

    One that is still in a group has failed: :meth:`train.backends.Backend.close` leaves it.
    """
    try:
        run_command(main)
    except SystemExit as ended:
        if not has_group():
            raise
        leave_at_once(ended.code if isinstance(ended.code, int) else EXIT_FAILED)
    except BaseException:
        if not has_group():
            raise
        traceback.print_exc()
        leave_at_once(EXIT_FAILED)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Stop:
    """The signal by which someone has asked this process to end; None: nobody has."""

    asked: signal.Signals | None = None

    def hear_no_more(self) -> None:
        """What is now written of the end is not to be interrupted: launchers ask more than once."""
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """SIGTERM ends this process as Ctrl-C does, by a KeyboardInterrupt; which of both it was is known."""
    stop, me = Stop(), os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        # A forked process that loads data ends as ever.
        if os.getpid() != me and number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.asked = signal.Signals(number)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # SIGINT, of a shell's background jobs
                signal.signal(number, interrupt)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
