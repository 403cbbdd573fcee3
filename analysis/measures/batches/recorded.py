"""Which batches of a rank did the profiler record?"""

from pathlib import Path

import numpy as np

from analysis.measures.batches.overlap import covered, union
from analysis.results.study import Source, Study
from profiling import tables


def attributed(study: Study, source: Source, directory: Path) -> dict[str, np.ndarray]:
    """The attributed batches of a rank; those that lack a time cannot be divided: a finding counts them."""
    table = tables.read(directory, "batches", tables.TIMES_OF_BATCHES)
    recorded = table.filter(table["attributed"])  # null is not attributed
    whole = recorded.drop_null()
    if len(whole) < len(recorded):
        study.note(
            f"attributed batches of {directory.name} that lack a time are left out: "
            f"{len(recorded) - len(whole)}",
            source,
        )
    return {name: whole[name].to_numpy() for name in tables.TIMES_OF_BATCHES}


def with_kernels(batches: dict[str, np.ndarray], kernels: dict[str, np.ndarray]) -> np.ndarray:
    """In which batches anything runs: one without was not idle, but not recorded.

    Args:
        batches: columns ``start_ns, end_ns``.
        kernels: columns ``start_ns, duration_ns``.
    """
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    return covered((batches["start_ns"], batches["end_ns"]), union(start, end)) > 0
