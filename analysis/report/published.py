"""Sections on the reference's own files: published scaling, PyProf tables, effects of the corrections."""

import pandas as pd

from analysis.display.lines import EFFICIENCY
from analysis.display.metrics import Rows
from analysis.measures import scaled
from analysis.published.explain import explain
from analysis.report.base import (
    Content,
    Context,
    SectionKind,
    as_view,
    called,
    line_chart,
    varied,
    with_lines,
)
from analysis.report.render import TableView

_BY_WHOLE_TIME = "From the duration of the whole application, startup included."


def _scaling(context: Context) -> Content:
    """Scaling as the reference computed it."""
    published = _published(context)
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(published) if name not in ("nodes", "world_size")]
    points = context.with_facts([{**row, "label": called(row, fields)} for row in published], fields)
    chart = line_chart(context, "published", with_lines(points, "world_size"), EFFICIENCY)
    return Content(_BY_WHOLE_TIME, [chart], _views(context, published, "published"))


def _published(context: Context) -> Rows:
    return [row for row in context.others if row["epoch_duration_s"] is not None]


def _tables(context: Context) -> Content:
    """Counts and coverage of PyProf tables."""
    return Content(tables=_views(context, _counted(context), "counted"))


def _counted(context: Context) -> Rows:
    return [row for row in context.others if row["tables"] is not None]


def _views(context: Context, rows: Rows, id: str) -> list[TableView]:
    parts = scaled.tables(rows)
    return [as_view(part, f"{id}-{number}", context.factors) for number, part in enumerate(parts)]


def _corrections(context: Context) -> Content:
    """What each correction of the reference's method changes on these data."""
    return Content(notes=context.once(_moved))


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    if not context.others:
        return []
    lines = explain(context.study, pd.DataFrame(context.own))
    return [line.strip() for line in lines[2:] if line.strip()]


SCALING = SectionKind(
    "published-scaling", "Scaling, as published", _scaling, lambda context: bool(_published(context))
)
TABLES = SectionKind(
    "kernel-tables",
    "The kernel tables",
    _tables,
    lambda context: bool(_counted(context)),
)
CORRECTIONS = SectionKind(
    "corrections", "Effect of each correction", _corrections, lambda context: bool(context.once(_moved))
)
