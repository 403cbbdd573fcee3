"""Loss of scaling efficiency by part of the step.

The loss is 100 % minus the scaling efficiency: how much longer a step takes than with ideal scaling from the
baseline, divided by the step. A part's share is its growth per step and rank over the baseline's, for as many
images per rank; parts that shrank are negative. Steps are of unprofiled runs, parts of profiled ones, so that
what the profiler adds to both points cancels; growth that no part shows is unattributed. Exposed
communication is transfer (after the last rank entered the collective) and wait (before), where the
collectives of all ranks are known.

Intervals of parts cover the steps inside the profiled runs (Student's t over independent steps), not
differences between runs. A whole and its parts are drawn together, and cut to what the others allow.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, IN_RUN, Metric, names_of
from analysis.display.numbers import digits
from analysis.frames.anatomy import Anatomy, anatomy_of, traces_of
from analysis.frames.divide import PARTS, SPLIT, STAGES, WITHIN
from analysis.frames.study import Study
from analysis.measures.points import Point
from analysis.statistics import estimates, inside_run

# Communication is divided further where all ranks' collectives are known, idle time where launches are.
_KEPT = (*PARTS, *(name for part in SPLIT for name in WITHIN[part]))
# Also needed for the communication columns of scaled.
_WHOLES = (*PARTS, "overlapped_communication")
_ENDS = ("low", "high")
_HEADS = {
    "compute": ("compute", "computation (negative: it shrank)"),
    "exposed_communication": ("exposed\ncomm.", "exposed communication"),
    "exposed_loader": ("exposed\nloader", "exposed data loading"),
    "exposed_copies": ("other\ncopies", "other copies"),
    "idle": ("idle", "idle time"),
    "exposed_transfer": ("of it:\ntransfer", "transfer, a part of exposed communication, where known"),
    "exposed_wait": ("of it:\nwait", "waiting, a part of exposed communication, where known"),
    "idle_host_bound": ("of idle:\nhost-bound", "host-bound idle time, where known"),
    "idle_other": ("of idle:\nother", "other idle time, where known"),
}  # a name of _KEPT -> header and meaning
_LOSS = Metric(
    "loss_pct", "loss relative to ideal scaling from the baseline: 100 - scaling efficiency", "lost",
    CONFIDENCE, places=1,
)  # fmt: skip
_PARTS = tuple(
    Metric(f"loss_{name}_pct", f"part of loss_pct: growth of {meaning}", head, IN_RUN, places=1)
    for name, (head, meaning) in ((name, _HEADS[name]) for name in _KEPT)
)
_REST = Metric(
    "loss_unattributed_pct",
    "growth of unprofiled steps that profiled ones do not show (negative: these grew more)",
    "unattri-\nbuted",
    places=1,
)
_NOTE = Metric("loss_note", "reason why the parts are not available", text=True)
_NO_KERNELS = "no profiled run with kernels"
_NO_COLLECTIVES = "no collectives in the traces of several ranks"
_DISAGREE = "profiled and unprofiled runs disagree by more than half of the loss"
METRICS = (_LOSS, *_PARTS, _REST, _NOTE)
# In the data the ends of the parts' intervals come after all parts.
_PART_ENDS = tuple(
    Metric(end, f"end of the interval of {part.name}") for part in _PARTS for end in part.names[1:]
)
IN_DATA = (_LOSS, *(part.alone for part in _PARTS), _REST, *_PART_ENDS, _NOTE)
_RESAMPLES = 2000
# Profiled runs that leave more than this share of the loss without a part do not tell its cause ...
UNATTRIBUTED_SHARE = 0.5
_LEAST_UNATTRIBUTED_PCT = 5.0  # ... if that is more than identical runs differ by

# Profiled steps that took less or more than this, relative to unprofiled ones, are other steps.
_COMPARABLE = (0.8, 1.5)


# Of points: ns of a batch of a rank by part, mean over profiled runs, then means of resampled batches.
Anatomies = Mapping[Point, Mapping[str, np.ndarray]]


def read(study: Study) -> dict[str, Anatomy]:
    """The anatomies of profiled runs by their ids; none where all runs are of one rank.

    Read before there are points, so that runs with damaged tables are excluded.
    """
    runs = study.of_kind("run")
    if all(source.world_size == 1 for source in runs):
        return {}
    recorded = [source for source in runs if source.fields["profile"] != "none" and source.tables("kernels")]
    return {trace.source.id: anatomy_of(trace) for trace in traces_of(study, recorded)}


def anatomies_of(points: Sequence[Point], of_runs: Mapping[str, Anatomy]) -> Anatomies:
    """The anatomies of points of several ranks and of their baselines, of those of runs (:func:`read`)."""
    compared = [one for point in points if point.baseline for one in (point, point.baseline)]
    asked = dict.fromkeys((*(point for point in points if point.world_size > 1), *compared))
    return {point: _mean_anatomy(point, of_runs) for point in asked}


def _mean_anatomy(point: Point, of_runs: Mapping[str, Anatomy]) -> dict[str, np.ndarray]:
    each = [_of_run(run.id, of_runs[run.id]) for run, _ in point.profiled if run.id in of_runs]
    anatomies = [parts for parts in each if parts]
    # What one run does not know is not known of the point.
    names = [name for name in anatomies[0] if all(name in parts for parts in anatomies)] if anatomies else []
    return {name: np.mean([parts[name] for parts in anatomies], axis=0) for name in names}


def _of_run(run_id: str, ranks: Anatomy) -> dict[str, np.ndarray]:
    """Mean duration of each part in a batch of a rank, ns: as it was, then as it may be.

    Empty: no attributed batch has kernels; or several ranks are in it and no collective, which is not "0 ms":
    the profiler did not see it, and what it took would count as idle.
    """
    windows = sum(len(rank["wall_ns"]) for rank in ranks) / len(STAGES)
    if not windows or any("exposed_communication_ns" not in rank for rank in ranks):
        return {}
    # A seed of its own: the runs that are compared are resampled apart from each other.
    generator = np.random.default_rng(zlib.crc32(run_id.encode()))
    longest = float(_by_batch(ranks, "wall_ns").max())
    parts: dict[str, np.ndarray] = {}
    for whole in _WHOLES:
        within = WITHIN[whole] if whole in SPLIT else ()
        known = within and all(f"{name}_ns" in rank for name in within for rank in ranks)
        names = within if known else (whole,)
        means = np.array([sum(rank[f"{name}_ns"].sum() for rank in ranks) / windows for name in names])
        drawn = _drawn(means, np.array([_by_batch(ranks, f"{name}_ns") for name in names]), generator)
        # Few batches draw errors of any size: nothing takes less than no time, or more than a batch.
        parts |= dict(zip((*names, whole), np.clip(drawn, 0, longest), strict=True))
    return parts


def _drawn(means: np.ndarray, took: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """What a whole is made of, and the whole, (parts + 1, 1 + resamples): the means, then as they may be.

    NaN where the batches are too few to tell.
    """
    errors = inside_run.errors_of_means(took, _RESAMPLES, generator)
    if errors is None:
        errors = np.full((len(means) + 1, _RESAMPLES), np.nan)
    whole = np.append(means, means.sum())
    return whole[:, None] + np.column_stack([np.zeros(len(whole)), errors])


def _by_batch(ranks: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """What a rank spent on a part in each batch, ns, mean over the ranks that have the batch."""
    index, took = (np.concatenate([rank[one] for rank in ranks]) for one in ("step", name))
    _, which, rows = np.unique(index, return_inverse=True, return_counts=True)
    return np.bincount(which, weights=took) * len(STAGES) / rows


def loss_of(
    points: Sequence[Point], efficiency_pct: float, anatomies: Anatomies
) -> dict[str, float | str | None]:
    """The loss of a point, or of a group of them, in percentage points (:data:`METRICS`).

    Parts, idle as a whole, and what is not attributed add up to ``loss_pct``; parts are None where a point or
    its base has no anatomy, and the note says which.

    Args:
        anatomies: of the points and their baselines, as far as they are known.
    """
    row: dict[str, float | str | None] = dict.fromkeys(names_of(IN_DATA))
    lost = row["loss_pct"] = 100 - efficiency_pct
    pairs = [(point, point.baseline) for point in points if point.baseline]
    row["loss_note"] = _note(pairs, anatomies)
    if not pairs or row["loss_note"]:
        return row
    taken_ns = sum(point.images / point.rate.value * 1e9 for point in points)  # mean steps
    names = [name for name in _KEPT if all(name in anatomies.get(one, {}) for pair in pairs for one in pair)]
    for name in names:
        grown_ns = [
            anatomies[point][name] - _work(point, base) * anatomies[base][name] for point, base in pairs
        ]
        grown = 100 * np.sum(grown_ns, axis=0) / taken_ns
        row[f"loss_{name}_pct"] = float(grown[0])
        for end, bound in zip(_ENDS, estimates.interval(grown[1:]), strict=True):
            row[f"loss_{name}_pct_{end}"] = bound if np.isfinite(bound) else None
    for whole in SPLIT:
        row |= _within_each_other(row, f"loss_{whole}_pct", [f"loss_{name}_pct" for name in WITHIN[whole]])
    row["loss_unattributed_pct"] = lost - sum(float(row[f"loss_{name}_pct"] or 0) for name in PARTS)
    return row


def _within_each_other(row: Mapping[str, Any], whole: str, parts: Sequence[str]) -> dict[str, float]:
    """The ends of the intervals of a whole, and of the parts it is made of, as far as they allow each other.

    Each is as sure as its own batches allow: a part that drifts does not widen the other, and what is known
    of one tells of the rest, since none takes less than no time. Empty: one of them has no interval.
    """
    ends = {name: [row[f"{name}_{end}"] for end in _ENDS] for name in (whole, *parts)}
    if any(end is None for both in ends.values() for end in both):
        return {}
    cut = {}
    for name, (low, high) in ends.items():
        least, most = np.sum([ends[one] for one in parts if one != name], axis=0)
        if name != whole:
            least, most = ends[whole][0] - most, ends[whole][1] - least
        cut[f"{name}_low"], cut[f"{name}_high"] = float(max(low, least)), float(min(high, most))
    return cut


def without_meaningless_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with :data:`METRICS`; its parts are None, and the note says why, where they explain no loss.

    So it is where profiled steps are not those of unprofiled runs (:func:`other_steps`), or where both differ
    by more than half of what is lost.
    """
    rest, lost = row["loss_unattributed_pct"], row["loss_pct"]
    if rest is None:
        return dict(row)
    note = other_steps(row)
    if not note and abs(rest) > max(UNATTRIBUTED_SHARE * abs(lost), _LEAST_UNATTRIBUTED_PCT):
        note = _DISAGREE
    if not note:
        return dict(row)
    parts = [name for part in (*_PARTS, _REST) for name in part.names]
    return {**row, **dict.fromkeys(parts), "loss_note": note}


def other_steps(row: Mapping[str, Any]) -> str:
    """How much longer or shorter profiled steps were, if they cannot be the unprofiled ones; else empty.

    Args:
        row: of ``analysis.scaled``, with ``perturbation`` where both kinds of runs were recorded.
    """
    ratio = row.get("perturbation")
    if ratio is None or _COMPARABLE[0] <= ratio <= _COMPARABLE[1]:
        return ""
    return f"profiled/unprofiled steps: {digits(ratio, 3)}"


def _note(pairs: Sequence[tuple[Point, Point]], anatomies: Anatomies) -> str:
    """Why the parts of the loss are not known; empty: they are."""
    unknown = [one for pair in pairs for one in pair if not anatomies.get(one)]
    if not unknown:
        return ""
    if any(source.tables("kernels") for one in unknown for source, _ in one.profiled):
        return _NO_COLLECTIVES
    lacking = [
        name
        for name, points in zip(("configuration", "baseline"), zip(*pairs, strict=True), strict=True)
        if not all(anatomies.get(point) for point in points)
    ]
    return f"{_NO_KERNELS} of the {' and '.join(lacking)}"


def _work(point: Point, base: Point) -> float:
    """Images of a rank's step, relative to the baseline's."""
    return (point.images / point.world_size) / (base.images / base.world_size)
