"""Has anyone else started this run? Several sweeps may share a results directory, on several nodes.

Who starts a run owns its running directory, which appears whole, with a file that says whose it is. The owner
touches that file as long as it lives; a directory whose owner is gone may be taken over.
"""

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jobs import store
from jobs.owner import OWNER, Owner, is_gone, owner_of

BEAT_S = 5.0


@dataclass(frozen=True)
class Claim:
    """What came of a claim: ours or not, and whose the directory was before."""

    ours: bool
    before: Owner | None = None


def claimed(sweep: Path) -> list[Path]:
    """The directories of a sweep's runs that someone has claimed and not left, whether or not he lives."""
    return sorted(file.parent for file in sweep.glob(f"[!.]*/{OWNER}"))


def claim(directory: Path, me: Owner) -> Claim:
    """Make ``directory`` this process's own, empty but for the owner's file, unless a living one has it."""
    before = owner_of(directory) if directory.exists() else None
    if directory.exists():
        if before is not None and not is_gone(directory, before, me):
            return Claim(False, before)
        with suppress(FileNotFoundError):  # another process was faster
            store.remove(directory)
    fresh = directory.with_name(f".claim-{me.host}-{me.pid}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        store.write_record(fresh / OWNER, me)
        # Fails if another process was faster: its directory is not empty.
        fresh.rename(directory)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if directory.exists():
            return Claim(False, owner_of(directory))
        raise
    return Claim(True, before)


class Beat:
    """Touches the owner's file of a directory, now and then."""

    def __init__(self, directory: Path) -> None:
        self._path, self._last = directory / OWNER, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= BEAT_S:
            self._last = time.monotonic()
            with suppress(FileNotFoundError):
                os.utime(self._path)


def release(directory: Path) -> None:
    """Leave a directory in order: anyone may take it over at once. One that has ended is nobody's."""
    (directory / OWNER).unlink(missing_ok=True)
