"""Sections on what would be faster: the critical path of the largest run, and predictions with what-ifs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.diagnosis.evidence import WORDS, predicted
from analysis.diagnosis.runs import same
from analysis.display import plots
from analysis.display.metrics import called, records
from analysis.display.plots import AGAINST_RANKS, BLACK, DARK_GREY, THROUGHPUT, WHITE, Axes, Encoding, lines
from analysis.frames.study import RECORDING
from analysis.measures.critical_path import PARTS, foremost
from analysis.measures.critical_path import answer as of_paths
from analysis.measures.scaled import without_unusable_intervals
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.plan import chosen, plan
from analysis.prediction.predict import CURVE
from analysis.prediction.simulation import SIMULATION
from analysis.report.base import Context, bare, labelled, line_chart, section, sized
from analysis.report.render import Chart, Section, facts
from jobs.run_fields import own_names
from profiling import findings

_COLOURS = {"saved": DARK_GREY, "not_saved": WHITE}
# What-ifs as the opening calls them, without how to set them.
_WHAT_IFS = {
    one["what_if"]: one["words"].partition(" (")[0] for one in WORDS["advice"].values() if "what_if" in one
}


@section(
    "critical-path", "What would shorten the step?",
    lambda context: any(source.tables("kernels") for source in context.study.recorded),
)  # fmt: skip
def critical_path(context: Context) -> Section:
    paths, rows = context.once(foremost, context.study)
    source = paths.source
    of_run = facts(source.fields, context.factors)
    not_saved = (rows["path_ms"] - rows["saved_ms"]).clip(lower=0)
    points = rows.assign(label=rows["part"], not_saved_ms=not_saved, facts=pd.Series([of_run] * len(rows)))
    # Not those of several parts at once, which are in the table.
    points = points[points["part"].isin(PARTS)].sort_values("saved_ms", ascending=False, kind="stable")
    of = "ms in the recording" if context.study.a_step([source.id]) == RECORDING else "ms per step"
    chart = Chart("critical-path", plots.parts(points, _COLOURS, "Critical path", of=of))
    tables = bare(of_paths(context.study, rows))
    unknown = [one for one in context.study.findings if one.code == "not_recorded" and one.run == source.id]
    text = sized(source.fields, context.factors, context.unit)
    return Section(text, [chart], tables, findings.lines(unknown))


@section("prediction", "What throughput would more ranks reach?", lambda context: len(context.own) > 0)
def prediction(context: Context) -> Section:
    """Measured and predicted throughput of one configuration, and what changes would give; a table of all."""
    answer = context.once(predicted)
    rows = answer.rows
    # The configuration that is predicted fastest on most ranks, as it is.
    as_is = rows[rows["what_if"] == ""] if (rows["what_if"] == "").any() else rows
    simulated = as_is["predicted_by"] == SIMULATION
    as_is = as_is[simulated] if simulated.any() else as_is
    shown = records(as_is.sort_values(["world_size", "images_per_s"], kind="stable").tail(1))[0]
    fields = (*CONFIGURATION, *own_names(shown))
    # Of strong scaling the batch of all ranks tells configurations apart.
    whole = {"batch": "global_batch"} if shown.get("scaling") == "strong" else {}
    name = called(shown, [whole.get(one, one) for one in context.lines if one in fields])
    of_lines = facts(shown, [one for one in context.factors if one in fields])
    points = _points(rows, context.own, shown, of_lines)
    title = plots.escaped(f"Measured and predicted: {name}")
    axes = replace(THROUGHPUT, x_title=f"{context.unit}s", title=title, ideal=False)
    figure = lines(points, Encoding(colour="label"), axes)
    return Section("", [Chart("prediction", figure)], bare(answer))


@section("plan", "How many nodes should a training use?", lambda context: bool(context.training))
def plan_section(context: Context) -> Section:
    answer = plan(context.study, **context.training)
    rows = answer.rows
    choice = chosen(rows)
    points = labelled(rows, [*context.curves, "known_by"])
    charts = []
    for name, unit, title in (("hours", "hours", "Time to train"), ("node_hours", "node-hours", "Cost")):
        axes = Axes(*AGAINST_RANKS, name, unit, title, log=True)
        chart = line_chart(context, f"plan-{name}", points, axes)
        _mark(chart.figure["data"], choice["world_size"].tolist(), choice[name].tolist())
        charts.append(chart)
    return Section(answer.caption, charts, [replace(part, caption="") for part in answer.tables])


def _mark(traces: list[dict[str, Any]], x: list[float], y: list[float]) -> None:
    """Add a star at a point, with the facts of the line through it."""
    look = {"mode": "markers", "name": "chosen", "marker": {"symbol": "star", "size": 16, "color": BLACK}}
    through = [one for one in traces if x and (x[0], y[0]) in zip(one["x"], one["y"], strict=True)]
    traces += [{**look, "x": x, "y": y, "meta": one["meta"]} for one in through[:1]]


def _points(
    rows: pd.DataFrame, own: pd.DataFrame, shown: Mapping[str, Any], of_lines: Mapping[str, Any]
) -> pd.DataFrame:
    """The chart's points: a line of what was measured, one a method, one for each of the best what-ifs.

    Where a number of ranks was measured on several numbers of nodes, predictions are made from the fewest:
    the others are points of their own.
    """
    of_shown = [_is_of(row, shown) for row in records(own)]
    measured = without_unusable_intervals(own[of_shown]).sort_values("nodes", kind="stable")
    repeated, nodes = measured.duplicated("world_size"), measured["nodes"].astype(str)
    measured["label"] = ("measured on " + nodes + " nodes").where(repeated, "measured")
    of = rows[rows["of"] == shown["of"]]
    best = of[of["gain_pct"] > 0].groupby("what_if")["gain_pct"].max().nlargest(3)
    of = of[of["what_if"].isin(["", *best.index])]
    words = of["what_if"].str.partition("=")[0].map(_WHAT_IFS).fillna(of["what_if"])
    methods = of["predicted_by"].map({CURVE: "curve", SIMULATION: "simulated"})
    labels = ("with " + words).where(of["what_if"] != "", methods)
    columns = ["world_size", "images_per_s", "images_per_s_low", "images_per_s_high"]
    kinds = {**dict.fromkeys(columns, float), "label": object}
    frames = [one[[*kinds]].astype(kinds) for one in (measured, of.assign(label=labels))]
    points = pd.concat(frames, ignore_index=True)
    return points.assign(facts=[{"label": label, **of_lines} for label in points["label"]])


def _is_of(row: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether a point is of the configuration of a prediction; gradients of one rank have no precision.

    Where the batch of the job is constant, that of a rank tells points, not configurations.
    """
    free = {"grad"} if row["world_size"] == 1 else set()
    free |= {"batch"} if shown.get("scaling") == "strong" else set()
    return same(row, shown, [one for one in (*CONFIGURATION, *own_names(row, shown)) if one not in free])
