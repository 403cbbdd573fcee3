"""Collectives per step and rank: calls, bytes, transfer and wait, exposure and bandwidth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import OF_A_RUN, RANK, Metric
from analysis.display.terminal import Answer
from analysis.frames.anatomy import collectives, trace_of
from analysis.frames.divide import length, union
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
    Metric("calls_per_step", "calls", "calls/\nstep"),
    Metric("mbyte_per_call", "bytes per call, 1e6; empty: unknown", table=False),
    Metric("mbyte_per_step", "bytes of all calls, 1e6", "MB/\nstep"),
    Metric("ms_per_step", "duration of the calls, from the rank's entry to the end", "ms/\nstep"),
    Metric("transfer_ms", "part of the duration after the last rank entered the collective"),
    Metric("transferring_ms", "time in which at least one of these calls transfers", "any\ntransfer"),
    Metric("wait_ms", "part of the duration until the last rank entered the collective"),
    Metric("exposed_ms", "part of the duration without a kernel of the model"),
    Metric("overlapped_ms", "part of the duration in which a kernel of the model runs", "over-\nlapped"),
    Metric("algbw_gb_per_s", "algorithm bandwidth: bytes divided by transfer time"),
    Metric("busbw_gb_per_s", "bus bandwidth, as in nccl-tests (allreduce of P ranks: algbw x 2(P-1)/P)"),
    Metric("busbw_together_gb_per_s", "bus bandwidth, computed from transferring_ms", "busbw,\ntogether"),
    Metric("busbw_of_measured_pct", "busbw over that measured before the runs", "busbw, % of\nmeasured"),
    Metric("clock_residual_us", "remaining error of the alignment of the ranks' clocks", table=False),
    Metric("attributed_steps", STEPS_OF_RANKS, table=False),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then (rank with --by rank), per step and rank:":
    (RANK, *METRICS),
    **tau.COLUMNS,
}  # fmt: skip
# Calls whose transfers add up to more than this many times the time of any are said to overlap each other.
AT_ONCE = 1.05
_CAPTION = "Wait: until the last rank enters the collective; transfer: after that."


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    factors = {"allreduce": 2 * share, "allgather": share, "reducescatter": share, "alltoall": share}
    return factors.get(kind, 1.0)


@measure(COLUMNS)
def communication(study: Study, by: str = "run") -> Answer:
    """A row a run (or each of its ranks that has steps) and kind of collective in groups of one shape.

    TAU times MPI's functions, not single calls: where runs are under TAU alone, the answer is that of tau.

    Raises:
        UserError: no run has collectives.
    """
    if tau.has_tau(study) and {source.fields["profile"] for source in study.recorded} <= {"tau"}:
        return tau.answer(study)
    recorded = [
        source
        for source in study.recorded
        if source.fields["profile"] != "tau" and (source.kind == "trace" or (source.world_size or 1) > 1)
    ]
    found = [of for _, of in study.each(recorded, lambda source: _of_run(study, source, by == "rank"))]
    if not found:
        raise study.nothing(f"{study.path} holds no collective: it needs profiled runs of several ranks")
    frame = study.with_fields(pd.concat(found, ignore_index=True))
    # What says nothing in a table of these rows.
    hidden: set[str] = set()
    if not (frame["transfer_ms"] > AT_ONCE * frame["transferring_ms"]).any():
        hidden |= {"transferring_ms", "busbw_together_gb_per_s"}
    if frame["group_ranks"].nunique(dropna=False) < 2 or set(frame["groups"]) == {1}:
        hidden.add("group_ranks")
    metrics = [replace(one, table=one.table and one.name not in hidden) for one in METRICS]
    columns = [*OF_A_RUN, *([RANK] if by == "rank" else []), *metrics]
    return Answer(frame, columns, title="Collectives, per step and rank", caption=_CAPTION)


def _of_run(study: Study, source: Source, by_rank: bool) -> pd.DataFrame | None:
    trace = trace_of(study, source)
    if not trace.has_collectives:
        if source.ranks > 1:
            study.note("not_recorded", source, what="collectives")
        return None
    trace.note_unmatched(study)
    measured = {}  # bytes/s, bus bandwidth of an allreduce on as many ranks and nodes, by the number of ranks
    if study.calibration is not None and source.manifest is not None:
        run = source.manifest.run
        measured = {run.ranks: bus} if (bus := study.calibration.bus_bytes_per_s(run)) else {}
    calls = collectives(trace)
    shape_of = shapes(calls, [one.rank for one in trace.calls])
    calls = calls.assign(shape=calls["group"].map(shape_of))
    of_ranks = {one.rank: (one.counted_batches, one.timed) for one in trace.calls}
    steps = pd.DataFrame(of_ranks, index=["counted", "timed"])
    made = []
    families: Any = calls.groupby(["collective", "shape"], sort=False)
    for (kind, shape), family in families:
        family = family[family["counted"]]
        if family.empty:
            continue  # of the warm-up alone
        recorded = int(family["group_size"].max())
        for rank in steps if by_rank else [None]:
            groups = tuple(group for group in shape if rank is None or rank in group)
            if rank is not None and (not steps[rank]["counted"] or (shape and not groups)):
                continue  # it recorded nothing, or is in no such group
            of = family if rank is None else family[family["rank"] == rank]
            counted, timed = steps.sum(axis=1) if rank is None else steps[rank]
            row = {"run": trace.source.id, "rank": rank, "collective": kind, **described(groups)}
            if groups:
                # As recorded; of a group of all ranks that are there it is that of the job.
                whole = trace.source.ranks if len(groups[0]) == steps.shape[1] else len(groups[0])
                row["group_size"] = recorded or whole
            row |= figures(of, counted, timed, trace.matched.residual_ns if trace.matched else math.nan)
            made.append(row | bandwidth(kind, row["group_size"], row, measured))
    return pd.DataFrame(made, columns=["run", "rank", *(metric.name for metric in METRICS)]).astype(
        dict.fromkeys(("rank", "group_size", "groups"), "Int64")
    )


def figures(calls: pd.DataFrame, steps: int, timed: int, residual_ns: float) -> dict[str, Any]:
    """The figures of calls in so many steps of ranks; of ``timed`` steps it is known what was exposed."""
    moved, transfer = calls["bytes"].sum(skipna=False), calls["transfer_ns"].sum(skipna=False)
    duration = calls["duration_ns"].sum()
    known = moved if moved > 0 else math.nan
    row = {
        "calls_per_step": len(calls) / steps,
        "mbyte_per_call": known / len(calls) / 1e6 if len(calls) else math.nan,
        "mbyte_per_step": known / steps / 1e6,
        "ms_per_step": duration / steps / 1e6,
        "exposed_ms": calls["exposed_ns"].sum() / timed / 1e6 if timed else math.nan,
        "overlapped_ms": calls["overlapped_ns"].sum() / timed / 1e6 if timed else math.nan,
        "attributed_steps": int(steps),
    }
    if math.isnan(residual_ns) or math.isnan(transfer):
        return row
    end = calls["end_ns"].astype(np.int64)
    begin = end - calls["transfer_ns"].astype(np.int64)
    ranks = calls.groupby("rank").groups.values()
    transferring = sum(length(union(begin[of].to_numpy(), end[of].to_numpy())) for of in ranks)
    return row | {
        "transfer_ms": transfer / steps / 1e6,
        "transferring_ms": transferring / steps / 1e6,
        "wait_ms": (duration - transfer) / steps / 1e6,
        "clock_residual_us": residual_ns / 1e3,
        "algbw_gb_per_s": known / transfer if transfer else math.nan,
    }


def bandwidth(
    kind: str, ranks: int, figures: Mapping[str, Any], measured: Mapping[int, float]
) -> dict[str, Any]:
    """What the interconnect carried, by the algorithm's bandwidth; empty where that is not known."""
    if not figures.get("algbw_gb_per_s", math.nan) >= 0:
        return {}
    bus = figures["algbw_gb_per_s"] * bus_factor(kind, ranks)
    bound = measured.get(ranks)
    return {
        "busbw_gb_per_s": bus,
        "busbw_together_gb_per_s": bus * figures["transfer_ms"] / figures["transferring_ms"],
        "busbw_of_measured_pct": 100 * bus * 1e9 / bound if bound else math.nan,
    }


# --- process groups -----------------------------------------------------------------------------------

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


def described(shape: Shape) -> dict[str, Any]:
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
