"""Distribute work on many items over threads or processes of this machine."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from profiling.errors import EXIT_FAILED

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[dict[Future[Result], Item]]:
    """Do the same with each item in some processes, which Ctrl-C ends at once; futures and their items."""
    # Threads of libraries that are loaded do not survive a fork: processes are started anew.
    with ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool:
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = {pool.submit(work, item): item for item in items}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield futures
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _end_with_parent() -> None:
    """Have this process end when its parent has been killed: it would wait for work for ever."""

    def end() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(EXIT_FAILED)

    threading.Thread(target=end, daemon=True).start()
