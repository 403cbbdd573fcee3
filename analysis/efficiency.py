"""FLOPS and bandwidth efficiency of kernels.

    python -m analysis.efficiency DIR --group-by batch,nodes
    python -m analysis.efficiency DIR --method published      as the reference computed it

The corrected method (default) uses the model's kernels in profiled steps, launch by launch. It sums costs
over a group before it forms ratios. Rates use the runs whose FLOPs or bytes are known; they are empty if
there are none. The published method is for PyProf tables: it uses all launches, groups them by kernel name
and takes plain means of ratios.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.display import output
from analysis.display.metrics import Metric, Rows, fields
from analysis.display.terminal import Answer
from analysis.frames.load import load
from analysis.frames.study import Study
from analysis.measures import efficiency
from analysis.measures.efficiency import CORRECTED_METRICS, METRICS
from analysis.published import kernels_published
from analysis.published.kernels_published import with_method
from profiling.errors import run_command

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "Columns: the fields of --group-by, then": METRICS,
    "Additional columns of the corrected method:": CORRECTED_METRICS,
}
DEFAULT_GROUP, DEFAULT_GROUP_OF_TRACES = ("batch", "nodes"), ("run",)
_OTHERS = ("world_size", "run")  # to group by, which are no fields of a run
_METHODS = {"corrected": efficiency.rows, "published": kernels_published.rows}


def rows(study: Study, method: str = "corrected", group_by: Sequence[str] = DEFAULT_GROUP) -> Rows:
    """The answer's rows, ordered by the group's fields.

    Raises:
        UserError: the study holds no kernels (of the kind that the method is for).
    """
    return _METHODS[method](study, group_by)


def table(study: Study, method: str = "corrected", group_by: Sequence[str] = DEFAULT_GROUP) -> "pd.DataFrame":
    """The same as a DataFrame; columns: :func:`columns_of`."""
    return output.to_frame(rows(study, method, group_by), columns_of(method, group_by))


def columns_of(method: str, group_by: Sequence[str], traces: bool = False) -> list[Metric]:
    """The answer's columns; of traces, the table calls the run a job."""
    by = ["job" if traces and name == "run" else name for name in group_by]
    return [*fields(by), *METRICS, *(CORRECTED_METRICS if method == "corrected" else ())]


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.efficiency", __doc__, columns=COLUMNS)
    parser.add_argument("--method", choices=tuple(_METHODS), default="corrected")
    parser.add_argument(
        "--group-by", metavar="FIELD,...", help="fields of a run [batch,nodes; of traces: run]"
    )
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    own = study.own_factors
    group_by = output.parse_fields(arguments.group_by, _OTHERS, own=own)
    only_traces = all(source.kind == "trace" for source in study.sources)
    if not group_by:
        group_by = list(DEFAULT_GROUP_OF_TRACES if only_traces else DEFAULT_GROUP)
    groups = rows(study, arguments.method, group_by)
    answer = Answer(
        groups,
        columns_of(arguments.method, group_by, only_traces),
        title=with_method("Kernel efficiency", study, arguments.method),
    )
    return output.emit(answer, study, arguments)


if __name__ == "__main__":
    run_command(main)
