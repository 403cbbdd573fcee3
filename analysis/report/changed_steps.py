"""What of a step changed between two sets of runs: which parts, stages and kernels?

What differs beyond chance is what :mod:`analysis.measures.scaling.compared` finds; nothing is tested here.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, NOMINAL, Metric, Rows, columns
from analysis.display.numbers import change, signed
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, PARTS, finest
from analysis.measures.scaling.compare_rows import Key
from analysis.report.base import Content
from analysis.report.encoded import bar_chart
from analysis.report.per_point import named
from analysis.report.render import Chart
from analysis.report.scaling import anatomy_of_points
from analysis.report.sides import (
    Sides,
    by_key,
    fields_of,
    key_of,
    least_runs_of,
    most_changed,
    rows_of_kind,
    with_names,
    with_names_of_points,
)
from analysis.report.views import as_view, facts
from profiling.errors import UserError

_NEVER_PROFILED = "no configuration has profiled runs on both sides"
TOP_KERNELS = 15  # of a configuration, that changed most
_PARTS = (
    CONFIGURATION,
    Metric("a_wall_ms", "profiled step in A, mean over steps, ranks and runs", "step A\nms"),
    Metric("b_wall_ms", "the same in B", "step B\nms"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(2)),
)
_KERNELS = (
    CONFIGURATION,
    Metric("quantity", "kernel and its direction", "kernel", text=True),
    Metric("a", "time per step and rank in A; 0: A has no such kernel", "A, ms\nper step"),
    Metric("b", "time per step and rank in B; 0: B has no such kernel", "B, ms\nper step"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
    Metric("effect_pct", "b divided by a, minus 1", "change\n%", NOMINAL, places=1),
    Metric("verdict", "of analysis.compare; new: only in B; gone: only in A", text=True),
)
_STAGES = (
    CONFIGURATION,
    Metric("quantity", "stage of a step", "stage", text=True),
    Metric("a", "median in A, over its runs", "A\nms"),
    Metric("b", "median in B, over its runs", "B\nms"),
    Metric("effect_pct", "b divided by a, minus 1", "change\n%", NOMINAL, places=1),
    Metric("verdict", "of analysis.compare", text=True),
)


# --- parts --------------------------------------------------------------------------------------------------


def part_changes(sides: Sides) -> Rows:
    """A row for each configuration that both have profiled runs of: what grew, what shrank, in ms."""
    return with_names(sides.rows_of(_part_changes), sides)


def _part_changes(sides: Sides) -> Rows:
    across = sides.compared.across
    before, after = (by_key(anatomy_of_points(context.study), across) for context in (sides.a, sides.b))
    rows = []
    for key, of_b in after.items():
        if of_a := before.get(key):
            walls = {"a_wall_ms": of_a["wall_ms"], "b_wall_ms": of_b["wall_ms"]}
            grew = {f"{name}_ms": ms for name, ms in _grew(of_a, of_b).items()}
            total = {"difference_ms": of_b["wall_ms"] - of_a["wall_ms"]}
            rows.append({**fields_of(of_b), "facts": facts(of_b, sides.factors), **walls, **total, **grew})
    return rows


def _grew(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, float]:
    """Part -> by how much it is longer in B; split as far as both are."""
    of_a, of_b = (finest({name: row[f"{name}_ms"] for name in EVERY}) for row in (a, b))
    if set(of_a) != set(of_b):
        of_a, of_b = ({name: float(row[f"{name}_ms"]) for name in PARTS} for row in (a, b))
    return {name: of_b[name] - of_a[name] for name in of_a}


def parts(sides: Sides) -> Content:
    rows = part_changes(sides)
    if not rows:
        raise UserError(_NEVER_PROFILED)
    frame = named(
        [{name: value for name, value in row.items() if name != "facts"} for row in rows], sides.factors
    )
    label = "Growth of each part of a step from A to B, in milliseconds"
    chart = bar_chart(
        sides.b, "changed-parts", frame, plots.PART_COLOURS, "Growth of a step, B minus A", label
    )
    grown = [metric for metric in anatomy.METRICS if any(metric.name in row for row in rows)
             and metric.name.removesuffix("_ms") in plots.PART_COLOURS]  # fmt: skip
    view = as_view(Part("", rows, columns((*_PARTS, *grown))), "changed-parts-table", sides.factors)
    text = (
        "B minus A, ms per step, of profiled runs: mean over steps, ranks and runs. Parts that grew are "
        "positive, parts that shrank negative; they sum to the difference of the profiled step. Profiled "
        "runs are few: these differences say where to look and have no verdict; the stages below have one."
    )
    return Content(text, [chart], [view])


def largest_part(sides: Sides) -> str:
    """The part that changed most in the configuration of most ranks; empty: none was profiled."""
    rows = part_changes(sides)
    if not rows:
        return ""
    most = most_changed(rows, "difference_ms")
    parts = {name: most[f"{name}_ms"] for name in plots.PART_COLOURS if f"{name}_ms" in most}
    ordered = sorted(parts.items(), key=lambda part: -abs(part[1]))
    largest = [f"{name.replace('_', ' ')} {change(ms)} ms" for name, ms in ordered[:2]]
    return (
        f"A profiled step changes by {change(most['difference_ms'])} ms, of which {' and '.join(largest)} "
        f"({most['configuration']})."
    )


# --- stages -------------------------------------------------------------------------------------------------


def _stage_changes(sides: Sides) -> Rows:
    return rows_of_kind("stages", sides)


def stages(sides: Sides) -> Content:
    rows = with_names_of_points(sides.rows_of(_stage_changes), sides)
    if not rows:
        raise UserError("neither side has unprofiled runs")
    view = as_view(
        Part("", rows, columns(_STAGES), least_runs_of("stages", sides)),
        "changed-stages-table",
        sides.factors,
    )
    text = "Stages of a step in unprofiled runs, with the verdicts of analysis.compare."
    return Content(text, tables=[view])


def largest_stage(sides: Sides) -> str:
    """The stage that changed most, beyond chance; empty: none can be compared."""
    rows = with_names_of_points(sides.rows_of(_stage_changes), sides)
    if not rows:
        return ""
    sure = [row for row in rows if row["judged"] in ("slower", "faster")]
    if sure:
        most = max(sure, key=lambda row: abs(row["b"] - row["a"]))
        return (
            f"Largest change beyond chance: {most['quantity'].removesuffix('_ms')} "
            f"{change(most['b'] - most['a'])} ms ({most['configuration']})."
        )
    if all(row["judged"] == "too few runs" for row in rows):
        return "Too few runs to tell whether a stage changed."
    return "No stage is longer or shorter beyond chance."


# --- kernels ------------------------------------------------------------------------------------------------


def kernel_changes(sides: Sides) -> Rows:
    """The kernels that changed most, a row each; those that only one side has, too."""
    return with_names_of_points(sides.rows_of(_kernel_changes), sides)


def _kernel_changes(sides: Sides) -> Rows:
    rows = [{**row, "difference_ms": row["b"] - row["a"]} for row in rows_of_kind("kernels", sides)]
    both = {key for key, _ in sides.compared.by_configuration("kernels")}
    sources = by_key([source.fields for source in sides.b.study.sources], sides.compared.across)
    for verdict, here, there in (("gone", "a", "b"), ("new", "b", "a")):
        values, others = getattr(sides.compared, here), getattr(sides.compared, there)
        for (key, kind, figure), of_runs in values.items():
            if kind == "kernels" and key in both and (key, kind, figure) not in others:
                ms = median(of_runs)
                fields = sources[key]
                rows.append({
                    **fields_of(fields), "facts": facts(fields, sides.factors), "quantity": figure, here: ms,
                    there: 0.0, "difference_ms": ms if here == "b" else -ms, "judged": verdict,
                    "verdict": verdict,
                })  # fmt: skip
    by_point: dict[Key, Rows] = {}
    for row in sorted(rows, key=lambda row: -abs(row["difference_ms"])):
        by_point.setdefault(key_of(row, ()), []).append(row)
    return [row for of in by_point.values() for row in of[:TOP_KERNELS]]


def kernels(sides: Sides) -> Content:
    rows = kernel_changes(sides)
    if not rows:
        raise UserError(_NEVER_PROFILED)
    most = most_changed(rows, "difference_ms")
    of_most = [row for row in rows if row["configuration"] == most["configuration"]]
    figure = plots.growth(pd.DataFrame(of_most), f"Kernels that changed most: {most['configuration']}")
    chart = Chart("changed-kernels", figure, "Growth of kernels from A to B, in milliseconds per step")
    note = f"The {TOP_KERNELS} of each configuration that changed most."
    note = f"{note} {least_runs_of('kernels', sides)}".strip()
    view = as_view(Part("", rows, columns(_KERNELS), note), "changed-kernels-table", sides.factors, True)
    text = (
        "Time per step and rank of profiled runs. The verdicts of analysis.compare need several profiled "
        "runs of each configuration."
    )
    return Content(text, [chart], [view])


def largest_kernel(sides: Sides) -> str:
    """The kernel that changed most; empty: none was recorded on both sides."""
    rows = kernel_changes(sides)
    if not rows:
        return ""
    most = most_changed(rows, "difference_ms")
    changed = f"{most['quantity']} {change(most['difference_ms'])} ms per step"
    return f"Largest change: {changed} ({most['configuration']})."
