"""What was asked of a sweep: ``sweep.json``, by which readers know the runs that never started.

Several calls may ask for parts of it (``--only``): the record holds what all of them asked for.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jobs import store
from jobs.execution import Execution
from jobs.owner import Owner
from jobs.sweep_runs import Excluded, SweepRun, ordered
from profiling.errors import UserError


class SweepRecord(BaseModel):
    """``sweep.json``: what was asked, in which order, and what was left out."""

    sweep: dict[str, Any]
    order_seed: int
    launcher: str
    order: list[str] = []
    excluded: list[dict[str, str]] = []  # id and reason
    why_not_started: dict[str, str] = {}  # by id: what ended the job that was to start the run


def record_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """Write sweep.json and return the seed of the order: the sweep's, else the one of an earlier call."""
    execution.directory.mkdir(parents=True, exist_ok=True)
    path = execution.directory / store.SWEEP
    earlier = store.read_record(path, SweepRecord) if path.exists() else None
    seed = execution.sweep.order_seed
    if seed is None:
        seed = secrets.randbelow(2**31) if earlier is None else earlier.order_seed
    record = SweepRecord(
        sweep=execution.sweep.model_dump(),
        order_seed=seed,
        launcher=execution.launcher.name,
        order=[sweep_run.id for sweep_run in ordered(sweep_runs, execution.sweep, seed)],
        excluded=[{"id": left.sweep_run.id, "reason": left.reason} for left in excluded],
    )
    store.write_record(path, record if earlier is None else _with_earlier(record, earlier))
    return seed


def _with_earlier(record: SweepRecord, earlier: SweepRecord) -> SweepRecord:
    """The record with what earlier calls asked of the same sweep: --only does not make that smaller."""
    if record.sweep["run"] != earlier.sweep.get("run"):
        return record
    asked = {*record.order, *(left["id"] for left in record.excluded)}
    order = [*record.order, *(one for one in earlier.order if one not in asked)]
    excluded = [*record.excluded, *(left for left in earlier.excluded if left["id"] not in asked)]
    whys = {one: why for one, why in earlier.why_not_started.items() if one not in asked}
    return record.model_copy(update={"order": order, "excluded": excluded, "why_not_started": whys})


@contextmanager
def noting_why_not_started(directory: Path, sweep_runs: Sequence[SweepRun], me: Owner) -> Iterator[None]:
    """Note in the sweep's record what ends this job, if something does that the user can put right."""
    try:
        yield
    except UserError as error:
        _note(
            directory / store.SWEEP,
            sweep_runs,
            f"{f'job {me.job}' if me.job else 'the sweep'} ended: {error}",
        )
        raise


def _note(path: Path, sweep_runs: Sequence[SweepRun], why: str) -> None:
    """Note why runs did not start; nothing where no record asks for them: nobody then waits for them."""
    if not path.exists():
        return
    record = store.read_record(path, SweepRecord)
    whys = {sweep_run.id: why for sweep_run in sweep_runs if sweep_run.id in record.order}
    store.write_record(
        path, record.model_copy(update={"why_not_started": {**record.why_not_started, **whys}})
    )
