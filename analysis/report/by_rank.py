"""The anatomy by rank, of the run of which most ranks were recorded."""

from collections.abc import Sequence
from typing import Any

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.anatomy.traces import traces_of
from analysis.report.base import Context
from analysis.report.render import Chart
from analysis.report.views import called, facts

MOST_RANKS = 128  # that a chart has a bar for: of more, those that communicate longest and shortest
_DIGITS = 4


def chart_by_rank(context: Context) -> Chart | None:
    """A bar for each rank, of the same parts as a bar of the run; None where no run has several ranks."""
    traces = traces_of(context.study, context.study.recorded)
    trace = max(traces, key=lambda one: len(one.recorded), default=None)
    if trace is None or len(trace.recorded) < 2:
        return None
    rows = foremost(anatomy.means(trace, ("rank",)))
    fields = trace.source.fields
    name = called(fields, context.factors)
    return Chart("anatomy-ranks", _figure(rows, f"Anatomy by rank: {name}", facts(fields, context.factors)))


def foremost(rows: Rows) -> Rows:
    """The rows of ranks, in their order; of more than :data:`MOST_RANKS` the two ends by communication."""
    if len(rows) <= MOST_RANKS:
        return rows
    by_communication = sorted(rows, key=lambda row: row["exposed_communication_ms"])
    ends = [*by_communication[: MOST_RANKS // 2], *by_communication[-MOST_RANKS // 2 :]]
    return sorted(ends, key=lambda row: row["rank"])


def _figure(rows: Rows, title: str, meta: dict[str, Any]) -> plots.Figure:
    parts = [finest({name: row[f"{name}_ms"] for name in EVERY}) for row in rows]
    ranks = [str(row["rank"]) for row in rows]
    traces = [
        _bars(part, ranks, [of.get(part, 0.0) for of in parts]) | {"meta": meta, "marker": {"color": colour}}
        for part, colour in plots.PART_COLOURS.items()
        if any(of.get(part) for of in parts)
    ]
    layout = {
        **plots.layout(title), "barmode": "relative",
        "xaxis": {"title": plots.beside_ticks("rank"), "type": "category"},
        "yaxis": {"title": plots.beside_ticks("ms per step"), "rangemode": "tozero"},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _bars(part: str, ranks: Sequence[str], ms: Sequence[float]) -> dict[str, Any]:
    name = part.replace("_", " ")
    return {
        "type": "bar",
        "name": name,
        "x": list(ranks),
        "y": [float(f"{value:.{_DIGITS}g}") for value in ms],
        "hovertemplate": f"rank %{{x}}<br>{name}: %{{y:.2f}} ms per step<extra></extra>",
    }
