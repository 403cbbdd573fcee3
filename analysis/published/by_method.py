"""The rows of analysis.scaled by either method: corrected (own runs, the reference's tables) or published."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.display import output
from analysis.display.metrics import FIELDS, Metric, Rows, fields, names_of
from analysis.display.numbers import sortable
from analysis.measures.scaling import figures, use
from analysis.measures.scaling.loss import anatomies_of
from analysis.measures.scaling.points import Point, Scaling, choose_scaling, count_compared, points_of
from analysis.measures.tau import applications as tau
from analysis.published import reference, scaled_published
from analysis.results.load import no_result
from analysis.results.study import Study
from jobs.run import ID_FIELDS, Run
from profiling.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("corrected", "published")
_METHOD = Metric("method", "corrected or published", text=True)
COLUMNS = {
    "Columns: method, the fields of a run, world_size, then, for our own runs:": (
        _METHOD,
        *figures.METRICS,
        *use.METRICS,
    ),
    "PyProf tables hold no durations of batches:": reference.METRICS,
    "The published method reads TAU tables, and our own runs alike, by whole wall time:": tau.METRICS,
    "And PyProf tables of configurations that TAU timed too:": scaled_published.METRICS,
}


def rows(
    study: Study,
    methods: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> Rows:
    """The answer's rows, by method, then by configuration.

    Args:
        scaling: weak or strong; None: the kind that compares more points (analysis.measures.scaling.points).

    Raises:
        UserError: nothing in the study can answer.
    """
    made: Rows = []
    for method in methods:
        found = _corrected(study, group_by, scaling) if method == "corrected" else _published(study, group_by)
        made += [{"method": method, **row} for row in found]
    if not made:
        raise UserError(_nothing(study, methods))
    return made


def table(
    study: Study, method: str = "corrected", group_by: Sequence[str] = (), scaling: Scaling | None = None
) -> "pd.DataFrame":
    """The same as a DataFrame; columns: :data:`COLUMNS`."""
    made = rows(study, method.split(","), group_by, scaling)
    return output.to_frame(made, columns_of(made, group_by))


def columns_of(made: Rows, group_by: Sequence[str] = ()) -> list[str]:
    """The columns of these rows, in order: those of the kinds of results that they are of."""
    have = {name for row in made for name in row}
    which = group_by or [*ID_FIELDS, *(name for name in Run.model_fields if name not in ID_FIELDS)]
    known: list[Metric | str] = [_METHOD, *fields(which), FIELDS["world_size"]]
    if "scaling" in have:
        known += [*figures.IN_DATA, *use.METRICS]
    known += [*reference.METRICS, *tau.METRICS, *scaled_published.METRICS]
    return [name for name in names_of(known) if name in have]


def _nothing(study: Study, methods: Sequence[str]) -> str:
    if any(failure.kind != "excluded" for failure in study.failed):
        return no_result(study)
    if study.tau_intervals and list(methods) == ["corrected"]:
        return (
            f"{study.path} holds TAU application times only: they hold start-up and no batch, so there is no "
            "corrected figure; see --method published"
        )
    if study.of_kind("pyprof") and list(methods) == ["published"]:
        return (
            f"{study.path} holds no duration of a batch: the published scaled efficiencies of PyProf tables "
            "need TAU tables of the same configurations; see analysis.efficiency --method published"
        )
    if study.tau_intervals:
        return f"{study.path} holds TAU tables of 1-batch runs only: they measure start-up, not training"
    return f"{study.path} holds nothing that says how training scales (method {', '.join(methods)})"


def _corrected(study: Study, group_by: Sequence[str], scaling: Scaling | None) -> Rows:
    made = of_runs(study, group_by, scaling) if study.of_kind("run") else []
    if study.of_kind("pyprof"):
        made += reference.pyprof_rows(study, group_by)
    if study.tau_intervals and made:
        study.note("TAU tables hold no durations of batches: they are in the published method only")
    return made


def of_runs(study: Study, group_by: Sequence[str], scaling: Scaling | None) -> Rows:
    points = points_of(study, scaling)
    kind = scaling or choose_scaling(points)
    _say_which(study, points, kind)
    anatomies = anatomies_of(study, points)
    for finding in use.findings(points):
        study.note(finding)
    groups: dict[tuple, list[Point]] = {}
    for number, point in enumerate(points):
        key = tuple(_value(point, name) for name in group_by) if group_by else (number,)
        groups.setdefault(key, []).append(point)
    made = []
    for key, members in groups.items():
        row = dict(zip(group_by, key, strict=True)) if group_by else _fields(members[0])
        sizes = {point.world_size for point in members}
        row["world_size"] = sizes.pop() if len(sizes) == 1 else None
        made.append({**row, **figures.figures(members, kind, anatomies)})
    _find_above_ideal(study, made)
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    apart = [name for name in ID_FIELDS[2:] if kind == "weak" or name != "batch"]
    order = list(group_by) or [*apart, *_outside(), "world_size", "nodes", "batch"]
    return sorted(made, key=lambda row: sortable([_rank_of(row.get(name)) for name in order]))


def _say_which(study: Study, points: Sequence[Point], kind: Scaling) -> None:
    """Say which kind of scaling the efficiencies are of, where the other one compares points, too."""
    constant: dict[Scaling, str] = {"weak": "batch of a GPU", "strong": "global batch"}
    other: Scaling = "weak" if kind == "strong" else "strong"
    compared = {one: count_compared(points, one) for one in constant}
    if compared[other]:
        study.note(
            f"efficiencies are of {kind} scaling: {compared[kind]} of {len(points)} points are compared with "
            f"one of fewer ranks and the same {constant[kind]}; {compared[other]} have one with the same "
            f"{constant[other]} (analysis.scaled --scaling {other})"
        )


def _find_above_ideal(study: Study, made: Rows) -> None:
    """Say where points scale better than ideal."""
    above = [row["scaling_efficiency_pct"] for row in made if figures.above_ideal(row)]
    if above:
        strong = made[0]["scaling"] == "strong"
        study.note(
            f"scaling better than ideal ({len(above)} of {len(made)} rows, up to {max(above):.0f} %) says "
            "that the base point ran slower than it need have (a busy machine, other clocks or threads"
            f"{', a batch that suits the device less' if strong else ''}): its efficiencies are too high"
        )


def _rank_of(value: Any) -> Any:
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    return "" if value == "fp32" else value


def _outside() -> list[str]:
    return [name for name in Run.model_fields if name not in ID_FIELDS]


def _fields(point: Any) -> dict[str, Any]:
    return {**point.fields, "profile": _value(point, "profile")}


def _value(point: Any, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    runs = point.profiled if name == "profile" and point.profiled else [*point.timed, *point.profiled]
    values = dict.fromkeys(source.fields[name] for source, _ in runs)
    return next(iter(values)) if len(values) == 1 else "+".join(str(value) for value in values)


def _published(study: Study, group_by: Sequence[str]) -> Rows:
    made = tau.tau_rows(study)
    if study.of_kind("run"):
        made += tau.run_rows(study)
    return tau.grouped([*made, *scaled_published.scaled_rows(study)], group_by)
