"""Which TAU is on the PATH, and does it serve this Python and this MPI?

What it was built with, its own ``tau-config`` says. Whether it serves is tried: it watches a Python that does
nothing, alone, under mpirun, and function by function (``profile_mode: python``).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.failures import explain
from jobs.launchers.mpirun import Mpirun
from jobs.run import make_run
from jobs.site import Site
from profiling.presence import Presence
from profiling.tools import Options, tool

_TIMEOUT_S = 60
_VERSION = "#define TAU_VERSION "
# Of tau-config's tags: what it is for those who do not configure TAU.
_PARTS = {"MPI": "MPI", "PYTHON": "Python", "PTHREAD": "threads", "OPENMP": "OpenMP", "CUPTI": "CUPTI"}


@dataclass(frozen=True)
class TauHere:
    """What the TAU on the PATH is and does.

    Attributes:
        version: as it says itself; "" if it does not.
        parts: what it was built with.
        alone, under_mpirun, in_python: why it cannot profile this Python alone, as a rank of mpirun, and
            function by function; "" if it can, None if that was not tried.
        mpi: whose mpirun it was tried under.
    """

    version: str
    parts: tuple[str, ...]
    alone: str
    under_mpirun: str | None = None
    in_python: str | None = None
    mpi: str = ""

    @property
    def serves(self) -> bool:
        """Whether ranks can run under it at all."""
        return not self.alone

    @property
    def detail(self) -> str:
        """It in one line."""
        what = f"TAU {self.version}".strip() + f" with {', '.join(self.parts) or 'neither MPI nor Python'}"
        if not self.serves:
            return f"{what}; it cannot profile this Python: {self.alone}"
        tried = {f"under mpirun ({self.mpi})": self.under_mpirun, "in profile_mode python": self.in_python}
        good = ["works with this Python", *(name for name, why in tried.items() if why == "")]
        bad = [f"not {name}: {why}" for name, why in tried.items() if why]
        return "; ".join([what, ", ".join(good), *bad])


def look_at_tau(environment: Mapping[str, str] = os.environ, gpu: bool = False) -> TauHere | None:
    """The TAU on the PATH; None if there is none.

    Args:
        gpu: it is to record what GPUs do, too.
    """
    program = shutil.which("tau_exec", path=environment.get("PATH"))
    if program is None:
        return None
    config = str(Path(program).with_name("tau-config"))
    tags = _ask([config, "--list-options"]).strip().split(",")
    settings = dict(line.split("=", 1) for line in _ask([config]).splitlines() if "=" in line)
    names = {**_PARTS, "PYTHON": _ask([settings.get("PYTHONINT", ""), "--version"]).strip() or "Python"}
    parts = tuple(name for tag, name in names.items() if tag in tags)
    version = _version(Path(settings.get("TAUROOT", "")))
    alone = _try(["-c", "import pytau"], Options(gpu=gpu), environment)
    if alone:
        return TauHere(version, parts, alone)
    mpirun = Mpirun.open(Site(), environment)
    under_mpirun = None
    if "MPI" in parts and mpirun.kind is not None:
        under_mpirun = _try(["-c", "import pytau"], Options(gpu=gpu), environment, under_mpirun=True)
    in_python = _try(["-c", "pass"], Options("python", gpu=gpu), environment)
    return TauHere(version, parts, alone, under_mpirun, in_python, mpirun.kind or "")


def presence_of(here: TauHere | None) -> Presence:
    """What :mod:`jobs.doctor` shows of it."""
    install = tool("tau").install
    if here is None:
        return Presence("tau_exec", False, "not on the PATH", install)
    return Presence("tau_exec", here.serves, here.detail, "" if here.serves else install)


def _version(root: Path) -> str:
    header = root / "include" / "TAU.h"
    lines = header.read_text(errors="replace").splitlines() if header.is_file() else []
    return next((line.removeprefix(_VERSION).strip('" ') for line in lines if line.startswith(_VERSION)), "")


def _ask(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _try(
    arguments: Sequence[str], options: Options, environment: Mapping[str, str], under_mpirun: bool = False
) -> str:
    """Run Python under TAU as a rank would be; why that failed, in TAU's or the loader's words; "" if not."""
    with tempfile.TemporaryDirectory() as folder:
        command = tool("tau").wrap([sys.executable, *arguments], Path(folder), options)
        variables = {**environment, **tool("tau").environment(Path(folder), options)}
        if under_mpirun:
            (process,) = Mpirun.open(Site(), environment).processes(make_run({}), command, Path(folder))
            command, variables = process.argv, {**variables, **process.environment}
        try:
            ended = subprocess.run(
                command, env=variables, cwd=folder, capture_output=True, text=True, errors="replace",
                timeout=_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if ended.returncode:
            reason = f"it ends with exit code {ended.returncode}"
            return explain(ended.returncode, reason, ended.stdout + ended.stderr).text
        return "" if any(Path(folder).glob("profile.*")) else "it writes no profile"
