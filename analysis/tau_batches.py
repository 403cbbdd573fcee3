"""How long does a batch take, by what TAU recorded of a run?

    python -m analysis.tau_batches PROFILE                         a file of TAU, or a folder of one run's
    python -m analysis.tau_batches PROFILE --startup PROFILE ...   beside runs of one batch each

A row a rank and estimator, the best first:

    estimator   event: mean of the event "Batch Duration"; timers: mean of the timers "Batch 0", "Batch 1",
                ...; marks: from one snapshot at the end of a batch to the next; stages: the stages' timers
                over the batches (what lies between them is missing, a note says so); difference:
                (T_N - T_1) / (N - 1), T the application's time, T_1 its median of one batch
    batches     over how many
    batch_ms    of a batch, ms
    batch_ms_low, batch_ms_high   its 95 % interval, ms. Of the difference it is that of start-up, which no
                two runs have alike: Student's t over the runs of one batch
    preferred   the best there is. The difference is that only where nothing better was recorded
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import output
from analysis.terminal import Answer, Rows
from profiling import convert
from profiling.errors import UserError, run_command
from profiling.tables import BACKWARD, FORWARD, UPDATE

COLUMNS = ("rank", "estimator", "batches", "batch_ms", "batch_ms_low", "batch_ms_high", "preferred")
_APPLICATION = ".TAU application"
_EVENT = re.compile(r"^Batch Duration \((ns|us|ms|s)\)$")
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_TIMER = re.compile(r"^Batch \d+$")
_STAGES = (FORWARD, BACKWARD, UPDATE, "Load Data", "Optimizer Step", "Allreduce Gradients")
_NORMAL_95 = 1.96
BETWEEN_STAGES = (
    "stages: what a batch does between its stages is missing, so that it took longer than that: TAU sums up "
    "timers, and nothing here times or marks a whole batch"
)

Estimate = tuple[int, float, float, float]  # batches; ns, low, high


class Profile:
    """A run's timers and events by rank; times in ns, those of the same name on several threads summed.

    Raises:
        UserError: no profile of TAU, or damaged.
    """

    def __init__(self, path: Path) -> None:
        converted = convert.read(path, "tau")
        self.path, self.findings = path, converted.findings
        self.timers: dict[int, dict[str, tuple[float, float]]] = {}  # calls, inclusive
        self.events: dict[int, list[dict[str, Any]]] = {}
        self.marks: dict[int, list[int]] = {}  # when the first thread ended each batch
        for row in converted.tables["intervals"].to_pylist():
            mine = self.timers.setdefault(row["rank"], {})
            if row["function"] == _APPLICATION and row["thread"]:
                continue  # other threads' applications are parts of the first one's
            calls, took = mine.get(row["function"], (0.0, 0.0))
            mine[row["function"]] = (calls + (row["calls"] or 0), took + (row["inclusive_ns"] or 0))
        for row in converted.tables["atomics"].to_pylist():
            self.events.setdefault(row["rank"], []).append(row)
        for row in converted.tables["markers"].to_pylist() if "markers" in converted.tables else ():
            if row["thread"] == 0:
                self.marks.setdefault(row["rank"], []).append(row["start_ns"])

    def application_ns(self, rank: int) -> float:
        """How long the whole run took; NaN if TAU did not say."""
        return self.timers.get(rank, {}).get(_APPLICATION, (0, math.nan))[1]


def of_event(profile: Profile, rank: int) -> Estimate | None:
    """By an event that the program triggers with each batch's duration."""
    for row in profile.events.get(rank, ()):
        found = _EVENT.match(row["event"])
        if found and row["count"]:
            unit = _UNITS_NS[found[1]]
            return _with_error(int(row["count"]), row["mean"] * unit, (row["std"] or 0) * unit)
    return None


def of_timers(profile: Profile, rank: int) -> Estimate | None:
    """By a timer a batch."""
    took = np.array([took for name, (_, took) in profile.timers[rank].items() if _TIMER.match(name)])
    return _with_error(len(took), float(took.mean()), float(took.std())) if len(took) else None


def of_marks(profile: Profile, rank: int) -> Estimate | None:
    """By the snapshots at the ends of batches: of every batch but the first."""
    took = np.diff(np.sort(profile.marks.get(rank, [])))
    return _with_error(len(took), float(took.mean()), float(took.std())) if len(took) else None


def of_stages(profile: Profile, rank: int) -> Estimate | None:
    """By the stages that were timed in every batch; what their scatter is TAU does not keep."""
    stages = [profile.timers[rank][name] for name in _STAGES if name in profile.timers[rank]]
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
    if len(took) == 1:
        return batches, value, math.nan, math.nan
    from scipy import stats

    # The run's own start-up is one more draw of what the others scatter by.
    scatter = float(took.std(ddof=1)) * math.sqrt(1 + 1 / len(took)) / (batches - 1)
    reach = float(stats.t.ppf(0.975, len(took) - 1)) * scatter
    return batches, value, value - reach, value + reach


def _with_error(count: int, mean: float, std: float) -> Estimate:
    reach = _NORMAL_95 * std / math.sqrt(count) if count > 1 else math.nan
    return count, mean, mean - reach, mean + reach


def rows_of(profile: Profile, starts: Sequence[Profile], batches: int | None = None) -> Rows:
    """The answer's rows; see this file's docstring.

    Args:
        batches: of the run, where nothing in the profile tells.
    """
    made: Rows = []
    for rank in sorted(profile.timers):
        found: dict[str, Estimate | None] = {
            "event": of_event(profile, rank),
            "timers": of_timers(profile, rank),
            "marks": of_marks(profile, rank),
            "stages": of_stages(profile, rank),
        }
        counts = [one[0] + (name == "marks") for name, one in found.items() if one]
        known = max(counts, default=None) or batches
        found["difference"] = of_difference(profile, starts, rank, known)
        made += _rows(rank, {name: one for name, one in found.items() if one is not None})
    return made


def _rows(rank: int, found: Mapping[str, Estimate]) -> Rows:
    return [
        {
            "rank": rank,
            "estimator": name,
            "batches": count,
            **{
                column: None if math.isnan(value) else value / 1e6
                for column, value in zip(COLUMNS[3:6], values, strict=True)
            },
            "preferred": place == 0,
        }
        for place, (name, (count, *values)) in enumerate(found.items())
    ]


def main() -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.tau_batches", __doc__, "PROFILE")
    parser.add_argument(
        "--startup", type=Path, nargs="+", default=[], metavar="PROFILE", help="runs of one batch"
    )
    parser.add_argument("--batches", type=int, metavar="N", help="of the run, where it marks none")
    arguments = parser.parse_args()
    profile = Profile(arguments.path)
    made = rows_of(profile, [Profile(path) for path in arguments.startup], arguments.batches)
    if not made:
        raise UserError(
            f"{arguments.path} tells no batch: it has neither stages nor events of batches; name runs of one "
            "batch (--startup) and how many this one had (--batches)"
        )
    title = "The duration of a batch, by what TAU recorded"
    by_stages = any(row["preferred"] and row["estimator"] == "stages" for row in made)
    notes = [*profile.findings, *([BETWEEN_STAGES] if by_stages else [])]
    return output.emit(Answer(made, COLUMNS, title=title, notes=notes), None, arguments)


if __name__ == "__main__":
    run_command(main)
