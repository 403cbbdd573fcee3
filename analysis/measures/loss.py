"""Loss of scaling efficiency by part of the step.

The loss is 100 % minus the scaling efficiency: the time by which a step exceeds ideal scaling from the
baseline, divided by the step. A part's share is its growth per step and rank since the baseline, for the same
number of images per rank; parts that shrank are negative. Step durations come from unprofiled runs, parts
from profiled ones: what the profiler adds equally at both sizes cancels. Growth that no part shows is
unattributed. Exposed communication is divided into transfer (after the last rank entered the collective) and
wait (before that), where the collectives of all ranks are known.

Intervals of parts cover the steps inside the profiled runs (Student's t over independent steps), not
differences between runs. A sum and its parts are sampled together, so that their intervals are consistent.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import CONFIDENCE, IN_RUN, Metric, names_of
from analysis.display.numbers import digits
from analysis.frames.anatomy import anatomy
from analysis.frames.behind import BEHIND, CAUSES, WAITS
from analysis.frames.divide import PARTS, SPLIT, STAGES, WITHIN
from analysis.frames.study import Study
from analysis.measures.batches import STAGES_SHOWN
from analysis.measures.points import Point
from analysis.statistics import estimates, inside_run

# Communication is divided further where all ranks' collectives are known, idle time where launches are.
_KEPT = (*PARTS, *(name for part in SPLIT for name in WITHIN[part]))
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
    Metric(
        f"loss_{name}_pct",
        f"part of loss_pct: growth of {meaning}",
        head,
        IN_RUN,
        places=1,
        detail=name not in PARTS,
    )
    for name, (head, meaning) in ((name, _HEADS[name]) for name in _KEPT)
)
_REST = Metric(
    "loss_unattributed_pct",
    "growth of unprofiled steps that profiled ones do not show (negative: these grew more)",
    "unattri-\nbuted",
    places=1,
)
# From stages alone, which every run has; waiting for late ranks is in none of them.
LATE_RANKS = "late_ranks"
BY_STAGES = (*STAGES_SHOWN, LATE_RANKS)
# Columns of scaled: the same of the mean step itself.
MEAN_STAGES = tuple(
    Metric(f"mean_{name}_ms", f"mean step, part of it: {meaning}", detail=True)
    for name, meaning in (
        *((stage, meaning) for stage, (_, meaning) in STAGES_SHOWN.items()),
        (LATE_RANKS, "waiting for late ranks"),
        *((name, f"waiting: the last rank was late due to {BEHIND[name]}") for name in WAITS),
    )
)
_MORE = (
    *(
        (name, f"of wait:\n{cause}", f"part of waiting: the last rank was late due to {BEHIND[name]}")
        for name, cause in zip(WAITS, CAUSES, strict=True)
    ),
    *(
        (stage, head, f"part of loss_pct from stages alone: growth of {meaning}")
        for stage, (head, meaning) in STAGES_SHOWN.items()
    ),
    (LATE_RANKS, "late\nranks", "part of loss_pct from stages alone: growth of waiting for late ranks"),
    ("few_steps", "in few\nsteps", "part of loss_pct in few long steps: growth of mean minus median step"),
)
_MORE_PARTS = tuple(
    Metric(f"loss_{name}_pct", meaning, head, places=1, detail=True) for name, head, meaning in _MORE
)
_NOTE = Metric("loss_note", "reason why the parts are not available", text=True, detail=True)
_NO_KERNELS = "no profiled run with kernels"
_NO_COLLECTIVES = "no collectives in the traces of several ranks"
_DISAGREE = "profiled and unprofiled runs disagree by more than half of the loss"
METRICS = (_LOSS, *_PARTS, _REST, *_MORE_PARTS, _NOTE)
_RESAMPLES = 2000
# Profiled runs that leave more than this share of the loss without a part do not tell its cause ...
UNATTRIBUTED_SHARE = 0.5
_LEAST_UNATTRIBUTED_PCT = 5.0  # ... if that is more than identical runs differ by

# Profiled steps that took less or more than this, relative to unprofiled ones, are other steps.
_COMPARABLE = (0.8, 1.5)

# Part -> ns of a step of a rank: the measured mean, then resampled ones.
Parts = Mapping[str, np.ndarray]


def parts_of_runs(study: Study) -> dict[str, Parts]:
    """The parts of the steps of profiled runs by their ids; none where all runs are of one rank.

    Read before there are points, so that runs with damaged tables are excluded.
    """
    runs = study.of_kind("run")
    if all(source.world_size == 1 for source in runs):
        return {}
    recorded = [source for source in runs if source.fields["profile"] != "none" and source.tables("kernels")]
    frame = anatomy(study, recorded)
    return {str(run): parts_of_run(str(run), of_run) for run, of_run in frame.groupby("run", sort=False)}


def parts_of_run(run: str, frame: pd.DataFrame) -> Parts:
    """The parts of the steps of a run.

    Empty: several ranks are in it and no collective, which is not "0 ms": the profiler did not see it, and
    what it took would count as idle.

    Args:
        frame: its rows of :func:`analysis.frames.anatomy.anatomy`.
    """
    ns = frame.filter(regex="_ns$").dropna(axis=1)  # what one rank does not know is not known of the run
    if "exposed_communication_ns" not in ns:
        return {}
    means = ns.sum() / len(ns) * len(STAGES)
    steps = ns.groupby(frame["step"]).mean() * len(STAGES)  # mean over the ranks that have the step
    # A seed of its own: the runs that are compared are resampled apart from each other.
    generator = np.random.default_rng(zlib.crc32(run.encode()))
    parts: dict[str, np.ndarray] = {}
    for whole in (*PARTS, "overlapped_communication"):
        within = WITHIN[whole] if whole in SPLIT else ()
        names = within if within and all(f"{name}_ns" in ns for name in within) else (whole,)
        columns = [f"{name}_ns" for name in names]
        sampled = _sampled(means[columns].to_numpy(), steps[columns].to_numpy().T, generator)
        # Few steps draw errors of any size: nothing takes less than no time, or more than a step.
        parts |= dict(zip((*names, whole), np.clip(sampled, 0, steps["wall_ns"].max()), strict=True))
    return parts | {name: np.array(means[f"{name}_ns"]) for name in WAITS if f"{name}_ns" in means}


def _sampled(means: np.ndarray, took: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """What a whole is made of, and the whole, (parts + 1, 1 + resamples): the means, then as they may be.

    NaN where the steps are too few to tell.
    """
    errors = inside_run.errors_of_means(took, _RESAMPLES, generator)
    if errors is None:
        errors = np.full((len(means) + 1, _RESAMPLES), np.nan)
    whole = np.append(means, means.sum())
    return whole[:, None] + np.column_stack([np.zeros(len(whole)), errors])


def parts_of_points(points: Sequence[Point], of_runs: Mapping[str, Parts]) -> dict[Point, Parts]:
    """The parts of points, mean over their profiled runs; what one run does not know is not known of them."""
    of_points: dict[Point, Parts] = {}
    for point in points:
        runs = [of_runs[run.id] for run, _ in point.profiled if of_runs.get(run.id)]
        names = [name for name in runs[0] if all(name in parts for parts in runs)] if runs else []
        of_points[point] = {name: np.mean([parts[name] for parts in runs], axis=0) for name in names}
    return of_points


def loss_of(points: Sequence[Point], efficiency_pct: float, parts: Mapping[Point, Parts]) -> dict[str, Any]:
    """The loss of a point, or of a group of them, in percentage points (:data:`METRICS`).

    Parts, idle as a whole, and what is not attributed add up to ``loss_pct``; parts are absent where a point
    or its base has none, and the note says which.
    """
    row: dict[str, Any] = {"loss_pct": 100 - efficiency_pct}
    pairs = [(point, point.baseline) for point in points if point.baseline]
    row["loss_note"] = _note(pairs, parts)
    if not pairs:
        return row
    taken_ns = sum(point.images / point.rate.value * 1e9 for point in points)  # mean steps

    def grown_pct(of: Callable[[Point], Any]) -> Any:
        """Growth of a time, ns a step of a point, from the baselines."""
        return 100 * sum(of(point) - _work(point, base) * of(base) for point, base in pairs) / taken_ns

    by_stages = grown_pct(lambda point: point.stages_ns).to_dict()
    by_stages[LATE_RANKS] = sum(by_stages[name] for name in WAITS)
    by_stages["few_steps"] = grown_pct(lambda point: point.tail_ns)
    row |= {f"loss_{name}_pct": pct for name, pct in by_stages.items()}
    if row["loss_note"]:
        return row
    for name in (*WAITS, *_KEPT):
        of_points = {one: parts[one].get(name) for pair in pairs for one in pair}
        if all(of is not None for of in of_points.values()):
            sampled = np.asarray(grown_pct(of_points.__getitem__))
            column = f"loss_{name}_pct"
            row |= {column: float(sampled)} if name in WAITS else estimates.columns_of(column, sampled)
    for whole in SPLIT:
        row |= _within_each_other(row, f"loss_{whole}_pct", [f"loss_{name}_pct" for name in WITHIN[whole]])
    attributed = sum(row.get(f"loss_{name}_pct", 0.0) for name in PARTS)
    return row | {"loss_unattributed_pct": row["loss_pct"] - attributed}


def _within_each_other(row: Mapping[str, Any], whole: str, parts: Sequence[str]) -> dict[str, float]:
    """The ends of the intervals of a whole, and of the parts it is made of, as far as they allow each other.

    Each is as sure as its own steps allow: a part that drifts does not widen the other, and what is known
    of one tells of the rest, since none takes less than no time. Empty: one of them has no interval.
    """
    ends = {name: np.array([row.get(f"{name}_{end}", np.nan) for end in ("low", "high")])
            for name in (whole, *parts)}  # fmt: skip
    if np.isnan(list(ends.values())).any():
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
    rest = row["loss_unattributed_pct"]
    if rest is None or np.isnan(rest):
        return dict(row)
    note = other_steps(row)
    if not note and abs(rest) > max(UNATTRIBUTED_SHARE * abs(row["loss_pct"]), _LEAST_UNATTRIBUTED_PCT):
        note = _DISAGREE
    if not note:
        return dict(row)
    parts = [*names_of((*_PARTS, _REST)), *(f"loss_{name}_pct" for name in WAITS)]
    return {**row, **dict.fromkeys(parts), "loss_note": note}


def other_steps(row: Mapping[str, Any]) -> str:
    """How much longer or shorter profiled steps were, if they cannot be the unprofiled ones; else empty.

    Args:
        row: of ``analysis.scaled``, with ``perturbation`` where both kinds of runs were recorded.
    """
    ratio = row.get("perturbation")
    if ratio is None or np.isnan(ratio) or _COMPARABLE[0] <= ratio <= _COMPARABLE[1]:
        return ""
    return f"profiled/unprofiled steps: {digits(ratio, 3)}"


def _note(pairs: Sequence[tuple[Point, Point]], parts: Mapping[Point, Parts]) -> str:
    """Why the parts of the loss are not known; empty: they are."""
    unknown = [one for pair in pairs for one in pair if not parts.get(one)]
    if not unknown:
        return ""
    if any(source.tables("kernels") for one in unknown for source, _ in one.profiled):
        return _NO_COLLECTIVES
    lacking = [
        name
        for name, points in zip(("configuration", "baseline"), zip(*pairs, strict=True), strict=True)
        if not all(parts.get(point) for point in points)
    ]
    return f"{_NO_KERNELS} of the {' and '.join(lacking)}"


def _work(point: Point, base: Point) -> float:
    """Images of a rank's step, relative to the baseline's."""
    return (point.images / point.world_size) / (base.images / base.world_size)
