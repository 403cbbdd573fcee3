"""Results of runs outside a sweep: training started by hand, and watched programs.

A run of ``python -m train`` gets its own directory, ``results/by-hand/<run id>``, with the first free
repetition number. Its rank 0 writes the manifest, as ``jobs.sweep`` does for the runs of a sweep.
"""

import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from jobs import store
from jobs.failures import Ended, Kind, make_manifest
from jobs.run import LONGEST_PROGRAM, Run, make_run, wrong_values
from jobs.run_fields import OUTSIDE_FIELDS, format_id, parse_id
from jobs.store import Manifest, RankReport
from jobs.sweep_file import PER_STEP
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_USE, UserError
from profiling.findings import Finding
from profiling.identity import Identity, rank_on_node
from profiling.process import GENERIC, ModelFacts, facts_of_process
from profiling.watching.program import Program

PARENT = Path("results") / "by-hand"
REPORTS_S = 60.0  # for the other ranks' reports to appear; file systems of clusters show changes late
_JOB_IDS = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("FLUX_JOB_ID",), ("PBS_JOBID",), ("LSB_JOBID",),
)  # fmt: skip
_LONGEST_ID = 200  # bytes: file systems take names of at most 255
# Left out of the name of a run where it would be too long.
_LONG_FIELDS = ("data", "profile_kernels", "profile_metrics")
_WELL = Ended(EXIT_DONE)
_LOGS = (".txt", ".log", ".out", ".err")  # how files end to which output is sent
_EXIT: dict[Kind | None, int] = {"interrupted": EXIT_INTERRUPTED, "wrong use": EXIT_WRONG_USE}


def is_by_hand(out: Path | None) -> bool:
    """Whether no sweep has started this run: a sweep puts a file of its own into a run's directory."""
    return out is None or not (out / store.OWNER).exists()


def check_unused(out: Path, overwrite: bool, others: bool = True) -> None:
    """Refuse ``--out`` where results are or, without ``others``, anything but ranks' folders and logs."""
    if (out / store.SWEEP).exists() or any(out.glob("run_*")):
        raise UserError(f"--out {out} holds a sweep; choose another folder")
    if not overwrite and (left := _written(out)):
        raise UserError(f"--out {out} already holds a run ({left[0].name}); another folder, or --overwrite")
    inside = sorted(out.iterdir()) if out.is_dir() and not others else []
    strange = [each.name for each in inside if not each.name.startswith("rank_") and each.suffix not in _LOGS]
    if strange and not (out / store.MANIFEST).exists():
        raise UserError(f"--out {out} holds other files ({', '.join(strange[:3])}); choose an empty folder")


def clear(out: Path) -> None:
    """Remove an earlier run's files from ``out``; what else is in it stays, and a profiler's folders do."""
    for path in _written(out):
        for file in [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]:
            file.unlink()


def _written(out: Path) -> list[Path]:
    """The manifest and the ranks' directories in ``out``, but for those with a profiler's folder only."""
    files = [path for name in ("*.parquet", store.RANK_REPORT) for path in out.glob(f"rank_*/{name}")]
    manifest = out / store.MANIFEST
    return [*([manifest] if manifest.exists() else []), *sorted({path.parent for path in files})]


@dataclass
class Folder:
    """The folder of a run by hand, which rank 0 makes when all ranks have met.

    An earlier run in it stays until the first step of this one is done.
    """

    run: Run
    out: Path | None  # as the user says
    path: Path | None = None  # once it is made
    is_users: bool = False  # it was there before
    begun: bool = False  # a step is done

    def __call__(self) -> Path:
        self.is_users = self.out is not None and self.out.exists()
        self.path = self.out or new_directory(self.run)
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path

    def begin(self) -> None:
        """The first step is done: the run takes the place of the one before."""
        if self.path is not None and not self.begun:
            self.begun = True
            clear(self.path)

    def end_early(self, why: str, kind: Kind | None, started: datetime) -> None:
        """Write why the run ended early.

        Before its first step one that is refused leaves no folder, and an earlier run stays as it is.
        """
        if self.path and not self.begun and (kind == "wrong use" or _written(self.path)):
            for directory in self.path.glob("rank_*"):
                remove_empty(directory, None if self.is_users else self.path)
        elif self.path:
            write_manifest(self.run, self.path, started, Ended(_EXIT.get(kind, EXIT_FAILED), why, kind))


def remove_empty(directory: Path, out: Path | None) -> None:
    """Remove a rank's folder, that of its run and :data:`PARENT`, as far as nothing is in them."""
    folders = [directory, *([out] if out else [])]
    if out and out.parent.parts[-len(PARENT.parts) :] == PARENT.parts:
        folders += out.parents[: len(PARENT.parts)]
    with suppress(OSError):  # something is in it: another rank's results, or another run's
        for folder in folders:
            folder.rmdir()


def new_directory(run: Run, parent: Path = PARENT) -> Path:
    """A new directory for a run, named by what distinguishes it and by the first repetition that is free."""
    outside = [name for name in OUTSIDE_FIELDS if getattr(run, name) != Run.model_fields[name].default]
    if len(format_id(run, outside=outside)) > _LONGEST_ID:
        outside = [name for name in outside if name not in _LONG_FIELDS]
    parent.mkdir(parents=True, exist_ok=True)
    repetition = 0
    while True:
        directory = parent / format_id(run, repetition, outside=outside)
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
        repetition += 1


def write_manifest(
    run: Run, directory: Path, started: datetime, ended: Ended = _WELL,
    command: Sequence[str] = (), unknown: Sequence[str] = (),
) -> Manifest:  # fmt: skip
    """Write the manifest of a run whose rank 0 has ended, once all ranks have left their reports."""
    ranks = [tables.rank_directory(directory, rank) for rank in range(run.ranks)]
    if not ended.exit_code:
        deadline = time.monotonic() + REPORTS_S
        while not all((rank / store.RANK_REPORT).exists() for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.05)
    run, differ = _common_steps(run, ranks) if run.program and not ended.exit_code else (run, [])
    repetition = 0
    with suppress(UserError):  # the user has named the directory
        repetition = parse_id(directory.resolve().name).repetition
    command = list(command) or [sys.executable, "-m", "train", *sys.argv[1:]]
    # This process's own environment is recorded anyway: no launcher of ours added to it.
    manifest = make_manifest(run, repetition, directory, ended, command, {}, started, unknown)
    manifest.findings.extend(differ)
    store.write_record(directory / store.MANIFEST, manifest)
    return manifest


def _common_steps(run: Run, ranks: Sequence[Path]) -> tuple[Run, list[Finding]]:
    """Leave out the last steps, which not every rank has done (``torch.distributed.algorithms.join``)."""
    try:
        steps = [tables.read(rank, "batches") for rank in ranks]
    except UserError:
        return run, []  # the run does not count
    least, most = min(map(len, steps)), max(map(len, steps))
    if not 0 < least < most:
        return run, []
    for rank, rows in zip(ranks, steps, strict=True):
        tables.write(rows.slice(0, least), rank, "batches")
    finding = Finding("steps_differ", data={"least": least, "most": most})
    return run.model_copy(update={"batches": least}), [finding]


def new_name(program: str, me: Identity, environment: Mapping[str, str]) -> str:
    """The name of a folder for a run of which each rank finds the same, before it has met the others."""
    ranks = f"{me.size}rank" + "s" * (me.size != 1)
    if me.size == me.local_size:
        process = psutil.Process() if me.size == 1 else _launcher_of(me, environment)
        when = datetime.fromtimestamp(process.create_time())
        return f"{program}-{ranks}-{when:%Y%m%d-%H%M%S}-{process.pid}"
    for names in _JOB_IDS:
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
        "nodes": max(1, me.size // me.local_size), "gpus_per_node": me.local_size, "profile": profile,
        "batches": report.batches_done, "workers": report.workers,
        "program": shlex.join([*of_watch, *program.words])[:LONGEST_PROGRAM],
        "device": "cpu" if report.device == "cpu" else "gpu",
    }  # fmt: skip
    name = program.name if report.model in GENERIC else report.model
    if model := re.sub(r"[^a-z0-9_]", "", name.lower()).lstrip("_0123456789")[:64]:
        known["model"] = model
    if report.grad:
        known["grad"] = report.grad
    if report.samples and not wrong_values({"batch": report.samples}):
        known["batch"] = report.samples
    observed = {"profile_mode", "attribute_from", "profile_kernels", "profile_metrics", "profile_schedule"}
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
    report = store.read_record(tables.rank_directory(directory, me.rank) / store.RANK_REPORT, RankReport)
    run, unknown = run_of(report, me, program, profile, per_step)
    return write_manifest(run, directory, started, ended, [sys.executable, *sys.orig_argv[1:]], unknown)
