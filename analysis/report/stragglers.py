"""The section on stragglers: a heat map of ranks by steps of the widest run, and its ranks.

The map and the table have the same size for a hundred ranks and for thousands: neighbours share a row of the
map, stragglers have one of their own, and the table shows the late ranks and the extremes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.plots import BLUE, VERMILLION, Figure, bars, escaped
from analysis.display.terminal import Part
from analysis.frames.study import Source, Study
from analysis.measures import stragglers
from analysis.measures.lateness import BY_COLLECTIVES, LATE_SHARE, STRAGGLER, Lateness
from analysis.measures.stragglers import notable_ranks
from analysis.report.base import Content, Context, SectionKind, as_view, called, facts
from analysis.report.render import Chart
from profiling.findings import Finding

# Blue for less, orange for more: told apart in any colour vision, and by lightness from the middle.
DIVERGING = ((0.0, BLUE), (0.5, "#F2F2F2"), (1.0, VERMILLION))
_FEW_COLUMNS = 5
MOST_COLUMNS = 100  # of a heat map: of more batches, neighbours share one, by their median
MOST_ROWS = 64  # of a heat map: of more ranks, neighbours share one, by the latest of them in each step
MOST_NAMED = 8  # ranks that then have a row of their own: the stragglers that are latest
_SIGN = "Above 0: the other ranks waited for this one; below 0: it waited."
_SHARED_ROWS = "{} ranks share a row, the latest of them in each step; the {} latest stragglers at the top."


@dataclass(frozen=True)
class Judged:
    """A run's lateness, and its ranks' rows with their verdicts."""

    source: Source
    lateness: Lateness
    rows: Rows


def late_runs(context: Context) -> list[Judged] | None:
    """The runs of most ranks whose batches tell who was late; None where no run has several ranks."""
    if not context.own and not context.traces:
        return None
    runs = [source for source in context.study.of_kind("run", "trace") if source.ranks > 1]
    if not runs:
        return None
    most = max(source.world_size or 1 for source in runs)
    largest = [source for source in runs if source.world_size == most]
    return [run for _, run in context.study.each(largest, partial(_judged, context.study))]


def _judged(study: Study, source: Source) -> Judged | None:
    """A run's lateness; None: its steps do not tell."""
    lateness = stragglers.lateness_of(study, source)
    return Judged(source, lateness, stragglers.rows_by_rank(study, source, lateness)) if lateness else None


def _stragglers(context: Context) -> Content:
    """Who is slow, of the runs that tell."""
    judged = context.once(late_runs)
    if not judged:
        raise context.study.nothing(stragglers.why_none(context.study))
    shown = _shown(judged)
    source = shown.source
    figure = _figure(shown, facts(source.fields, context.factors))
    shared = _SHARED_ROWS.format(_ranks_of_a_row(source.ranks), MOST_NAMED)
    chart = Chart("lateness", figure, caption=shared if source.ranks > MOST_ROWS else "")
    every = [{"run": source.id, **source.fields, **row} for row in shown.rows]
    rows, _ = notable_ranks(every)
    view = as_view(Part("", rows, stragglers.shown(every)), "straggler-table", context.factors)
    return Content(f"{called(source.fields, context.factors)}. {_SIGN}", [chart], [view])


def _shown(judged: Sequence[Judged]) -> Judged:
    """The run that is drawn: the one that the sentences are about, so that both show the same rank."""
    late = stragglers.foremost(rows_of(judged))
    if late is not None:
        return next(run for run in judged if run.source.id == late["run"])
    # Collectives tell the whole lateness, stages a lower bound of it.
    return min(judged, key=lambda run: run.lateness.told_by != BY_COLLECTIVES)


STRAGGLERS = SectionKind(
    "stragglers",
    "Are there stragglers?",
    _stragglers,
    lambda context: context.once(late_runs) is not None,
)


def rows_of(judged: Sequence[Judged]) -> Rows:
    """The rows of all runs, each with its run's id, repetition and fields."""
    return [
        {"run": run.source.id, "repetition": run.source.repetition, **run.source.fields, **row}
        for run in judged
        for row in run.rows
    ]


def verdicts(judged: Sequence[Judged]) -> list[Finding]:
    """The stragglers of traces, a finding for each; none where no rank is named."""
    found = stragglers.verdict(rows_of(judged)) if judged else []
    return [one for one in found if one.code == "straggler"]


def _figure(judged: Judged, meta: dict[str, Any]) -> Figure:
    source, lateness = judged.source, judged.lateness
    index, late_ms = narrowed(lateness.batch_index, lateness.late_ns / 1e6)
    nodes = source.hosts
    several = len(set(nodes)) > 1
    names = [f"{rank} ({node})" if several else str(rank) for rank, node in enumerate(nodes)]
    shared = "" if len(index) == len(lateness.batch_index) else ", medians of neighbours"
    # Twice what counts as late is the least that has full colour: noise of a steady run stays pale.
    full = max(2 * LATE_SHARE * lateness.batch_ns / 1e6, float(np.percentile(np.abs(late_ms), 99)))
    if len(names) > MOST_ROWS:
        named = [row for row in judged.rows if row["verdict"] == STRAGGLER]
        latest = sorted(named, key=lambda row: -row["mean_lateness_ms"])[:MOST_NAMED]
        late_ms, names = in_groups(late_ms, names, [row["rank"] for row in latest])
    return heat_map(late_ms, index.tolist(), names, f"Lateness of ranks{shared}", "ms", full, meta)


def _ranks_of_a_row(ranks: int) -> int:
    return -(-ranks // MOST_ROWS)


def in_groups(values: np.ndarray, names: Sequence[str], apart: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """Values (ranks, columns) in :data:`MOST_ROWS` rows of neighbouring ranks, and what the rows are called.

    A row has the highest value of its ranks in each column: a late rank is not lost among others.

    Args:
        names: of the ranks.
        apart: ranks that have a row of their own, above all others, and do not count in their neighbours'
            (which is NaN where no other rank shares it).
    """
    size = _ranks_of_a_row(len(values))
    starts = np.arange(0, len(values), size)
    ends = np.minimum(starts + size, len(values)) - 1
    others = values.astype(float)
    others[list(apart)] = np.nan
    rows = np.concatenate([values[list(apart)], np.fmax.reduceat(others, starts, axis=0)])
    spans = [
        f"{first} to {last}" if first < last else str(first) for first, last in zip(starts, ends, strict=True)
    ]
    return rows, [*(names[rank] for rank in apart), *spans]


def narrowed(index: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (ranks, batches) in :data:`MOST_COLUMNS` or less: medians of neighbours, by their first."""
    size = -(-values.shape[1] // MOST_COLUMNS)
    starts = np.arange(0, values.shape[1], size)
    columns = [np.median(values[:, start : start + size], axis=1) for start in starts]
    return index[starts], np.stack(columns, axis=1)


def heat_map(
    values: np.ndarray,
    columns: Sequence[int],
    names: Sequence[str],
    title: str,
    unit: str,
    full: float,
    meta: dict[str, Any],
) -> Figure:
    """Values around 0 of ranks by batches, rank 0 on top.

    Args:
        values: (ranks, batches); ``columns`` and ``names`` are the batches' and the ranks'.
        full: the value of full colour, on either side.
        meta: what the filters look at.
    """
    trace = {
        "type": "heatmap",
        "z": [[float(f"{value:.3g}") if np.isfinite(value) else None for value in row] for row in values],
        "x": list(columns),
        "y": [escaped(name) for name in names],
        "zmin": -full,
        "zmax": full,
        "colorscale": [list(stop) for stop in DIVERGING],
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "hovertemplate": f"rank %{{y}}, step %{{x}}: %{{z}} {unit}<extra></extra>",
        "meta": meta,
    }
    figure = bars([trace], title, "step", [])
    shape = figure["layout"]
    shape |= {"height": 152 + 12 * max(len(names), 8)}
    shape["yaxis"] = {
        "automargin": True,
        "autorange": "reversed",
        "title": {"text": "rank"},
        "type": "category",
    }
    shape["xaxis"] |= {"rangemode": "normal"}  # from the first batch that tells, not from 0
    if len(columns) <= _FEW_COLUMNS:
        shape["xaxis"] |= {"tickvals": list(columns)}  # plotly's own would be fractions of a step
    return figure
