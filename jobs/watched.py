"""What makes a program that was watched (:mod:`profiling.watch`) a result like any others?

Each rank's report and the run's manifest say what was found of the program. The fields of a run that only our
own training loop has are not known of it.
"""

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from jobs import by_hand, store
from jobs.outcome import make_manifest
from jobs.processes import Ended
from jobs.run import Run, make_run
from jobs.store import Manifest, RankReport
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.process_facts import device_used_bytes, peak_memory_bytes, torch_versions
from profiling.watching.facts import ModelFacts

PARENT = by_hand.PARENT
_JOBS = (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("PBS_JOBID",), ("LSB_JOBID",))


def new_name(program: str, me: Identity, environment: Mapping[str, str]) -> str:
    """The name of a folder for a run of which each rank finds the same, before it has met the others.

    Raises:
        UserError: the ranks are on several nodes, and nothing that all have tells this job from others.
    """
    ranks = f"{me.size}rank{'s' if me.size > 1 else ''}"
    if me.size == me.local_size:
        # What started all ranks of a node started them as its children; one alone is its own.
        process = psutil.Process() if me.size == 1 else psutil.Process().parent()
        assert process is not None
        when = datetime.fromtimestamp(process.create_time())
        return f"{program}-{ranks}-{when:%Y%m%d-%H%M%S}-{process.pid}"
    for names in _JOBS:
        if all(name in environment for name in names):
            job = ".".join(environment[name] for name in names)
            return f"{program}-{ranks}-{re.sub(r'[^A-Za-z0-9.-]', '-', job)}"
    raise UserError("ranks on several nodes need a folder that all of them see: give --out DIR")


@dataclass(frozen=True)
class Watched:
    """What is known of a program that was watched on one rank, for its report and its run.

    Attributes:
        program: its command.
        samples: of a step of this rank; 0: not known.
        workers: of its data loader.
    """

    me: Identity
    program: Sequence[str]
    profile: str
    model: ModelFacts
    steps: int
    samples: int
    workers: int
    startup_ns: int
    findings: Sequence[str] = ()


def run_of(one: Watched) -> tuple[Run, list[str]]:
    """The run that a program was, and those of its fields that are not known."""
    backend = one.model.backend.partition("/")[0]
    known: dict[str, Any] = {
        "nodes": max(1, one.me.size // one.me.local_size),
        "gpus_per_node": one.me.local_size,
        "profile": one.profile,
        "program": " ".join(one.program),
        "batches": one.steps,
        "workers": one.workers,
        "device": "gpu" if one.model.on_gpu else "cpu",
    }
    if model := re.sub(r"[^a-z0-9_]", "", one.model.name.lower()).lstrip("_0123456789")[:64]:
        known["model"] = model
    if one.model.grad:
        known["grad"] = one.model.grad
    if one.samples:
        known["batch"] = one.samples
    if backend in ("ddp", "horovod", "single"):
        known["backend"] = backend
    observed = {"profile_mode", "attribute_from", "profile_kernels", "profile_schedule"}
    return make_run(known), [name for name in Run.model_fields if name not in {*known, *observed}]


def report_of(one: Watched) -> RankReport:
    """The report of a watched rank that ends now, for ``rank.json``.

    Of the parameters at the end it says nothing: a program may well divide them among its ranks.
    """
    import torch

    device = one.model.device
    on_gpu = device is not None and one.model.on_gpu
    return RankReport(
        rank=one.me.rank,
        world_size=one.me.size,
        local_rank=one.me.local_rank,
        hostname=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        backend=one.model.backend,
        threads=torch.get_num_threads(),
        batches_done=one.steps,
        images_done=one.steps * one.samples,
        losses_finite=True,
        parameter_digest="",
        parameters=one.model.parameters,
        gradient_elements=one.model.elements if one.me.rank == 0 else {},
        startup_ns=one.startup_ns,
        peak_memory_bytes=peak_memory_bytes(),
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        peak_device_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        device_used_bytes=device_used_bytes(device) if on_gpu and device is not None else None,
        versions=torch_versions(on_gpu),
        findings=list(one.findings),
    )


def write_manifest(one: Watched, directory: Path, ended: Ended, started: datetime) -> Manifest:
    """Write the manifest of a watched program, once all ranks have left their reports."""
    run, unknown = run_of(one)
    if not ended.exit_code:
        by_hand.wait_for_reports(directory, run.ranks)
    command = [sys.executable, *sys.orig_argv[1:]]
    manifest = make_manifest(run, 0, directory, ended, command, {}, started, by_hand.ROOT, unknown)
    store.write_record(directory / store.MANIFEST, manifest)
    return manifest
