"""What would shorten the step? The critical path of the largest profiled run, and what each part saves."""

import pandas as pd

from analysis.display import plots
from analysis.display.terminal import Part
from analysis.measures.anatomy.timeline import choose
from analysis.measures.critical_path.paths import PARTS, paths_of
from analysis.measures.critical_path.rows import caption, of_run, shown
from analysis.report.base import Content, Context, SectionKind
from analysis.report.render import Chart
from analysis.report.views import as_view
from profiling.errors import UserError

_COLOURS = {"saved": "#0072B2", "not_saved": "#BBBBBB"}


def _applies(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.recorded)


def _critical_path(context: Context) -> Content:
    source = choose(context.study)
    paths = context.study.use(source, lambda one: paths_of(context.study, one))
    rows = of_run(paths) if paths else []
    if paths is None or not rows:
        raise UserError(f"{source.id} has no attributed step with timed kernels")
    points = pd.DataFrame([
        {"label": row["part"], "facts": {}, "saved_ms": row["saved_ms"],
         "not_saved_ms": max(row["path_ms"] - row["saved_ms"], 0)}
        for row in rows
    ])  # fmt: skip
    title = "Time on the critical path: what a step would be shorter by without it, and what not"
    chart = Chart(
        "critical-path",
        plots.parts(points, _COLOURS, title, of="ms per step"),
        "Milliseconds per step of each part of the critical path, by what would be saved without it",
        runs="1 run",
    )
    text = (
        f"The longest chain of a step of {source.id} (the largest profiled run; mean of {len(paths.steps)} "
        "steps) through the host's code, launches, kernels, copies and the collectives of its ranks. "
        "Shortening what is not on it changes nothing. python -m analysis.critical_path has the other runs, "
        "and the path by operator, kernel, layer and rank."
    )
    view = as_view(Part("", rows, shown(rows), caption()), "critical-path-table", ())
    # Several parts at once always save more, and nobody can do without all kernels.
    most = max((row for row in rows if row["part"] in PARTS), key=lambda row: row["saved_ms"])
    finding = f"Largest saving if one part took no time: {most['part']}, {most['saved_ms']:.3g} ms per step."
    return Content(text, [chart], [view], paths.unknown, finding)


CRITICAL_PATH = SectionKind("critical-path", "What would shorten the step?", _critical_path, _applies)
