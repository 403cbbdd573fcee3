"""How does a rank's process end? At once where nobody waits for it, or where it would wait for others."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command
from profiling.process_facts import has_group


def leave_at_once(code: int = EXIT_DONE) -> NoReturn:
    """End this process and leave it to the kernel to free what it holds.

    Python and PyTorch would take themselves apart piece by piece, for 0.2 s of a processor that ranks of the
    next point could use; and a rank that has failed would wait for the others to take NCCL apart with it.
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
