"""The rows of analysis.scaled by either method: corrected (own runs, the reference's tables) or published."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.display.metrics import FIELDS, FIELDS_OF_RUNS, Metric, Rows, fields, names_of
from analysis.frames.load import no_result
from analysis.frames.study import Study
from analysis.measures import scaled as figures
from analysis.measures import scaled as scaling_rows
from analysis.measures import tau, use
from analysis.measures.points import Scaling
from analysis.published import reference
from jobs.run_fields import ID_FIELDS
from profiling.errors import UserError

if TYPE_CHECKING:
    pass

METHODS = ("corrected", "published")
_METHOD = Metric("method", "corrected or published", text=True)
COLUMNS = {
    "Columns: method, the fields of a run, world_size, then, for our own runs:": (
        _METHOD,
        *figures.METRICS,
        *use.METRICS,
    ),
    "PyProf tables (they hold no step durations):": reference.METRICS,
    "Published method, for TAU tables and for our own runs, by whole wall time:": tau.METRICS,
    "Published method, for PyProf tables of configurations that TAU timed too:": reference.SCALED_METRICS,
}


def rows(
    study: Study,
    methods: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> Rows:
    """The answer's rows, by method, then by configuration; each has all columns, None where it has no figure.

    Args:
        scaling: weak or strong; None: the kind that compares more points (analysis.measures.points).

    Raises:
        UserError: nothing in the study can answer.
    """
    answer: Rows = []
    blank = dict.fromkeys(names_of(columns_of(group_by)))
    for method in methods:
        if method == "corrected":
            rows = scaling_rows.rows(study, group_by, scaling) if study.of_kind("run") else []
            rows += reference.pyprof_rows(study, group_by) if study.of_kind("pyprof") else []
        else:
            own = tau.run_rows(study) if study.of_kind("run") else []
            rows = tau.grouped([*tau.tau_rows(study), *own, *reference.scaled_rows(study)], group_by)
        answer += [{**blank, "method": method, **row} for row in rows]
    if not answer:
        raise UserError(_nothing(study, methods))
    return answer


def columns_of(group_by: Sequence[str] = ()) -> list[Metric]:
    """The columns of all rows, in order, whatever results they are of."""
    which = group_by or [*ID_FIELDS, *(name for name in FIELDS_OF_RUNS if name not in ID_FIELDS)]
    figures_of_runs = [*figures.IN_DATA, *use.METRICS]
    of_tables = [*reference.METRICS, *tau.METRICS, *reference.SCALED_METRICS]
    every = [_METHOD, *fields(which), FIELDS["world_size"], *figures_of_runs, *of_tables]
    # Of those of one name, which several kinds of results have, the first: it has an interval.
    first: dict[str, Metric] = {}
    for metric in every:
        first.setdefault(metric.name, metric)
    return list(first.values())


def _nothing(study: Study, methods: Sequence[str]) -> str:
    if study.missing:
        return no_result(study)
    if study.tau_intervals and list(methods) == ["corrected"]:
        return f"{study.path} holds only TAU application times: they have no steps (see --method published)"
    if study.of_kind("pyprof") and list(methods) == ["published"]:
        return f"{study.path} holds no step durations: they need TAU tables of the same configurations"
    return f"{study.path} holds no data on scaling (method {', '.join(methods)})"
