"""Which kernels take the time, and how well do they use the device?

The columns are explained in analysis/kernels.py.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.display import output
from analysis.display.terminal import Column, Rows
from analysis.measures.kernels import roofline
from analysis.measures.kernels.of_run import DEFAULT_BY, kernels_of_each
from analysis.results.load import no_result
from analysis.results.study import Source, Study
from profiling.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TOP, TOP_OF_EACH = 25, 5  # kernels that the terminal shows of one run, of each of several
MEASURES = (
    "calls_per_batch", "ms_per_batch", "share_pct", "min_us", "mean_us", "max_us", "gflop_per_batch",
    "mbyte_per_batch", "flops_efficiency_pct", "bandwidth_efficiency_pct", "flops_efficiency_of_measured_pct",
    "bandwidth_efficiency_of_measured_pct", *roofline.COLUMNS,
)  # fmt: skip
COLUMNS = (*DEFAULT_BY, *MEASURES)


def table(study: Study, run: str | None = None, direction: str | None = None) -> "pd.DataFrame":
    """The kernels of ``run`` (an id), or of all runs that have some, largest first.

    Columns: the columns: analysis/kernels.py.

    Raises:
        UserError: no run has kernels, or none of this id.
    """
    made, columns = rows(study, run, direction)
    return output.to_frame(made, columns)


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if source.kind == "pyprof" or source.tables("kernels")]


def rows(
    study: Study, run: str | None = None, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> tuple[Rows, list[str]]:
    """The corrected answer's rows and columns; see :func:`table`."""
    sources = with_kernels(study)
    if run is not None:
        sources = [source for source in sources if source.id == run]
    if not sources:
        which = f"run {run} of {study.path}" if run else str(study.path)
        raise UserError(f"{which} has no kernels: it needs a run under a profiler (profile: torch)")
    made = []
    for source, kernels in kernels_of_each(study, sources, direction, by):
        made += [{"run": source.id, **row} for row in kernels]
    if not made:
        raise UserError(nothing(study, direction))
    return made, [*(["run"] if len(sources) > 1 else []), *by, *MEASURES]


def nothing(study: Study, direction: str | None) -> str:
    if not with_kernels(study):
        return no_result(study)
    which = f"no kernels of direction {direction}" if direction else "no kernels in attributed batches"
    return " ".join([f"{study.path} has {which}", *(f"({note})" for note in study.log.notes[:1])])


def naming(by: Sequence[str]) -> list[Column]:
    """The terminal's columns of what kernels are grouped by."""

    def named(name: str) -> Any:
        def text(row: Any) -> str:
            value = row[name] or "(not known)"
            return value if len(value) <= 40 else value[:17] + "..." + value[-20:]

        return text

    headers = {"direction": "pass"}
    return [Column(headers.get(name, name), named(name), left=True, key=True) for name in by]
