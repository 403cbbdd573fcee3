"""The section on the critical path of a run, and what each of its parts would save.

The run is the slowest of those that were profiled on the most ranks, as in other sections. Of traces it is
the job in which most can be saved of a step, in percent: milliseconds of different programs cannot be
compared. A whole recording is shown only where no trace has steps.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.plots import DARK_GREY, WHITE
from analysis.frames.steps import series_of
from analysis.frames.study import RECORDING, Source, Study
from analysis.measures.critical_path import PARTS, RunPaths, answer, parts_of, paths_of
from analysis.report.base import Content, Context, SectionKind, called, facts
from analysis.report.render import Chart
from profiling.errors import UserError

_COLOURS = {"saved": DARK_GREY, "not_saved": WHITE}


def _applies(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.recorded)


def longest(context: Context) -> tuple[RunPaths, pd.DataFrame]:
    """The paths that the page shows, and their :func:`parts_of`.

    Raises:
        UserError: there is none.
    """
    study = context.study
    candidates = [source for source in context.traces if source.tables("kernels")] or [_slowest(study)]
    each = [paths for _, paths in study.each(candidates, lambda source: paths_of(study, source))]
    known = [paths for paths in each if len(paths.steps)]
    if not known:
        raise UserError(f"{candidates[0].id} has no profiled step with timed kernels")
    stepped = [paths for paths in known if not paths.source.without_steps] or known
    return max(((paths, parts_of(paths)) for paths in stepped), key=lambda of: _largest_saving(of[1]))


def _largest_saving(parts: pd.DataFrame) -> float:
    """In percent, of a single part: several at once always save more."""
    return float(parts.loc[parts["part"].isin(PARTS), "saved_pct"].max())


def _slowest(study: Study) -> Source:
    """The slowest of the profiled runs on the most ranks."""
    runs = [source for source in study.of_kind("run") if source.tables("kernels")]
    most = max(source.ranks for source in runs)
    each = study.each(
        [source for source in runs if source.ranks == most], lambda source: series_of(study, source)
    )
    steps = [(np.median(series.step_ns), source) for source, series in each if len(series.step_ns)]
    return max(steps, key=lambda step: step[0], default=(0.0, runs[0]))[1]


def _critical_path(context: Context) -> Content:
    paths, rows = context.once(longest)
    source = paths.source
    of_run = facts(source.fields, context.factors)
    not_saved = (rows["path_ms"] - rows["saved_ms"]).clip(lower=0)
    points = rows.assign(label=rows["part"], not_saved_ms=not_saved, facts=pd.Series([of_run] * len(rows)))
    of = "ms in the recording" if context.study.a_step([source.id]) == RECORDING else "ms per step"
    chart = Chart("critical-path", plots.parts(points, _COLOURS, "Critical path", of=of))
    (part,) = answer(context.study, rows).tables
    tables = {"critical-path-table": replace(part, title="", caption="")}
    return Content(called(source.fields, context.factors), [chart], tables)


CRITICAL_PATH = SectionKind("critical-path", "What would shorten the step?", _critical_path, _applies)
