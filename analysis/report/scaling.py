"""Sections on scaling: throughput and efficiency, the loss by part, factors, stages and anatomy of a step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.diagnosis.runs import divided_loss, of_loss
from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, columns, records, varied
from analysis.display.output import Answer, Part
from analysis.display.plots import DARK_GREY, EFFICIENCY, PALE_GREY, THROUGHPUT
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.anatomy import traces_of
from analysis.measures import anatomy, factors
from analysis.measures import scaled as figures
from analysis.measures.factors import levels_of
from analysis.measures.loss import LATE_RANKS
from analysis.report import base
from analysis.report.base import Context, section
from analysis.report.render import Chart, Section
from profiling.findings import lines

_GROWTH = (
    "Growth of each part of a profiled step, in percentage points of efficiency; negative: it shrank. "
    "Waiting for a rank counts with what made it late: data, host or copies."
)
_GROWTH_OF_STAGES = "Growth of each stage of a step, in percentage points of efficiency; negative: it shrank."
_STAGE_COLOURS = {**plots.STAGE_COLOURS, LATE_RANKS: plots.CONCEPTS["wait"]}
_LOSS_COLOURS = {**plots.PART_COLOURS, "unattributed": plots.CONCEPTS["unattributed"]}
MOST_RANKS = 128  # that a chart has a bar for: of more, those that communicate longest and shortest
_LEAST_FACTORS = 2  # of which the section speaks


def _ran(context: Context) -> bool:
    return len(context.own) > 0


def _ran_or_traced(context: Context) -> bool:
    return _ran(context) or bool(context.traces)


@section("scaling", "How does it scale?", _ran)
def scaling(context: Context) -> Section:
    own = context.own
    points = points_against_ranks(own, context.curves)
    axes = {"throughput": THROUGHPUT, "efficiency": EFFICIENCY}
    charts = [base.line_chart(context, name, points, of) for name, of in axes.items()]
    if (own["world_size"] == own["base_world_size"]).all():
        return Section(charts=charts[:1] if own["images_per_s"].notna().any() else [])
    text = "Dotted: ideal scaling from the baseline. Error bars: 95 % confidence intervals over runs."
    return Section(text, charts)


def points_against_ranks(own: pd.DataFrame, series: Sequence[str]) -> pd.DataFrame:
    """The points of the charts: a row a configuration and world size, each series from its base point on.

    A base point can be another configuration's (one rank sends no gradients, whatever their precision): it
    is repeated in each series that is compared with it.
    """
    points = base.labelled(figures.without_unusable_intervals(own), series)
    known = set(zip(points["label"], points["world_size"], strict=True))
    starts = points.dropna(subset="base_world_size").drop_duplicates(["label", "base_world_size"])
    lacking = [one not in known for one in zip(starts["label"], starts["base_world_size"], strict=True)]
    starts = starts.loc[lacking, ["label", "facts", "base_world_size", "base_images_per_s"]]
    names = {"base_world_size": "world_size", "base_images_per_s": "images_per_s"}
    starts = starts.rename(columns=names).assign(scaling_efficiency_pct=100.0)
    return pd.concat([points, starts], ignore_index=True)


@section("table", "Results", _ran)
def table(context: Context) -> Section:
    return Section(tables=figures.tables(context.own, with_loss=False))


def _lost(context: Context) -> Part | None:
    return None if context.own.empty else figures.loss_part(context.own, intervals=True)


@section("loss", "Where is scaling efficiency lost?", lambda context: context.once(_lost) is not None)
def loss(context: Context) -> Section:
    part = context.once(_lost)
    assert part is not None  # else the section does not apply
    rows, colours, text = part.table, _LOSS_COLOURS, _GROWTH
    if rows["loss_unattributed_pct"].notna().any():
        rows = rows.dropna(subset="loss_unattributed_pct")
        # As in the opening: waits count with what caused them. Where it has stages, as parts explain too
        # little, the bar has the parts and what they do not explain.
        parts = base.finest_parts(rows, "loss_", "_pct")
        parts["unattributed_pct"] = rows["loss_unattributed_pct"]
        costs = [of_loss(divided_loss(row), None, row["world_size"]) for row in records(rows)]
        divided = pd.DataFrame([one if LATE_RANKS not in one else {} for one in costs], rows.index)
        parts.update(divided.add_suffix("_pct"))
    else:  # of runs without a profile stages are known
        colours, text = _STAGE_COLOURS, _GROWTH_OF_STAGES
        parts = rows.assign(**{f"{stage}_pct": rows[f"loss_{stage}_pct"] for stage in colours})
        parts = parts.dropna(subset="backward_pct")
    charts = []
    if len(parts):
        ordered = base.labelled(parts, context.series).sort_values(["label", "world_size"], kind="stable")
        bars = base.named(ordered, [*context.series, "world_size"], context.lines, context.unit)
        title = "Loss of scaling efficiency"
        charts.append(base.bar_chart("loss", bars, colours, title, "pct", "percentage points"))
    tables = [replace(part, title="", caption="")]
    return Section(text, charts, tables, lines(figures.unexplained(context.own)))


@section("stages", "How long are the stages of a step?", _ran)
def stages(context: Context) -> Section:
    rows = base.named(context.own, context.factors, unit=context.unit)
    rows = rows.assign(configuration=rows["label"])
    bars = rows.assign(**{f"{name}_ms": rows[f"mean_{name}_ms"] for name in plots.STAGE_COLOURS})
    chart = base.bar_chart("stages", bars, plots.STAGE_COLOURS, "Stages of a step")
    means = [f"mean_{name}_ms" for name in plots.STAGE_COLOURS]
    shown = columns((CONFIGURATION, *figures.METRICS), "configuration", *means)
    text = "Medians, without warmup. Backward includes the exchange of gradients."
    return Section(text, [chart], [Part("", rows, shown)])


@section("anatomy", "Where does the time of a step go?", _ran_or_traced)
def anatomy_section(context: Context) -> Section:
    answer = anatomy.anatomy(context.study)
    figures = [f"{name}_ms" for name in plots.PART_COLOURS]
    rows = base.finest_parts(answer.rows)
    bars = base.by_configuration(rows, figures, context.factors, context.unit)
    chart = base.bar_chart("anatomy", bars, plots.PART_COLOURS, "Anatomy of a step")
    by_rank = chart_by_rank(context)
    charts = [one for one in (chart if len(bars) > 1 or not by_rank else None, by_rank) if one]
    text = "Mean of profiled steps over ranks and runs. If two coincide, the first in the legend counts."
    return Section(text, charts, answer.tables)


def chart_by_rank(context: Context) -> Chart | None:
    """A bar for each rank (up to :data:`MOST_RANKS`) of the widest run, by part; None: it has one rank."""
    traces = traces_of(context.study, context.study.recorded)
    trace = max(traces, key=lambda one: len(one.recorded), default=None)
    if trace is None or len(trace.recorded) < 2:
        return None
    means = anatomy.means(anatomy_frame(context.study, [trace.source]), ("rank",))
    ranks = base.finest_parts(means).fillna(0.0)
    if len(ranks) > MOST_RANKS:
        talked = ranks["exposed_communication_ms"].sort_values(kind="stable").index
        ranks = ranks.loc[sorted([*talked[: MOST_RANKS // 2], *talked[-MOST_RANKS // 2 :]])]
    traces_of_parts = [
        {
            "type": "bar", "name": name, "marker": plots.outlined(colour),
            "x": ranks["rank"].astype(str).tolist(), "y": ranks[f"{part}_ms"].round(3).tolist(),
            "hovertemplate": f"rank %{{x}}<br>{name}: %{{y:.1f}} ms per step<extra></extra>",
        }
        for part, colour in plots.PART_COLOURS.items()
        if ranks[f"{part}_ms"].any() and (name := base.NAMES[part])
    ]  # fmt: skip
    name = base.sized(trace.source.fields, context.factors, context.unit)
    layout = {
        **plots.layout(f"Anatomy by rank: {name}"), "barmode": "relative",
        "xaxis": {"title": plots.beside_ticks("rank"), "type": "category"},
        "yaxis": {"title": plots.beside_ticks("ms per step"), "rangemode": "tozero"},
    }  # fmt: skip
    figure = {"data": traces_of_parts, "layout": layout}
    return base.chart_of(context, trace.source, "anatomy-ranks", figure)


def _varying(context: Context) -> bool:
    """Whether two factors vary or more, not sizes alone: what these explain, the scaling charts show."""
    runs = varied(pd.DataFrame([source.fields for source in context.study.of_kind("run")], dtype=object))
    if (len(runs) < _LEAST_FACTORS or not set(runs) - set(base.SIZE)) and not context.study.of_kind(
        "tau_intervals"
    ):
        return False
    _, observations = context.once(factors.responses, context.study)
    return len(levels_of(observations).columns) >= _LEAST_FACTORS


@section("factors", "Which factor matters?", _varying)
def factors_section(context: Context) -> Section:
    what, _ = context.once(factors.responses, context.study)
    rows = context.once(base.effects)
    known = rows[rows["omega_squared"].notna()]
    charts = []
    if len(known):
        series = np.where(known["factor"].str.contains(" x "), "interaction", "main effect")
        bars = known.assign(label=known["factor"], series=series, value=known["omega_squared"].astype(float))
        of = (f"What explains {what}", "omega squared", "%{x:.3f} of the variance")
        colours = {"main effect": DARK_GREY, "interaction": PALE_GREY}
        charts.append(Chart("factors", plots.bars(bars, colours, *of)))
    return Section("", charts, Answer(rows, factors.METRICS).tables)


BATCHES = base.table_of("batches", "How steady is a step?", anatomy.batches, _ran_or_traced)
