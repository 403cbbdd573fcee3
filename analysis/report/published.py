"""Sections on the reference's own files: published scaling, PyProf tables, effects of the corrections."""

import pandas as pd

from analysis.display.lines import EFFICIENCY
from analysis.display.metrics import records
from analysis.measures import scaled
from analysis.published.explain import explain
from analysis.report.base import Content, Context, SectionKind, labelled, line_chart, varied, with_lines

_BY_WHOLE_TIME = "From the duration of the whole application, startup included."


def published(context: Context) -> pd.DataFrame:
    """The rows that were timed by the whole application."""
    return known(context, "epoch_duration_s")


def known(context: Context, column: str) -> pd.DataFrame:
    """The rows of which a column is known: each kind of tables has columns of its own."""
    others = context.others
    return others[others[column].notna()] if column in others else others[:0]


def _scaling(context: Context) -> Content:
    """Scaling as the reference computed it."""
    rows = published(context)
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(rows) if name not in ("nodes", "world_size")]
    points = with_lines(labelled(rows, fields, context.facts_of_lines(fields)), "world_size")
    chart = line_chart(context, "published", points, EFFICIENCY)
    parts = enumerate(scaled.tables(records(rows)))
    return Content(_BY_WHOLE_TIME, [chart], {f"published-{number}": part for number, part in parts})


def _tables(context: Context) -> Content:
    """Counts and coverage of PyProf tables."""
    parts = enumerate(scaled.tables(records(known(context, "tables"))))
    return Content(tables={f"counted-{number}": part for number, part in parts})


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    if context.others.empty:
        return []
    return [line.strip() for line in explain(context.study, context.own)[2:] if line.strip()]


SCALING = SectionKind(
    "published-scaling", "Scaling, as published", _scaling, lambda context: len(published(context)) > 0
)
TABLES = SectionKind(
    "kernel-tables", "The kernel tables", _tables, lambda context: len(known(context, "tables")) > 0
)
CORRECTIONS = SectionKind(
    "corrections", "Effect of each correction", lambda context: Content(notes=context.once(_moved)),
    lambda context: bool(context.once(_moved)),
)  # fmt: skip
