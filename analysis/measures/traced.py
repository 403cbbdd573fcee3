"""Scaling from traces of a program on several numbers of ranks, one row per job.

Traces do not contain the batch size: that of a GPU (weak scaling) or of the job (strong scaling) is assumed
to be constant, whichever the time in the model's kernels suggests. Intervals are within the one recorded run.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import FIELDS, IN_RUN, JOB, Metric, columns, names_of
from analysis.display.output import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.divide import PARTS, SPLIT, WITHIN
from analysis.frames.matching import WAITS
from analysis.frames.steps import series_of_traces
from analysis.frames.study import Source, Study
from analysis.measures import anatomy, kernels
from analysis.measures.points import Scaling

# What a step is made of, each time once.
GREW = tuple(name for part in PARTS for name in (WITHIN[part] if part in SPLIT else (part,)))
_GREW = (*GREW, *WAITS)  # and waits by cause, parts of exposed_wait
_PARTS = tuple(dict.fromkeys(f"{name}_ms" for name in (*PARTS, *_GREW)))
METRICS = (
    JOB,
    FIELDS["world_size"],
    *columns(anatomy.DURATIONS, "steady_steps", "warmup_dropped", "step_ms"),
    *columns(anatomy.METRICS, "wall_ms", *_PARTS),
    Metric("speedup", "samples per second, relative to the traces with the fewest ranks", "speedup"),
    Metric("scaling_efficiency_pct", "speedup / increase in ranks", "scaling\neff. %", IN_RUN, places=1),
    Metric("base_world_size", "number of ranks of the baseline"),
    *(
        Metric(
            f"grew_{name}_ms", f"growth of {name.replace('_', ' ')} per step, relative to the baseline",
            detail=name in WAITS,
        )
        for name in _GREW
    ),
)  # fmt: skip
COLUMNS = {"Traces (one row per job):": METRICS}
_COMPARED = (
    "speedup", "scaling_efficiency_pct", "scaling_efficiency_pct_low", "scaling_efficiency_pct_high",
    *(f"grew_{name}_ms" for name in _GREW),
)  # fmt: skip
# The share of launches that two jobs of one program have in common: on more ranks a library may choose other
# kernels for a few layers; another model shares about half.
ALIKE = 0.8
_SAME = np.log(1.2)  # time in kernels that is so much off does not fit the assumption


def jobs(study: Study, scaling: Scaling | None = None) -> pd.DataFrame:
    """A row for the traces of each job whose steps and ranks are known, the fewest ranks first.

    ``scaling``: weak: the batch of a GPU was constant; strong: that of the job; None: what its computing
    suggests. Columns: :data:`METRICS`, and ``compared``: the jobs of one program on several numbers of ranks
    (of several programs that of most jobs; none: nothing can be said of scaling).
    """
    series = series_of_traces(study)
    sources = {one.id: one for one in study.of_kind("trace") if one.world_size and one.id in series}
    frame = anatomy.durations({run: series[run] for run in sources})
    frame["world_size"] = frame["base_world_size"] = [sources[run].world_size for run in frame["run"]]
    frame = frame.sort_values("world_size", kind="stable")
    sized = [sources[run] for run in frame["run"]]
    parts = anatomy.means(anatomy_frame(study, sized))
    frame = frame.merge(parts[["run", "wall_ms", *_PARTS]], on="run", how="left")
    frame = frame.assign(compared=False, **dict.fromkeys(_COMPARED, np.nan))
    scales = frame[:0]
    for program in programs(study, sized):
        group = frame[frame["run"].isin([source.id for source in program])]
        if study.named and scaling is None:
            group = _of_first_program(study, group, sources)
        base, most = group.iloc[0], group.iloc[-1]
        if base["world_size"] == most["world_size"]:
            continue
        kind = scaling or _suggested(base, most)
        compared = _compared(group, kind)
        frame.loc[compared.index, compared.columns] = compared
        if scaling is None or _off(base, most, kind) >= _SAME:
            ratio = most["compute_ms"] / base["compute_ms"] if base["compute_ms"] else np.nan
            shown = "?" if np.isnan(ratio) else ratio
            study.note("batch_assumed", scaling=kind, ratio=shown, ranks=[most["world_size"]])
        scales = max(scales, group, key=len)
    frame.loc[scales.index, "compared"] = True
    if scales.empty and frame["world_size"].nunique() > 1:
        study.note("jobs_differ", jobs=list(frame["run"]), differ="devices or kernels")
    return frame


def _compared(group: pd.DataFrame, kind: Scaling) -> pd.DataFrame:
    """The figures of a program's jobs relative to the first; none of others on as many ranks."""
    base, others = group.iloc[0], group[group["world_size"] != group["world_size"].iloc[0]]
    compared = pd.concat([group[:1], others])
    more = compared["world_size"] / base["world_size"]
    ideal = 100 if kind == "weak" else 100 / more
    efficiency = ideal * base["step_ms"] / compared["step_ms"]
    return pd.DataFrame({
        "base_world_size": base["world_size"],
        "speedup": efficiency / 100 * more,
        "scaling_efficiency_pct": efficiency,
        # Of two intervals, each within its run: the widest that both allow.
        "scaling_efficiency_pct_low": ideal * base["step_ms_low"] / others["step_ms_high"],
        "scaling_efficiency_pct_high": ideal * base["step_ms_high"] / others["step_ms_low"],
        **{f"grew_{name}_ms": compared[f"{name}_ms"] - base[f"{name}_ms"] for name in _GREW},
    }, index=compared.index)  # fmt: skip


def programs(study: Study, sources: Sequence[Source]) -> list[list[Source]]:
    """The traces of jobs, each list of one program, in the order of ``sources``.

    The user says that it is one by giving each folder its number of ranks (``1=DIR 8=DIR``), or devices are
    of one name and the model launches the same kernels as often per batch.
    """
    if study.named or len(sources) < 2:
        return [list(sources)] if sources else []
    groups: list[list[Source]] = []
    launches = {source.id: launches_of(study, source) for source in sources}
    for source in sources:
        for group in groups:
            alike = in_common(launches[group[0].id], launches[source.id]) >= ALIKE
            if alike and group[0].devices == source.devices:
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def in_common(a: pd.Series, b: pd.Series) -> float:
    """Of the launches of both, by kernel, the share that both have; 0 where nothing was launched."""
    both = pd.concat([a, b], axis=1).fillna(0.0)
    return float(both.min(axis=1).sum() / (both.max(axis=1).sum() or 1.0))


def launches_of(study: Study, source: Source) -> pd.Series:
    """How often the model launches each kernel per batch."""
    launches = kernels.figures(study, [source], ("kernel", "class"))
    return launches[launches["class"] != "communication"].groupby("kernel")["calls_per_step"].sum()


def _of_first_program(study: Study, group: pd.DataFrame, sources: dict[str, Source]) -> pd.DataFrame:
    """Of jobs named as one program those that are not another: other kernels, which take other times.

    Either alone may be one program's: a library's kernels change with the batch, their time with the clocks.
    """
    base, same = group.iloc[0], []
    for _, row in group.iterrows():
        launches = (launches_of(study, sources[run]) for run in (base["run"], row["run"]))
        off = row["world_size"] != base["world_size"] and _off(base, row, _suggested(base, row)) >= _SAME
        same.append(not (off and in_common(*launches) < ALIKE))
        if not same[-1]:
            study.note("jobs_differ", jobs=[base["run"], row["run"]], differ="kernels")
    return group[same]


def _suggested(base: pd.Series, most: pd.Series) -> Scaling:
    """Strong, if the model's kernels take less a step on more ranks, by half of that or more."""
    if most["world_size"] == base["world_size"] or not most["compute_ms"] or not base["compute_ms"]:
        return "weak"
    shrank = np.log(base["compute_ms"] / most["compute_ms"])
    return "strong" if shrank > np.log(most["world_size"] / base["world_size"]) / 2 else "weak"


def _off(base: pd.Series, row: pd.Series, kind: Scaling) -> float:
    """How far the kernels' time is from what a kind of scaling expects (log of the ratio); NaN: unknown."""
    if not base["compute_ms"]:
        return float("nan")
    ratio = row["compute_ms"] / base["compute_ms"]
    ratio *= 1.0 if kind == "weak" else row["world_size"] / base["world_size"]
    return float(abs(np.log(ratio))) if ratio else float("inf")


def answer(study: Study, scaling: Scaling | None = None) -> Answer:
    """The answer of analysis.scaled for traces."""
    frame = jobs(study, scaling)
    if frame.empty:
        raise study.nothing(f"no job of {study.path} has both steps and a known number of ranks")
    return Answer(frame[names_of(METRICS)], METRICS, tables(frame))


def tables(frame: pd.DataFrame) -> list[Part]:
    """The jobs, and what of a step grew on more ranks than the fewest."""
    of_jobs = (
        "run", "world_size", "steady_steps",
        *(("warmup_dropped",) if frame["warmup_dropped"].any() else ()),
        *("step_ms", "wall_ms", *(f"{name}_ms" for name in PARTS)),
        *(("speedup", "scaling_efficiency_pct") if frame["world_size"].nunique() > 1 else ()),
    )  # fmt: skip
    title = "Scaling, from traces (ms; step: slowest rank, wall: mean of ranks)"
    parts = [Part(title, frame, columns(METRICS, *of_jobs))]
    grown = frame[frame["world_size"] > frame["base_world_size"]]
    if len(grown):
        of_parts = columns(METRICS, "run", "world_size", *(f"grew_{name}_ms" for name in GREW))
        parts.append(Part("Growth of the parts of a step, ms", grown, of_parts))
    return parts
