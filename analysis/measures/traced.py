"""Scaling of a job, from traces of several numbers of ranks: a row a job.

Traces do not tell the batch size: that of a GPU is assumed to be fixed (weak scaling), or that of the job
(strong), whichever the time in the model's kernels suggests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.display.metrics import FIELDS, IN_RUN, JOB, Column, Metric, Rows, columns, picked
from analysis.display.terminal import Part
from analysis.frames.anatomy import traces_of
from analysis.frames.divide import PARTS, SPLIT, WITHIN
from analysis.frames.steps import Series, series_of_traces
from analysis.frames.study import Source, Study
from analysis.measures import anatomy
from analysis.measures.kernels import kernels_of
from analysis.measures.points import Scaling
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
        "median of the job's recorded steps (its slowest rank), without warmup",
        "step\nmedian",
        IN_RUN,
    ),
    Metric(
        "wall_ms",
        "mean of the same steps over steps and ranks: sum of the next five",
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
        "the same of data loading while neither runs, with the wait for it",
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
# Of the launches of two jobs the share that they have in common, from which they are the same program: on
# more ranks a library may choose other kernels for a few layers; another model shares about half.
ALIKE = 0.8
_TITLE, _GROWTH = "Scaling, from traces (ms per step)", "Growth of the parts of a step, ms"
_SAME = math.log(1.2)  # time in kernels that is so much off does not fit the assumption


@dataclass(frozen=True)
class Answer:
    """The rows of all jobs.

    Attributes:
        scales: the rows of one program on several numbers of ranks, the fewest first; of several programs
            the one of most jobs. Empty: nothing can be said of scaling.
    """

    rows: Rows
    scales: Rows = field(default_factory=list)


def answer(study: Study, scaling: Scaling | None = None) -> Answer:
    """A row for the traces of each job whose steps are known, by world size; with :data:`METRICS`.

    Args:
        scaling: weak: the batch of a GPU was constant; strong: that of the job; None: what its computing
            suggests.
    """
    series = series_of_traces(study)
    known = (one for one in study.of_kind("trace") if one.id in series and one.world_size)
    sized = sorted(known, key=lambda one: one.world_size or 0)
    if not sized:
        return Answer([])
    parts = {row["run"]: row for one in traces_of(study, sized) for row in anatomy.means(one)}
    rows = [_row(source, series[source.id], parts.get(source.id, {})) for source in sized]
    by_job = {row["run"]: row for row in rows}
    scales: Rows = []
    for of_program in programs(study, sized):
        group = [by_job[source.id] for source in of_program]
        if study.named and scaling is None:
            group = _of_first_program(study, group, {source.id: source for source in sized})
        base, most = group[0], group[-1]
        if base["world_size"] == most["world_size"]:
            continue
        kind = scaling or _suggested(base, most)
        for row in group:
            row |= _compared(row, base, kind)
        if scaling is None or _away(base, most, kind) >= _SAME:
            ratio = most["compute_ms"] / base["compute_ms"] if base["compute_ms"] else math.nan
            shown = "?" if math.isnan(ratio) else ratio
            study.note("batch_assumed", scaling=kind, ratio=shown, ranks=[most["world_size"]])
        scales = max(scales, group, key=len)
    if not scales and rows[0]["world_size"] != rows[-1]["world_size"]:
        study.note("jobs_differ", jobs=[row["run"] for row in rows], differ="devices or kernels")
    return Answer(rows, scales)


# --- one program ------------------------------------------------------------------------------------------


def programs(study: Study, sources: Sequence[Source]) -> list[list[Source]]:
    """The traces of jobs, each list of one program, in the order of ``sources``.

    The same program: the user says so by giving each folder its number of ranks (``1=DIR 8=DIR``), or the
    devices are of one name and the model launches the same kernels as often per batch.
    """
    if study.named:
        return [list(sources)] if sources else []
    groups: list[list[Source]] = []
    if len(sources) < 2:
        return [[source] for source in sources]
    launches = {source.id: launches_of(study, source) for source in sources}
    for source in sources:
        of_source = launches[source.id]
        for group in groups:
            first = group[0]
            if first.devices == source.devices and in_common(launches[first.id], of_source) >= ALIKE:
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def in_common(a: dict[str, float], b: dict[str, float]) -> float:
    """Of the launches of both, by kernel, the share that both have; 0 where nothing was launched."""
    every = {*a, *b}
    most = sum(max(a.get(name, 0.0), b.get(name, 0.0)) for name in every)
    return sum(min(a.get(name, 0.0), b.get(name, 0.0)) for name in every) / most if most else 0.0


def launches_of(study: Study, source: Source) -> dict[str, float]:
    """How often the model launches each kernel per batch."""
    found: dict[str, float] = {}
    for row in kernels_of(study, source):
        if row["class"] != "communication":
            name = str(row["kernel"])
            found[name] = found.get(name, 0.0) + row["calls_per_step"]
    return found


def _of_first_program(study: Study, group: Rows, sources: Mapping[str, Source]) -> Rows:
    """Of jobs named as one program those that are not another: other kernels, which take other times.

    Either alone may be one program's: a library's kernels change with the batch, their time with the clocks.
    """
    base, *others = group
    kept = [base]
    for row in others:
        differs = row["world_size"] != base["world_size"] and _away(base, row, _suggested(base, row)) >= _SAME
        if differs and in_common(*(launches_of(study, sources[one["run"]]) for one in (base, row))) < ALIKE:
            study.note("jobs_differ", jobs=[base["run"], row["run"]], differ="kernels")
        else:
            kept.append(row)
    return kept


def _suggested(base: Mapping[str, Any], most: Mapping[str, Any]) -> Scaling:
    """Strong, if the model's kernels take less a step on more ranks, by half of that or more."""
    if most["world_size"] == base["world_size"] or not most["compute_ms"] or not base["compute_ms"]:
        return "weak"
    shrank = math.log(base["compute_ms"] / most["compute_ms"])
    return "strong" if shrank > math.log(most["world_size"] / base["world_size"]) / 2 else "weak"


def _away(base: Mapping[str, Any], row: Mapping[str, Any], kind: Scaling) -> float:
    """How far the kernels' time is from what a kind of scaling expects (log of the ratio); NaN: unknown."""
    if not base["compute_ms"]:
        return math.nan
    ratio = row["compute_ms"] / base["compute_ms"]
    ratio *= 1.0 if kind == "weak" else row["world_size"] / base["world_size"]
    return abs(math.log(ratio)) if ratio > 0 else math.nan if math.isnan(ratio) else math.inf


# --- rows and tables --------------------------------------------------------------------------------------


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
        **_uncompared(source.world_size or 0),
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
    dropped = any(row["warmup_dropped"] for row in found.rows)
    of_sizes = (
        ("speedup", "scaling_efficiency_pct") if len({row["world_size"] for row in found.rows}) < 2 else ()
    )
    hidden = (*of_sizes, *(() if dropped else ("warmup_dropped",)))
    shown = columns(METRICS, *(name for name in _SHOWN if name not in hidden))
    return Part(_TITLE, found.rows, shown)


def grown(found: Answer) -> Part | None:
    """What of a batch grew, of the traces of more ranks than the fewest; None: there are none."""
    rows = [row for row in found.rows if row["world_size"] > row["base_world_size"]]
    if not rows:
        return None
    shown: Sequence[Column] = columns(METRICS, "run", "world_size", *(f"grew_{name}_ms" for name in GREW))
    return Part(_GROWTH, rows, shown)
