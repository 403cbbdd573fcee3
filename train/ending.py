"""How does a rank's process end? At once where nobody waits for it, or where it would wait for others."""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

RANK_0_FIRST_S = 5.0


def leave_at_once(code: int = EXIT_DONE) -> NoReturn:
    """End this process and leave it to the kernel to free what it holds.

    Python and PyTorch would take themselves apart piece by piece, for 0.2 s of a processor that ranks of the
    next point could use; and a rank that has failed would wait for the others to take NCCL apart with it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def said_by_rank_0(rank: int) -> Iterator[None]:
    """An error that every rank finds alike is said once, by rank 0; the others end with its exit code."""
    try:
        yield
    except UserError as error:
        if rank == 0:
            raise
        # A launcher ends all ranks when the first has failed: that should be the one that says why.
        time.sleep(RANK_0_FIRST_S)
        sys.exit(error.exit_code)


def run_and_leave(main: Callable[[], int | None]) -> None:
    """Run a rank's command as :func:`run_command` does; a rank that fails says why and waits for no other."""
    try:
        run_command(main)
    except SystemExit as ended:
        if not _holds_a_group():
            raise
        leave_at_once(ended.code if isinstance(ended.code, int) else EXIT_FAILED)
    except BaseException:
        if not _holds_a_group():
            raise
        traceback.print_exc()
        leave_at_once(EXIT_FAILED)


def _holds_a_group() -> bool:
    """Whether this rank is still joined to others: it has failed (train.backends.Backend.abandon)."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
