"""Which configurations changed between two sets of runs, and how does either set scale?

What differs beyond chance is what :mod:`analysis.measures.scaling.compared` finds; nothing is tested here.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIDENCE, CONFIGURATION, NOMINAL, Metric, Rows, columns
from analysis.display.numbers import signed
from analysis.display.plots import GREEN, GREY, SKY, VERMILLION
from analysis.display.terminal import Part
from analysis.measures.scaling.certainty import open_intervals, without_unusable_intervals
from analysis.measures.scaling.compare_rows import SHOWN, Key
from analysis.report.base import Content
from analysis.report.encoded import line_chart
from analysis.report.render import Chart
from analysis.report.scaling import points_against_ranks
from analysis.report.sides import (
    Sides,
    by_key,
    fields_of,
    key_of,
    least_runs_of,
    most_changed,
    of_test,
    with_names,
)
from analysis.report.views import as_view, facts
from profiling.errors import UserError
from profiling.wording import how_many

MOST_BARS = 40  # configurations of the chart of changes, and kernels
_NEVER_TIMED = "neither side has unprofiled runs"
_NO_BASELINE = "Not available: no configuration has a baseline of fewer ranks, as many in both results."
_OTHER_BASELINES = (
    "No change of efficiency (-) where the baselines in A and B have different numbers of ranks."
)
RESULTS = "results"  # the factor by which charts of both tell them apart
_COLOURS = {"slower": VERMILLION, "faster": GREEN, "no difference": GREY, "too few runs": SKY}
METRICS = (
    CONFIGURATION,
    Metric("a", "median step duration in A, over its runs", "step A\nms"),
    Metric("b", "median step duration in B, over its runs", "step B\nms"),
    Metric(
        "effect_pct",
        "step duration of B divided by that of A, minus 1; the interval holds the effects that the test "
        "does not reject (analysis.compare)",
        "change of step\n%",
        NOMINAL,
        places=2,
    ),
    Metric(
        "verdict",
        "of analysis.compare. slower or faster: significant at 5 %; no difference shown: none was found; too "
        "few runs: no result could have been significant",
        text=True,
    ),
    Metric("a_images_per_s", "images of all ranks divided by A's time", "images\n/s A", CONFIDENCE),
    Metric("b_images_per_s", "the same in B", "images\n/s B", CONFIDENCE),
    Metric(
        "rate_pct",
        "change of throughput that follows from that of the step, and of its images if they may differ "
        "(--across); its interval too",
        "change of\nimages/s, %",
        NOMINAL,
        places=2,
    ),
    Metric("a_efficiency_pct", "scaling efficiency in A, of A's baseline", "efficiency A\n%", CONFIDENCE),
    Metric("b_efficiency_pct", "scaling efficiency in B, of B's baseline", "efficiency B\n%", CONFIDENCE),
    Metric(
        "efficiency_points", "B minus A, percentage points, if both baselines have as many ranks",
        "change of\nefficiency", show=signed(1),
    ),
)  # fmt: skip


def configurations(sides: Sides) -> Rows:
    """A row for each configuration that both have unprofiled runs of; with :data:`METRICS`."""
    return with_names(sides.rows_of(_configurations), sides)


def _configurations(sides: Sides) -> Rows:
    across = sides.compared.across
    found = sides.compared.by_configuration("step")
    before, after = (_single(context.own, across) for context in (sides.a, sides.b))
    sources = by_key([source.fields for source in sides.b.study.sources], across)
    rows = []
    for key, tested in found:
        of_a, of_b, fields = before.get(key, {}), after.get(key, {}), sources[key]
        row = {**fields_of(fields), "facts": facts(fields, sides.factors), **of_test(tested, len(found))}
        for side, of_side in (("a", of_a), ("b", of_b)):
            row |= _with_ends(of_side, "images_per_s", f"{side}_images_per_s")
            row |= _with_ends(of_side, "scaling_efficiency_pct", f"{side}_efficiency_pct")
        bases = [side["base_world_size"] for side in (of_a, of_b) if side]
        # Relative to fewer ranks an efficiency is another: the difference would be that of the baselines.
        row["other_baselines"] = len(set(bases)) > 1
        points = _difference(row, "a_efficiency_pct", "b_efficiency_pct")
        row["efficiency_points"] = math.nan if row["other_baselines"] else points
        # A baseline's own efficiency is 100 % by definition.
        row["efficiency_measured"] = all(
            side and side["world_size"] != side["base_world_size"] for side in (of_a, of_b)
        )
        rows.append({**row, **_rates(tested, _more_images(of_a, of_b))})
    return rows


def _single(own: Rows, across: Sequence[str]) -> dict[Key, Mapping[str, Any]]:
    """Rows of analysis.scaled by configuration; none of those that ``across`` makes one of several."""
    counts = Counter(key_of(row, across) for row in own)
    by = by_key(map(without_unusable_intervals, own), across)
    return {key: row for key, row in by.items() if counts[key] == 1}


def _more_images(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Images of a step of B divided by those of A; NaN: not known."""
    if not a or not b:
        return math.nan
    if all(a[name] == b[name] for name in ("batch", "world_size")):
        return 1.0
    of_a, of_b = (row["batch"] * row["world_size"] if row["batch"] else math.nan for row in (a, b))
    return float(of_b / of_a)


def _with_ends(row: Mapping[str, Any], name: str, new: str) -> dict[str, Any]:
    return {f"{new}{end}": row.get(f"{name}{end}") for end in ("", "_low", "_high")}


def _difference(row: Mapping[str, Any], a: str, b: str) -> float:
    known = [math.nan if row[name] is None else float(row[name]) for name in (a, b)]
    return known[1] - known[0]


def _rates(tested: Mapping[str, Any], more_images: float) -> dict[str, float]:
    """What a change of the step is of images/s: the longer the step, the fewer."""
    ends = {"": "", "_low": "_high", "_high": "_low"}
    return {
        f"rate_pct{end}": 100 * (more_images / (1 + tested[f"effect_pct{other}"] / 100) - 1)
        for end, other in ends.items()
    }


def changes(sides: Sides) -> Content:
    rows = configurations(sides)
    if not rows:
        raise UserError(_NEVER_TIMED)
    text = (
        "Unprofiled runs of the configurations that both have. Negative changes of the step: B is faster. "
        "Intervals: 95 % confidence. Verdicts are those of analysis.compare, corrected for the number of "
        "configurations; a change without a verdict may be chance."
    )
    differ = [_OTHER_BASELINES] if any(row["other_baselines"] for row in rows) else []
    note = "\n".join(filter(None, [*open_intervals(rows), *differ, least_runs_of("step", sides)]))
    view = as_view(Part("", rows, columns(METRICS), note), "change-table", sides.factors)
    return Content(text, [change_chart(rows)], [view])


def counted(sides: Sides) -> str:
    """``Of 5 configurations: 4 faster, 1 without a difference shown.``; empty: none can be compared."""
    rows = sides.rows_of(_configurations)
    if not rows:
        return ""
    said = {
        "faster": "{} faster", "slower": "{} slower", "no difference": "{} without a difference shown",
        "too few runs": "{} with too few runs to tell",
    }  # fmt: skip
    counts = {verdict: sum(row["judged"] == verdict for row in rows) for verdict in said}
    parts = [said[verdict].format(count) for verdict, count in counts.items() if count]
    return f"Of {how_many(len(rows), 'configuration')}: {', '.join(parts)}."


def change_chart(rows: Rows) -> Chart:
    """The change of each configuration's step; of many those that changed most, up and down."""
    ordered = sorted(rows, key=lambda row: row["effect_pct"])
    half = MOST_BARS // 2
    drawn = ordered if len(ordered) <= MOST_BARS else [*ordered[:half], *ordered[-half:]]
    figure = plots.changes(pd.DataFrame(drawn), _COLOURS, "Change of the step, B relative to A", SHOWN)
    caption = "Error bars: 95 % confidence intervals. Left of 0: B is faster."
    if len(drawn) < len(rows):
        caption += f" Of {len(rows)} configurations the {half} that became fastest and the {half} slowest."
    return Chart(
        "change", figure, "Change of the step's duration of each configuration, in %", caption, wide=True
    )


# --- scaling ------------------------------------------------------------------------------------------------


def scaling(sides: Sides) -> Content:
    points = []
    curves = max(sides.a.curves, sides.b.curves, key=len)
    for context, name in zip((sides.a, sides.b), sides.names, strict=True):
        # A base point that is lent from another configuration has the facts of those that it stands for.
        for point in points_against_ranks(context.own, curves):
            with_side = {**point["facts"], RESULTS: name}
            points.append({**point, "facts": with_side, "label": f"{name}: {point['label']}"})
    if not points:
        raise UserError(_NEVER_TIMED)
    charts = [
        line_chart(
            sides.b, f"changed-{axes.y}", points, axes, f"{axes.title} of both results, by ranks", [RESULTS]
        )
        for axes in (THROUGHPUT, EFFICIENCY)
    ]
    text = "Both results in one chart. Error bars: 95 % confidence intervals over repeated runs."
    return Content(text, charts)


def efficiencies(sides: Sides) -> str:
    """The scaling efficiency that changed most, of the configurations on most ranks."""
    measured = [
        row for row in configurations(sides)
        if row["efficiency_measured"] and not math.isnan(row["efficiency_points"])
    ]  # fmt: skip
    if not measured:
        return _NO_BASELINE
    most = most_changed(measured, "efficiency_points")
    return (
        f"Scaling efficiency of {most['configuration']}: {most['a_efficiency_pct']:.0f} % in A, "
        f"{most['b_efficiency_pct']:.0f} % in B."
    )
