"""What is the difference of two jobs, from their traces?

Each was recorded once, so that only their own batches say how sure the difference is: that of the medians is
shown where the intervals of both, each within its run, do not meet; of too few steps for an interval nothing
is tested. What other runs would differ by is not known from one of each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.display.metrics import IN_RUN, JOB, Column, Metric, Rows, columns
from analysis.display.numbers import change, digits
from analysis.display.terminal import Part
from analysis.measures.anatomy import communication
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, PARTS
from analysis.measures.anatomy.traces import traces_of
from analysis.measures.batches.series import STAGES, series_of_traces
from analysis.measures.kernels.rows import kernels_of
from analysis.measures.scaling.same_program import ALIKE, in_common, launches_of
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import inside_run
from profiling.errors import UserError
from profiling.wording import how_many, in_a_row, verb

SLOWER, FASTER, NOT_SHOWN = "slower", "faster", "not shown"
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
        "of a step: slower or faster if the intervals do not overlap, else not shown; not tested: the steps "
        "are too few for an interval",
        text=True,
        priority=2,
    ),
)
COLUMNS = {"Traces (one row per quantity of two jobs):": METRICS}
CAPTION = (
    "A, B: ms per step, under the profiler. Intervals cover the variation inside one run, not between runs."
)


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


def unlike(a: Study, b: Study) -> dict[str, str]:
    """A line for each pair of jobs that are different ones, by their name: in what they differ."""
    lines = {}
    for one, other in pairs(a, b):
        differ = [
            f"{what} ({', '.join(values)})"
            for what, values in (
                ("device", [", ".join(source.devices) for source in (one, other)]),
                ("number of ranks", [str(source.world_size or "") for source in (one, other)]),
            )
            if all(values) and values[0] != values[1]
        ]
        launches = launches_of(a, one), launches_of(b, other)
        common = in_common(*launches)
        if one.devices == other.devices and any(launches) and common < ALIKE:
            differ.append(f"kernels ({100 * common:.0f} % of the launches are the same)")
        if differ:
            lines[name_of(one, other)] = (
                f"A ({one.id}) and B ({other.id}) are different jobs: they differ in {in_a_row(differ)}."
            )
    return lines


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

    traces = traces_of(study, [source])
    for row in [row for one in traces for row in anatomy.means(one)]:
        for name in EVERY:
            add("parts", _called(name), row[f"{name}_ms"])
    for row in collectives:
        size = f" of {row['group_size']}" if row["group_size"] else ""
        add("collectives", f"{row['collective']}{size}", row["ms_per_step"])
    for row in kernels_of(study, source, by=("class",)):
        add("kernels", str(row["class"]), row["ms_per_step"])
    return found


def _called(part: str) -> str:
    return part.replace("_", " ")


def _collectives(study: Study) -> dict[str, Rows]:
    """The rows of collectives by job; none where no job has any."""
    found: dict[str, Rows] = {}
    try:
        for row in communication.rows(study):
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
    """Of a step that both sides have: whether their intervals are apart, or why that is not known."""
    few = {side: one.steps for side, one in (("A", a), ("B", b)) if math.isnan(one.low)}
    if few:
        counts = [f"{how_many(count, 'step')} of {side}" for side, count in few.items()]
        if len(few) == 2 and a.steps == b.steps:
            return f"not tested: {how_many(a.steps, 'step')} {verb(a.steps, 'are')} too few"
        return f"not tested: {' and '.join(counts)} {verb(sum(few.values()), 'are')} too few"
    return SLOWER if b.low > a.high else FASTER if b.high < a.low else NOT_SHOWN


SAME = "A and B are the same traces, so nothing can differ. Compare two separate results."


def same_traces(found: Rows) -> bool:
    """Whether both sides have the same figures, which two recordings never have."""
    return all(row["difference_ms"] == 0 or math.isnan(row["difference_ms"]) for row in found)


def regressed(found: Rows, threshold_pct: float) -> bool:
    """Whether a batch became slower by more than a threshold."""
    return any(row["verdict"] == SLOWER and row["difference_pct"] > threshold_pct for row in found)


_APART = 0.1  # of a step: changes of its mean and of its median that differ by more are both said
_WHOLE = [_called(part) for part in PARTS]  # they add up to the mean
_SAID = {SLOWER: "slower in B", FASTER: "faster in B", NOT_SHOWN: "no difference shown"}


def steps(found: Rows) -> Rows:
    """The rows of the durations of steps that both sides know."""
    return [row for row in found if row["kind"] == "step" and not math.isnan(row["difference_ms"])]


def sentence(found: Rows) -> str:
    """The answer in a line for each of :func:`steps`."""
    lines = []
    for row in steps(found):
        parts = [
            one for one in found if one["run"] == row["run"] and one["kind"] == "parts"
            and not one["quantity"].startswith("overlapped") and not math.isnan(one["difference_ms"])
        ]  # fmt: skip
        most = max(parts, key=lambda one: abs(one["difference_ms"]), default=None)
        said = _SAID.get(row["verdict"], row["verdict"])
        largest = most and f"{most['quantity']} ({change(most['difference_ms'])} ms)"
        why = f"; largest change of a part: {largest}" if largest else ""
        lines.append(
            f"{row['run']}: a step takes {digits(row['a_ms'])} and {digits(row['b_ms'])} ms "
            f"({row['difference_pct']:+.1f} %), {said}{why}.{_mean(row, parts)}"
        )
    return "\n".join(lines) or "Durations of steps cannot be compared: one of the two has none."


def _mean(step: Mapping[str, Any], parts: Rows) -> str:
    """What the mean step, of which the parts are, says where it differs from the median; else empty."""
    whole = [one for one in parts if one["quantity"] in _WHOLE]
    a, b = (sum(one[side] for one in whole) for side in ("a_ms", "b_ms"))
    apart = abs((b - a) - step["difference_ms"])
    if len(whole) < len(_WHOLE) or not apart > _APART * step["a_ms"]:
        return ""
    return (
        f" Step times are medians; the mean over steps and ranks, the sum of the parts, is {digits(a)} and "
        f"{digits(b)} ms ({100 * (b / a - 1):+.1f} %)."
    )


def shown(found: Rows) -> list[Column]:
    """The table's columns."""
    several = len({row["run"] for row in found}) > 1
    return columns([metric for metric in METRICS if several or metric.name != "run"])


def part(found: Rows, title: str) -> Part:
    """The terminal's table."""
    return Part(title, found, shown(found), CAPTION)
