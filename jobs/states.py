"""Tell what has become of a run: done, failed, running, interrupted, not started or unusable."""

import glob
from pathlib import Path
from typing import Literal

from jobs import store
from jobs.owner import Owner, lives, owner_of
from jobs.run import Run
from jobs.run_fields import exit_code_of
from jobs.store import Manifest

State = Literal["done", "failed", "running", "interrupted", "not started", "unusable"]
NOT_ENDED: tuple[State, ...] = ("running", "interrupted", "not started")
CALIBRATING = ".calibration-"  # how a folder's name begins in which a sweep measures the machine's peaks
# Of combinations that a sweep does not run: how its lines on them begin, and those of every answer.
LEFT_OUT = "left out of the sweep"
RESUME = "start the sweep again to resume"
# Readers of results do not ask Slurm: a job that it has requeued may be waiting to do so.
QUEUED = "its jobs are queued or running (squeue --me)"


def state_of(sweep: Path, run: Run, repetition: int, outside: tuple[str, ...] = ()) -> State:
    """What has become of a run of a sweep; it is done only if its manifest says so."""
    directory = store.running_directory(sweep, run, repetition, outside)
    done = directory.with_name(directory.name + "_ret_0") / store.MANIFEST
    if done.is_file() and store.read_record(done, Manifest).done:
        return "done"
    ended = (path for path in sweep.glob(glob.escape(directory.name) + "_ret_*") if path.is_dir())
    latest = directory if directory.is_dir() else next(ended, None)
    if latest is None:
        return "not started"
    return "failed" if (latest / store.MANIFEST).is_file() else of_begun(latest)[0]


def of_begun(directory: Path) -> tuple[State, str]:
    """The state of a run that has begun and has no manifest, and how that is known. It only reads."""
    # A manifest is written before a folder gets such a name: this one was lost later.
    if (code := exit_code_of(directory.name)) is not None:
        return ("failed" if code else "unusable"), f"exit code {code}, manifest missing"
    owner = owner_of(directory)
    if owner is None:
        # A sweep that is stopped in order leaves no owner; a run that was started by hand never has one.
        by_hand = not (directory.parent / store.SWEEP).exists()
        return "interrupted", "by hand, unfinished" if by_hand else "sweep stopped"
    return ("running" if lives(directory, owner) else "interrupted"), _where(owner)


def of_failed(manifest: Manifest) -> State:
    """The state of a run that has ended, and not well, by its manifest."""
    return "interrupted" if manifest.failure == "interrupted" else "failed"


def where_calibrating(sweep: Path) -> str:
    """Where a sweep measures the machine's peaks just now: ``on n1 (job 5)``; "" if none does."""
    known = (of_begun(directory) for directory in sorted(sweep.glob(f"{CALIBRATING}*")))
    return next((where for state, where in known if state == "running"), "")


def _where(owner: Owner) -> str:
    return f"on {owner.host}" + (f" (job {owner.job})" if owner.job else "")
