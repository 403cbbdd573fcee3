"""The section on the critical path of a run, and what each of its parts would save.

The run is the slowest of those that were profiled on the most ranks, of which other sections speak, too. Of
traces it is the job in which most can be saved of a step, in percent: milliseconds of unlike jobs cannot be
compared. Only where none has steps, it is of a whole recording.
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.display.plots import BLUE, PALE_GREY
from analysis.display.terminal import Part
from analysis.frames.steps import series_of
from analysis.frames.study import RECORDING, Source, Study
from analysis.measures.critical_path.paths import PARTS, RunPaths, paths_of
from analysis.measures.critical_path.rows import of_run, shown
from analysis.measures.timeline import choose
from analysis.report.base import Content, Context, SectionKind, as_view, facts
from analysis.report.render import Chart
from profiling.errors import UserError

_COLOURS = {"saved": BLUE, "not_saved": PALE_GREY}


def _applies(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.recorded)


def longest(context: Context) -> tuple[RunPaths, Rows]:
    """The path that the page shows, and its parts as :func:`of_run` has them.

    Raises:
        UserError: there is none.
    """
    study = context.study
    jobs = [source for source in context.traces if source.tables("kernels")]
    candidates = jobs or [_foremost(study)]
    known = [
        (paths, rows)
        for _, paths in study.each(candidates, lambda one: paths_of(study, one))
        if (rows := of_run(paths))
    ]
    if not known:
        raise UserError(f"{candidates[0].id} has no profiled step with timed kernels")
    stepped = [one for one in known if not one[0].source.without_steps] or known
    return max(stepped, key=lambda one: largest_saving(one[1])["saved_pct"])


def _foremost(study: Study) -> Source:
    """The run of a sweep that matters most: the slowest of the profiled ones on the most ranks."""
    largest = choose(study)
    ranks = len(largest.tables("batches"))
    alike = [
        source
        for source in study.of_kind("run")
        if source.tables("kernels") and len(source.tables("batches")) == ranks
    ]
    steps = [
        (float(np.median(series.step_ns)), source)
        for source, series in study.each(alike, lambda one: series_of(study, one))
        if len(series.step_ns)
    ]
    return max(steps, key=lambda one: one[0], default=(0.0, largest))[1]


def _critical_path(context: Context) -> Content:
    paths, rows = context.once(longest)
    source = paths.source
    of = context.study.a_step([source.id])
    per, of_run = _per(of), facts(source.fields, context.factors)
    points = pd.DataFrame([
        {"label": row["part"], "facts": of_run, "saved_ms": row["saved_ms"],
         "not_saved_ms": max(row["path_ms"] - row["saved_ms"], 0)}
        for row in rows
        if row["path_ms"] or row["saved_ms"]
    ])  # fmt: skip
    chart = Chart("critical-path", plots.parts(points, _COLOURS, "Critical path", of=f"ms {per}"))
    part = Part("", [{**row, **of_run} for row in rows], shown(rows, of=of))
    return Content(source.id, [chart], [as_view(part, "critical-path-table", context.factors)])


def _per(of: str) -> str:
    return "in the recording" if of == RECORDING else "per step"


def largest_saving(rows: Rows) -> dict[str, Any]:
    """The part that would save most: several at once always save more, and nobody can do without kernels."""
    return max((row for row in rows if row["part"] in PARTS), key=lambda row: row["saved_ms"])


CRITICAL_PATH = SectionKind("critical-path", "What would shorten the step?", _critical_path, _applies)
