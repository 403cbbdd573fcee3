"""Step duration from what TAU recorded of a run.

    python -m analysis.tau_batches PROFILE                         a run, its rank's folder, or TAU's files
    python -m analysis.tau_batches PROFILE --startup PROFILE ...   with runs of one step each

One row per rank and estimator, best estimator first.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from analysis.display import output
from analysis.display.metrics import IN_RUN, RANK, Metric, Rows
from analysis.display.terminal import Answer
from analysis.statistics import inside_run
from profiling import tables, tools
from profiling.errors import UserError, run_command
from profiling.findings import Finding, lines
from profiling.markers import STAGE_EVENT, stage_of_event
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE

_APPLICATION = ".TAU application"
_TABLES = ("intervals", "atomics", "markers")


class Profile:
    """A run's timers and events by rank; times in ns, those of the same name on several threads summed.

    Attributes:
        timers: rank -> function -> (calls, inclusive ns).
        events: rank -> rows of table ``atomics``.
        marks: rank -> when its first thread ended each batch, ns.
        findings: what is to be said of it.

    Raises:
        UserError: no profile of TAU, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.timers: dict[int, dict[str, tuple[float, float]]] = {}
        self.events: dict[int, list[dict[str, Any]]] = {}
        self.marks: dict[int, list[int]] = {}
        for name, table in self._read():
            for row in table.to_pylist():
                self._add(name, row)

    def _read(self) -> Iterator[tuple[str, pa.Table]]:
        if folders := folders_of_tables(self.path):
            for folder in folders:
                report = folder / "rank.json"
                found = orjson.loads(report.read_bytes()).get("findings", []) if report.exists() else []
                self.findings += map(Finding.from_json, found)
                for name in _TABLES:
                    if tables.table_path(folder, name).exists():
                        yield name, tables.read(folder, name)
            return
        converted = tools.read(self.path, "tau")
        self.findings += converted.findings
        yield from converted.tables.items()

    def _add(self, name: str, row: dict[str, Any]) -> None:
        if name == "atomics":
            self.events.setdefault(row["rank"], []).append(row)
        elif name == "markers" and row["thread"] == 0:
            self.marks.setdefault(row["rank"], []).append(row["start_ns"])
        elif name == "intervals":
            mine = self.timers.setdefault(row["rank"], {})
            if row["function"] == _APPLICATION and row["thread"]:
                return  # other threads' applications are parts of the first one's
            calls, took = mine.get(row["function"], (0.0, 0.0))
            mine[row["function"]] = (calls + (row["calls"] or 0), took + (row["inclusive_ns"] or 0))

    def application_ns(self, rank: int) -> float:
        """How long the whole run took; NaN if TAU did not say."""
        return self.timers.get(rank, {}).get(_APPLICATION, (0, math.nan))[1]


def folders_of_tables(path: Path) -> Sequence[Path]:
    """The folders of a run's ranks, or a rank's own, where TAU's tables lie in them; none: they do not.

    Raises:
        UserError: there are several runs below.
    """
    if not path.is_dir():
        return ()
    if _has_intervals(path):
        return (path,)
    ranks = sorted(folder for folder in path.glob("rank_*") if _has_intervals(folder))
    runs = sorted({file.parents[1] for file in path.glob("*/rank_*/intervals.parquet")})
    if not ranks and runs:
        raise UserError(f"{path} holds runs under TAU: name one of them, e.g. {runs[0]}")
    return ranks


def _has_intervals(folder: Path) -> bool:
    return tables.table_path(folder, "intervals").exists()


METRICS = (
    RANK,
    Metric(
        "estimator", "event, timers, marks, stages (time between missing), difference", text=True, key=True
    ),
    Metric("steps", "number of steps"),
    Metric("step_ms", "step duration; interval of the difference: of the startup", interval=IN_RUN),
    Metric("preferred", "whether it is the best available estimate"),
)
COLUMNS = {"Columns:": METRICS}
_BATCH_MS = METRICS[3].names
_TIMER = re.compile(r"^Batch \d+$")
_STAGES = (FORWARD, BACKWARD, UPDATE, "Load Data", "Optimizer Step", "Allreduce Gradients")
# Of Student's t: start-up is skewed, so that the quantile of 95 % holds the truth in 90 % of cases
# (python -m benchmarks.interval_coverage --only differences).
_QUANTILE = 0.995
_LEAST_STARTS = 3  # of two the scatter is not known: Student's t is then 12.7 times it

Estimate = tuple[int, float, float, float]  # batches; ns, low, high


def _stage_events(profile: Profile, rank: int) -> dict[str, tuple[int, float]]:
    """Stage (``End of Batch``: the whole batch) -> count and mean in ns, of its event."""
    events = {}
    for row in profile.events.get(rank, ()):
        if re.match(STAGE_EVENT, row["event"]) and row["count"]:
            stage, unit_ns = stage_of_event(row["event"])
            events[stage] = int(row["count"]), row["mean"] * unit_ns
    return events


def of_stages(profile: Profile, rank: int) -> Estimate | None:
    """By the stages that were timed in every batch; what their scatter is TAU does not keep."""
    timed = [profile.timers[rank][name] for name in _STAGES if name in profile.timers[rank]]
    events = _stage_events(profile, rank)
    stages = timed or [(count, count * mean) for name, (count, mean) in events.items() if name in _STAGES]
    batches = max((calls for calls, _ in stages), default=0)
    if not batches:
        return None
    return int(batches), sum(took for _, took in stages) / batches, math.nan, math.nan


def of_difference(
    profile: Profile, starts: Sequence[Profile], rank: int, batches: int | None
) -> Estimate | None:
    """By what a run took longer than runs of one batch did; see this file's docstring.

    Args:
        batches: of the run; None: not known.
    """
    took = np.array([start.application_ns(rank) for start in starts])
    took = took[np.isfinite(took)]
    whole = profile.application_ns(rank)
    if not len(took) or not batches or batches < 2 or math.isnan(whole):
        return None
    value = (whole - float(np.median(took))) / (batches - 1)
    if len(took) < _LEAST_STARTS:
        return batches, value, math.nan, math.nan
    from scipy import stats

    # The run's own start-up is one more draw of what the others scatter by, and their median is off, too.
    scatter = float(took.std(ddof=1)) * math.sqrt(1 + math.pi / 2 / len(took)) / (batches - 1)
    reach = float(stats.t.ppf(_QUANTILE, len(took) - 1)) * scatter
    return batches, value, value - reach, value + reach


def _inside_run(took: np.ndarray) -> Estimate:
    estimate = inside_run.of_mean(took)
    return len(took), estimate.value, estimate.low, estimate.high


def rows_of(profile: Profile, starts: Sequence[Profile], batches: int | None = None) -> Rows:
    """The answer's rows; see this file's docstring.

    Args:
        batches: of the run, where nothing in the profile tells.
    """
    answer: Rows = []
    for rank in sorted(profile.timers):
        event = _stage_events(profile, rank).get(END_OF_BATCH)
        timers = [took for name, (_, took) in profile.timers[rank].items() if _TIMER.match(name)]
        marks = np.diff(np.sort(profile.marks.get(rank, [])))  # of every batch but the first
        estimates: dict[str, Estimate | None] = {
            "event": (*event, math.nan, math.nan) if event else None,
            "timers": _inside_run(np.array(timers)) if timers else None,
            "marks": _inside_run(marks) if len(marks) else None,
            "stages": of_stages(profile, rank),
        }
        counts = [one[0] + (name == "marks") for name, one in estimates.items() if one]
        known = max(counts, default=None) or batches
        estimates["difference"] = of_difference(profile, starts, rank, known)
        answer += _rows(rank, {name: one for name, one in estimates.items() if one is not None})
    return answer


def _rows(rank: int, estimates: Mapping[str, Estimate]) -> Rows:
    return [
        {
            "rank": rank,
            "estimator": name,
            "steps": count,
            **{
                column: None if math.isnan(value) else value / 1e6
                for column, value in zip(_BATCH_MS, values, strict=True)
            },
            "preferred": place == 0,
        }
        for place, (name, (count, *values)) in enumerate(estimates.items())
    ]


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.tau_batches", __doc__, "PROFILE", COLUMNS)
    parser.add_argument(
        "--startup", type=Path, nargs="+", default=[], metavar="PROFILE", help="runs of one step"
    )
    parser.add_argument("--batches", type=int, metavar="N", help="number of steps, if the run marks none")
    arguments = parser.parse_args(words)
    profile = Profile(arguments.path)
    made = rows_of(profile, [Profile(path) for path in arguments.startup], arguments.batches)
    if not made:
        raise UserError(f"{arguments.path} holds no steps: give --startup and --batches")
    negative = [row["rank"] for row in made if row["estimator"] == "difference" and row["step_ms"] < 0]
    found = [*profile.findings, *(Finding("tables_of_startup", rank=rank) for rank in negative)]
    answer = Answer(made, METRICS, title="Step duration (TAU)", notes=lines(found))
    return output.emit(answer, None, arguments)


if __name__ == "__main__":
    run_command(main)
