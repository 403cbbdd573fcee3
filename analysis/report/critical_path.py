"""The section on the critical path of the foremost run, and what each of its parts would save."""

from dataclasses import replace

import pandas as pd

from analysis.diagnosis.evidence import foremost_path
from analysis.display import plots
from analysis.display.plots import DARK_GREY, WHITE
from analysis.frames.study import RECORDING
from analysis.measures.critical_path import answer
from analysis.report.base import Content, Context, SectionKind, called, facts
from analysis.report.render import Chart

_COLOURS = {"saved": DARK_GREY, "not_saved": WHITE}


def _applies(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.recorded)


def _critical_path(context: Context) -> Content:
    paths, rows = context.once(foremost_path)
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
