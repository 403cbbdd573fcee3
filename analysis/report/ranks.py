"""Sections on what ranks wait for: collectives, MPI calls recorded by TAU, and stragglers.

The map and the table of stragglers show only the latest ranks (the table also the extremes), so thousands of
ranks take no more space than a hundred. Shares of communication in GPU time are a separate page.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.diagnosis.evidence import widest
from analysis.display import plots
from analysis.display.metrics import columns, filled, records, varied
from analysis.display.output import Part
from analysis.frames.study import Source
from analysis.measures import communication, stragglers
from analysis.measures import tau as messages
from analysis.measures.activities import SHARES
from analysis.measures.lateness import BY_COLLECTIVES, LATE_SHARE, Lateness
from analysis.report import base
from analysis.report.base import Context, bare, chart_of, section, sized
from analysis.report.render import Chart, Page, Section, facts

HIDDEN = {"exposed": plots.CONCEPTS["communication"], "overlapped": plots.CONCEPTS["hidden"]}
WAITED = {"transfer": plots.CONCEPTS["transfer"], "wait": plots.CONCEPTS["wait"]}
_PARTS = [f"{name}_ms" for name in (*HIDDEN, *WAITED)]
_MPI_CHARTS = (
    plots.Axes("nodes", "nodes", "mpi_s", "s", "Time in four MPI collectives, all ranks"),
    plots.Axes("nodes", "nodes", "messages", "messages", "Messages, all ranks"),
    plots.Axes("nodes", "nodes", "volume_mbyte", "MB", "Bytes sent, all ranks"),
)
_SHARES = plots.Axes("batch", "per-GPU batch size, images", "pct", "% of time", "Communication and copies")


def _talked(context: Context) -> bool:
    """Whether runs of several ranks may have collectives; where TAU saw MPI, only those that are known."""
    of_tau = messages.has_tau(context.study)
    several = any(
        source.ranks > 1 and source.fields["profile"] != "tau"
        for source in context.study.of_kind("run", "trace")
        if source.fields["profile"] != "none" or not of_tau
    )
    return several and not (of_tau and context.frame_if_any(communication.communication, context.study).empty)


@section("communication", "What does communication cost?", _talked)
def collectives(context: Context) -> Section:
    answer = context.once(communication.communication, context.study)
    bars = base.by_configuration(together(answer.rows), _PARTS, context.factors, context.unit)
    charts = [base.bar_chart("exposed", bars, HIDDEN, "Overlapped and exposed")]
    complete = bars.dropna(subset=[f"{name}_ms" for name in WAITED])
    if len(complete):
        charts.append(base.bar_chart("waits", complete, WAITED, "Transfer and waiting"))
    return Section("", charts, answer.tables)


def together(rows: pd.DataFrame) -> pd.DataFrame:
    """All collectives of a run in a row: what is not known of one is not known of their sum."""
    parts = rows.reindex(columns=_PARTS).astype(float)
    sums = parts.groupby(rows["run"]).sum().where(parts.notna().groupby(rows["run"]).all())
    return rows.drop(columns=_PARTS, errors="ignore").drop_duplicates("run").merge(sums, on="run")


@section("mpi", "What does MPI cost?", lambda context: messages.has_tau(context.study))
def mpi(context: Context) -> Section:
    answer = messages.answer(context.study)
    rows = answer.rows
    lines = [name for name in varied(rows) if name not in ("nodes", "world_size")]
    points = base.labelled(rows, lines, context.facts_of_lines(lines))
    charts = [
        base.line_chart(context, f"mpi-{axes.y}", base.with_lines(known, axes.x), axes)
        for axes in _MPI_CHARTS
        # Of profiles that were converted the number of nodes is not known.
        if len(known := points.dropna(subset=[axes.x, axes.y]))
    ]
    return Section("", charts, answer.tables)


def _label(row: Mapping[str, Any]) -> str:
    size = row["world_size"]
    gpus = "GPUs unknown" if size is None else f"{size} GPU{'s' * (size != 1)}"
    return f"{gpus}, {row['backend']}" if row["backend"] else gpus


def page(shares: pd.DataFrame, name: str) -> Page:
    """A page of what communication and copies take of GPUs' time: rows of analysis.activities --shares."""
    charts = []
    known = shares.assign(label=[_label(row) for row in records(shares)]).dropna(subset="batch")
    if len(known):
        of_parts = [known.assign(part=part, pct=known[f"{part}_pct"]) for part in ("communication", "copies")]
        points = pd.concat(of_parts, ignore_index=True)
        levels = [facts(row, ["label", "part"]) for row in records(points)]
        points = points.assign(facts=pd.Series(levels, dtype=object), label=points["label"] + points["part"])
        charts = [
            Chart("activities", plots.lines(points, plots.Encoding(colour="label", dash="part"), _SHARES))
        ]
    table = Part("", shares, filled(columns(SHARES), shares))
    heading = "What do communication and copies take?"
    section = Section("", charts, [table], id="activities", heading=heading)
    return Page(f"Communication and copies: {name}", f"configurations: {len(shares)}", [], [section], "", [])


_HOVER = "rank %{y}, step %{x}: %{z} ms<extra></extra>"
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


def _figure(source: Source, lateness: Lateness) -> plots.Figure:
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
        "y": [plots.escaped(f"{rank} ({nodes[rank]})" if several else str(rank)) for rank in rows],
        # Distinct in any colour vision.
        "colorscale": [[0.0, plots.BLUE], [0.5, plots.WHITE], [1.0, plots.ORANGE]],
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
        "hovertemplate": _HOVER,
    }  # fmt: skip
    few = {"tickvals": steps} if len(steps) <= 5 else {}  # plotly's own would be fractions of a step
    whole = {
        **plots.layout(f"Lateness of ranks{', medians of neighbours' * (size > 1)}"),
        "height": 152 + 12 * max(len(rows), 8), "xaxis": {"title": plots.beside_ticks("step"), **few},
        "yaxis": {"automargin": True, "autorange": "reversed", "title": {"text": "rank"}, "type": "category"},
    }  # fmt: skip
    return {"data": [trace], "layout": whole}


def latest(late_ms: np.ndarray) -> np.ndarray:
    """The ranks that have a row of the map, those that were latest in a step; ``late_ms``: (ranks, steps)."""
    return np.sort(np.argsort(-late_ms.max(axis=1), kind="stable")[:MOST_ROWS])
