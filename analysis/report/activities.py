"""The report's section, or a page of its own: what do communication and copies take, by batch size?"""

from collections.abc import Sequence

import pandas as pd

from analysis.display import plots
from analysis.display.terminal import Column, Part, Rows
from analysis.measures.kernels.activities import SHARES, of_study, shares
from analysis.report.render import Chart, Page, Section
from analysis.report.views import as_view, facts
from analysis.results.study import Study

HEADING = "What do communication and copies take?"
TEXT = (
    "Of the summed time of GPU activities (of operators, on a CPU): collectives, drawn through, and copies "
    "and memory sets, dashed, against the batch size of a GPU; a line a number of GPUs."
)


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """The section of a study whose profiled runs differ in their batch size; none of others."""
    profiled = [source for source in study.of_kind("run") if source.tables("kernels")]
    if len({source.fields["batch"] for source in profiled}) < 2:
        return None
    return of_shares(shares(of_study(study)), factors)


def of_shares(rows: Rows, factors: Sequence[str] = ()) -> Section:
    """The section of such shares."""
    points = pd.DataFrame([{**row, "label": _label(row), "facts": facts(row, factors)} for row in rows])
    known = points[points["batch"].notna()]
    label = "Share of communication and copies against batch size"
    charts = [Chart("activities", plots.shares(known), label)] if len(known) else []
    columns = [_column(name) for name in SHARES if any(row[name] is not None for row in rows)]
    view = as_view(Part("", rows, columns), "activities-table", factors)
    return Section("activities", HEADING, TEXT, charts, [view])


def _column(name: str) -> Column:
    unit = " %" if name.endswith("_pct") else ""
    return Column(name.removesuffix("_pct") + unit, lambda row: row[name], left=name == "backend")


def _label(row: dict) -> str:
    gpus = (
        "GPUs not known" if row["gpus"] is None else f"{row['gpus']} GPU" + ("s" if row["gpus"] > 1 else "")
    )
    return f"{gpus}, {row['backend']}" if row["backend"] else gpus


def page(rows: Rows, name: str) -> Page:
    """A page that holds the section alone."""
    methods = (
        "Times of kernels by name are summed over runs first, shares are formed last. See docs/methods.md."
    )
    return Page(
        f"Communication and copies: {name}", f"{len(rows)} points", [], [of_shares(rows)], methods, []
    )
