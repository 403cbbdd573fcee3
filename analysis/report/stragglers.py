"""The section on stragglers: a heat map of ranks and steps of the largest run, and a table of ranks.

Map and table have the same size for a hundred ranks and for thousands: they have the latest ranks, the table
also the extremes.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.diagnosis.evidence import widest
from analysis.display.plots import BLUE, ORANGE, WHITE, Figure, beside_ticks, escaped, layout
from analysis.frames.study import Source
from analysis.measures import stragglers
from analysis.measures.lateness import BY_COLLECTIVES, LATE_SHARE, Lateness
from analysis.report.base import Context, bare, chart_of, section, sized
from analysis.report.render import Section

_DIVERGING = [[0.0, BLUE], [0.5, WHITE], [1.0, ORANGE]]  # distinct in any colour vision
_FEW_COLUMNS = 5
MOST_COLUMNS = 100  # of a heat map: of more steps, neighbours share one, by their median
MOST_ROWS = 64  # ranks of a heat map
_SIGN = "Above 0: the other ranks waited for this one; below 0: it waited."


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
    some = f"The {MOST_ROWS} ranks that were latest in a step." if source.ranks > MOST_ROWS else ""
    chart = chart_of(context, source, "lateness", _figure(source, found.lateness[run]), some)
    name = sized(source.fields, context.factors, context.unit)
    # A map of one step is a column, which the table has in figures.
    charts = [chart] if len(found.lateness[run].steps) > 1 else []
    return Section(f"{name}. {_SIGN}", charts, bare(stragglers.of_ranks(ranks)))


def _figure(source: Source, lateness: Lateness) -> Figure:
    steps, late_ms = narrowed(lateness.steps, lateness.late_ns / 1e6)
    nodes = source.hosts
    several = len(set(nodes)) > 1
    names = [f"{rank} ({node})" if several else str(rank) for rank, node in enumerate(nodes)]
    shared = "" if len(steps) == len(lateness.steps) else ", medians of neighbours"
    # Twice what counts as late is the least that has full colour: noise of a steady run stays pale.
    full = max(2 * LATE_SHARE * lateness.step_ns / 1e6, float(np.percentile(np.abs(late_ms), 99)))
    rows = latest(late_ms)
    shown = [names[rank] for rank in rows]
    return heat_map(late_ms[rows], steps.tolist(), shown, f"Lateness of ranks{shared}", full)


def latest(late_ms: np.ndarray) -> np.ndarray:
    """The ranks that have a row of the map, those that were latest in a step; ``late_ms``: (ranks, steps)."""
    return np.sort(np.argsort(-late_ms.max(axis=1), kind="stable")[:MOST_ROWS])


def narrowed(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (ranks, steps) in :data:`MOST_COLUMNS` or less: medians of neighbours, by their first."""
    size = -(-len(steps) // MOST_COLUMNS)
    medians = pd.DataFrame(values.T).groupby(np.arange(len(steps)) // size).median()
    return steps[::size], medians.to_numpy().T


def heat_map(
    values: np.ndarray, steps: Sequence[int], names: Sequence[str], title: str, full: float
) -> Figure:
    """Values around 0, in ms, (ranks, steps), rank 0 on top; ``full``: the value of full colour."""
    trace = {
        "type": "heatmap",
        "z": [[float(f"{value:.3g}") if np.isfinite(value) else None for value in row] for row in values],
        "x": list(steps),
        "y": [escaped(name) for name in names],
        "zmin": -full,
        "zmax": full,
        "colorscale": _DIVERGING,
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
        "hovertemplate": "rank %{y}, step %{x}: %{z} ms<extra></extra>",
    }
    whole = layout(title)
    whole |= {
        "height": 152 + 12 * max(len(names), 8),
        "xaxis": {"title": beside_ticks("step")},
        "yaxis": {"automargin": True, "autorange": "reversed", "title": {"text": "rank"}, "type": "category"},
    }
    if len(steps) <= _FEW_COLUMNS:
        whole["xaxis"]["tickvals"] = list(steps)  # plotly's own would be fractions of a step
    return {"data": [trace], "layout": whole}
