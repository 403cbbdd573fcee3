"""The profilers: how each wraps a rank's command, and how its output is read.

To add one, write a subclass of :class:`profiling.tools.base.Profiler` and a line in :data:`TOOLS`. Its files
are read by a module of :mod:`profiling.readers`, which is imported only when needed.
"""

import shutil
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

from profiling.errors import UserError, did_you_mean
from profiling.readers.files import Origin, read_head, why_unreadable
from profiling.tools.base import Capture, Converted, Options, Profiler, Step, switch

__all__ = [
    "STARTED", "TOOLS", "Capture", "Converted", "Options", "Origin", "Profiler", "Step", "check_can_record",
    "check_mode", "open_capture", "switch", "tool",
]  # fmt: skip

# name -> module and class
TOOLS: dict[str, tuple[str, str]] = {
    "none": ("profiling.tools.base", "Profiler"),
    "torch": ("profiling.tools.torch_profiler", "TorchProfiler"),
    "pyprof": ("profiling.tools.others", "PyProf"),
    "nvprof": ("profiling.tools.nvidia", "Nvprof"),
    "nsys": ("profiling.tools.nvidia", "Nsys"),
    "tau": ("profiling.tools.others", "Tau"),
    "cupti": ("profiling.tools.cupti", "Cupti"),
    "ncu": ("profiling.tools.nvidia", "Ncu"),
    "vtune": ("profiling.tools.others", "Vtune"),
    "horovod": ("profiling.tools.others", "Horovod"),
    "inspector": ("profiling.tools.others", "Inspector"),
}
# What a sweep or a rank may name; PyProf's tables are read, but it is not started any more.
STARTED = tuple(name for name in TOOLS if name != "pyprof")


@cache
def tool(name: str) -> Profiler:
    """The profiler of a name; UserError: there is none of this name; the message names the nearest."""
    if name not in TOOLS:
        raise UserError(f"invalid profiler {name!r}{did_you_mean(name, TOOLS)}")
    module, of_class = TOOLS[name]
    profiler: Profiler = getattr(import_module(module), of_class)()
    return profiler


ON_A_CPU = "torch and nsys record CPU runs"


def check_mode(name: str, mode: str) -> None:
    modes = tool(name).modes
    if mode not in modes:
        raise UserError(f"profiler {name} has no mode {mode!r}{did_you_mean(mode, modes)}")


def check_can_record(name: str, options: Options, here: bool = True) -> None:
    """Raise UserError where a tool cannot record such a rank; ``here``: ranks find the same programs."""
    check_mode(name, options.mode)
    profiler = tool(name)
    if profiler.gpu_only and not options.gpu:
        raise UserError(
            f"profile {name} records GPU activity only, and this run computes on the CPU; {ON_A_CPU}"
        )
    if options.world_size > 1 and options.mode in profiler.one_rank_modes:
        raise UserError(
            f"profile {name}, mode {options.mode}, runs each kernel several times to read its counters, so a "
            f"collective of {options.world_size} ranks would never end: use one rank"
        )
    program = profiler.wrap([sys.executable], Path(), options)[0]
    if profiler.wraps and here and shutil.which(program) is None:
        raise UserError(f"profile {name} needs {program} on the PATH (see python -m jobs.doctor)")


def open_capture(
    profile: str,
    directory: Path,
    rank: int,
    keep_raw: bool = False,
    mode: str = "auto",
    all_threads: bool = False,
) -> Capture:
    """A capture for ``Run.profile``; one that records nothing where the tool works from outside the process.

    Args:
        directory: the rank's, for its tables and, with ``keep_raw``, what the tool writes itself, in ``raw``.
        all_threads: record all threads of Python's, as those of DataParallel's forward pass.
    """
    check_mode(profile, mode)
    return tool(profile).open_capture(directory, rank, keep_raw, mode, all_threads)


def recognise(path: Path) -> str | None:
    """The tool that wrote a file (or a folder of TAU's profiles), by its content; None: none is known."""
    if path.is_dir():
        return next((name for file in path.rglob("*") if (name := bundle_of(file)[1]) is not None), None)
    head = read_head(path)
    return next((name for name in TOOLS if tool(name).recognise(path, head)), None)


def read(path: Path, name: str | None = None) -> Converted:
    """A profiler's file as tables; ``name``: of the tool, None: recognised. UserError: unknown or broken."""
    return reader_of(path, name or recognise(path)).read(path)


def reader_of(path: Path, name: str | None) -> Profiler:
    """The profiler that wrote a file, by its name where that is known."""
    if name is None and path.is_dir():
        raise UserError(f"{path} is a folder of files; convert them one by one, or with profiling.convert")
    if name is None and (why := why_unreadable(path)):
        raise (UserError if path.stat().st_size else Unrecognised)(f"{path} {why}")
    readers = ", ".join(one for one in TOOLS if tool(one).reader)
    if name is None:
        raise Unrecognised(f"{path}: unrecognised format; supported: {readers} (--tool NAME)")
    if not tool(name).reader:
        raise UserError(f"--tool {name} writes no files to read; one of: {readers}")
    return tool(name)


class Unrecognised(UserError):
    """A file that no tool known here has written, or an empty one."""


def bundle_of(path: Path) -> tuple[Path, str | None]:
    """(the folder that a file is a part of, the tool whose file it is); the file itself and None if none."""
    for name in TOOLS:
        if (whole := tool(name).bundle(path)) != path:
            return whole, name
    return path, None
