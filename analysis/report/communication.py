"""Sections on communication: collectives of runs, MPI calls recorded by TAU, and shares of GPU time."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.display.metrics import columns, filled, records, varied
from analysis.display.output import Part
from analysis.display.plots import CONCEPTS, Axes, Encoding
from analysis.display.plots import lines as draw
from analysis.measures import communication
from analysis.measures import tau as messages
from analysis.measures.activities import SHARES
from analysis.report import base
from analysis.report.base import Context, section
from analysis.report.render import Chart, Page, Section, facts

HIDDEN = {"exposed": CONCEPTS["communication"], "overlapped": CONCEPTS["hidden"]}
WAITED = {"transfer": CONCEPTS["transfer"], "wait": CONCEPTS["wait"]}
_PARTS = [f"{name}_ms" for name in (*HIDDEN, *WAITED)]
_MPI_CHARTS = (
    Axes("nodes", "nodes", "mpi_s", "s", "Time in four MPI collectives, all ranks"),
    Axes("nodes", "nodes", "messages", "messages", "Messages, all ranks"),
    Axes("nodes", "nodes", "volume_mbyte", "MB", "Bytes sent, all ranks"),
)
_SHARES = Axes("batch", "per-GPU batch size, images", "pct", "% of time", "Communication and copies")


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
        charts = [Chart("activities", draw(points, Encoding(colour="label", dash="part"), _SHARES))]
    table = Part("", shares, filled(columns(SHARES), shares))
    heading = "What do communication and copies take?"
    section = Section("", charts, [table], id="activities", heading=heading)
    return Page(f"Communication and copies: {name}", f"configurations: {len(shares)}", [], [section], "", [])
