"""What would shorten the step? The critical path of a run, and what each part saves.

The run is the largest that was profiled; of traces, whose jobs are unlike each other, the one in which most
can be saved.
"""

from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.colours import BLUE, PALE_GREY
from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.measures.anatomy.timeline import choose
from analysis.measures.critical_path.paths import PARTS, paths_of
from analysis.measures.critical_path.rows import caption, of_run, shown
from analysis.report.base import Content, Context, SectionKind
from analysis.report.render import Chart
from analysis.report.views import as_view
from analysis.results.study import RECORDING
from profiling.errors import UserError

_COLOURS = {"saved": BLUE, "not_saved": PALE_GREY}


def _applies(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.recorded)


def _critical_path(context: Context) -> Content:
    study = context.study
    jobs = [source for source in context.traces if source.tables("kernels")]
    candidates = jobs or [choose(study)]
    known = [
        (paths, rows)
        for _, paths in study.each(candidates, lambda one: paths_of(study, one))
        if (rows := of_run(paths))
    ]
    if not known:
        raise UserError(f"{candidates[0].id} has no attributed step with timed kernels")
    paths, rows = max(known, key=lambda one: _most(one[1])["saved_ms"])
    source, of = paths.source, study.a_step([paths.source.id])
    per = "in the recording" if of == RECORDING else "per step"
    points = pd.DataFrame([
        {"label": row["part"], "facts": {}, "saved_ms": row["saved_ms"],
         "not_saved_ms": max(row["path_ms"] - row["saved_ms"], 0)}
        for row in rows
        if row["path_ms"] or row["saved_ms"]
    ])  # fmt: skip
    title = f"Time on the critical path: what {of} would be shorter by without it, and what not"
    chart = Chart(
        "critical-path",
        plots.parts(points, _COLOURS, title, of=f"ms {per}"),
        f"Milliseconds {per} of each part of the critical path, by what would be saved without it",
        runs="1 run",
    )
    which = "the job in which most can be saved" if len(known) > 1 else "the largest profiled run"
    mean = "" if of == RECORDING else f"; mean of {len(paths.steps)} steps"
    text = (
        f"The longest chain of {of} of {source.id} ({which}{mean}) through the host's code, launches, "
        "kernels, copies and the collectives of its ranks. Shortening what is not on it changes nothing. "
        "python -m analysis.critical_path has the other runs, and the path by operator, kernel, layer "
        "and rank."
    )
    view = as_view(Part("", rows, shown(rows, of=of), caption(of=of)), "critical-path-table", ())
    most = _most(rows)
    whose = f" ({source.id if jobs else 'largest profiled run'})" if len(study.recorded) > 1 else ""
    saved = f"{most['part']}, {digits(most['saved_ms'], 3)} ms {per}{whose}"
    finding = f"Largest saving if one part took no time: {saved}."
    return Content(text, [chart], [view], paths.unknown, finding)


def _most(rows: Rows) -> dict[str, Any]:
    """The part that would save most: several at once always save more, and nobody can do without kernels."""
    return max((row for row in rows if row["part"] in PARTS), key=lambda row: row["saved_ms"])


CRITICAL_PATH = SectionKind("critical-path", "What would shorten the step?", _critical_path, _applies)
