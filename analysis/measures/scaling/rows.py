"""Scaling from runs of our own: a row a configuration at one world size, or a group of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import shown, sortable
from analysis.measures.scaling import figures, loss, use
from analysis.measures.scaling.figures import above_ideal
from analysis.measures.scaling.point import Point, Scaling, choose_scaling, points_of
from analysis.results.study import Study
from jobs.run import Run
from jobs.run_fields import ID_FIELDS, own_names

# Of a group of several world sizes: durations, and what goes with the number of ranks.
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
    anatomies = loss.anatomies_of(points, of_runs)
    use.check(study, points)
    groups: dict[tuple, list[Point]] = {}
    for number, point in enumerate(points):
        key = tuple(_value(point, name) for name in group_by) if group_by else (number,)
        groups.setdefault(key, []).append(point)
    answer: Rows = []
    for key, members in groups.items():
        first = members[0]
        row = (
            dict(zip(group_by, key, strict=True))
            if group_by
            else {**first.fields, "profile": _value(first, "profile")}
        )
        sizes = {point.world_size for point in members}
        row["world_size"] = sizes.pop() if len(sizes) == 1 else None
        answer.append({**row, **figures.figures(members, kind, anatomies)})
    _drop_false_baselines(study, answer)
    _drop_unknown_samples(study, answer)
    if above := [row["scaling_efficiency_pct"] for row in answer if above_ideal(row)]:
        study.note("above_ideal", n=len(above), of=len(answer), efficiency_pct=max(above))
    for row in answer:
        if row["world_size"] is None:  # a mean over world sizes is the duration of no job
            row |= dict.fromkeys(row.keys() & _OF_ONE_SIZE, math.nan)
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    # How a configuration was profiled comes last: in a sweep that is partly done, not all were yet.
    late = ("profile", *(["batch"] if kind == "strong" else []))
    order = list(group_by) or [
        *(name for name in ID_FIELDS[2:] if name not in late),
        *(name for name in Run.model_fields if name not in ID_FIELDS),
        *own_names(*answer),
        *("world_size", "nodes", "batch", "profile"),
    ]
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    return sorted(
        answer,
        key=lambda row: sortable(["" if row.get(name) == "fp32" else row.get(name) for name in order]),
    )


def _drop_false_baselines(study: Study, rows: Rows) -> None:
    """Take the baseline from rows that are their own though there are fewer ranks, which do not compare.

    Of another command of the same model, and of named folders that differ in batch per rank and in all.
    """
    # A row of a group may mix world sizes: it is neither compared nor compared with.
    sized = [row for row in rows if row["world_size"] is not None]
    for row in sized:
        fewer = [one for one in sized if one["world_size"] < row["world_size"]]
        if not fewer or row["world_size"] != row["base_world_size"]:
            continue
        least = min(fewer, key=lambda one: one["world_size"])
        batches = row.get("batch"), least.get("batch")
        other_batch = (
            all(batches)
            and batches[0] != batches[1]
            and batches[0] * row["world_size"] != batches[1] * least["world_size"]
        )
        if any(_is_other_command(row, one) for one in fewer):
            differs = "command"
        elif study.named and other_batch:
            differs = "batch size"
        else:
            continue
        row |= without_baseline(row)
        study.note("not_compared", what=f"{row['world_size']} ranks, other {differs}")


def _is_other_command(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    programs = row.get("program"), other.get("program")
    return all(programs) and programs[0] != programs[1] and other.get("model") == row.get("model")


def without_baseline(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that is compared with none."""
    unknown = dict.fromkeys(figures.AGAINST_BASE, math.nan)
    return {**row, **unknown, "base": "", "base_world_size": row["world_size"]}


def _drop_unknown_samples(study: Study, rows: Rows) -> None:
    """Take the baseline from rows whose samples, or those of their baseline, are unknown.

    Without them it is not known whether each rank did as much as on fewer ranks, or all ranks together did.
    """
    unknown = [row for row in rows if math.isnan(row["images_per_s"])]
    for row in rows:
        of_base = math.isnan(row["base_images_per_s"]) and row["world_size"] != row["base_world_size"]
        if math.isnan(row["images_per_s"]) or of_base:
            row |= without_baseline(row)
    if unknown:
        study.note("not_recorded", what="samples per step", n=len(unknown), of=len(rows))


def _value(point: Point, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    runs = [*point.timed, *point.profiled]
    values = dict.fromkeys(source.fields.get(name) for source, _ in runs)  # not all have a program's factor
    return next(iter(values)) if len(values) == 1 else "+".join(map(shown, values))
