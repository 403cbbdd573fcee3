"""Who shares the work on many files of a machine: this process, or several?"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from profiling.errors import EXIT_FAILED, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_WORTH_A_PROCESS = 4 << 20  # bytes; starting one takes as long as reading some megabytes


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``function`` of each item, in order, some at a time in threads: for work that Python's lock lets go."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > cores():  # so that no more results than that are in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def open_workers(sizes: Sequence[int], jobs: int | None = None) -> Iterator["Workers"]:
    """Workers for items of such sizes in bytes.

    Args:
        jobs: processes; None: as many as there are cores, if the items are worth it.
    """
    wanted = min(jobs or cores(), len(sizes))
    if jobs is None and sum(sizes) < _WORTH_A_PROCESS:
        wanted = 1
    if wanted <= 1:
        yield Workers(None)
        return
    # Threads of libraries that are loaded do not survive a fork: processes are started anew.
    with ProcessPoolExecutor(wanted, get_context("spawn"), _end_with_parent) as pool:
        try:
            yield Workers(pool)
        except KeyboardInterrupt:
            for process in active_children():  # which have not heard it, and nobody waits for what they do
                process.terminate()
            raise


@contextmanager
def _born_deaf() -> Iterator[None]:
    """Processes that start here never hear Ctrl-C: each would end in a traceback. We do, afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Have this process end when its parent has been killed: it would wait for work for ever."""

    def end() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(EXIT_FAILED)

    threading.Thread(target=end, daemon=True).start()


class Workers:
    """Does the same with each of many items.

    Args:
        executor: runs the work elsewhere; None: here.
    """

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results in the order of the items.

        Raises:
            UserError: a process was killed, for want of memory most likely.
        """
        if self._executor is None:
            yield from map(work, items)
            return
        with _born_deaf():
            results = deque(self._executor.submit(work, item) for item in items)
        try:
            while results:
                yield results.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a converting process was killed, most likely because memory ran out; use fewer processes "
                "(--jobs 1)"
            ) from None
