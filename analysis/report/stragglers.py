"""The section on stragglers: a heat map of ranks and steps of the largest run, and a table of ranks.

Map and table have the same size for a hundred ranks and for thousands: they have the latest ranks, the table
also the extremes.
"""

import numpy as np
import pandas as pd

from analysis.diagnosis.evidence import widest
from analysis.display.plots import BLUE, ORANGE, WHITE, Figure, beside_ticks, escaped, layout
from analysis.frames.study import Source
from analysis.measures import stragglers
from analysis.measures.lateness import BY_COLLECTIVES, LATE_SHARE, Lateness
from analysis.report.base import Context, bare, chart_of, section, sized
from analysis.report.render import Section

MOST_COLUMNS = 100  # of a heat map: of more steps, neighbours share one, by their median
MOST_ROWS = 64  # ranks of a heat map


@section("stragglers", "Are there stragglers?", lambda context: context.once(widest) is not None)
def stragglers_section(context: Context) -> Section:
    found = context.once(widest)
    if found is None or not found.lateness:
        raise context.study.nothing(stragglers.why_unknown(context.study))
    late = stragglers.foremost(found.rows)
    if late is not None:
        run = found.rows["run"][late]
    else:  # collectives show all lateness
        run = min(found.lateness, key=lambda run: found.lateness[run].measured_from != BY_COLLECTIVES)
    (source,) = (source for source in context.study.sources if source.id == run)
    ranks = found.rows[found.rows["run"] == run]
    charts = []
    if len(found.lateness[run].steps) > 1:  # of one it would be a column, which the table has in figures
        some = f"The {MOST_ROWS} ranks that were latest in a step." if source.ranks > MOST_ROWS else ""
        charts.append(chart_of(context, source, "lateness", _figure(source, found.lateness[run]), some))
    name = sized(source.fields, context.factors, context.unit)
    text = f"{name}. Above 0: the other ranks waited for this one; below 0: it waited."
    return Section(text, charts, bare(stragglers.of_ranks(ranks)))


def _figure(source: Source, lateness: Lateness) -> Figure:
    """The heat map, rank 0 on top."""
    size = -(-len(lateness.steps) // MOST_COLUMNS)
    steps = lateness.steps[::size].tolist()
    late = pd.DataFrame(lateness.late_ns.T / 1e6).groupby(np.arange(len(lateness.steps)) // size).median()
    late_ms = late.to_numpy().T
    nodes = source.hosts
    several = len(set(nodes)) > 1
    # Twice what counts as late is the least that has full colour: noise of a steady run stays pale.
    full = max(2 * LATE_SHARE * lateness.step_ns / 1e6, float(np.percentile(np.abs(late_ms), 99)))
    rows = latest(late_ms)
    z = [[float(f"{value:.3g}") if np.isfinite(value) else None for value in late_ms[row]] for row in rows]
    trace = {
        "type": "heatmap", "x": steps, "z": z, "zmin": -full, "zmax": full,
        "y": [escaped(f"{rank} ({nodes[rank]})" if several else str(rank)) for rank in rows],
        "colorscale": [[0.0, BLUE], [0.5, WHITE], [1.0, ORANGE]],  # distinct in any colour vision
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
        "hovertemplate": "rank %{y}, step %{x}: %{z} ms<extra></extra>",
    }  # fmt: skip
    few = {"tickvals": steps} if len(steps) <= 5 else {}  # plotly's own would be fractions of a step
    whole = {
        **layout(f"Lateness of ranks{', medians of neighbours' * (size > 1)}"),
        "height": 152 + 12 * max(len(rows), 8), "xaxis": {"title": beside_ticks("step"), **few},
        "yaxis": {"automargin": True, "autorange": "reversed", "title": {"text": "rank"}, "type": "category"},
    }  # fmt: skip
    return {"data": [trace], "layout": whole}


def latest(late_ms: np.ndarray) -> np.ndarray:
    """The ranks that have a row of the map, those that were latest in a step; ``late_ms``: (ranks, steps)."""
    return np.sort(np.argsort(-late_ms.max(axis=1), kind="stable")[:MOST_ROWS])
