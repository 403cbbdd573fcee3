"""How does a job scale, from traces of several numbers of ranks?

What has to be assumed of the batch, and which jobs are no runs of one program:
:mod:`analysis.measures.scaling.traced_batch`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.display.metrics import FIELDS, IN_RUN, JOB, Column, Metric, Rows, columns, picked
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import PARTS, SPLIT, WITHIN
from analysis.measures.anatomy.traces import traces_of
from analysis.measures.batches.series import Series, series_of_traces
from analysis.measures.scaling.point import Scaling
from analysis.measures.scaling.same_program import programs
from analysis.measures.scaling.traced_batch import assumption, other_programs, suggested
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import inside_run

# What a batch is made of, each time once.
GREW = tuple(name for part in PARTS for name in (WITHIN[part] if part in SPLIT else (part,)))

METRICS = (
    JOB,
    FIELDS["world_size"],
    Metric("steady_steps", "recorded steps, without warmup", "steps"),
    Metric("warmup_dropped", "first profiled steps that are left out: warmup, or recorded in part", "warmup"),
    Metric(
        "step_ms",
        "median duration of the job's recorded steps (each of its slowest rank), without warmup",
        "step\nmedian",
        IN_RUN,
    ),
    Metric(
        "wall_ms",
        "mean duration of the same steps, over steps and ranks: sum of the next five; it differs from the "
        "median where steps or ranks differ",
        "step\nmean",
    ),
    Metric("compute_ms", "time per step in which kernels of the model run, mean over ranks", "compute"),
    Metric(
        "exposed_communication_ms",
        "the same of collectives while no kernel of the model runs",
        "exposed\ncomm.",
    ),
    Metric(
        "exposed_loader_ms",
        "the same of data loading while neither of them runs, with the wait for the next batch",
        "exposed\nloader",
    ),
    Metric("exposed_copies_ms", "the same, of other copies", "other\ncopies", priority=0),
    Metric("idle_ms", "the same, while nothing runs", "idle"),
    *picked(anatomy.METRICS, *(f"{name}_ms" for name in GREW if name not in PARTS)),
    Metric("speedup", "samples per second, relative to the traces with the fewest ranks", "speedup"),
    Metric(
        "scaling_efficiency_pct",
        "speedup divided by the increase in ranks",
        "scaling\neff. %",
        IN_RUN,
        places=1,
    ),
    Metric("base_world_size", "number of ranks of the baseline"),
    *(
        Metric(f"grew_{name}_ms", f"growth of {name.replace('_', ' ')} per step, relative to the baseline")
        for name in GREW
    ),
)
COLUMNS = {"Traces (one row per job):": METRICS}
_SHOWN = (
    "run", "world_size", "steady_steps", "warmup_dropped", "step_ms", "wall_ms",
    *(f"{name}_ms" for name in PARTS), "speedup", "scaling_efficiency_pct",
)  # fmt: skip


_MOST_NAMED = 6  # jobs


@dataclass(frozen=True)
class Answer:
    """The rows, and what was assumed of the batch, in a sentence.

    Attributes:
        scales: the rows of one program on several numbers of ranks, the fewest first; of several programs
            the one of most jobs. Empty: nothing can be said of scaling.
        scales_assumed: what was assumed of the batch of these alone.
    """

    rows: Rows
    assumed: str
    scales: Rows = field(default_factory=list)
    scales_assumed: str = ""


def answer(study: Study, scaling: Scaling | None = None) -> Answer:
    """A row for the traces of each job whose batches are known, by world size; with :data:`METRICS`.

    Args:
        scaling: weak: the batch of a GPU was constant; strong: that of the job; None: what its computing
            suggests.
    """
    series = series_of_traces(study)
    sources = [source for source in study.of_kind("trace") if source.id in series]
    sized = sorted((source for source in sources if source.world_size), key=lambda one: one.world_size or 0)
    for source in sources:
        if not source.world_size:
            study.note(
                "the number of ranks of its job is unknown: python -m analysis.scaled 4=DIR gives it", source
            )
    if not sized:
        return Answer([], "")
    traces = traces_of(study, sized)
    parts = {row["run"]: row for one in traces for row in anatomy.means(one)}
    rows = [_row(source, series[source.id], parts.get(source.id, {})) for source in sized]
    by_job = {row["run"]: row for row in rows}
    groups = [[by_job[source.id] for source in group] for group in programs(study, sized)]
    per = "per-rank" if all(source.on_cpus for source in sized) else "per-GPU"
    assumed: list[tuple[Rows, str]] = []
    refused: list[str] = []
    for group in groups:
        if study.named and scaling is None:
            others = other_programs(study, group, {source.id: source for source in sized})
            for row in group:
                row |= _uncompared(row["world_size"]) if row["run"] in others else {}
            group = [row for row in group if row["run"] not in others]
            refused += others.values()
        kind = scaling or suggested(group)
        for row in group:
            compared = _several_sizes(group)
            row |= _compared(row, group[0], kind) if compared else _uncompared(row["world_size"])
        if _several_sizes(group):
            assumed.append((group, assumption(group, kind, scaling is not None, per)))
    lines = refused + [_of_group(group, groups) + text for group, text in assumed]
    scales, text = max(assumed, key=lambda one: len(one[0]), default=([], ""))
    return Answer(rows, "\n".join(lines) or _why_not(rows), scales, text)


def missing(study: Study) -> str:
    """What each job lacks to be shown, and how that is given: ``(a: no steps; b: no number of ranks)``."""
    series = series_of_traces(study)
    lines = []
    for source in study.of_kind("trace"):
        lacks = [*(["steps"] if source.id not in series else []),
                 *(["number of ranks"] if not source.world_size else [])]  # fmt: skip
        if lacks:
            lines.append(f"{source.id}: no {' and no '.join(lacks)}")
    more = len(lines) - _MOST_NAMED
    said = "; ".join([*lines[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
    if all(source.without_times for source in study.of_kind("trace")):
        return f"({said})"  # no range can be a step
    return (
        f"({said}). Ranges that are steps are named by profiling.convert --batch-marker, numbers of ranks by "
        "python -m analysis.scaled 1=DIR 4=DIR"
    )


def _several_sizes(rows: Rows) -> bool:
    return rows[0]["world_size"] < rows[-1]["world_size"]


def _of_group(group: Rows, groups: Sequence[Rows]) -> str:
    """Which jobs a sentence is about, where others are not compared with them."""
    return f"{', '.join(row['run'] for row in group)}: " if len(groups) > 1 else ""


def _why_not(rows: Rows) -> str:
    if _several_sizes(rows):
        return (
            "Scaling is not computed: these jobs differ in device or kernels. For one program that was "
            "traced on several numbers of ranks: python -m analysis.scaled 1=DIR 8=DIR."
        )
    return (
        "Traces of one number of ranks only: scaling needs several (python -m analysis.scaled 1=DIR 2=DIR "
        "4=DIR)."
    )


def _row(source: Source, series: Series, parts: dict[str, Any]) -> dict[str, Any]:
    steady = series.steady_ns / 1e6
    estimate = inside_run.of_median(steady)
    return {
        "run": source.id,
        "world_size": source.world_size,
        "steady_steps": len(steady),
        "warmup_dropped": series.warmup,
        "step_ms": estimate.value,
        "step_ms_low": estimate.low,
        "step_ms_high": estimate.high,
        "wall_ms": parts.get("wall_ms", math.nan),
        **{f"{name}_ms": parts.get(f"{name}_ms", math.nan) for name in (*PARTS, *GREW)},
    }


def _compared(row: dict[str, Any], base: dict[str, Any], kind: Scaling) -> dict[str, Any]:
    more = row["world_size"] / base["world_size"]
    if row is not base and more == 1:
        return _uncompared(row["world_size"])
    samples = more if kind == "weak" else 1.0
    same = row is base

    def efficiency(own: float, of_base: float) -> float:
        return 100 * of_base / own * samples / more

    # Of two intervals, each within its run: the widest that both allow.
    lowest = math.nan if same else efficiency(row["step_ms_high"], base["step_ms_low"])
    highest = math.nan if same else efficiency(row["step_ms_low"], base["step_ms_high"])
    return {
        "base_world_size": base["world_size"],
        "speedup": base["step_ms"] / row["step_ms"] * samples,
        "scaling_efficiency_pct": efficiency(row["step_ms"], base["step_ms"]),
        "scaling_efficiency_pct_low": lowest,
        "scaling_efficiency_pct_high": highest,
        **{f"grew_{name}_ms": row[f"{name}_ms"] - base[f"{name}_ms"] for name in GREW},
    }  # fmt: skip


def _uncompared(ranks: int) -> dict[str, Any]:
    """Of a job that is compared with none: no other of its program, or none on fewer ranks."""
    names = ("speedup", "scaling_efficiency_pct", "scaling_efficiency_pct_low", "scaling_efficiency_pct_high")
    figures = (*names, *(f"grew_{name}_ms" for name in GREW))
    return {"base_world_size": ranks, **dict.fromkeys(figures, math.nan)}


def part(found: Answer) -> Part:
    """The terminal's table."""
    differ = "steps or ranks differ" if any(row["world_size"] > 1 for row in found.rows) else "steps differ"
    caption = (
        "Steps as recorded, including the profiler's overhead, without warmup. Median: over the steps of the "
        "slowest recorded rank. Mean: over steps and ranks, as the parts, which sum to it; it is not the "
        f"median where {differ}."
    )
    dropped = any(row["warmup_dropped"] for row in found.rows)
    of_sizes = (
        ("speedup", "scaling_efficiency_pct") if len({row["world_size"] for row in found.rows}) < 2 else ()
    )
    hidden = (*of_sizes, *(() if dropped else ("warmup_dropped",)))
    shown = columns(METRICS, *(name for name in _SHOWN if name not in hidden))
    return Part("Scaling, from traces (ms per step)", found.rows, shown, "\n".join([found.assumed, caption]))


def grown(found: Answer) -> Part | None:
    """What of a batch grew, of the traces of more ranks than the fewest; None: there are none."""
    rows = [row for row in found.rows if row["world_size"] > row["base_world_size"]]
    if not rows:
        return None
    shown: Sequence[Column] = columns(METRICS, "run", "world_size", *(f"grew_{name}_ms" for name in GREW))
    return Part("Growth of the parts of a step, ms", rows, shown)
