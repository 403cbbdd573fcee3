"""The report's section: what bounds the hottest kernels, where a run has read their counters?"""

from collections.abc import Sequence

from analysis.display.terminal import Part
from analysis.measures.kernels import hotspots
from analysis.measures.kernels.hotspot_runs import TOOLS
from analysis.report.render import Section
from analysis.report.views import as_view
from analysis.results.study import Study
from profiling.errors import UserError

TOP = 5
TEXT = (
    "Times are those of the run under the torch profiler; counters those of another, in which only these "
    "kernels were measured, run again and again. What bounds a kernel is the first that its figures show of "
    "memory, arithmetic, calls too short, wasted bytes and latency (docs/profilers.md)."
)


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """The table of analysis.hotspots; none where no run has read counters."""
    if not any(source.fields["profile"] in TOOLS for source in study.of_kind("run")):
        return None
    heading = "Why are the hottest kernels slow?"
    try:
        made, caption = hotspots.rows(study, TOP)
    except UserError as error:
        return Section("hotspots", heading, f"Not known: {error}.")
    view = as_view(Part("", made, hotspots.shown(made), caption), "hotspots-table", factors)
    return Section("hotspots", heading, TEXT, tables=[view])
