"""Base classes of profilers, whose methods do nothing unless a tool overrides them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from profiling.findings import Finding
from profiling.presence import Presence, of_program
from profiling.readers.files import UNKNOWN, Origin
from profiling.tables import Converted, collect
from profiling.traced_job import TraceFacts

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True)
class Options:
    """What is asked of a tool that watches a rank from outside."""

    mode: str = "auto"  # one of the tool's ``modes``; "auto" is its usual one
    kernels: str = ""  # a regular expression; only kernels with such names have their counters read
    first_batch: int = 0  # the process switches the recording on when this batch begins; 0: all is recorded
    gpu: bool = False  # whether the rank computes on a GPU
    world_size: int = 1  # how many ranks there are
    rank: int = 0  # which of them it is
    metrics: str = ""  # counters that are read, separated by commas; "": the mode's


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
