"""Which process has started a run, and does it live?

Until a run has ended its directory holds a file that says so, which the owner touches as long as it lives.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from pydantic import BaseModel

from jobs import store
from profiling.errors import UserError

OWNER = "owner.json"
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


def owner_of(directory: Path) -> Owner | None:
    """Whose a running directory is; None if it was left in order."""
    try:
        return store.read_record(directory / OWNER, Owner)
    except UserError:
        return None


def is_gone(directory: Path, owner: Owner, me: Owner) -> bool:
    """Whether the owner of a directory has ended without leaving it."""
    if owner.host == me.host:
        return not lives(owner)
    if owner.job and owner.job == me.job:
        return owner.restarts < me.restarts
    return last_beat_s(directory) > STALE_S


def lives(owner: Owner) -> bool:
    """Whether an owner on this host lives."""
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


def silence_s(directory: Path) -> float:
    """Seconds since the owner's last beat, by this host's clock, for those who may only read results."""
    beat = beat_of(directory)
    return STALE_S + 1 if beat is None else time.time() - beat
