"""Run a tool's processes: around a rank, and to convert its files afterwards.

No process that a tool started outlives its caller. tau_exec, for example, is a shell: terminated, it would
leave its rank running.
"""

import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from profiling.errors import UserError
from profiling.readers.files import read_head
from profiling.tools.base import Step

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
# Signals that are passed on to the profiled processes: to end, and to say where they hang.
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_LIMIT_S = 1800
# What NVIDIA's tools print: the error's name, or the page that explains it.
_REFUSED = re.compile(rb"ERR_NVGPUCTRPERM|NVSOLN1000")
GRANT = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"


def run_tree(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command; signals to this process go to all that it started. Its exit code, as shells have it.

    What it started stays in this process's group, so that who kills the group leaves nothing behind.
    """
    if sys.platform == "linux":
        # Where the kernel is to kill this process with its parent, be asked instead, to end the others, too.
        libc, killed_by = ctypes.CDLL(None), ctypes.c_int()
        libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(killed_by))
        if killed_by.value:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    started: list[int] = []
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        for child in started:
            _send(number, child)

    # Before it starts: a signal in between would end this process alone.
    for number in _FORWARDED:
        signal.signal(number, forward)
    child = subprocess.Popen(command, env=dict(environment))
    started.append(child.pid)
    for early in tuple(received):
        _send(early, child.pid)
    code = child.wait()
    return 128 - code if code < 0 else code


def _send(number: int, child: int) -> None:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(child)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def run_step(step: Step, name: str) -> None:
    """Do a step of tool ``name`` if what it needs exists and what it makes does not; UserError: it fails."""
    if not step.needs.exists() or step.makes.exists():
        return
    try:
        done = subprocess.run(step.argv, capture_output=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        raise UserError(
            f"{step.needs} needs {step.argv[0]} on the PATH (see python -m jobs.doctor)"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"profiler {name}: {step.argv[0]} does not work ({error})") from None
    if step.output is not None:
        step.output.write_bytes(done.stdout)
    if done.returncode or not step.makes.exists():
        words = (done.stderr or done.stdout).decode("utf-8", "replace").split("\n")
        why = next((line.strip() for line in reversed(words) if line.strip()), f"exit code {done.returncode}")
        made = f"{step.argv[0]} made no {step.makes.name} of {step.needs}"
        raise UserError(f"profiler {name}: {made} ({why[-200:]})")


def check_permission(tool: str, outputs: Iterable[Path]) -> None:
    """Raise UserError, with the line that grants it, where a tool wrote that it may not read counters."""
    for path in outputs:
        if path.is_file() and _REFUSED.search(read_head(path)):
            raise UserError(
                f"{tool} has no permission to read the GPU's counters; an administrator grants it with the "
                f"line `{GRANT}` in a file of /etc/modprobe.d and a restart"
            )
