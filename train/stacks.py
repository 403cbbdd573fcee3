"""Where is a rank that hangs? At a signal it writes the stacks of all its threads into a file of its own.

The launcher of the run sends the signal (jobs.processes) and puts what the ranks wrote into the run's log.
"""

import atexit
import faulthandler
import signal
import sys
from pathlib import Path

STACKS = "stacks.txt"


def write_stacks_at_signal(directory: Path) -> None:
    """From now on, SIGUSR1 writes this process's stacks to ``directory``; a crash writes them to stderr."""
    faulthandler.enable()
    if sys.platform == "win32":
        return
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / STACKS
    # Open for as long as the process lives: in a process that hangs nothing can be opened any more.
    file = path.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)

    def leave() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        file.close()
        if path.exists() and not path.stat().st_size:
            path.unlink()

    atexit.register(leave)
