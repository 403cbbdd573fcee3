"""Which correction moves a figure, and by how much?

One line a correction of docs/methods.md ("what is wrong with them"), numbered as there, with what it moved on
the data at hand. A correction that these data cannot show says so.
"""

from analysis.display.metrics import Rows
from analysis.published import explain_reference, explain_runs
from analysis.results.study import Study


def explain(study: Study, own: Rows) -> list[str]:
    """The lines for this study; ``own`` are analysis.scaled's rows of runs of our own, a row a point."""
    lines = ["", "What each correction of the reference's method moves, on these data:"]
    if study.of_kind("pyprof"):
        lines += ["PyProf kernel tables:", *explain_reference.of_pyprof(study)]
    if study.tau_intervals:
        lines += ["TAU tables:", *explain_reference.of_tau(study)]
    if study.of_kind("run"):
        lines += ["Our own runs:", *explain_runs.of_runs(study, own)]
    return lines
