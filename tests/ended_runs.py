"""Which runs of a sweep have ended? Tests of sweeps ask for them."""

from pathlib import Path

from jobs.store import MANIFEST


def ended_runs(sweep: Path) -> list[Path]:
    """The directories of the ended runs of a sweep, by name."""
    return [path.parent for path in sorted(sweep.glob(f"run_*_ret_*/{MANIFEST}"))]
