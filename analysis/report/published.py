"""What do the reference's own files say? Published scaling, counts of PyProf tables, corrections."""

import re

from analysis.display.lines import EFFICIENCY
from analysis.display.metrics import Rows
from analysis.published import scaled_parts
from analysis.published.explain import explain
from analysis.report.base import Content, Context, SectionKind
from analysis.report.encoded import line_chart, with_lines
from analysis.report.render import TableView
from analysis.report.views import as_view, called, varied
from profiling.wording import how_many

_NOT_SHOWN = re.compile("not shown|nothing can be shown")  # in a line of analysis.published.explain


def _scaling(context: Context) -> Content:
    """Scaling as the reference computed it."""
    published = _published(context)
    text = (
        "Epoch durations and scaling efficiencies as the reference computed them, from the duration of the "
        "whole application. The last column is the share of that duration that does not depend on the "
        "batch size."
    )
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(published) if name not in ("nodes", "world_size")]
    points = context.with_facts([{**row, "label": called(row, fields)} for row in published], fields)
    label = "Published scaling efficiency, by number of ranks"
    chart = line_chart(context, "published", with_lines(points, "world_size"), EFFICIENCY, label)
    return Content(text, [chart], _views(context, published, "published"))


def _published(context: Context) -> Rows:
    return [row for row in context.others if row["epoch_duration_s"] is not None]


def _tables(context: Context) -> Content:
    """Counts and coverage of PyProf tables."""
    text = "PyProf kernel tables. Steps are counted in each table, not assumed."
    return Content(text, tables=_views(context, _counted(context), "counted"))


def _how_many(context: Context) -> str:
    return f"Kernel tables: {len(_counted(context))}."


def _counted(context: Context) -> Rows:
    return [row for row in context.others if row["tables"] is not None]


def _views(context: Context, rows: Rows, id: str) -> list[TableView]:
    parts = scaled_parts.parts(rows)
    return [as_view(part, f"{id}-{number}", context.factors) for number, part in enumerate(parts)]


def _corrections(context: Context) -> Content:
    """What each correction of the reference's method moves on these data."""
    text = (
        "The corrections to the reference's method (SURFBoard, 2020). Each line gives the effect of one "
        "correction on these data. Numbering as in docs/methods.md."
    )
    lines = context.once(_moved)
    of_one = [line for line in lines if not line.endswith(":") and not line.startswith("others ")]
    shown = [line for line in of_one if not _NOT_SHOWN.search(line)]
    finding = f"{how_many(len(shown), 'effect')} of corrections on these data"
    if len(of_one) > len(shown):
        finding += f"; {len(of_one) - len(shown)} cannot be shown on them"
    return Content(text, notes=lines, finding=f"{finding}.")


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    if not context.others:
        return []
    lines = explain(context.study, context.own)
    return [line.strip() for line in lines[2:] if line.strip()]


SCALING = SectionKind(
    "published-scaling", "Scaling, as published", _scaling, lambda context: bool(_published(context))
)
TABLES = SectionKind(
    "kernel-tables",
    "The kernel tables",
    _tables,
    lambda context: bool(_counted(context)),
    finding=_how_many,
)
CORRECTIONS = SectionKind(
    "corrections", "Effect of each correction", _corrections, lambda context: bool(context.once(_moved))
)
