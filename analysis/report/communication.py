"""Sections on communication: collectives of runs, MPI as TAU saw it, and shares of GPUs' time."""

from collections.abc import Sequence

import pandas as pd

from analysis.display import plots
from analysis.display.lines import Axes
from analysis.display.metrics import Rows, columns, filled, names_of
from analysis.display.plots import BLUE, BROWN, SKY, VERMILLION
from analysis.display.terminal import Part
from analysis.measures import communication
from analysis.measures import tau as messages
from analysis.measures.activities import SHARES, of_study, shares
from analysis.report.base import Content, Context, SectionKind, bar_chart, line_chart, with_lines
from analysis.report.render import Chart, Page, Section
from analysis.report.views import as_view, called, facts, merged, named, point_of, varied

HIDDEN = {"exposed": VERMILLION, "overlapped": SKY}
WAITED = {"transfer": BLUE, "wait": BROWN}
_MPI_CHARTS = (
    Axes("nodes", "nodes", "mpi_s", "s", "Time in MPI, all ranks"),
    Axes("nodes", "nodes", "messages", "messages", "Messages, all ranks"),
    Axes("nodes", "nodes", "volume_mbyte", "MB", "Bytes sent, all ranks"),
)


def _several_ranks(context: Context) -> bool:
    """Whether collectives of runs of several ranks may be known; where TAU saw MPI, only of profiled ones."""
    of_tau = messages.has_tau(context.study)
    return any(
        source.ranks > 1 and source.fields["profile"] != "tau"
        for source in context.study.of_kind("run", "trace")
        if source.fields["profile"] != "none" or not of_tau
    )


def _applies(context: Context) -> bool:
    """Not where nobody has anybody to talk to."""
    return _several_ranks(context) or messages.has_tau(context.study)


def _communication(context: Context) -> Content:
    """Collectives of runs of several ranks, and MPI of TAU's tables."""
    halves = []
    if _several_ranks(context) and (context.rows_if_any(_rows) or not messages.has_tau(context.study)):
        halves.append(_collectives(context))
    if messages.has_tau(context.study):
        halves.append(_mpi(context))
    charts = [chart for half in halves for chart in half.charts]
    return Content("", charts, [table for half in halves for table in half.tables])


def _collectives(context: Context) -> Content:
    rows = context.once(_rows)
    points = bars_of(rows, context.factors)
    charts = [bar_chart(context, "exposed", points, HIDDEN, "Overlapped and exposed")]
    complete = points.dropna(subset=[f"{name}_ms" for name in WAITED])
    if len(complete):
        charts.append(bar_chart(context, "waits", complete, WAITED, "Transfer and waiting"))
    view = as_view(Part("", rows, communication.shown(rows)), "communication-table", context.factors)
    return Content("", charts, [view])


def _rows(context: Context) -> Rows:
    return of_points(communication.rows(context.study))


# What tells the collectives of a run apart; all else of them is a figure, of which runs have different ones.
_APART = ("collective", "group_size", "groups", "group_ranks")
_FIGURES = [name for name in names_of(communication.METRICS) if name not in _APART]
_RATES = ("algbw_gb_per_s", "busbw_gb_per_s", "busbw_of_measured_pct")
_TOGETHER = "busbw_together_gb_per_s"


def of_points(rows: Rows) -> Rows:
    """Rows of runs as rows of points, a row a collective: means of times and bytes, rates formed of these."""
    points = merged(rows, _FIGURES, _APART)
    for row in points:
        moved, ms, calls = (row[name] for name in ("mbyte_per_step", "transfer_ms", "calls_per_step"))
        row["mbyte_per_call"] = moved / calls if moved and calls else None
        mean = row["algbw_gb_per_s"]
        for name in _RATES:
            # What a rate is over the algorithm bandwidth is the same in all runs.
            row[name] = row[name] / mean * moved / ms if moved and ms and mean and row[name] else None
        bus, together = row["busbw_gb_per_s"], row["transferring_ms"]
        row[_TOGETHER] = bus * ms / together if bus and together else None
    return points


_PARTS = [f"{name}_ms" for name in (*HIDDEN, *WAITED)]


def bars_of(rows: Rows, factors: Sequence[str]) -> pd.DataFrame:
    """The bars of a chart: a point each."""
    return named(summed(rows), factors).astype(dict.fromkeys(_PARTS, float))


def summed(rows: Rows) -> Rows:
    """A row a point: all its collectives together; what is not known of one is not known of their sum."""
    points: dict[tuple, Rows] = {}
    for row in rows:
        points.setdefault(point_of(row), []).append(row)
    sums = [
        {**of[0], **{name: None if any(row.get(name) is None for row in of) else sum(row[name] for row in of)
                     for name in _PARTS}}
        for of in points.values()
    ]  # fmt: skip
    return sorted(sums, key=lambda row: (row.get("nodes") or 0, row.get("gpus_per_node") or 0))


def _mpi(context: Context) -> Content:
    rows = context.once(_messages)
    fields = varied(rows)
    lines = [name for name in fields if name not in ("nodes", "world_size")]
    labelled = context.with_facts([{**row, "label": called(row, lines)} for row in rows], lines)
    charts = [
        line_chart(context, f"mpi-{axes.y}", with_lines(known, axes.x), axes)
        for axes in _MPI_CHARTS
        # Of profiles that were converted the number of nodes is not known.
        if (known := [row for row in labelled if pd.notna(row.get(axes.y)) and row.get(axes.x) is not None])
    ]
    (part,) = messages.answer(context.study).parts or ()
    return Content("", charts, [as_view(part, "mpi-table", context.factors)])


def _messages(context: Context) -> Rows:
    return messages.rows(context.study)


def _batch_sizes_differ(context: Context) -> bool:
    profiled = [source for source in context.study.of_kind("run") if source.tables("kernels")]
    return len({source.fields["batch"] for source in profiled}) > 1


def _activities(context: Context) -> Content:
    return of_shares(shares(of_study(context.study)), context.factors, context.study.unit)


def of_shares(rows: Rows, factors: Sequence[str] = (), unit: str = "GPU") -> Content:
    """What communication and copies take of GPUs' time, of rows of analysis.activities --shares."""
    points = pd.DataFrame([{**row, "label": _label(row), "facts": facts(row, factors)} for row in rows])
    with_batch = points[points["batch"].notna()]
    charts = [Chart("activities", plots.shares(with_batch, unit))] if len(with_batch) else []
    shown = filled(columns(SHARES), rows)
    return Content("", charts, [as_view(Part("", rows, shown), "activities-table", factors)])


def _label(row: dict) -> str:
    size = row["world_size"]
    gpus = "GPUs unknown" if size is None else f"{size} GPU{'s' * (size != 1)}"
    return f"{gpus}, {row['backend']}" if row["backend"] else gpus


COMMUNICATION = SectionKind("communication", "What does communication cost?", _communication, _applies)
ACTIVITIES = SectionKind(
    "activities", "What do communication and copies take?", _activities, _batch_sizes_differ
)


def page(rows: Rows, name: str) -> Page:
    """A page that holds shares alone."""
    section = Section(ACTIVITIES.id, ACTIVITIES.heading, **vars(of_shares(rows)))
    return Page(f"Communication and copies: {name}", f"configurations: {len(rows)}", [], [section], "", [])
