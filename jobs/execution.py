"""One execution of a sweep: its runs, where results go, what starts its ranks, and its record ``sweep.json``.

By the record readers know the runs that never started. Several calls may ask for parts of a sweep
(``--only``): it holds what all of them asked for.
"""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jobs import states, store
from jobs.flags import to_flags
from jobs.launchers.base import Launcher
from jobs.owner import Owner
from jobs.program import command_of
from jobs.run import Run
from jobs.store import Manifest
from jobs.sweep_file import Excluded, Sweep, SweepRun, ordered
from profiling.errors import UserError
from profiling.wrap import wrapped

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Execution:
    """A sweep, where its results go, and what starts its ranks."""

    sweep: Sweep
    directory: Path
    launcher: Launcher
    keep_raw: bool = False
    pack: bool = False  # runs side by side, where there are nodes for them
    root: Path = ROOT

    def running(self, sweep_run: SweepRun) -> Path:
        return store.running_directory(
            self.directory, sweep_run.configuration, sweep_run.repetition, sweep_run.outside
        )

    def command(self, run: Run, directory: Path) -> list[str]:
        """What every rank of a run executes, under its profiler where that watches from outside."""
        out = directory.absolute()
        rank = ["-m", "train", *to_flags(run)]
        if run.program:
            flags = [f"--batches={run.batches}"]
            if run.profile != "none":
                flags += [f"--profile={run.profile}", f"--attribute-from={run.first_attributed}"]
                flags += [f"--profile-mode={run.profile_mode}"]
            rank = ["-m", "profiling.watch", *flags, *command_of(run)]
        raw = ["--keep-raw"] if self.keep_raw else []
        python, *words = wrapped(
            run.profile, [sys.executable, *rank[:2], f"--out={out}", *raw, *rank[2:]], out, run.device,
            run.first_attributed, self.keep_raw, run.profile_mode, run.profile_kernels,
        )  # fmt: skip
        if not run.program:
            return [python, *words]
        # A program's ranks start in the folder of the user, and find each other by torchrun's variables.
        flags = [f"--folder={Path.cwd()}", f"--device={run.device}", f"--network={run.network}"]
        return [python, "-m", "train.torchrun", *flags, "--", *words]

    def state(self, sweep_run: SweepRun) -> states.State:
        """What has become of a run."""
        state = states.state_of(
            self.directory, sweep_run.configuration, sweep_run.repetition, sweep_run.outside
        )
        if state == "done":
            before = self.manifest_of_done(sweep_run).run
            for name in Run.model_fields:
                old, new = getattr(before, name), getattr(sweep_run.configuration, name)
                if old != new:
                    raise UserError(
                        f"{self.directory} holds runs with {name} {old}, and the sweep now says {new}: "
                        "copy the file under another name (the name is the sweep's), or give another --out"
                    )
        return state

    def manifest_of_done(self, sweep_run: SweepRun) -> Manifest:
        """What a run that is done says of itself."""
        ended = self.running(sweep_run).with_name(f"{sweep_run.id}_ret_0")
        return store.read_record(ended / store.MANIFEST, Manifest)


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
    if earlier is not None and record.sweep["run"] == earlier.sweep.get("run"):
        asked = {*record.order, *(left["id"] for left in record.excluded)}
        record.order += [one for one in earlier.order if one not in asked]
        record.excluded += [left for left in earlier.excluded if left["id"] not in asked]
        whys = earlier.why_not_started
        record.why_not_started = {one: why for one, why in whys.items() if one not in asked}
    store.write_record(path, record)
    return seed


@contextmanager
def noting_why_not_started(directory: Path, sweep_runs: Sequence[SweepRun], me: Owner) -> Iterator[None]:
    """Note in the sweep's record what ends this job, if something does that the user can put right."""
    try:
        yield
    except UserError as error:
        path = directory / store.SWEEP
        if path.exists():  # else no record asks for the runs, and nobody waits for them
            record = store.read_record(path, SweepRecord)
            why = f"{f'job {me.job}' if me.job else 'the sweep'} ended: {error}"
            record.why_not_started |= {one.id: why for one in sweep_runs if one.id in record.order}
            store.write_record(path, record)
        raise
