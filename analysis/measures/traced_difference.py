"""Difference of two jobs, from their traces.

Each was recorded once, so that only its own steps tell how sure the difference is: that of the medians is
shown where the intervals of both, each within its run, do not meet. What other runs would differ by is not
known from one of each.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.display.metrics import IN_RUN, JOB, Column, Metric, Rows, columns, records
from analysis.display.terminal import Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.divide import EVERY
from analysis.frames.steps import STAGES, series_of_traces
from analysis.frames.study import Source, Study
from analysis.measures import anatomy, communication
from analysis.measures.compare import BETTER, SAME, WORSE
from analysis.measures.kernels import kernels_of
from analysis.measures.traced import ALIKE, in_common, launches_of
from analysis.statistics import inside_run
from profiling.errors import UserError
from profiling.findings import Finding

SLOWER, FASTER, NOT_SHOWN, TOO_FEW = "slower", "faster", "no difference shown", "too few steps"
METRICS = (
    replace(JOB, meaning=f"{JOB.meaning} (if they differ: A, B)"),
    Metric(
        "kind",
        "step, stages, parts (of a step), collectives or kernels (by class)",
        text=True,
        key=True,
    ),
    Metric(
        "quantity",
        "quantity compared, ms per step: median of steps and stages, mean of the others",
        text=True,
        key=True,
    ),
    Metric("a_ms", "value in A", "A\nms", interval=IN_RUN),
    Metric("b_ms", "value in B", "B\nms", interval=IN_RUN),
    Metric("difference_ms", "B minus A"),
    Metric("difference_pct", "difference relative to A", places=1),
    Metric(
        "verdict",
        "of a step: slower or faster if the intervals do not overlap",
        text=True,
        priority=2,
    ),
)
COLUMNS = {"Traces (one row per quantity of two jobs):": METRICS}


def pairs(a: Study, b: Study) -> list[tuple[Source, Source]]:
    """The jobs to compare: one of each side, or those of equal world size, or of equal name.

    Raises:
        UserError: there are none.
    """
    of_a, of_b = a.of_kind("trace"), b.of_kind("trace")
    if len(of_a) == len(of_b) == 1:
        return [(of_a[0], of_b[0])]
    for name in ("run", "world_size"):
        keys_a, keys_b = ({one.value(name): one for one in side if one.value(name)} for side in (of_a, of_b))
        alike = [(keys_a[key], keys_b[key]) for key in keys_a if key in keys_b]
        if alike and len(keys_a) == len(of_a) and len(keys_b) == len(of_b):
            return alike
    raise UserError(
        f"no job of {a.path} matches one of {b.path}, by name or by world size; give two folders of one job "
        "each"
    )


def name_of(one: Source, other: Source) -> str:
    """What the rows of two jobs call them."""
    return one.id if one.id == other.id else f"{one.id}, {other.id}"


def unlike(a: Study, b: Study) -> list[Finding]:
    """A finding for each pair of jobs that differ in devices, number of ranks, or kernels."""
    found = []
    for one, other in pairs(a, b):
        differ = [
            what
            for what, values in (
                ("devices", [one.devices, other.devices]),
                ("ranks", [one.world_size, other.world_size]),
            )
            if all(values) and values[0] != values[1]
        ]
        launches = launches_of(a, one), launches_of(b, other)
        if one.devices == other.devices and any(launches) and in_common(*launches) < ALIKE:
            differ.append("kernels")
        if differ:
            data = {"jobs": [one.id, other.id], "differ": differ}
            found.append(Finding("jobs_differ", data=data))
    return found


def rows(a: Study, b: Study) -> Rows:
    """The figures of each pair of jobs; with :data:`METRICS`.

    Raises:
        UserError: there is nothing to compare.
    """
    answer: Rows = []
    in_a, in_b = _collectives(a), _collectives(b)
    for one, other in pairs(a, b):
        of_a, of_b = _figures(a, one, in_a.get(one.id, [])), _figures(b, other, in_b.get(other.id, []))
        name = name_of(one, other)
        keys = [*of_a, *(key for key in of_b if key not in of_a)]
        answer += [_row(name, key, of_a.get(key), of_b.get(key)) for key in keys]
    if all(math.isnan(row["difference_ms"]) for row in answer):
        raise UserError(f"nothing to compare: {a.path} and {b.path} have no figure in common")
    return answer


@dataclass(frozen=True)
class _Figure:
    """A figure with the ends of its interval, NaN where there is none; all in ms.

    Attributes:
        steps: how many it is the median of; 0: it is none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    steps: int = 0


def _of_median(durations_ms: np.ndarray) -> _Figure:
    estimate = inside_run.of_median(durations_ms)
    return _Figure(estimate.value, estimate.low, estimate.high, len(durations_ms))


def _figures(study: Study, source: Source, collectives: Rows) -> dict[tuple[str, str], _Figure]:
    found: dict[tuple[str, str], _Figure] = {}
    series = series_of_traces(study).get(source.id)
    if series is not None:
        found["step", "step"] = _of_median(series.steady_ns / 1e6)
        for stage in STAGES:
            times = series.stages[stage][series.steady] / 1e6
            if not np.isnan(times).any():
                found["stages", stage] = _of_median(times)

    def add(kind: str, figure: str, value: Any) -> None:
        if value is not None and not math.isnan(value):
            # Groups of one size of which some were recorded in part are rows of their own.
            so_far = found.get((kind, figure), _Figure(0.0)).value
            found[kind, figure] = _Figure(so_far + float(value))

    for row in records(anatomy.means(anatomy_frame(study, [source]))):
        for name in EVERY:
            add("parts", name.replace("_", " "), row[f"{name}_ms"])
    for row in collectives:
        size = f" of {row['group_size']}" if row["group_size"] else ""
        add("collectives", f"{row['collective']}{size}", row["ms_per_step"])
    for row in kernels_of(study, source, by=("class",)):
        add("kernels", str(row["class"]), row["ms_per_step"])
    return found


def _collectives(study: Study) -> dict[str, Rows]:
    """The rows of collectives by job; none where no job has any."""
    found: dict[str, Rows] = {}
    try:
        for row in records(communication.communication(study).rows):
            found.setdefault(row["run"], []).append(row)
    except UserError:
        return {}
    return found


def _row(name: str, key: tuple[str, str], a: _Figure | None, b: _Figure | None) -> dict[str, Any]:
    # A kernel or collective that one of them lacks takes it no time; a part that is not known is not 0.
    absent = _Figure(0.0 if key[0] in ("collectives", "kernels") else math.nan)
    a, b = a or absent, b or absent
    return {
        "run": name, "kind": key[0], "quantity": key[1],
        "a_ms": a.value, "a_ms_low": a.low, "a_ms_high": a.high,
        "b_ms": b.value, "b_ms_low": b.low, "b_ms_high": b.high,
        "difference_ms": b.value - a.value,
        "difference_pct": 100 * (b.value / a.value - 1) if a.value else None,
        "verdict": _verdict(a, b) if key[0] == "step" and a.steps and b.steps else None,
    }  # fmt: skip


def _verdict(a: _Figure, b: _Figure) -> str:
    """Of a step that both sides have: whether their intervals are apart."""
    if math.isnan(a.low) or math.isnan(b.low):
        return TOO_FEW
    return SLOWER if b.low > a.high else FASTER if b.high < a.low else NOT_SHOWN


def same_traces(found: Rows) -> bool:
    """Whether both sides have the same figures, which two recordings never have."""
    return all(row["difference_ms"] == 0 or math.isnan(row["difference_ms"]) for row in found)


def regressed(found: Rows, threshold_pct: float) -> bool:
    """Whether a batch became slower by more than a threshold."""
    return any(row["verdict"] == SLOWER and row["difference_pct"] > threshold_pct for row in found)


def steps(found: Rows) -> Rows:
    """The rows of the durations of steps that both sides know."""
    return [row for row in found if row["kind"] == "step" and not math.isnan(row["difference_ms"])]


def verdicts(found: Rows) -> list[Finding]:
    """Whether steps of B take longer than those of A, a finding for each pair of jobs."""
    if same_traces(found):
        return [Finding("compared", data=SAME)]
    findings = []
    for row in steps(found):
        data = {
            "verdict": {SLOWER: WORSE, FASTER: BETTER}.get(row["verdict"], row["verdict"]),
            "change": f"{row['difference_pct']:+.1f} %",
            **{which: int(row["verdict"] == which) for which in (SLOWER, FASTER)},
            "of": 1,
        }
        findings.append(Finding("compared", run=row["run"], data=data))
    return findings or [Finding("not_compared", data={"what": "steps"})]


def shown(found: Rows) -> list[Column]:
    """The table's columns."""
    several = len({row["run"] for row in found}) > 1
    return columns([metric for metric in METRICS if several or metric.name != "run"])


def part(found: Rows, title: str) -> Part:
    """The terminal's table."""
    return Part(title, found, shown(found))
