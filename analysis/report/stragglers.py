"""The section on stragglers: a heat map of ranks and steps of the largest run, and a table of ranks.

Map and table have the same size for a hundred ranks and for thousands: neighbouring ranks share a row of the
map, except stragglers, and the table shows the late ranks and the extremes.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.diagnosis.evidence import widest
from analysis.display.plots import BLUE, ORANGE, WHITE, Figure, beside_ticks, escaped, layout
from analysis.frames.study import Source
from analysis.measures import stragglers
from analysis.measures.lateness import BY_COLLECTIVES, LATE_SHARE, STRAGGLER, Lateness
from analysis.report.base import Context, bare, chart_of, section, sized
from analysis.report.render import Section

_DIVERGING = [[0.0, BLUE], [0.5, WHITE], [1.0, ORANGE]]  # distinct in any colour vision
_FEW_COLUMNS = 5
MOST_COLUMNS = 100  # of a heat map: of more steps, neighbours share one, by their median
MOST_ROWS = 64  # of a heat map: of more ranks, neighbours share one, by the latest of them in each step
MOST_NAMED = 8  # ranks that then have a row of their own: the stragglers that are latest
_SIGN = "Above 0: the other ranks waited for this one; below 0: it waited."
_SHARED_ROWS = "{} ranks share a row, the latest of them in each step; the {} latest stragglers at the top."


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
    figure = _figure(source, found.lateness[run], ranks)
    shared = _SHARED_ROWS.format(_ranks_of_a_row(source.ranks), MOST_NAMED)
    shared = shared if source.ranks > MOST_ROWS else ""
    chart = chart_of(context, source, "lateness", figure, shared)
    name = sized(source.fields, context.factors, context.unit)
    # A map of one step is a column, which the table has in figures.
    charts = [chart] if len(found.lateness[run].steps) > 1 else []
    return Section(f"{name}. {_SIGN}", charts, bare(stragglers.of_ranks(ranks)))


def _figure(source: Source, lateness: Lateness, ranks: pd.DataFrame) -> Figure:
    steps, late_ms = narrowed(lateness.steps, lateness.late_ns / 1e6)
    nodes = source.hosts
    several = len(set(nodes)) > 1
    names = [f"{rank} ({node})" if several else str(rank) for rank, node in enumerate(nodes)]
    shared = "" if len(steps) == len(lateness.steps) else ", medians of neighbours"
    # Twice what counts as late is the least that has full colour: noise of a steady run stays pale.
    full = max(2 * LATE_SHARE * lateness.step_ns / 1e6, float(np.percentile(np.abs(late_ms), 99)))
    if len(names) > MOST_ROWS:
        named = ranks[ranks["verdict"] == STRAGGLER].nlargest(MOST_NAMED, "mean_lateness_ms")
        late_ms, names = in_groups(late_ms, names, named["rank"].tolist())
    return heat_map(late_ms, steps.tolist(), names, f"Lateness of ranks{shared}", full)


def _ranks_of_a_row(ranks: int) -> int:
    return -(-ranks // MOST_ROWS)


def in_groups(
    values: np.ndarray, names: Sequence[str], separate: Sequence[int]
) -> tuple[np.ndarray, list[str]]:
    """Values (ranks, steps) in :data:`MOST_ROWS` rows of neighbouring ranks, by their maximum, and row names.

    Args:
        names: of the ranks.
        separate: ranks that have a row of their own, above all others, and do not count in their neighbours'
            (which is NaN where no other rank shares it).
    """
    size = _ranks_of_a_row(len(values))
    starts = range(0, len(values), size)
    others = pd.DataFrame(values).drop(index=list(separate))
    rows = others.groupby(others.index // size).max().reindex(range(len(starts)))
    ends = [min(start + size, len(values)) - 1 for start in starts]
    spans = [
        f"{first} to {last}" if first < last else str(first) for first, last in zip(starts, ends, strict=True)
    ]
    return np.concatenate([values[list(separate)], rows]), [*(names[rank] for rank in separate), *spans]


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
