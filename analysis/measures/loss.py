"""Loss of scaling efficiency by part of the step.

The loss is 100 % minus the scaling efficiency: the time by which a step exceeds ideal scaling from the
baseline, divided by the step. A part's share is its growth per step and rank since the baseline, for the same
number of images per rank; parts that shrank are negative. Step durations come from unprofiled runs, parts
from profiled ones: what the profiler adds equally at both sizes cancels. Growth that no part shows is
unattributed.

Intervals of parts cover the steps inside the profiled runs (Student's t over independent steps, of
logarithms), not differences between runs. A sum and its parts are sampled together.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import CONFIDENCE, IN_RUN, Metric, names_of
from analysis.display.numbers import digits
from analysis.frames.anatomy import anatomy
from analysis.frames.divide import PARTS, SPLIT, STAGES, WITHIN
from analysis.frames.matching import BEHIND, CAUSES, WAITS
from analysis.frames.study import Study
from analysis.measures.anatomy import STAGES_SHOWN
from analysis.measures.points import as_columns


def _part(name: str, header: str, meaning: str, interval: str = "", detail: bool = True) -> Metric:
    return Metric(f"loss_{name}_pct", meaning, header, interval, places=1, detail=detail)


_LOSS = Metric("loss_pct", "100 - scaling efficiency", "lost", CONFIDENCE, places=1)  # fmt: skip
# Communication is divided further where all ranks' collectives are known, idle time where launches are.
_KEPT = {
    "compute": ("compute", "computation (negative: it shrank)"),
    "exposed_communication": ("exposed\ncomm.", "exposed communication"),
    "exposed_loader": ("exposed\nloader", "exposed data loading"),
    "exposed_copies": ("other\ncopies", "other copies"),
    "idle": ("idle", "idle time"),
    "exposed_transfer": ("of it:\ntransfer", "transfer, a part of exposed communication, where known"),
    "exposed_wait": ("of it:\nwait", "waiting, a part of exposed communication, where known"),
    "idle_host_bound": ("of idle:\nhost-bound", "host-bound idle time, where known"),
    "idle_other": ("of idle:\nother", "other idle time, where known"),
}
_PARTS = tuple(
    _part(name, header, f"part of loss_pct: growth of {meaning}", IN_RUN, detail=name not in PARTS)
    for name, (header, meaning) in _KEPT.items()
)
_REST = _part("unattributed", "unattri-\nbuted",
              "growth of unprofiled steps that profiled ones do not show (negative: these grew more)",
              detail=False)  # fmt: skip
# From stages alone, which every run has; waiting for late ranks is in none of them.
LATE_RANKS = "late_ranks"
BY_STAGES = (*STAGES_SHOWN, LATE_RANKS)
_STAGES = STAGES_SHOWN | {LATE_RANKS: ("late\nranks", "waiting for late ranks")}
# Columns of scaled: the same of the mean step itself.
MEAN_STAGES = tuple(
    Metric(f"mean_{name}_ms", f"mean step, part of it: {meaning}", detail=True)
    for name, meaning in (
        *((stage, meaning) for stage, (_, meaning) in _STAGES.items()),
        *((name, f"waiting: the last rank was late due to {BEHIND[name]}") for name in WAITS),
    )
)
_MORE_PARTS = (
    *(
        _part(name, f"of wait:\n{cause}", f"part of waiting: the last rank was late due to {BEHIND[name]}")
        for name, cause in zip(WAITS, CAUSES, strict=True)
    ),
    *(
        _part(stage, header, f"part of loss_pct from stages alone: growth of {meaning}")
        for stage, (header, meaning) in _STAGES.items()
    ),
    _part(
        "few_steps", "in few\nsteps", "part of loss_pct in few long steps: growth of mean minus median step"
    ),
)
_NOTE = Metric("loss_note", "reason why the parts are not available", text=True, detail=True)
_NO_KERNELS = "no profiled run with kernels"
_NO_COLLECTIVES = "no collectives in the traces of several ranks"
_DISAGREE = "profiled and unprofiled runs disagree by more than half of the loss"
METRICS = (_LOSS, *_PARTS, _REST, *_MORE_PARTS, _NOTE)
_RESAMPLES = 2000
_LARGEST_LOGARITHM = 50.0  # of a factor, beyond which it only overflows
# Profiled runs that leave more than this share of the loss without a part do not tell its cause ...
UNATTRIBUTED_SHARE = 0.5
_LEAST_UNATTRIBUTED_PCT = 5.0  # ... if that is more than identical runs differ by

# Profiled steps that took less or more than this, relative to unprofiled ones, are other steps.
_COMPARABLE = (0.8, 1.5)

# Part -> ns of a step of a rank, a row a point: the measured mean, then resampled ones; NaN: not known.
Parts = Mapping[str, pd.DataFrame]


def parts_of_runs(study: Study) -> pd.DataFrame:
    """The parts of the steps of profiled runs (:func:`parts_of_run`); none where all runs are of one rank.

    Read before there are points, so that runs with damaged tables are excluded.
    """
    runs = study.of_kind("run")
    several = any(source.world_size != 1 for source in runs)
    recorded = [source for source in runs if source.fields["profile"] != "none" and source.tables("kernels")]
    frame = anatomy(study, recorded if several else [])
    return pd.concat([
        parts_of_run(str(run), of_run) for run, of_run in frame.groupby("run", sort=False)
    ] or [parts_of_run("", frame)])  # fmt: skip


def parts_of_run(run: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The parts of the steps of a run, by its rows of :func:`analysis.frames.anatomy.anatomy`.

    Returns:
        A row a part, by ``run`` and ``part``: the mean of a step, ns, then resampled ones (NaN: unknown).
        None if several ranks are in it and no collective: the profiler did not see what they took.
    """
    ns = frame.filter(regex="_ns$").dropna(axis=1)  # what one rank does not know is not known of the run
    parts: dict[str, np.ndarray] = {}
    if len(ns) and "exposed_communication_ns" in ns:
        means = ns.sum() / len(ns) * len(STAGES)
        steps = ns.groupby(frame["step"]).mean() * len(STAGES)  # mean over the ranks that have the step
        longest, place = steps["wall_ns"].max(), {name: place for place, name in enumerate(ns)}
        of_steps, of_means = steps.to_numpy().T, means.to_numpy()[:, None]
        # A seed of its own: the runs that are compared are resampled apart from each other.
        generator = np.random.default_rng(zlib.crc32(run.encode()))
        for whole in (*PARTS, "overlapped_communication"):
            within = WITHIN[whole] if whole in SPLIT else ()
            names = within if within and all(f"{name}_ns" in ns for name in within) else (whole,)
            rows = [place[f"{name}_ns"] for name in names]
            taken, mean = of_steps[rows], of_means[rows]
            errors = estimates.errors_of_means(taken, _RESAMPLES, generator)
            if errors is None:  # the steps are too few to tell
                errors = np.full((len(rows) + 1, _RESAMPLES), np.nan)
            taken, mean = (np.vstack([of, of.sum(axis=0)]) for of in (taken, mean))
            # Errors of logarithms (the delta method): times are above 0, their means skewed by long steps.
            factors = np.exp(np.minimum(errors / np.where(mean > 0, mean, 1.0), _LARGEST_LOGARITHM))
            # Few steps draw errors of any size, whose factors would have none: nothing takes more than a
            # step, and a mean is not above the largest that was seen but by such an error.
            largest = taken.max(axis=1, keepdims=True)
            most = np.minimum(np.maximum(largest, mean + errors), longest)
            sampled = np.column_stack([mean, np.minimum(mean * factors, most)])
            parts |= dict(zip((*names, whole), sampled, strict=True))
        unknown = np.full(_RESAMPLES, np.nan)
        parts |= {name: np.append(means[f"{name}_ns"], unknown) for name in WAITS if f"{name}_ns" in means}
    index = pd.MultiIndex.from_product([[run], parts], names=["run", "part"])
    return pd.DataFrame(np.array(list(parts.values())).reshape(-1, 1 + _RESAMPLES), index)


def parts_of_points(points: pd.DataFrame, of_runs: pd.DataFrame) -> Parts:
    """The parts of points, mean over their profiled runs; what one run does not know is not known of them."""
    place = {source.id: place for place, runs in points["profiled"].items() for source, _ in runs}
    of_runs = of_runs.loc[of_runs.index.isin(place, level="run")]
    run, part = (of_runs.index.get_level_values(name) for name in ("run", "part"))
    point = run.map(place)
    groups = of_runs.groupby([point, part])
    runs = run.to_series().groupby(point).nunique()
    means = groups.mean(skipna=False)
    means = means[groups.size().to_numpy() == runs[means.index.get_level_values(0)].to_numpy()]
    return {str(name): of.droplevel("part").reindex(points.index) for name, of in means.groupby(level="part")}


def parts_of_loss(
    points: pd.DataFrame, base: pd.DataFrame, group: pd.Series, loss_pct: pd.Series, parts: Parts
) -> pd.DataFrame:
    """What the loss of each group of points is made of, in percentage points: :data:`METRICS` but the loss.

    Args:
        points, base: those that are compared, and the baseline of each.
        parts: of all points.

    Returns:
        A row a group. Parts, idle as a whole, and what is not attributed add up to the loss; they are NaN
        where a point or its base has none, and the note says which.
    """
    work = (points["images"] / points["world_size"]) / (base["images"] / base["world_size"])
    taken_ns = (
        (points["images"] / points["images_per_s"] * 1e9).groupby(group).sum(skipna=False)
    )  # mean steps

    def grown_pct(own: pd.DataFrame, of_base: pd.DataFrame) -> pd.DataFrame:
        """Growth of times, ns a step of a point, from the baselines."""
        growth = own - of_base.set_axis(own.index).mul(work, axis=0)
        return 100 * growth.groupby(group).sum(skipna=False).div(taken_ns, axis=0)

    stages = [f"{name}_ns" for name in (*STAGES_SHOWN, *WAITS)]
    by_stages = grown_pct(*(one[stages].assign(few_steps_ns=one["tail_ns"]) for one in (points, base)))
    by_stages[f"{LATE_RANKS}_ns"] = by_stages[[f"{name}_ns" for name in WAITS]].sum(axis=1, skipna=False)
    row = by_stages.rename(columns=lambda name: f"loss_{name.removesuffix('_ns')}_pct")
    row["loss_note"] = _notes(points, base, group, parts)
    sampled = {
        name: grown_pct(of.loc[points.index], of.loc[points["base"]])
        for name, of in parts.items()
        if name in (*WAITS, *_KEPT)
    }
    for name in {*_KEPT} & {*sampled}:
        row = row.assign(**as_columns(f"loss_{name}_pct", sampled[name]))
    for whole in SPLIT:
        row = _within_each_other(row, f"loss_{whole}_pct", [f"loss_{name}_pct" for name in WITHIN[whole]])
    attributed = row.reindex(columns=[f"loss_{name}_pct" for name in PARTS]).sum(axis=1)
    rest = (loss_pct - attributed).where(row["loss_note"] == "")
    # Where profiled runs explain too little, waits by cause are those of stages.
    slower_pct = points["slower_pct"].groupby(group).max()
    explained = rest.abs() <= most_unattributed(loss_pct.abs(), slower_pct)
    for name in {*WAITS} & {*sampled}:
        row[f"loss_{name}_pct"] = sampled[name][0].where(explained).fillna(row[f"loss_{name}_pct"])
    return row.assign(loss_unattributed_pct=rest)


def _within_each_other(row: pd.DataFrame, whole: str, parts: Sequence[str]) -> pd.DataFrame:
    """Intervals of a whole, and of the parts it is made of, cut to what they allow each other.

    Each is as sure as its own steps allow: a part that drifts does not widen the other, and what is known
    of one tells of the rest, since none takes less than no time.
    """
    every = [whole, *parts]
    lows, highs = ([f"{name}_{end}" for name in every] for end in ("low", "high"))
    row = row.reindex(columns=list(dict.fromkeys([*row, *lows, *highs])))
    known = row[[*lows, *highs]].notna().all(axis=1)
    low, high = (row.loc[known, ends].set_axis(every, axis=1) for ends in (lows, highs))
    for name, low_end, high_end in zip(every, lows, highs, strict=True):
        others = [one for one in parts if one != name]
        least, most = low[others].sum(axis=1), high[others].sum(axis=1)
        if name != whole:
            least, most = low[whole] - most, high[whole] - least
        row.loc[known, low_end] = np.maximum(low[name], least)
        row.loc[known, high_end] = np.minimum(high[name], most)
    return row


def without_meaningless_parts(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with :data:`METRICS`; parts are NaN, and the note says why, where they explain no loss.

    Profiled steps are not those of unprofiled runs (:func:`other_steps`), or both differ by more than half of
    what is lost.
    """
    rest = frame["loss_unattributed_pct"].abs()
    least_pct = most_unattributed(frame["loss_pct"].abs(), frame["slower_pct"])
    least_pct = least_pct.clip(lower=_LEAST_UNATTRIBUTED_PCT)
    note = frame["perturbation"].map(other_steps)
    note = note.where(note != "", np.where(rest > least_pct, _DISAGREE, ""))
    meaningless = (note != "") & rest.notna()
    parts = [*names_of((*_PARTS, _REST)), *(f"loss_{name}_pct" for name in WAITS)]
    frame = frame.copy()
    frame.loc[meaningless, [name for name in parts if name in frame]] = np.nan
    return frame.assign(loss_note=frame["loss_note"].mask(meaningless, note))


def most_unattributed(lost_pct: Any, slower_pct: Any) -> Any:
    """What parts may leave of a loss and still tell its cause: half of it, or what runs became slower by, as
    they may have been profiled before or after that.
    """
    slowed_pct = 100 * slower_pct / (100 + slower_pct)  # of the longer step
    return np.fmin(lost_pct, np.fmax(UNATTRIBUTED_SHARE * lost_pct, slowed_pct))


def other_steps(ratio: float | None) -> str:
    """How much longer or shorter profiled steps (``perturbation``) were, if other ones; else empty."""
    if ratio is None or np.isnan(ratio) or _COMPARABLE[0] <= ratio <= _COMPARABLE[1]:
        return ""
    return f"profiled/unprofiled steps: {digits(ratio, 3)}"


def _notes(points: pd.DataFrame, base: pd.DataFrame, group: pd.Series, parts: Parts) -> pd.Series:
    """Why the parts of the loss of each group are not known; empty: they are."""
    known = parts["compute"][0].dropna().index if parts else ()
    sides = {"configuration": (points, points.index), "baseline": (base, points["base"])}
    lacking = pd.DataFrame({name: ~pd.Index(of).isin(known) for name, (_, of) in sides.items()}, points.index)
    recorded = pd.DataFrame({
        name: [any(source.tables("kernels") for source, _ in runs) for runs in side["profiled"]]
        for name, (side, _) in sides.items()
    }, points.index)  # fmt: skip
    without_collectives = (lacking & recorded).any(axis=1).groupby(group).any()
    names = lacking.groupby(group).any().apply(lambda of: " and ".join(of.index[of]), axis=1)
    note = names.where(names == "", f"{_NO_KERNELS} of the " + names)
    return note.mask(without_collectives, _NO_COLLECTIVES)
