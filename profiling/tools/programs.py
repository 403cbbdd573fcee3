"""How does a tool's own program make one file of another, and what if it may not read counters?"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.tools.base import Step

_LIMIT_S = 1800
# What NVIDIA's tools print: the error's name, or the page that explains it.
_REFUSED = re.compile(rb"ERR_NVGPUCTRPERM|NVSOLN1000")
GRANT = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"


def run_step(step: Step, name: str) -> None:
    """Do a step of tool ``name``, if what it needs is there and what it makes is not.

    Raises:
        UserError: its program is not there, or fails; the message is the program's last word.
    """
    if not step.needs.exists() or step.makes.exists():
        return
    try:
        done = subprocess.run(step.argv, capture_output=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        raise UserError(
            f"{step.needs} needs {step.argv[0]} on the PATH (python -m jobs.doctor says how)"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"profiler {name}: {step.argv[0]} does not do its work ({error})") from None
    if step.output is not None:
        step.output.write_bytes(done.stdout)
    if done.returncode or not step.makes.exists():
        words = (done.stderr or done.stdout).decode("utf-8", "replace").split("\n")
        why = next((line.strip() for line in reversed(words) if line.strip()), f"exit code {done.returncode}")
        raise UserError(f"profiler {name}: {step.argv[0]} made no {step.makes} ({why[-200:]})")


def check_permission(tool: str, outputs: Iterable[Path]) -> None:
    """Raise where a tool says, in what it wrote, that it may not read counters.

    Raises:
        UserError: it may not; the message holds the line that grants it.
    """
    for path in outputs:
        if path.is_file() and _REFUSED.search(read_head(path)):
            raise UserError(
                f"{tool} has no permission to read the GPU's counters; an administrator grants it with the "
                f"line `{GRANT}` in a file of /etc/modprobe.d and a restart"
            )
