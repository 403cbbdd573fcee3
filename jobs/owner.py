"""The lock of a run: a file in its directory that names the process which has started it.

The owner touches the file as long as it lives; the directory of one that is gone may be taken over.
"""

import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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


class Claim(NamedTuple):
    """Whether a directory is ours now, and whose it was before."""

    ours: bool
    before: Owner | None = None


def this_owner(environment: Mapping[str, str]) -> Owner:
    """This process as an owner."""
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        job=environment.get("SLURM_JOB_ID", ""),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def owner_of(directory: Path) -> Owner | None:
    """Whose a running directory is; None if it was left in order."""
    try:
        return store.read_record(directory / OWNER, Owner)
    except UserError:
        return None


def lives(directory: Path, owner: Owner, me: Owner | None = None, now: float | None = None) -> bool:
    """Whether the owner of a directory is still at work.

    Args:
        me: who asks, maybe a later start of its job.
        now: by the clock of the file system; those of nodes differ.
    """
    if owner.host == socket.gethostname():
        try:
            return abs(psutil.Process(owner.pid).create_time() - owner.started) < 1
        except psutil.NoSuchProcess:
            return False
    if me is not None and owner.job and owner.job == me.job:
        return owner.restarts >= me.restarts
    try:
        return (now or time.time()) - (directory / OWNER).stat().st_mtime <= STALE_S
    except (FileNotFoundError, NotADirectoryError):
        return False


def claim(directory: Path, me: Owner) -> Claim:
    """Make ``directory`` this process's own, empty but for the owner's file, unless a living one has it."""
    before = owner_of(directory)
    fresh = directory.with_name(f".claim-{me.host}-{me.pid}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        store.write_record(fresh / OWNER, me)
        if before is not None and lives(directory, before, me, (fresh / OWNER).stat().st_mtime):
            return Claim(False, before)
        with suppress(FileNotFoundError):  # there is none, or another process was faster
            store.remove(directory)
        fresh.rename(directory)  # fails if another process was faster: its directory is not empty
    except OSError:
        if directory.exists():
            return Claim(False, owner_of(directory))
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
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
