"""The folder of a run that was started by hand, or watched, and its manifest: results like any others.

A run of ``python -m train`` gets a directory of its own, ``results/by-hand/<run id>``, with the first
repetition that is free. Its rank 0 writes the manifest, as ``jobs.sweep`` does for its runs.
"""

import itertools
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from jobs import store
from jobs.failures import Ended, Kind, make_manifest
from jobs.program import PER_STEP
from jobs.run import LONGEST_PROGRAM, Run, make_run
from jobs.run_fields import OUTSIDE_FIELDS, format_id, parse_id, wrong_values
from jobs.store import OWNER, Manifest, RankReport
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_USE, UserError
from profiling.findings import Finding
from profiling.identity import Identity, rank_on_node
from profiling.process_facts import facts_of_process
from profiling.watching.facts import GENERIC, ModelFacts
from profiling.watching.program import Program

PARENT = Path("results") / "by-hand"
ROOT = Path(__file__).resolve().parents[1]
_JOBS = (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("PBS_JOBID",), ("LSB_JOBID",))
REPORTS_S = 60.0  # for the other ranks' reports to appear; file systems of clusters show changes late
_LONGEST_ID = 200  # bytes: file systems take names of at most 255
_LONG_FIELDS = ("data", "profile_kernels")  # left out of the name of a run where it would be too long


def is_by_hand(out: Path | None) -> bool:
    """Whether no sweep has started this run: a sweep puts a file of its own into a run's directory."""
    return out is None or not (out / OWNER).exists()


_LOGS = (".txt", ".log", ".out", ".err")  # how files end to which output is sent


def check_unused(out: Path, overwrite: bool) -> None:
    """Refuse ``--out`` where results are."""
    if (out / store.SWEEP).exists() or any(out.glob("run_*")):
        raise UserError(f"--out {out} holds a sweep; choose another folder")
    if not overwrite and (left := _of_a_run(out)):
        raise UserError(f"--out {out} already holds a run ({left[0].name}); another folder, or --overwrite")


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

    An earlier run in it stays until the first step of this one is done.
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


def new_name(program: str, me: Identity, environment: Mapping[str, str]) -> str:
    """The name of a folder for a run of which each rank finds the same, before it has met the others."""
    ranks = f"{me.size}rank" + "s" * (me.size != 1)
    if me.size == me.local_size:
        process = psutil.Process() if me.size == 1 else _launcher_of(me, environment)
        when = datetime.fromtimestamp(process.create_time())
        return f"{program}-{ranks}-{when:%Y%m%d-%H%M%S}-{process.pid}"
    for names in _JOBS:
        if all(name in environment for name in names):
            job = ".".join(environment[name] for name in names)
            return f"{program}-{ranks}-{re.sub(r'[^A-Za-z0-9.-]', '-', job)}"
    raise UserError("ranks on several nodes need a folder that all of them see: give --out DIR")


def _launcher_of(me: Identity, environment: Mapping[str, str]) -> psutil.Process:
    """The first ancestor that is no part of this rank, as a shell is (``mpirun bash -c ...``)."""
    name, value = rank_on_node(environment, me.launcher)
    process = psutil.Process()
    while (parent := process.parent()) is not None:
        process = parent
        try:
            if process.environ().get(name) != value:
                break
        except psutil.Error:  # another user's: Slurm's daemon
            break
    return process


def run_of(
    report: RankReport, me: Identity, program: Program, profile: str, per_step: int = 1
) -> tuple[Run, list[str]]:
    """The run that a program was, by the report of one of its ranks, and its fields that are not known."""
    of_watch = [f"{PER_STEP}={per_step}"] if per_step > 1 else []
    known: dict[str, Any] = {
        "nodes": max(1, me.size // me.local_size),
        "gpus_per_node": me.local_size,
        "profile": profile,
        "program": shlex.join([*of_watch, *program.words])[:LONGEST_PROGRAM],
        "batches": report.batches_done,
        "workers": report.workers,
        "device": "cpu" if report.device == "cpu" else "gpu",
    }
    name = program.name if report.model in GENERIC else report.model
    if model := re.sub(r"[^a-z0-9_]", "", name.lower()).lstrip("_0123456789")[:64]:
        known["model"] = model
    if report.grad:
        known["grad"] = report.grad
    if report.samples and not wrong_values({"batch": report.samples}):
        known["batch"] = report.samples
    observed = {"profile_mode", "attribute_from", "profile_kernels", "profile_schedule"}
    return make_run(known), [name for name in Run.model_fields if name not in {*known, *observed}]


def report_of(
    me: Identity, model: ModelFacts, steps: int, samples: int, workers: int, startup_ns: int,
    findings: Sequence[Finding], exit_code: int,
) -> RankReport:  # fmt: skip
    """The report of a watched rank that ends now, for ``rank.json``."""
    import torch

    return RankReport(
        rank=me.rank,
        world_size=me.size,
        local_rank=me.local_rank,
        device=torch.cuda.get_device_name(model.device) if model.on_gpu else "cpu",
        backend=model.backend,
        batches_done=steps,
        images_done=steps * samples,
        losses_finite=True,
        parameter_digest="",  # a program may divide its parameters among its ranks
        parameters=model.parameters,
        gradient_elements=model.elements if me.rank == 0 else {},
        model=model.name,
        grad=model.grad,
        workers=workers,
        samples=samples,
        program_exit_code=exit_code,
        startup_ns=startup_ns,
        findings=list(findings),
        **facts_of_process([model.device] if model.device is not None else []),
    )


def write_program_manifest(
    directory: Path, me: Identity, program: Program, profile: str, ended: Ended, started: datetime,
    per_step: int = 1,
) -> Manifest:  # fmt: skip
    """Write the manifest of a watched program, once all ranks have left their reports."""
    report = store.read_record(tables.rank_directory(directory, me.rank) / store.RANK_REPORT, RankReport)
    run, unknown = run_of(report, me, program, profile, per_step)
    if not ended.exit_code:
        wait_for_reports(directory, run.ranks)
    command = [sys.executable, *sys.orig_argv[1:]]
    manifest = make_manifest(run, 0, directory, ended, command, {}, started, ROOT, unknown)
    store.write_record(directory / store.MANIFEST, manifest)
    return manifest
