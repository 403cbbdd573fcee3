"""The report's section: how busy was each GPU, and what did more of them gain?"""

from collections.abc import Sequence

from analysis.display.terminal import Part
from analysis.measures.scaling import utilization
from analysis.report.render import Section
from analysis.report.views import as_view
from analysis.results.study import Study
from profiling.errors import UserError

TEXT = (
    "Of the time of recorded batches: how much of it a kernel runs, and, estimated from launches' sizes, how "
    "many of the multiprocessors have a block and how many of the warps that would fit there are (by the "
    "definitions of PyTorch's TensorBoard plugin). Speed-up is over one GPU of the same configuration."
)


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """A row a rank and GPU; none where no run was profiled."""
    if not any(source.tables("kernels") for source in study.of_kind("run")):
        return None
    heading = "How busy is each GPU?"
    try:
        made = utilization.rows(study)
    except UserError as error:
        return Section("utilization", heading, f"Not known: {error}.")
    view = as_view(Part("", made, utilization.shown(made)), "utilization-table", factors)
    return Section("utilization", heading, TEXT, tables=[view], notes=utilization.notes_of(made))
