"""How does a tool run, so that none of what it started outlives who asked for it?

tau_exec is a shell that waits for the rank it started: asked to end, it ends and leaves the rank training.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
# Who ends the run asks this process, and so does who wants to know where it hangs.
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def run_tree(command: Sequence[str], environment: Mapping[str, str], heard: list[int]) -> int:
    """Run a command; signals to this process go to all that it started. Its exit code, as shells have it.

    Args:
        heard: receives the signals that were handed on.

    What it started stays in this process's group, so that who kills the group leaves nothing behind.
    """
    _end_in_order_with_parent()
    child = subprocess.Popen(command, env=dict(environment))

    def hand_on(number: int, _: object) -> None:
        heard.append(number)
        _hand_on(number, child.pid)

    for number in _HANDED_ON:
        signal.signal(number, hand_on)
    code = child.wait()
    return 128 - code if code < 0 else code


def _hand_on(number: int, child: int) -> None:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(child)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _end_in_order_with_parent() -> None:
    """Where the kernel is to kill this process with its parent, be asked instead: others are to be told."""
    if sys.platform != "linux":
        return
    libc, killed_by = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(killed_by))
    if killed_by.value:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
