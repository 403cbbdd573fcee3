"""Parts of the critical path per step, and the duration of a step without each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.display.metrics import (
    OF_A_RUN,
    RANK,
    RUNS,
    STEP,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    telling,
)
from analysis.frames.study import A_STEP, RECORDING, Study
from analysis.measures.critical_path.paths import PARTS, TOGETHER, RunPaths, paths_of

if TYPE_CHECKING:
    import pandas as pd

LEVELS = {
    "rank": RANK,
    "step": STEP,
    "direction": Metric("direction", "fprop, bprop, update, loader or none", text=True, key=True),
    "layer": Metric("layer", "layer of the operator, where it is known", text=True, key=True),
    "operator": Metric("operator", "operator that ran, or that launched the kernel", text=True, key=True),
    "kernel": Metric("kernel", "kernel that ran or was launched, or waiting call", text=True, key=True),
}
METRICS = (
    Metric("part", "class of kernels, collectives, copies, host, launches, ...", text=True, key=True),
    Metric("steady_steps", "steps averaged: recorded, without warmup", "steps"),
    Metric("step_ms", "mean step duration, from the last rank's start to the last rank's end"),
    Metric("path_ms", "time on the critical path; the parts sum to step_ms", "on path\nms"),
    Metric("path_pct", "path_ms in percent of the step", "on path\n%", places=1),
    Metric("pieces", "pieces of the path per step", places=1),
    Metric("step_without_ms", "duration of the step if this part took no time", "step\nwithout ms"),
    Metric("saved_ms", "step_ms minus step_without_ms", "saved\nms"),
    Metric("saved_pct", "saved_ms in percent of the step", "saved\n%", places=1),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, part, the fields of --by, then per step:": (
        METRICS[0], *LEVELS.values(), *METRICS[1:],
    )
}  # fmt: skip


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; with :data:`METRICS`. What would be saved is of whole parts only.

    Raises:
        UserError: no run has profiled steps with kernels that have a place in time.
    """
    answer = []
    for _, paths in study.each(study.recorded, lambda source: paths_of(study, source)):
        for finding in paths.findings:
            study.log.add(finding)
        found = of_run(paths, by)
        for name in by:
            if found and all(row[name] == "" for row in found):
                study.note("not_recorded", paths.source, what=f"{name} of kernels")
        answer += found
    if not answer:
        raise study.nothing(
            f"{study.path} holds no profiled step with timed kernels: needed is profile: torch, or a trace"
        )
    return answer


def of_run(paths: RunPaths, by: Sequence[str] = ()) -> Rows:
    """The rows of a run, the longest part first; then those of several parts at once."""
    if not paths.steps:
        return []
    return _by_levels(paths, by) if by else _by_part(paths)


def _by_levels(paths: RunPaths, by: Sequence[str]) -> Rows:
    groups = _pieces(paths).fillna("").groupby(["part", *by], sort=False, observed=True)
    found = [
        _row(paths, str(part), group) | dict(zip(by, values, strict=True))
        for (part, *values), group in groups
    ]
    return sorted(found, key=lambda row: -row["path_ms"])


def _by_part(paths: RunPaths) -> Rows:
    pieces = _pieces(paths)
    parts = [_row(paths, name, pieces[pieces["part"] == name]) for name in PARTS]
    found = sorted(parts, key=lambda row: -row["path_ms"])
    for name, several in TOGETHER.items():
        of_these = [part for part, what in PARTS.items() if set(what.parts) <= set(several.parts)]
        found.append(_row(paths, name, pieces[pieces["part"].isin(of_these)]))
    for row in found:
        free_ns = sum(step.free_ns[row["part"]] for step in paths.steps)
        without = free_ns / len(paths.steps) / 1e6
        saved = row["step_ms"] - without
        row |= {"step_without_ms": without, "saved_ms": saved, "saved_pct": 100 * saved / row["step_ms"]}
    return [row for row in found if row["path_ms"] or row["saved_ms"]]


def _row(paths: RunPaths, part: str, pieces: "pd.DataFrame") -> dict[str, Any]:
    source, count = paths.source, len(paths.steps)
    step_ms = sum(step.step_ns for step in paths.steps) / count / 1e6
    path_ms = int(pieces["duration_ns"].sum()) / count / 1e6
    return {
        "run": source.id,
        **source.fields,
        "repetition": source.repetition,
        "part": part,
        "steady_steps": count,
        "step_ms": step_ms,
        "path_ms": path_ms,
        "path_pct": 100 * path_ms / step_ms,
        "pieces": len(pieces) / count,
    }


def _pieces(paths: RunPaths) -> "pd.DataFrame":
    """The pieces of all paths: ``part``, the columns of :data:`LEVELS`, ``duration_ns``."""
    import pandas as pd

    names = ("rank", "part", "duration_ns", "kernel", "operator", "layer", "direction")
    return pd.concat(
        [
            pd.DataFrame({"step": one.batch_index} | {name: getattr(one, name) for name in names})
            for one in paths.steps
        ],
        ignore_index=True,
    )


def columns_of(by: Sequence[str] = ()) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN, METRICS[0], *(LEVELS[name] for name in by), *METRICS[1:]]


def shown(rows: Rows, by: Sequence[str] = (), of: str = A_STEP) -> list[Column]:
    """The table's columns.

    Args:
        of: what the paths are of, from :meth:`Study.a_step`.
    """
    runs = [RUNS.column()] if any(row.get("runs", 1) > 1 for row in rows) else []
    known = [name for name in by if any(row[name] != "" for row in rows)]
    keys = [*columns(fields(telling(rows))), METRICS[0].column(), *(LEVELS[name].column() for name in known)]
    figures = ("step_ms", "path_ms", "path_pct", "pieces")
    saved = () if by else ("step_without_ms", "saved_ms", "saved_pct")
    measured = columns(METRICS, *figures, *saved)
    if of == RECORDING:
        measured = [replace(column, header=column.header.replace("step", "recording")) for column in measured]
    return [*keys, *runs, *measured]


def caption(by: Iterable[str] = (), of: str = A_STEP) -> str:
    """What the pieces sum to; ``of`` as in :func:`shown`."""
    whole = "recording" if of == RECORDING else "profiled step"
    return f"The pieces sum to the {whole}." + ("" if list(by) else " Saved: the other parts as recorded.")
