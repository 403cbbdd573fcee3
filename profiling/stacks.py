"""Where is a rank that hangs? At a signal it writes what all its threads are doing."""

import atexit
import faulthandler
import signal
import sys
from pathlib import Path


def write_stacks_at_signal(path: Path | None) -> None:
    """From now on, SIGUSR1 writes the stacks of all threads to ``path``; a crash writes them to stderr.

    jobs.processes sends the signal to the ranks of a sweep's run that hangs; jobs.queue puts the stacks into
    its log.
    """
    faulthandler.enable()
    if sys.platform == "win32" or path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Open for as long as the process lives: in a process that hangs nothing can be opened any more.
    file = path.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)

    def leave() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        file.close()
        if path.exists() and not path.stat().st_size:
            path.unlink()

    atexit.register(leave)
