"""Which time limit does a job of the batch system need that comes no further, however often it starts?"""

import os
from math import ceil

from jobs.cluster import time_limit_s
from jobs.owner import Owner
from profiling.errors import EXIT_FAILED, UserError

_LOOKS_S = 60  # Slurm may send the signal of --signal so much earlier than was asked


class TooShort(UserError):
    """A job's time limit is too short for one run: another start of it would end in the same place."""

    exit_code = EXIT_FAILED


def too_short(me: Owner, what: str, had_s: float, needs_s: float) -> TooShort:
    """The error of a job that has been cut at the same place again.

    Args:
        what: it was at: a run, or what comes before the first.
        had_s: how long it was at that.
        needs_s: how long that takes.
    """
    limit_s = time_limit_s(me.job, os.environ)
    enough = f"--time={enough_minutes(limit_s, had_s, needs_s)} (minutes) or more"
    return TooShort(
        f"the time limit of job {me.job} is too short for {what}: cut after {had_s:.0f} s, as in the start "
        f"before; no run was finished, and the job is not requeued. Submit it again with "
        f"{enough if limit_s else 'a longer --time'}"
    )


def enough_minutes(limit_s: float, had_s: float, needs_s: float) -> int:
    """A job's time limit that suffices for what needs ``needs_s``, of which ``limit_s`` left ``had_s``."""
    return ceil((limit_s + max(0.0, needs_s - had_s) + _LOOKS_S) / 60)


def needed_s(had_s: float, at: str, most_s: float) -> float:
    """How long a run takes that after ``had_s`` was at step ``12/24``; without a step, ``most_s``."""
    done, _, steps = at.partition("/")
    return min(most_s, had_s * int(steps) / int(done)) if steps and int(done) else most_s
