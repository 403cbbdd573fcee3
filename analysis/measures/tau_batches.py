"""Step durations from TAU profiles: one row per rank and estimator, the best estimator first."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.display.metrics import IN_RUN, RANK, Metric, names_of
from analysis.display.terminal import Answer
from analysis.frames.measure import measure
from analysis.frames.study import Study
from analysis.measures.functions import sums_of_tools
from analysis.statistics import inside_run
from profiling.errors import UserError
from profiling.markers import STAGE_EVENT, stage_of_event
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, SCHEMAS, UPDATE

METRICS = (
    RANK,
    Metric("estimator", "event, timers, marks, stages or difference", text=True, key=True),
    Metric("steps", "number of steps"),
    Metric("step_ms", "step duration; interval of the difference: of the startup", interval=IN_RUN),
    Metric("preferred", "whether it is the best available estimate"),
)
COLUMNS = {"Columns:": METRICS}
_APPLICATION = ".TAU application"
_TIMER = re.compile(r"^Batch \d+$")
_STAGES = (FORWARD, BACKWARD, UPDATE, "Load Data", "Optimizer Step", "Allreduce Gradients")
# Of Student's t: start-up is skewed, so that the quantile of 95 % holds the truth in 90 % of cases
# (python -m benchmarks.interval_coverage --only differences).
_QUANTILE = 0.995
_LEAST_STARTS = 3  # of two the scatter is not known: Student's t is then 12.7 times it

Estimate = tuple[int, float, float, float]  # steps; ns, low, high


class Profile(NamedTuple):
    """What TAU recorded of a run; times in ns.

    Attributes:
        timers: ``calls`` and ``inclusive_ns`` by rank and function, threads summed.
        stages: ``count`` and ``ns`` (mean) by rank and stage, of its events.
        marks: ``start_ns`` of each step's end on a rank's first thread, by rank.
    """

    timers: pd.DataFrame
    stages: pd.DataFrame
    marks: pd.Series

    def application_ns(self, rank: int) -> float:
        """How long the whole run took; NaN if TAU did not say."""
        return float(self.timers["inclusive_ns"].get((rank, _APPLICATION), math.nan))


def read(study: Study) -> Profile:
    """The profile in a study's path: a file or folder of TAU's, or the tables of a run or rank.

    Raises:
        UserError: no profile of TAU, or damaged; or several.
    """
    found = sums_of_tools(study, ("intervals", "atomics", "markers"), "tau")
    intervals, atomics, markers = (
        found.get(name, pd.DataFrame(columns=SCHEMAS[name].names))
        for name in ("intervals", "atomics", "markers")
    )
    if len(runs := found.get("intervals", pd.DataFrame({"run": []}))["run"].unique()) > 1:
        raise UserError(f"{study.path} holds runs under TAU: name one of them, e.g. {study.path / runs[0]}")
    intervals["function"] = intervals["function"].astype(object)
    # Other threads' applications are parts of the first one's.
    intervals = intervals[(intervals["function"] != _APPLICATION) | (intervals["thread"] == 0)]
    timers = intervals.groupby(["rank", "function"])[["calls", "inclusive_ns"]].sum()
    events = atomics[atomics["event"].astype(str).str.match(STAGE_EVENT) & (atomics["count"] > 0)]
    named = pd.DataFrame(
        [stage_of_event(str(event)) for event in events["event"]], events.index, ["stage", "unit"]
    )
    stages = events.assign(stage=named["stage"], ns=events["mean"] * named["unit"].astype(float))
    stages = stages.drop_duplicates(["rank", "stage"], keep="last").set_index(["rank", "stage"])
    marks = markers[markers["thread"] == 0].set_index("rank")["start_ns"]
    return Profile(timers, stages[["count", "ns"]], marks)


def difference(whole_ns: float, starts_ns: Sequence[float], steps: int | None) -> Estimate | None:
    """By what a run took longer than runs of one step did.

    Args:
        steps: of the run; None: not known.
    """
    took = np.array(starts_ns, float)
    took = took[np.isfinite(took)]
    if not len(took) or not steps or steps < 2 or math.isnan(whole_ns):
        return None
    value = (whole_ns - float(np.median(took))) / (steps - 1)
    if len(took) < _LEAST_STARTS:
        return steps, value, math.nan, math.nan
    from scipy import stats

    # The run's own start-up is one more draw of what the others scatter by, and their median is off, too.
    scatter = float(took.std(ddof=1)) * math.sqrt(1 + math.pi / 2 / len(took)) / (steps - 1)
    reach = float(stats.t.ppf(_QUANTILE, len(took) - 1)) * scatter
    return steps, value, value - reach, value + reach


def _inside_run(took: np.ndarray) -> Estimate | None:
    if not len(took):
        return None
    estimate = inside_run.of_mean(took)
    return len(took), estimate.value, estimate.low, estimate.high


def _of_stages(timers: pd.DataFrame, stages: pd.DataFrame) -> Estimate | None:
    """By the stages that were timed in every step; what their scatter is TAU does not keep."""
    known = timers[timers.index.isin(_STAGES)].set_axis(["count", "ns"], axis=1)
    if known.empty:
        events = stages[stages.index.isin(_STAGES)]
        known = events.assign(ns=events["count"] * events["ns"])
    steps = int(known["count"].max()) if len(known) else 0
    return (steps, known["ns"].sum() / steps, math.nan, math.nan) if steps else None


def _estimates(
    profile: Profile, rank: int, starts: Sequence[Profile], steps: int | None
) -> dict[str, Estimate]:
    """Of a rank, the best first."""
    timers, stages = (
        frame[frame.index.get_level_values("rank") == rank].droplevel("rank")
        for frame in (profile.timers, profile.stages)
    )
    marks = np.sort(profile.marks[profile.marks.index == rank].to_numpy())
    event: Estimate | None = None
    if END_OF_BATCH in stages.index:
        event = int(stages["count"][END_OF_BATCH]), float(stages["ns"][END_OF_BATCH]), math.nan, math.nan
    of_batches = [took for name, took in timers["inclusive_ns"].items() if _TIMER.match(str(name))]
    estimates = {
        "event": event,
        "timers": _inside_run(np.array(of_batches)),
        "marks": _inside_run(np.diff(marks)),  # of every step but the first
        "stages": _of_stages(timers, stages),
    }
    counted = [one[0] + (name == "marks") for name, one in estimates.items() if one]
    whole = [start.application_ns(rank) for start in starts]
    known = max(counted, default=None) or steps
    estimates["difference"] = difference(profile.application_ns(rank), whole, known)
    return {name: one for name, one in estimates.items() if one is not None}


@measure(COLUMNS)
def tau_batches(study: Study, startup: Sequence[Path] = (), batches: int | None = None) -> Answer:
    """A row a rank and estimator, the best first.

    Args:
        study: its path is the profile's.
        startup: profiles of runs of one step.
        batches: steps of the run, where nothing in the profile says it.

    Raises:
        UserError: no profile of TAU, or nothing in it says how long a step is.
    """
    profile, starts = read(study), [read(Study(path)) for path in startup]
    rows: list[dict[str, Any]] = []
    for rank in profile.timers.index.unique("rank"):
        estimates = _estimates(profile, rank, starts, batches)
        for place, (name, (count, *ns)) in enumerate(estimates.items()):
            ms = dict(zip(METRICS[3].names, np.array(ns) / 1e6, strict=True))
            rows.append({"rank": rank, "estimator": name, "steps": count, **ms, "preferred": place == 0})
    if not rows:
        raise UserError(f"{study.path} holds no steps: give --startup and --batches")
    frame = pd.DataFrame(rows, columns=names_of(METRICS))
    return Answer(frame, METRICS, title="Step duration (TAU)")
