"""What is on the critical path of a run's steps, and what would each step take without it?"""

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
from analysis.measures.critical_path.paths import PARTS, TOGETHER, WAITING, RunPaths, paths_of
from analysis.measures.kernels.rows import not_recorded
from analysis.results.study import A_STEP, RECORDING, Study
from profiling.wording import how_many

if TYPE_CHECKING:
    import pandas as pd

LEVELS = {
    "rank": RANK,
    "step": STEP,
    "direction": Metric("direction", "fprop, bprop, update, loader or none", text=True, key=True),
    "layer": Metric("layer", "layer of the operator, where it is known", text=True, key=True),
    "operator": Metric(
        "operator",
        "operator that ran, or that launched or was about to launch the kernel",
        text=True,
        key=True,
    ),
    "kernel": Metric(
        "kernel", "kernel that ran or was launched; of a synchronization the call", text=True, key=True
    ),
}
_MEANINGS = (
    "what the time is: a class of kernels, or collectives (transfer; with the wait for other ranks where "
    "clocks are not aligned), copies, host (its code between calls), data loading (the same, until the "
    "forward pass), launches (calls, and the time until the kernel starts), synchronization (returning from "
    "calls that waited for the device), gaps (between a kernel and the one that it waited for); or several "
    "of these"
)
METRICS = (
    Metric("part", _MEANINGS, text=True, key=True),
    Metric("steady_steps", "steps averaged: recorded, without warmup", "steps"),
    Metric(
        "step_ms",
        "mean step duration of the job, each step from the last rank's start to the last rank's end: shorter "
        "than on its slowest rank (analysis.batches, analysis.scaled) where ranks start at different times",
    ),
    Metric("path_ms", "time on the critical path; the parts sum to step_ms", "on path\nms"),
    Metric("path_pct", "path_ms in percent of the step", "on path\n%", places=1),
    Metric("pieces", "pieces of the path per step", places=1),
    Metric(
        "step_without_ms",
        "duration of the step if this part took no time, all else being as recorded; another path may then "
        "be the longest",
        "step\nwithout ms",
    ),
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
        for text in paths.unknown:
            study.note(text, paths.source)
        found = of_run(paths, by)
        for name in by:
            if found and not any(_is_known(row[name]) for row in found):
                study.note(not_recorded(paths.source, name), paths.source)
        answer += found
    if not answer:
        raise study.nothing(
            f"{study.path} holds no profiled step with timed kernels: this needs a run with profile: "
            "torch, or a trace with steps and launches"
        )
    return answer


def of_run(paths: RunPaths, by: Sequence[str] = ()) -> Rows:
    """The rows of a run, the longest part first; then those of several parts at once."""
    if not paths.steps:
        return []
    return _by_levels(paths, by) if by else _by_part(paths)


def _is_known(value: Any) -> bool:
    """Whether a piece's level was recorded; a rank and a step always are."""
    return value != ""


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


def title(of: str = A_STEP) -> str:
    """What is said above the table.

    Args:
        of: what the paths are of, from :meth:`Study.a_step`.
    """
    return f"Critical path of {of}"


def shown(rows: Rows, by: Sequence[str] = (), of: str = A_STEP) -> list[Column]:
    """The table's columns; ``of`` as in :func:`title`."""
    runs = [RUNS.column()] if any(row.get("runs", 1) > 1 for row in rows) else []
    known = [name for name in by if any(_is_known(row[name]) for row in rows)]
    keys = [*columns(fields(telling(rows))), METRICS[0].column(), *(LEVELS[name].column() for name in known)]
    figures = ("step_ms", "path_ms", "path_pct", "pieces")
    saved = () if by else ("step_without_ms", "saved_ms", "saved_pct")
    measured = columns(METRICS, *figures, *saved)
    if of == RECORDING:
        measured = [replace(column, header=column.header.replace("step", "recording")) for column in measured]
    return [*keys, *runs, *measured]


_WAITING = (
    f"Without {WAITING} each keeps its own pace, so that the slowest still sets the step. How long they "
    "wait: analysis.communication; a step without late ranks: analysis.predict (no-stragglers)."
)


def caption(by: Iterable[str] = (), left_out: int = 0, of: str = A_STEP, waits: bool = False) -> str:
    """What is said below the table, from which so many rows are left out; ``of`` as in :func:`title`.

    Args:
        waits: whether the table has a row of waiting for other ranks.
    """
    text = "The pieces of the path sum to the duration of the profiled step."
    if of == RECORDING:
        text = "Nothing separates steps: the pieces of the path sum to the whole recording."
    if left_out:
        text += f"\n{how_many(left_out, 'shorter part')} not shown: use --top N."
    if not list(by):
        text += (
            f"\nSaved: how much shorter {'it' if of == RECORDING else 'the step'} would be if this part took "
            "no time and all else stayed as it is; savings do not add up."
        )
    return f"{text}\n{_WAITING}" if waits else text


def has_waits(rows: Rows) -> bool:
    """Whether rows show what would be saved if no rank waited for another."""
    return any(row["part"] == WAITING for row in rows)
