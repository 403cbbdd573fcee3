"""The report and manifest of a program that was watched (:mod:`profiling.watch`).

Each rank's report and the run's manifest say what was found of the program. The fields of a run that only our
own training loop has are not known of it.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from jobs import by_hand, store
from jobs.outcome import make_manifest
from jobs.processes import Ended
from jobs.program import PER_STEP
from jobs.run import LONGEST_PROGRAM, Run, make_run
from jobs.run_fields import wrong_values
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.identity import Identity, rank_on_node
from profiling.process_facts import facts_of_process
from profiling.watching.facts import GENERIC, ModelFacts
from profiling.watching.program import Program

PARENT = by_hand.PARENT
_JOBS = (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("PBS_JOBID",), ("LSB_JOBID",))


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
    """The process that started all ranks of this node: the first ancestor that is no part of this rank.

    Between the two may be a shell, which has the rank's variables as we do (``mpirun bash -c ...``).
    """
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
    """The run that a program was, by the report of one of its ranks, and its fields that are not known.

    Its backend is left to the ranks' reports: a program is the same on one rank, which exchanges nothing.
    Another number of optimizer steps ``per_step`` makes other steps of the same program.
    """
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
    """The report of a watched rank that ends now, for ``rank.json``.

    Of the parameters at the end it says nothing: a program may well divide them among its ranks.
    """
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
        parameter_digest="",
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


def write_manifest(
    directory: Path, me: Identity, program: Program, profile: str, ended: Ended, started: datetime,
    per_step: int = 1,
) -> Manifest:  # fmt: skip
    """Write the manifest of a watched program, once all ranks have left their reports."""
    report = store.read_record(tables.rank_directory(directory, me.rank) / store.RANK_REPORT, RankReport)
    run, unknown = run_of(report, me, program, profile, per_step)
    if not ended.exit_code:
        by_hand.wait_for_reports(directory, run.ranks)
    command = [sys.executable, *sys.orig_argv[1:]]
    manifest = make_manifest(run, 0, directory, ended, command, {}, started, by_hand.ROOT, unknown)
    store.write_record(directory / store.MANIFEST, manifest)
    return manifest
