"""The folder of a run that was started by hand, and its manifest: results like any others.

A run of ``python -m train`` gets a directory of its own, ``results/by-hand/<run id>``, with the first
repetition that is free. Its rank 0 writes the manifest, as ``jobs.sweep`` does for its runs.
"""

import itertools
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jobs import store
from jobs.failures import Kind
from jobs.outcome import make_manifest
from jobs.owner import OWNER
from jobs.processes import Ended
from jobs.run import Run
from jobs.run_fields import OUTSIDE_FIELDS
from jobs.run_id import format_id, parse_id
from jobs.store import Manifest
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_USE, UserError

PARENT = Path("results") / "by-hand"
ROOT = Path(__file__).resolve().parents[1]
REPORTS_S = 60.0  # for the other ranks' reports to appear; file systems of clusters show changes late
_LONGEST_ID = 200  # bytes: file systems take names of at most 255
_LONG_FIELDS = ("data", "profile_kernels")  # left out of the name of a run where it would be too long


def is_by_hand(out: Path | None) -> bool:
    """Whether no sweep has started this run: a sweep puts a file of its own into a run's directory."""
    return out is None or not (out / OWNER).exists()


# How files end to which output is sent.
_LOGS = (".txt", ".log", ".out", ".err")


def check_unused(out: Path, overwrite: bool) -> None:
    """Refuse ``--out`` where results are."""
    if (out / store.SWEEP).exists() or any(out.glob("run_*")):
        raise UserError(f"--out {out} holds a sweep; choose another folder")
    if not overwrite and (left := _of_a_run(out)):
        raise UserError(
            f"--out {out} already holds a run ({left[0].name}); choose another folder, or add --overwrite"
        )


def check_no_other_files(out: Path) -> None:
    """Refuse ``--out`` where the user keeps other things: all but ranks' folders and logs."""
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    others = [name for name in there if not name.startswith("rank_") and Path(name).suffix not in _LOGS]
    if others and not (out / store.MANIFEST).exists():
        raise UserError(f"--out {out} holds other files ({', '.join(others[:3])}); choose an empty folder")


_EXIT: dict[Kind | None, int] = {"interrupted": EXIT_INTERRUPTED, "wrong use": EXIT_WRONG_USE}


def clear(out: Path) -> None:
    """Remove an earlier run's files from ``out``; what else is in it stays, and a profiler's folders do."""
    for path in _of_a_run(out):
        for file in [one for one in path.iterdir() if one.is_file()] if path.is_dir() else [path]:
            file.unlink()


def made(out: Path) -> Path:
    """The folder ``out``, which is made where it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    return out


@dataclass
class Folder:
    """The folder of a run by hand, which rank 0 makes when all ranks have met.

    An earlier run in it stays until the first step of this one is done: until then a rank writes no file that
    the earlier one has, and what the user has asked for may turn out to be impossible.
    """

    make: Callable[[], Path]
    there: bool = False  # before the run: it is the user's
    path: Path | None = None  # once it is made
    begun: bool = False

    def __call__(self) -> Path:
        self.path = self.make()
        return self.path

    def begin(self) -> None:
        """The first step is done: the run takes the place of the one before."""
        self.begun = True
        if self.path is not None:
            clear(self.path)

    def end_early(self, run: Run, why: str, kind: Kind | None, started: datetime) -> str:
        """The manifest of a run that has not come to its end says why; what is to be said of its folder.

        A refused run leaves no folder, and one that ends before its first step an earlier one as it is.
        """
        if self.path is None:
            return ""
        keeps = not self.begun and bool(_of_a_run(self.path))
        if keeps or (kind == "wrong use" and not self.begun):
            if not self.there:
                shutil.rmtree(self.path)
                _remove_parents(self.path)
            for directory in self.path.glob("rank_*"):
                with suppress(OSError):  # an earlier run's files are in it, or a profiler's around the rank
                    directory.rmdir()
            return f"{self.path}: earlier run kept" if keeps else ""
        _write_manifest(run, self.path, Ended(_EXIT.get(kind, EXIT_FAILED), why, kind), started)
        return ""


def remove_empty(directory: Path, out: Path) -> None:
    """Remove a rank's folder, that of its run and :data:`PARENT`, as far as nothing is in them."""
    with suppress(OSError):  # something is in it: another rank's results, or another run's
        directory.rmdir()
        out.rmdir()
        _remove_parents(out)


def _remove_parents(out: Path) -> None:
    if out.parent.parts[-len(PARENT.parts) :] == PARENT.parts:
        with suppress(OSError):  # other runs are in it
            for folder in out.parents[: len(PARENT.parts)]:
                folder.rmdir()


def _of_a_run(out: Path) -> list[Path]:
    """The manifest and the ranks' directories in ``out``; one that holds a profiler's folder only is none."""
    written = [path for name in ("*.parquet", store.RANK_REPORT) for path in out.glob(f"rank_*/{name}")]
    manifest = out / store.MANIFEST
    return [*([manifest] if manifest.exists() else []), *sorted({path.parent for path in written})]


def new_directory(run: Run, parent: Path = PARENT) -> Path:
    """A new directory for a run, named by what distinguishes it and by the first repetition that is free."""
    parent.mkdir(parents=True, exist_ok=True)
    for repetition in itertools.count():
        directory = parent / format_id(run, repetition, outside=_distinguishing(run))
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise AssertionError("numbers never end")


def _distinguishing(run: Run) -> tuple[str, ...]:
    """The fields outside a run id that are not at their default, as many as the name of a file can hold."""
    fields = [name for name in OUTSIDE_FIELDS if getattr(run, name) != Run.model_fields[name].default]
    if len(format_id(run, outside=fields)) > _LONGEST_ID:
        fields = [name for name in fields if name not in _LONG_FIELDS]
    return tuple(fields)


def write_manifest(run: Run, directory: Path, started: datetime) -> Manifest:
    """Write the manifest of a run whose rank 0 has ended, once all ranks have left their reports."""
    wait_for_reports(directory, run.ranks)
    return _write_manifest(run, directory, Ended(EXIT_DONE), started)


def _write_manifest(run: Run, directory: Path, ended: Ended, started: datetime) -> Manifest:
    command = [sys.executable, "-m", "train", *sys.argv[1:]]
    # This process's own environment is recorded anyway: no launcher of ours added to it.
    manifest = make_manifest(run, _repetition(directory), directory, ended, command, {}, started, ROOT)
    store.write_record(directory / store.MANIFEST, manifest)
    return manifest


def wait_for_reports(directory: Path, ranks: int) -> None:
    """Wait for the reports of ranks that end at this time."""
    reports = [tables.rank_directory(directory, rank) / store.RANK_REPORT for rank in range(ranks)]
    deadline = time.monotonic() + REPORTS_S
    while not all(path.exists() for path in reports) and time.monotonic() < deadline:
        time.sleep(0.05)


def _repetition(directory: Path) -> int:
    """The repetition that a directory's name says; of one that the user has named, 0."""
    try:
        return parse_id(directory.resolve().name).repetition
    except UserError:
        return 0
