"""What is lost to scaling, and in which parts of a batch?

Lost is 1 - scaling efficiency: by how much a batch exceeds that of ideal scaling from the base point, over
the batch. A part's share is by how much that part of the anatomy grew, a batch of a rank, from what the base
point's would be with as many images a rank; parts that shrank are negative. Durations are of unprofiled runs,
parts of profiled ones, whose growth is taken as it was measured: what a profiler adds to both points alike
cancels. The rest of the unprofiled growth, of either sign, is not attributed, and is a column of its own.
Exposed communication is made of transfer, since the last rank had come to a collective, and of the wait for
that rank, where the collectives of all ranks are known.

Intervals of parts are of the batches inside the profiled runs, as those of a mean (Student's t, for as many
as are independent). How much such runs differ from each other is not in them: a sweep has too few to tell.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.measures.anatomy.divide import PARTS, SPLIT, STAGES, WITHIN
from analysis.measures.anatomy.rows import anatomy_of
from analysis.results.study import Source, Study
from analysis.statistics import estimates, inside_run

if TYPE_CHECKING:
    from analysis.measures.scaling.points import Point

# Communication is divided further where all ranks' collectives are known, idle time where launches are.
_KEPT = (*PARTS, *(name for part in SPLIT for name in WITHIN[part]))
# What scaled shows beside the loss.
_READ = (*_KEPT, "overlapped_communication")
_ENDS = ("low", "high")
LOSS_COLUMNS = (
    "loss_pct", "loss_pct_low", "loss_pct_high",
    *(f"loss_{name}_pct" for name in _KEPT), "loss_unattributed_pct",
    *(f"loss_{name}_pct_{end}" for name in _KEPT for end in _ENDS), "loss_note",
)  # fmt: skip
_RESAMPLES = 2000


def add_anatomies(study: Study, points: Sequence["Point"]) -> None:
    """Give points of several ranks, and those they are compared with, the anatomy of profiled batches."""
    compared = [one for point in points if point.base not in (None, point) for one in (point, point.base)]
    for one in (*(point for point in points if point.world_size > 1), *compared):
        if one is not None and one.anatomy is None:
            runs = [source for source, _ in one.profiled]
            found = [parts for _, parts in study.each(runs, lambda source: _of_run(study, source)) if parts]
            # What one run does not know is not known of the point.
            names = [name for name in _READ if all(name in parts for parts in found)]
            one.anatomy = {name: np.mean([p[name] for p in found], axis=0) for name in names} if found else {}


def _of_run(study: Study, source: Source) -> dict[str, np.ndarray]:
    """Mean duration of each part in a batch of a rank, ns: as it was, then as it may be.

    Empty: no attributed batch has kernels.
    """
    ranks = anatomy_of(study, source) if source.tables("kernels") else []
    windows = sum(len(rank["wall_ns"]) for rank in ranks) / len(STAGES)
    if not windows:
        return {}
    # A seed of its own: the runs that are compared are resampled apart from each other.
    seed = zlib.crc32(source.id.encode())
    found = {}
    for name in _READ:
        if all(f"{name}_ns" in rank for rank in ranks):
            mean = sum(rank[f"{name}_ns"].sum() for rank in ranks) / windows
            again = mean + _drawn_errors(_by_batch(ranks, f"{name}_ns"), seed)
            found[name] = np.append(mean, again)
    return found


def _drawn_errors(took: np.ndarray, seed: int) -> np.ndarray:
    """By how much the mean of batches may be off, drawn; NaN where they are too few to tell."""
    error = inside_run.error_of_mean(took)
    if error is None:
        return np.full(_RESAMPLES, np.nan)
    return error[0] * np.random.default_rng(seed).standard_t(error[1], _RESAMPLES)


def _by_batch(ranks: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """What a rank spent on a part in each batch, ns, mean over the ranks that have the batch."""
    index, took = (np.concatenate([rank[one] for rank in ranks]) for one in ("batch_index", name))
    _, which, rows = np.unique(index, return_inverse=True, return_counts=True)
    return np.bincount(which, weights=took) * len(STAGES) / rows


def loss_of(points: Sequence["Point"], efficiency_pct: float) -> dict[str, float | str | None]:
    """The loss of a point, or of a group of them, in percentage points (:data:`LOSS_COLUMNS`).

    Parts, idle as a whole, and what is not attributed add up to ``loss_pct``; parts are None where a point or
    its base has no anatomy, and the note says which.
    """
    row: dict[str, float | str | None] = dict.fromkeys(LOSS_COLUMNS)
    lost = row["loss_pct"] = 100 - efficiency_pct
    pairs = [(point, point.base) for point in points if point.base is not None and point.base is not point]
    row["loss_note"] = _note(pairs)
    if not pairs or row["loss_note"]:
        return row
    taken_ns = sum(_batch_ns(point) for point in points)
    names = [name for name in _KEPT if all(name in (one.anatomy or {}) for pair in pairs for one in pair)]
    for name in names:
        grown = 100 * np.sum([_growth_ns(name, *pair) for pair in pairs], axis=0) / taken_ns
        row[f"loss_{name}_pct"] = float(grown[0])
        for end, bound in zip(_ENDS, estimates.interval(grown[1:]), strict=True):
            row[f"loss_{name}_pct_{end}"] = bound if np.isfinite(bound) else None
    row["loss_unattributed_pct"] = lost - sum(float(row[f"loss_{name}_pct"] or 0) for name in PARTS)
    return row


def _note(pairs: Sequence[tuple["Point", "Point"]]) -> str:
    """Why the parts of the loss are not known; empty: they are."""
    bases = {base.label for _, base in pairs if not base.anatomy}
    own = {point.label for point, _ in pairs if not point.anatomy}
    lacking = [
        f"at {what} ({', '.join(sorted(labels))})"
        for what, labels in (("the base point", bases), ("this point", own))
        if labels
    ]
    return f"no profiled run with kernels {' and '.join(lacking)}" if lacking else ""


def _growth_ns(name: str, point: "Point", base: "Point") -> np.ndarray:
    own, ideal = point.anatomy or {}, base.anatomy or {}
    work = (point.images / point.world_size) / (base.images / base.world_size)
    return own[name] - work * ideal[name]


def _batch_ns(point: "Point") -> float:
    """A batch by the job's rate, of which the efficiency is."""
    return point.images / point.rate.value * 1e9
