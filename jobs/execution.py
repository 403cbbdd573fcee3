"""One execution of a sweep: what is to run, where its results go, and what starts its ranks."""

import sys
from dataclasses import dataclass
from pathlib import Path

from jobs import store
from jobs.flags import to_flags
from jobs.launchers.base import Launcher
from jobs.run import Run
from jobs.store import Manifest
from jobs.sweep_file import Sweep, SweepRun
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
        raw = ["--keep-raw"] if self.keep_raw else []
        out = directory.absolute()
        command = [sys.executable, "-m", "train", *to_flags(run), f"--out={out}", *raw]
        return wrapped(
            run.profile, command, out, run.device, run.first_attributed, self.keep_raw,
            run.profile_mode, run.profile_kernels,
        )  # fmt: skip

    def state(self, sweep_run: SweepRun) -> store.State:
        """Whether a run is done.

        Raises:
            UserError: it was done with other settings.
        """
        state = store.state_of(
            self.directory, sweep_run.configuration, sweep_run.repetition, sweep_run.outside
        )
        if state == "done":
            ended = self.running(sweep_run).with_name(f"{sweep_run.id}_ret_0")
            before = store.read_record(ended / store.MANIFEST, Manifest).run
            for name in Run.model_fields:
                old, new = getattr(before, name), getattr(sweep_run.configuration, name)
                if old != new:
                    raise UserError(
                        f"{self.directory} holds runs with {name} {old}, and the sweep now says {new}: "
                        "give the sweep another name, or another --out"
                    )
        return state
