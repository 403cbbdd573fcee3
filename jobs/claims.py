"""Has anyone else started this run? Several sweeps may share a results directory, on several nodes.

Who starts a run owns its running directory, which appears whole, with a file that says whose it is. The owner
touches that file as long as it lives; a directory whose owner is gone may be taken over.
"""

import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel

from jobs import store
from profiling.errors import UserError

OWNER = "owner.json"
BEAT_S = 5.0
STALE_S = 60.0  # without a beat; file systems of clusters show changes late


class Owner(BaseModel):
    """The process that has started a run: where it is, and in which job of the batch system."""

    host: str
    pid: int
    started: float  # the process's start, seconds since the epoch: process ids come again
    job: str = ""
    restarts: int = 0  # of the job


def this_owner(environment: Mapping[str, str]) -> Owner:
    """This process as an owner."""
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        job=environment.get("SLURM_JOB_ID", ""),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


@dataclass(frozen=True)
class Claim:
    """What came of a claim: ours or not, and whose the directory was before."""

    ours: bool
    before: Owner | None = None


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


def owner_of(directory: Path) -> Owner | None:
    """Whose a running directory is; None if it was left in order."""
    try:
        return store.read_record(directory / OWNER, Owner)
    except UserError:
        return None


def is_gone(directory: Path, owner: Owner, me: Owner) -> bool:
    """Whether the owner of a directory has ended without leaving it."""
    if owner.host == me.host:
        return not _lives(owner)
    if owner.job and owner.job == me.job:
        return owner.restarts < me.restarts
    return last_beat_s(directory) > STALE_S


def _lives(owner: Owner) -> bool:
    try:
        return abs(psutil.Process(owner.pid).create_time() - owner.started) < 1
    except psutil.NoSuchProcess:
        return False


def last_beat_s(directory: Path) -> float:
    """Seconds since the owner's last beat, by the file system's own clock: those of nodes differ."""
    now = directory.parent / f".clock-{socket.gethostname()}-{os.getpid()}"
    try:
        now.touch()
        return now.stat().st_mtime - (directory / OWNER).stat().st_mtime
    except FileNotFoundError:
        return STALE_S + 1  # it has just been left
    finally:
        now.unlink(missing_ok=True)


def beat_of(directory: Path) -> float | None:
    """When the owner of a directory beat last; None if nobody owns it."""
    try:
        return (directory / OWNER).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


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
