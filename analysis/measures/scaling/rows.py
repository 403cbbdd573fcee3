"""How does training scale, from runs of our own: a row a configuration, or a group of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import shown, sortable
from analysis.measures.scaling import figures, loss, use
from analysis.measures.scaling.baselines import Scaling
from analysis.measures.scaling.figures import above_ideal
from analysis.measures.scaling.point import NO_SAMPLES, Point
from analysis.measures.scaling.points import choose_scaling, count_compared, points_of
from analysis.results.study import Study
from jobs.run import Run
from jobs.run_fields import FACTOR, ID_FIELDS, own_names
from profiling.wording import how_many, verb

# What says nothing of a group of several world sizes: durations, and what goes with the number of ranks.
_OF_ONE_SIZE = {
    name
    for metric in (*figures.METRICS, *use.METRICS)
    if metric.name.endswith(("_ms", "_ms_per_step", "images_per_s"))
    or metric.name in ("speedup", "startup_s")
    for name in metric.names
}


def rows(study: Study, group_by: Sequence[str] = (), scaling: Scaling | None = None) -> Rows:
    """A row a configuration at one world size, or a group: its fields, ``world_size``, then the figures.

    Args:
        scaling: weak or strong; None: the kind that compares more points.
    """
    of_runs = loss.read(study)
    points = points_of(study, scaling)
    kind = scaling or choose_scaling(points)
    _note_kind(study, points, kind)
    anatomies = loss.anatomies_of(points, of_runs)
    for finding in use.findings(study, points):
        study.note(finding)
    groups: dict[tuple, list[Point]] = {}
    for number, point in enumerate(points):
        key = tuple(_value(point, name) for name in group_by) if group_by else (number,)
        groups.setdefault(key, []).append(point)
    answer: Rows = []
    for key, members in groups.items():
        row = dict(zip(group_by, key, strict=True)) if group_by else _fields(members[0])
        sizes = {point.world_size for point in members}
        row["world_size"] = sizes.pop() if len(sizes) == 1 else None
        answer.append({**row, **figures.figures(members, kind, anatomies)})
    _leave_uncompared(study, answer)
    if study.named:
        _leave_other_batches(study, answer)
    _leave_unknown_samples(study, answer)
    _note_above_ideal(study, answer)
    answer = [row if row["world_size"] is not None else _without_durations(row) for row in answer]
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    # How a configuration was profiled comes last: in a sweep that is partly done, not all were yet.
    late = ("profile", *(["batch"] if kind == "strong" else []))
    apart = [name for name in ID_FIELDS[2:] if name not in late]
    order = list(group_by) or [
        *apart,
        *_outside(),
        *own_names(*answer),
        "world_size",
        "nodes",
        "batch",
        "profile",
    ]
    return sorted(answer, key=lambda row: sortable([_order_of(row.get(name)) for name in order]))


def _note_kind(study: Study, points: Sequence[Point], kind: Scaling) -> None:
    """Say which kind of scaling the efficiencies are of, where the other one compares points, too."""
    constant: dict[Scaling, str] = {"weak": f"per-{study.unit} batch size", "strong": "global batch size"}
    other: Scaling = "weak" if kind == "strong" else "strong"
    compared = {one: count_compared(points, one) for one in constant}
    if compared[other]:
        study.note(
            f"efficiencies are of {kind} scaling: {compared[kind]} of {len(points)} configurations "
            f"{verb(compared[kind], 'have')} a baseline of fewer ranks with the same {constant[kind]}; "
            f"{compared[other]} with the same {constant[other]} (python -m analysis.scaled --scaling {other})"
        )


def mixed_sizes(rows: Rows, group_by: Sequence[str]) -> str:
    """That groups of a table have several numbers of ranks, and so no durations; empty: none has.

    Args:
        rows: of :func:`rows`, also with others between them.
    """
    own = [row for row in rows if row.get("scaling")]
    mixed = [row for row in own if row["world_size"] is None]
    if not mixed:
        return ""
    said = ", ".join(f"{name.removeprefix(FACTOR)} {shown(mixed[0].get(name))}" for name in group_by)
    more = ",".join([*(name.removeprefix(FACTOR) for name in group_by), "world_size"])
    first = "" if len(mixed) == 1 else "first: "
    return (
        f"{len(mixed)} of {how_many(len(own), 'row')} {verb(len(mixed), 'hold')} runs on several numbers of "
        f"ranks ({first}{said}): no step duration, images/s or speedup there, and the efficiency is of all "
        f"configurations with a baseline. To separate them: --group-by {more}."
    )


def _without_durations(row: dict[str, Any]) -> dict[str, Any]:
    """A row of several world sizes: a mean over them would be the duration of no job."""
    return row | dict.fromkeys(row.keys() & _OF_ONE_SIZE, math.nan)


def _leave_uncompared(study: Study, rows: Rows) -> None:
    """Take the baseline from rows of a command that ran on no fewer ranks where another command did.

    They would be their own baseline, of 100 %, and look as if more ranks had been compared with fewer.
    """

    def is_other_command(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        programs = row.get("program"), other.get("program")
        return all(programs) and programs[0] != programs[1] and other.get("model") == row.get("model")

    for row, base in _own_baselines(rows, is_other_command):
        why = (
            f"the commands differ ({base['program']} | {row['program']}). To compare them: python -m "
            f"analysis.scaled {base['world_size']}=DIR {row['world_size']}=DIR"
        )
        _leave_out(study, row, base, why)


def _leave_other_batches(study: Study, rows: Rows) -> None:
    """Take the baseline from named runs that differ from fewer ranks in batch size per rank and in all.

    They would be their own baseline, of 100 %, although their folders were named to be compared.
    """
    for row, base in _own_baselines(rows):
        own, its = row.get("batch"), base.get("batch")
        if own and its and own != its and own * row["world_size"] != its * base["world_size"]:
            why = (
                f"neither weak nor strong scaling, per-rank batch {its} and {own}, global batch "
                f"{its * base['world_size']} and {own * row['world_size']}"
            )
            _leave_out(study, row, base, why)


def _own_baselines(
    rows: Rows, among: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda _row, _other: True
) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Rows that are their own baseline, each with that of the fewest ranks below its own.

    Args:
        among: whether another row is one of those.
    """
    # A row of a group may mix world sizes: it has none, and is neither compared nor compared with.
    of_one_size = [row for row in rows if row["world_size"] is not None]
    for row in of_one_size:
        ranks = row["world_size"]
        fewer = [other for other in of_one_size if other["world_size"] < ranks and among(row, other)]
        if fewer and ranks == row["base_world_size"]:
            yield row, min(fewer, key=lambda other: other["world_size"])


def _leave_out(study: Study, row: dict[str, Any], base: Mapping[str, Any], why: str) -> None:
    """Take the baseline from a row, and say why."""
    row |= without_baseline(row)
    study.note(f"{row['world_size']} ranks not compared with {base['world_size']}: {why}")


def without_baseline(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that is compared with none."""
    unknown = dict.fromkeys(figures.AGAINST_BASE, math.nan)
    return {**row, **unknown, "base": "", "base_world_size": row["world_size"]}


def _leave_unknown_samples(study: Study, rows: Rows) -> None:
    """Take the baseline from rows whose samples, or those of their baseline, are unknown.

    Step durations alone give no scaling efficiency: whether each rank did as much as on fewer ranks, or all
    ranks together did, is what makes them weak or strong scaling.
    """
    unknown = [row for row in rows if math.isnan(row["images_per_s"])]
    of_base = [
        row
        for row in rows
        if math.isnan(row["base_images_per_s"])
        and not math.isnan(row["images_per_s"])
        and row["world_size"] != row["base_world_size"]
    ]
    for row in (*unknown, *of_base):
        row |= without_baseline(row)
    if unknown:
        more = f" ({len(of_base)} more no scaling efficiency)" if of_base else ""
        study.note(
            f"{len(unknown)} of {how_many(len(rows), 'configuration')} {verb(len(unknown), 'have')} no "
            f"images/s and no scaling efficiency{more}: {NO_SAMPLES}"
        )


def _note_above_ideal(study: Study, rows: Rows) -> None:
    """Say where points scale better than ideal."""
    above = [row["scaling_efficiency_pct"] for row in rows if above_ideal(row)]
    if above:
        strong = rows[0]["scaling"] == "strong"
        study.note(
            f"{len(above)} of {how_many(len(rows), 'configuration')} {verb(len(above), 'scale')} better than "
            f"ideal (up to {max(above):.0f} %): usually the baseline ran too slowly (a busy machine, "
            f"different clocks or threads{', a batch size that suits the device less' if strong else ''}), "
            "and efficiencies are too high there"
        )


def _order_of(value: Any) -> Any:
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    return "" if value == "fp32" else value


def _outside() -> list[str]:
    return [name for name in Run.model_fields if name not in ID_FIELDS]


def _fields(point: Point) -> dict[str, Any]:
    return {**point.fields, "profile": _value(point, "profile")}


def _value(point: Point, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    runs = [*point.timed, *point.profiled]
    values = dict.fromkeys(source.fields.get(name) for source, _ in runs)  # not all have a program's factor
    return next(iter(values)) if len(values) == 1 else "+".join(map(shown, values))
