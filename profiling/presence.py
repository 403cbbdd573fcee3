"""Optional software on this machine: whether it is installed, its release, and how to install it."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_TIMEOUT_S = 20


@dataclass(frozen=True)
class Presence:
    """A program or library as :mod:`jobs.doctor` shows it."""

    name: str
    present: bool
    detail: str  # which release it is, or what is wrong
    remedy: str = ""  # what to do where it cannot be used; "" where it can
    required: bool = False  # without it nothing works here, where of other things a user may do without
    group: str = ""  # below which it is shown


def of_program(command: Sequence[str], remedy: str) -> Presence:
    """Whether a program is on the PATH; ``command`` prints its version, e.g. ``["nsys", "--version"]``."""
    name = command[0]
    if shutil.which(name) is None:
        return Presence(name, False, "not on the PATH", remedy)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Presence(name, False, f"does not start: {error}", remedy)
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    if answer.returncode:
        why = lines[-1] if lines else f"exit code {answer.returncode}"
        return Presence(name, False, f"answers with an error: {why}", remedy)
    # nvprof's first line with a digit is its copyright.
    versions = (line for pattern in (r"\d+\.\d+", r"\d", "") for line in lines if re.search(pattern, line))
    return Presence(name, True, next(versions, "on the PATH")[:60])


def is_importable(module: str) -> bool:
    """Whether a module is installed, found without importing it (but for the packages it lies in)."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # a package that it lies in is not there
