"""The profilers: how each is started, whether it is installed, and how its output is read.

To add one, write a subclass of :class:`Profiler`, whose methods do nothing unless a tool overrides them, and
a line in :data:`TOOLS`. Its files are read by a module of :mod:`profiling.readers`, which is imported only
when needed.
"""

import ctypes
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil
import pyarrow as pa

from profiling.errors import UserError, did_you_mean
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin, read_head, why_unreadable
from profiling.tables import Converted, collect
from profiling.traced_job import TraceFacts

if TYPE_CHECKING:
    from torch.nn import Module

_TIMEOUT_S = 20  # of a program that says its version


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


@dataclass(frozen=True)
class Options:
    """What is asked of a tool that watches a rank from outside."""

    mode: str = "auto"  # one of the tool's ``modes``; "auto" is its usual one
    kernels: str = ""  # a regular expression; only kernels with such names have their counters read
    first_batch: int = 0  # the process switches the recording on when this batch begins; 0: all is recorded
    gpu: bool = False  # whether the rank computes on a GPU
    world_size: int = 1  # how many ranks there are
    rank: int = 0  # which of them it is
    metrics: str = ""  # counters that are read, separated by commas; "": the mode's; of vtune: its options


@dataclass(frozen=True)
class Step:
    """A command that makes one file of another, if that is there and this is not."""

    argv: list[str]
    needs: Path
    makes: Path
    output: Path | None = None  # takes what the command prints


class Capture:
    """A recording of one rank from inside its process, switched on once or several times; here of nothing."""

    def prepare(self, model: "Module | None" = None) -> None:
        """Be on from now on, but keep nothing until :meth:`start`: the tool's own warm-up."""

    def start(self, model: "Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record, at the start of batch ``first_batch``; layers of ``model`` are named."""

    def stop(self) -> None:
        """Cease to record and take the hooks off the model; a second call does nothing."""

    def write(self) -> list[Finding]:
        """Write the tables; what was found on the way is returned."""
        return []


def switch(
    capture: Capture, recordings: Sequence[range], warm_up: int, index: int, model: "Module | None"
) -> None:
    """Batch ``index`` is about to begin: end or begin a recording, or warm up so many batches before one."""
    for recording in recordings:
        if index == recording.stop:
            capture.stop()
        if warm_up and index == recording.start - warm_up:
            capture.prepare(model)
        if index == recording.start:
            capture.start(model, first_batch=index)


class Profiler:
    """A profiler that records nothing; a tool overrides what it can do."""

    program: ClassVar[str] = ""  # that must be on the PATH; "" where the tool is a library
    version: ClassVar[tuple[str, ...]] = ("--version",)  # with which the program says its release
    install: ClassVar[str] = ""  # how one gets it, for :mod:`jobs.doctor`
    modes: ClassVar[Mapping[str, str]] = {"auto": ""}  # what it can be asked for, and what that records
    gpu_only: ClassVar[bool] = False  # it records nothing of a rank that computes on the CPU
    oldest_gpu: ClassVar[tuple[int, int] | None] = None  # lowest compute capability it records; None: any
    newest_gpu: ClassVar[tuple[int, int] | None] = None  # the highest
    wraps: ClassVar[bool] = False  # it watches a rank from outside its process, which :meth:`wrap` starts
    reader: ClassVar[str] = ""  # the module with ``recognise`` and ``stream``; loaded when a file is read
    analysed_as_it_is: ClassVar[bool] = False  # analysis reads these files themselves: no conversion
    writes: ClassVar[tuple[str, ...]] = ()  # the names of what :meth:`wrap` and :meth:`finish` leave
    only_rank_0_writes: ClassVar[bool] = False  # what it records of all ranks, rank 0 writes
    one_rank_modes: ClassVar[frozenset[str]] = frozenset()  # they run kernels again: collectives would hang

    def presence(self) -> Presence | None:
        """Whether it can be used on this machine, for :mod:`jobs.doctor`; None: nothing has to be there."""
        return of_program([self.program, *self.version], self.install) if self.program else None

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command that runs a rank under the tool, which writes to the rank's ``directory``; pure."""
        return list(command)

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """Variables that the wrapped command needs."""
        return {}

    def is_read_later(self, options: Options) -> bool:
        """Whether its files are kept as they are, to be read by :mod:`profiling.convert`."""
        return False

    def finish(self, directory: Path, options: Options) -> list[Step]:
        """What is to be done when the wrapped command has ended, so that its output can be read."""
        return []

    def outputs(self, directory: Path) -> list[Path]:
        """What :meth:`wrap` and :meth:`finish` leave, to be read by :meth:`stream`."""
        return [directory / name for name in self.writes]

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a file with these first bytes (decompressed) is the tool's; UserError: but unreadable."""
        return bool(self.reader) and import_module(self.reader).recognise(path, head)

    def bundle(self, path: Path) -> Path:
        """Where many files are one result, the folder that stands for them; else the file itself."""
        return path

    def stream(
        self, path: Path, findings: list[Finding], origin: Origin = UNKNOWN
    ) -> Iterator[tuple[str, pa.Table]]:
        """The tool's output as pieces of tables, each with its table's name; ``findings`` are added to.

        Raises:
            UserError: unreadable, truncated or foreign; the message names file and place.
        """
        if self.reader:
            yield from import_module(self.reader).stream(path, findings, origin)

    def facts(self, path: Path) -> TraceFacts | None:
        """What a trace says of its job; None: the file is no trace of a process. UserError: unreadable."""
        of_reader = getattr(import_module(self.reader), "facts", None) if self.reader else None
        facts: TraceFacts | None = of_reader(path) if of_reader else None
        return facts

    def read(self, path: Path, origin: Origin = UNKNOWN) -> Converted:
        """The tool's output as whole tables; see :meth:`stream`."""
        findings: list[Finding] = []
        return collect(self.stream(path, findings, origin), findings)

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> Capture:
        """A recording from inside the process; see :func:`profiling.tools.open_capture`."""
        return Capture()


# name -> module and class
TOOLS: dict[str, tuple[str, str]] = {
    "none": ("profiling.tools", "Profiler"),
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
    "onednn": ("profiling.tools.others", "OneDnn"),
}
# What a sweep or a rank may name: of the others files are read, but they are not started.
STARTED = tuple(name for name in TOOLS if name not in ("pyprof", "onednn"))


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
    """The tool that wrote a file or a folder (:meth:`Profiler.bundle`), by its content; None: none known."""
    if path.is_dir():
        return next((name for whole, name in map(bundle_of, path.rglob("*")) if whole == path and name), None)
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


# --- a tool's processes, around a rank and to convert its files -----------------------------------------

# No process that a tool started outlives its caller. tau_exec, for example, is a shell: terminated, it would
# leave its rank running.
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
# Signals that are passed on to the profiled processes: to end, and to say where they hang.
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_LIMIT_S = 1800  # of a step
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
