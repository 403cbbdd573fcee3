"""Which profilers are there? One file a profiler: how it wraps a rank's command, how its output is read.

A tool's module offers what it can of:

- ``recognise(path, head) -> bool``: is this file its output? ``head`` holds the file's first bytes,
  decompressed.
- ``read(path) -> Converted``: the file as tables.
- ``stream(path, findings) -> Iterator[(table's name, piece)]``: the same a piece at a time, for files that
  may be larger than memory; ``findings`` receives what is to be said.
- ``bundle(path) -> Path``: where many files are one result, the folder that stands for them.
- ``wrap(command, directory, options) -> list[str]``: the command that runs a rank under the tool, which
  writes to ``directory``, the rank's own; pure. ``environment(directory, options) -> dict[str, str]``:
  variables that it needs. ``finish(directory, options) -> list[Step]``: what is to be done when it has ended,
  so that its output can be read; ``outputs(directory) -> list[Path]``: that output. ``MODES``: what it can
  be asked for. ``PROGRAM_MAY_NOT_START``: it sometimes ends before it has started anything.
  ``ONLY_RANK_0_WRITES``: what it records of all ranks, rank 0 writes.
- ``ONLY_OF_GPUS``: it records what GPUs do, and of a rank on the CPU nothing.
- ``open_capture(directory, rank, keep_raw, mode, all_threads) -> Capture``: for a tool that records from
  inside.

Adding a tool is one file and one line in :data:`TOOLS`; its heavy imports belong inside its functions.
"""

import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from profiling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

TOOLS: dict[str, str] = {
    "none": "profiling.tools.none",
    "torch": "profiling.tools.torch_profiler",
    "pyprof": "profiling.tools.pyprof",
    "nvprof": "profiling.tools.nvprof",
    "nsys": "profiling.tools.nsys",
    "tau": "profiling.tools.tau",
    "cupti": "profiling.tools.cupti",
    "ncu": "profiling.tools.ncu",
    "vtune": "profiling.tools.vtune",
    "horovod": "profiling.tools.horovod",
}


@dataclass(frozen=True)
class Options:
    """What is asked of a tool that watches a rank from outside.

    Attributes:
        mode: one of the tool's ``MODES``; "auto" is its usual one.
        kernels: a regular expression; only kernels with such names have their counters read.
        first_batch: the process switches the recording on when this batch begins; 0: all is recorded.
        gpu: whether the rank computes on a GPU.
        world_size: how many ranks there are.
        rank: which of them it is.
    """

    mode: str = "auto"
    kernels: str = ""
    first_batch: int = 0
    gpu: bool = False
    world_size: int = 1
    rank: int = 0


@dataclass(frozen=True)
class Step:
    """A command that makes one file of another, if that is there and this is not.

    Attributes:
        output: takes what the command prints.
    """

    argv: list[str]
    needs: Path
    makes: Path
    output: Path | None = None


@dataclass
class Converted:
    """What a tool's output became: tables by name, and what is to be said of them."""

    tables: "dict[str, pa.Table]"
    findings: list[str] = field(default_factory=list)


_RANK = re.compile(r"(?:rank|worker)[_.-]?(\d{1,9})", re.IGNORECASE)


def rank_of(path: Path) -> int | None:
    """The rank that a file's name, or that of a folder it lies in, says (``rank3``, ``rank_0003``)."""
    found = [match for name in (path.name, *reversed(path.parent.parts)) if (match := _RANK.search(name))]
    return int(found[0][1]) if found else None


def collect(pieces: "Iterable[tuple[str, pa.Table]]", findings: list[str]) -> Converted:
    """What a tool's ``stream`` gives, as a whole; its tables may be absent."""
    import pyarrow as pa

    by_name: dict[str, list[pa.Table]] = {}
    for name, piece in pieces:
        by_name.setdefault(name, []).append(piece)
    tables = {name: pa.concat_tables(some).unify_dictionaries() for name, some in by_name.items()}
    return Converted(tables, findings)


class Capture(Protocol):
    """A recording of one rank from inside its process; the training loop starts and stops it.

    A tool that takes a schedule is started and stopped several times.
    """

    def prepare(self, model: "torch.nn.Module | None" = None) -> None:
        """Be on from now on, but keep nothing until :meth:`start`: the tool's own warm-up."""

    def start(self, model: "torch.nn.Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record, at the start of batch ``first_batch``; layers of ``model`` are named."""

    def stop(self) -> None:
        """Cease to record and take the hooks off the model; a second call does nothing."""

    def write(self) -> list[str]:
        """Write the tables; what was found on the way is returned, one sentence each."""


def tool(name: str) -> ModuleType:
    """The module of a tool.

    Raises:
        UserError: there is none of this name; the message names the nearest.
    """
    if name not in TOOLS:
        raise UserError(f"no profiler {name!r}{did_you_mean(name, TOOLS)}")
    return import_module(TOOLS[name])


def check_mode(name: str, mode: str) -> None:
    """Raise UserError where a tool has no such mode."""
    modes = getattr(tool(name), "MODES", {"auto": ""})
    if mode not in modes:
        raise UserError(f"profiler {name} has no mode {mode!r}{did_you_mean(mode, modes)}")


def why_not_on_a_cpu(name: str) -> str:
    """Why a tool is of no use to a rank that computes on the CPU; "" if it is."""
    if not getattr(tool(name), "ONLY_OF_GPUS", False):
        return ""
    why = f"profile {name} records what a GPU does, and this run computes on the CPU"
    return f"{why}; torch and nsys record that"


def why_not_installed(name: str, mode: str = "auto") -> str:
    """What a tool that watches a rank from outside lacks on the PATH; "" if nothing."""
    module = tool(name)
    if not hasattr(module, "wrap"):
        return ""
    program = module.wrap([sys.executable], Path(), Options(mode))[0]
    if shutil.which(program) is not None:
        return ""
    return f"profile {name} needs {program} on the PATH (python -m jobs.doctor says how)"


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
        directory: the rank's directory, where ``kernels.parquet`` and ``markers.parquet`` will be.
        rank: global rank, for the tables' rows.
        keep_raw: also keep what the tool itself writes, in ``directory/raw``.
        mode: one of the tool's ``MODES``.
        all_threads: the forward pass runs in several threads of Python's (DataParallel's, one a GPU), and all
            are to be recorded.
    """
    module = tool(profile) if profile in TOOLS else tool("none")
    if not hasattr(module, "open_capture"):
        module = tool("none")
    check_mode(profile, mode)
    capture: Capture = module.open_capture(directory, rank, keep_raw, mode, all_threads)
    return capture
