"""Which jobs of a sweep wait or run in Slurm's queue, however they were submitted?"""

import os
from pathlib import Path

from jobs import sweep
from jobs.cluster import QueuedJob, queued_jobs
from jobs.execution import ROOT
from jobs.sweep_file import read_sweep
from profiling.errors import EXIT_FAILED, UserError
from profiling.wording import noun, verb

SWEEP_SCRIPT = ROOT / "slurm/sweep.sh"
_SWEEP_OF_SCRIPT = "configs/resnet50.yaml"  # that it runs if none is named


class AlreadyQueued(UserError):
    """The sweep has jobs in the queue."""

    exit_code = EXIT_FAILED


def comment_of(directory: Path) -> str:
    """The comment of all jobs of a sweep, by which squeue finds them: where their results go."""
    return f"scaleprof {directory.absolute()}"


def check_not_queued(directory: Path) -> None:
    """Refuse a sweep of which jobs wait or run, if Slurm says so.

    Raises:
        AlreadyQueued: it names the jobs.
    """
    try:
        queued = queued_jobs(os.environ)
    except UserError:
        return  # sbatch itself says what is wrong with Slurm
    ours = comment_of(directory)
    jobs = [job.id for job in queued if job.comment == ours or results_of(job) == directory.resolve()]
    jobs.sort(key=lambda job: (len(job), job))  # as they were submitted
    if jobs:
        raise AlreadyQueued(
            f"{noun(len(jobs), 'job')} {', '.join(jobs)} of this sweep {verb(len(jobs), 'are')} queued or "
            "running already: nothing submitted (AGAIN=yes submits all the same)"
        )


def results_of(job: QueuedJob) -> Path | None:
    """Where the results of ``sbatch slurm/sweep.sh ...`` go; None for a job of another script."""
    script, *words = job.command.split() or [""]
    if Path(job.folder, script).resolve() != SWEEP_SCRIPT:
        return None
    try:
        arguments = sweep.parser().parse_args(words or [_SWEEP_OF_SCRIPT])
        return Path(job.folder, arguments.out, read_sweep(Path(job.folder, arguments.config)).name).resolve()
    except UserError:
        return None  # its sweep file is no longer there, or no longer right
