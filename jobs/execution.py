"""One execution of a sweep: what is to run, where its results go, and what starts its ranks."""

import sys
from dataclasses import dataclass
from pathlib import Path

from jobs import states, store
from jobs.flags import to_flags
from jobs.launchers.base import Launcher
from jobs.program import command_of
from jobs.run import Run
from jobs.store import Manifest
from jobs.sweep_file import Sweep
from jobs.sweep_runs import SweepRun
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
        rank = _watched(run) if run.program else ["-m", "train", *to_flags(run)]
        command = wrapped(
            run.profile, [sys.executable, *rank[:2], f"--out={out}", *raw, *rank[2:]], out, run.device,
            run.first_attributed, self.keep_raw, run.profile_mode, run.profile_kernels,
        )  # fmt: skip
        return _as_by_torchrun(run, command) if run.program else command

    def state(self, sweep_run: SweepRun) -> states.State:
        """What has become of a run.

        Raises:
            UserError: it was done with other settings.
        """
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


def _watched(run: Run) -> list[str]:
    """A program of the user's under :mod:`profiling.watch`, as Python's arguments."""
    flags = [f"--batches={run.batches}"]
    if run.profile != "none":
        flags += [f"--profile={run.profile}", f"--attribute-from={run.first_attributed}"]
        flags += [f"--profile-mode={run.profile_mode}"]
    return ["-m", "profiling.watch", *flags, *command_of(run)]


def _as_by_torchrun(run: Run, command: list[str]) -> list[str]:
    """A program's ranks start in the folder of the user, and find each other by torchrun's variables."""
    python, *words = command
    flags = [f"--folder={Path.cwd()}", f"--device={run.device}", f"--network={run.network}"]
    return [python, "-m", "train.torchrun", *flags, "--", *words]
