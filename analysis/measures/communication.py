"""Collectives per step and rank: calls, bytes, transfer and wait, exposure and bandwidth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import OF_A_RUN, RANK, Metric
from analysis.display.output import Answer
from analysis.frames.anatomy import RunTrace, trace_of
from analysis.frames.matching import TOGETHER
from analysis.frames.measure import measure
from analysis.frames.study import Source, Study
from analysis.measures import tau
from analysis.measures.anatomy import STEPS_OF_RANKS
from profiling.attribution.messages import ONE_OF_SEVERAL

METRICS = (
    Metric("collective", "allreduce, broadcast, ...", text=True),
    Metric("group_size", "number of ranks in the process group", table=False),
    Metric("groups", "process groups of this size and spacing of ranks", table=False),
    Metric("group_ranks", "ranks of the first of these groups", "group's\nranks", text=True),
    Metric("calls_per_step", "calls", "calls/\nstep", show="{:.4g}".format),
    Metric("mbyte_per_call", "bytes per call, 1e6; empty: unknown", table=False),
    Metric("mbyte_per_step", "bytes of all calls, 1e6", "MB/\nstep"),
    Metric("ms_per_step", "duration of the calls, from the rank's entry to the end", "ms/\nstep"),
    Metric("transfer_ms", "part of the duration after the last rank entered the collective"),
    Metric("wait_ms", "part of the duration until the last rank entered the collective"),
    Metric("exposed_ms", "part of the duration without a kernel of the model"),
    Metric("overlapped_ms", "part of the duration in which a kernel of the model runs", "over-\nlapped"),
    Metric("algbw_gb_per_s", "algorithm bandwidth: bytes divided by transfer time"),
    Metric("busbw_gb_per_s", "bus bandwidth, as in nccl-tests (allreduce of P ranks: algbw x 2(P-1)/P)"),
    Metric("busbw_of_measured_pct", "busbw divided by that before the runs", "busbw, % of\nmeasured"),
    Metric("clock_residual_us", "remaining error of the alignment of the ranks' clocks", table=False),
    Metric("attributed_steps", STEPS_OF_RANKS, table=False),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then (rank with --by rank), per step and rank:":
    (RANK, *METRICS),
    **tau.COLUMNS,
}  # fmt: skip
_UNLIKE = 0.5  # of the largest collective: sizes by which latency is told from bandwidth
_MOSTLY = 0.75  # of exposed transfers: larger ones would cost no more
_SHARED = ("allreduce", "allgather", "reducescatter", "alltoall")  # of which a rank has its share already
_CAPTION = "Wait: until the last rank enters the collective; transfer: after that."


@measure(COLUMNS)
def communication(study: Study, by: str = "run") -> Answer:
    """A row a run (or each of its ranks that has steps) and kind of collective in groups of one shape.

    Where runs are under TAU alone, which times MPI's functions, the answer is that of tau.
    """
    if tau.has_tau(study) and {source.fields["profile"] for source in study.recorded} <= {"tau"}:
        return tau.answer(study)
    known = [one for one in study.recorded if one.fields["profile"] != "tau"]
    recorded = [one for one in known if one.kind == "trace" or (one.world_size or 1) > 1]
    found = [of for _, of in study.each(recorded, lambda source: _of_run(study, source, by == "rank"))]
    if not found:
        raise study.nothing(f"{study.path} holds no collective: it needs profiled runs of several ranks")
    frame = study.with_fields(pd.concat(found, ignore_index=True))
    # Which ranks a group has says nothing in a table where all rows are of one.
    alone = frame["group_ranks"].nunique(dropna=False) < 2 or set(frame["groups"]) == {1}
    metrics = [replace(one, table=one.table and not (alone and one.name == "group_ranks")) for one in METRICS]
    columns = [*OF_A_RUN, *([RANK] if by == "rank" else []), *metrics]
    return Answer(frame, columns, title="Collectives, per step and rank", caption=_CAPTION)


def _of_run(study: Study, source: Source, by_rank: bool) -> pd.DataFrame | None:
    trace = trace_of(study, source)
    if not len(trace.collectives) or not trace.collectives["counted"].any():
        if source.ranks > 1:
            study.note("not_recorded", source, what="collectives")
        return None
    trace.note_unmatched(study)
    measured = {}
    if study.calibration is not None and source.manifest is not None:
        run = source.manifest.run
        measured = {run.ranks: study.calibration.bus_bytes_per_s(run)}
    return figures(trace, by_rank, measured)


def figures(
    trace: RunTrace, by_rank: bool = False, measured: Mapping[int, float | None] = MappingProxyType({})
) -> pd.DataFrame:
    """Collectives of a run by kind and shape of their groups (and rank): ``run``, :data:`METRICS`.

    ``measured``: bytes/s, the bus bandwidth of an allreduce on as many ranks and nodes, by ranks.
    """
    ranks = pd.DataFrame([(one.rank, one.counted, one.timed) for one in trace.ranks]).set_index(0)
    calls = trace.collectives
    # By number: what names the 1,024 ranks of a group has 4 kB.
    number, names = pd.factorize(calls["group"])
    shape_of = shapes(calls, list(ranks.index))
    of_groups, known_shapes = pd.factorize(np.fromiter((shape_of[name] for name in names), object))
    calls = calls.assign(shape=of_groups[number], ns=calls["end_ns"] - calls["start_ns"])
    calls["kind"] = calls.groupby(["collective", "shape"], sort=False).ngroup()
    calls = calls[calls["counted"]].reset_index(drop=True)  # without what is of the warm-up alone
    grouped = calls.groupby(["kind", "rank"] if by_rank else ["kind"])
    count = grouped.size()
    sums = grouped[["bytes", "ns", "transfer_ns", "exposed_ns", "overlapped_ns"]].sum(skipna=False)
    known = sums["bytes"].where(sums["bytes"] > 0)
    steps, timed = (ranks.loc[count.index.get_level_values("rank")].T if by_rank else ranks.sum()).to_numpy()
    timed = timed * math.nan if trace.collectives_alone else timed  # they may have hidden behind the model
    first = grouped.agg({"rank": "first", "collective": "first", "shape": "first", "group_size": "max"})
    groups = pd.DataFrame([
        described([group for group in known_shapes[shape] if not by_rank or rank in group])
        for rank, shape in zip(first["rank"], first["shape"], strict=True)
    ], first.index)  # fmt: skip
    # As recorded; of a group of all ranks that are there it is that of the job.
    size = groups["group_size"].astype(float)
    size = size.where(size != len(ranks), trace.source.ranks)
    size = first["group_size"].where((first["group_size"] > 0) & size.notna(), size)
    residual_us = trace.matched.residual_ns / 1e3 if trace.matched else math.nan
    algbw = known / sums["transfer_ns"].where(sums["transfer_ns"] > 0)
    # Bus over algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md).
    share = ((size - 1) / size).where(first["collective"].isin(_SHARED), 1.0)
    busbw = algbw * share.where(first["collective"] != "allreduce", 2 * share)
    frame = pd.DataFrame({
        "run": trace.source.id,
        "rank": first["rank"] if by_rank else None,
        "collective": first["collective"],
        "group_size": size,
        "groups": groups["groups"],
        "group_ranks": groups["group_ranks"],
        "calls_per_step": count / steps,
        "mbyte_per_call": known / count / 1e6,
        "mbyte_per_step": known / steps / 1e6,
        "ms_per_step": sums["ns"] / steps / 1e6,
        "transfer_ms": sums["transfer_ns"] / steps / 1e6,
        "wait_ms": (sums["ns"] - sums["transfer_ns"]) / steps / 1e6,
        "exposed_ms": sums["exposed_ns"] / timed / 1e6,
        "overlapped_ms": sums["overlapped_ns"] / timed / 1e6,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
        "busbw_of_measured_pct": 1e11 * busbw / size.map(measured).astype(float),
        "clock_residual_us": pd.Series(residual_us, count.index).where(sums["transfer_ns"].notna()),
        "attributed_steps": steps,
    })  # fmt: skip
    return frame.astype(dict.fromkeys(("rank", "group_size", "groups"), "Int64"))


def limit(calls: pd.DataFrame) -> str:
    """What makes exposed transfers long: ``latency`` or ``bandwidth``; empty: both, or sizes do not tell.

    A transfer in groups of one size takes a time for itself and one for its bytes (least squares of relative
    errors). ``calls``: of :class:`~analysis.frames.anatomy.RunTrace`.
    """
    from scipy.optimize import nnls

    known = calls[calls["counted"] & (calls["bytes"] > 0) & (calls["transfer_ns"] > 0)]
    known = known[known["collective"].isin(TOGETHER)]
    found = known.assign(exposed_ns=known[["exposed_ns", "transfer_ns"]].min(axis=1, skipna=False))
    sizes = found.groupby(["group_size", "collective", "bytes"], as_index=False)
    found = sizes.agg({"transfer_ns": "mean", "exposed_ns": "sum"})
    of_call = of_bytes = 0.0
    for _, of in found.groupby("group_size"):
        size = of["bytes"] / of["bytes"].max()
        if size.min() <= _UNLIKE:
            passes = 1.0 + (of["collective"] == "allreduce")
            terms = np.column_stack([passes, passes * size])
            costs, _ = nnls(terms / of[["transfer_ns"]].to_numpy(), np.ones(len(terms)))
            parts = (terms * costs).T @ (of["exposed_ns"] / (terms @ costs))
            of_call, of_bytes = of_call + parts[0], of_bytes + parts[1]
    exposed = found["exposed_ns"].sum()
    if of_call > _MOSTLY * exposed:
        return "latency"
    return "bandwidth" if of_bytes > exposed / 2 else ""


# A process group's ranks, and those of all groups of one shape.
Members = tuple[int, ...]
Shape = tuple[Members, ...]


def shapes(calls: pd.DataFrame, ranks: Sequence[int]) -> dict[str, Shape]:
    """Process group -> the groups of its shape: as many ranks, at the same distances.

    A group that is not recorded is of all ranks; of several that are not recorded nothing is known: no shape.
    """
    members: dict[str, Members] = {}
    for name, of in calls.groupby("group", sort=False):
        there = tuple(dict.fromkeys(of["rank"]))
        # More ranks than it has: several groups of one size, whose names are not recorded.
        several = name == ONE_OF_SEVERAL or 0 < of["group_size"].iloc[-1] < len(there)
        members[str(name)] = tuple(ranks) if name == "" else () if several else there
    alike: dict[Members, list[Members]] = {}
    for group in sorted(set(members.values()), key=lambda one: (len(one), one)):
        alike.setdefault(tuple(rank - group[0] for rank in group), []).append(group)
    return {
        name: tuple(alike[tuple(rank - group[0] for rank in group)]) if group else ()
        for name, group in members.items()
    }


_SHOWN, _SHOWN_RANKS = 3, 8  # groups, and ranks of a group, that are named


def described(shape: Sequence[Members]) -> dict[str, Any]:
    """Columns of a row: how many ranks a group has, how many groups there are, and which."""
    if not shape:
        return dict.fromkeys(("group_size", "groups", "group_ranks"))
    shown = [_text(group) for group in shape[:_SHOWN]] + ["..."] * (len(shape) > _SHOWN)
    return {"group_size": len(shape[0]), "groups": len(shape), "group_ranks": " | ".join(shown)}


def _text(group: Members) -> str:
    """Ranks in words: ``0-7``, ``0,2,4``."""
    if len(group) > 2 and group == tuple(range(group[0], group[-1] + 1)):
        return f"{group[0]}-{group[-1]}"
    return ",".join(map(str, group[:_SHOWN_RANKS])) + ",..." * (len(group) > _SHOWN_RANKS)
