"""Collectives per step and rank: calls, bytes, transfer and wait, exposure and bandwidth."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import OF_A_RUN, RANK, Column, Metric, Rows, columns, fields, telling
from analysis.frames.anatomy import RunTrace, trace_of
from analysis.frames.divide import length, union
from analysis.frames.matching import Calls, Matched
from analysis.frames.study import Source, Study
from analysis.measures import tau as messages
from analysis.measures.anatomy import STEPS_OF_RANKS
from profiling.attribution.messages import ONE_OF_SEVERAL

METRICS = (
    Metric("collective", "allreduce, broadcast, ...", text=True),
    Metric("group_size", "number of ranks in the process group"),
    Metric("groups", "number of process groups with this shape (ranks and distance between them)"),
    Metric("group_ranks", "ranks of the first of these groups", "group's\nranks", text=True),
    Metric("calls_per_step", "calls", "calls/\nstep"),
    Metric("mbyte_per_call", "bytes per call, 1e6; empty: unknown"),
    Metric("mbyte_per_step", "bytes of all calls, 1e6", "MB/\nstep"),
    Metric("ms_per_step", "duration of the calls, from the rank's entry to the end", "ms/\nstep"),
    Metric("transfer_ms", "part of the duration after the last rank entered the collective"),
    Metric("transferring_ms", "time in which any of these calls transfers", "any\ntransfer"),
    Metric("wait_ms", "part of the duration until the last rank entered the collective"),
    Metric("exposed_ms", "part of the duration without a kernel of the model, concurrent calls counted once"),
    Metric("overlapped_ms", "part of the duration in which a kernel of the model runs", "over-\nlapped"),
    Metric("algbw_gb_per_s", "algorithm bandwidth: bytes divided by transfer time"),
    Metric("busbw_gb_per_s", "bus bandwidth, as in nccl-tests (allreduce of P ranks: algbw x 2(P-1)/P)"),
    Metric("busbw_together_gb_per_s", "bus bandwidth by transferring_ms instead", "busbw,\ntogether"),
    Metric("busbw_of_measured_pct", "busbw over that measured before the runs", "busbw, % of\nmeasured"),
    Metric("clock_residual_us", "remaining error of the alignment of the ranks' clocks"),
    Metric("attributed_steps", STEPS_OF_RANKS),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then (rank with --by rank), per step and rank:": (
        RANK,
        *METRICS,
    ),
    **messages.COLUMNS,
}
# Calls whose transfers add up to more than this many times the time of any are said to overlap each other.
AT_ONCE = 1.05


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "allgather": share, "reducescatter": share, "alltoall": share}.get(
        kind, 1.0
    )


def rows(study: Study, by_rank: bool = False) -> Rows:
    """The answer's rows; with :data:`METRICS`.

    Raises:
        UserError: no run has collectives.
    """
    collectives: Rows = []
    # TAU times MPI's functions, not single calls: analysis/measures/tau.py.
    recorded = [
        source
        for source in study.recorded
        if source.fields["profile"] != "tau" and (source.kind == "trace" or (source.world_size or 1) > 1)
    ]
    for _, of_run in study.each(recorded, lambda source: _of_run(study, source, by_rank)):
        collectives += of_run
    if not collectives:
        raise study.nothing(f"{study.path} holds no collective: it needs profiled runs of several ranks")
    return collectives


def _of_run(study: Study, source: Source, by_rank: bool) -> Rows:
    trace = trace_of(study, source)
    if not trace.has_collectives:
        if source.ranks > 1:
            study.note("not_recorded", source, what="collectives")
        return []
    trace.note_unmatched(study)
    measured = {}  # the bus bandwidth of as many ranks on as many nodes, by the number of ranks
    if study.calibration is not None and source.manifest is not None:
        run = source.manifest.run
        measured = {run.ranks: bus} if (bus := study.calibration.bus_bytes_per_s(run)) else {}
    return [
        {"run": source.id, **source.fields, "repetition": source.repetition, **row}
        for row in rows_of(trace, by_rank, measured)
    ]


def rows_of(trace: RunTrace, by_rank: bool, measured: Mapping[int, float]) -> Rows:
    """The rows of a run, or of each of its ranks that has batches, without the run's fields.

    Args:
        measured: bus bandwidth of an allreduce by the number of ranks, bytes/s; empty: not measured.
    """
    ranks = trace.calls
    made = []
    for kind, shape, every in families(ranks):
        masks = [mask & one.counted for mask, one in zip(every, ranks, strict=True)]
        if not any(mask.any() for mask in masks):
            continue  # of the warm-up alone
        recorded = max(
            int(one.group_size[mask].max(initial=0)) for one, mask in zip(ranks, masks, strict=True)
        )
        of_ranks = groups_of(shape)
        places = [[place] for place in range(len(ranks))] if by_rank else [list(range(len(ranks)))]
        for of_row in places:
            first = ranks[of_row[0]]
            groups = of_ranks.get(first.rank, ()) if by_rank else shape
            if (by_rank and not first.counted_batches) or (shape and not groups):
                continue  # it recorded nothing, or is in no such group
            row = {"collective": kind, **described(groups)} | ({"rank": first.rank} if by_rank else {})
            if groups:
                # As recorded; of a group of all ranks that are there it is that of the job.
                whole = trace.source.ranks if len(groups[0]) == len(ranks) else len(groups[0])
                row["group_size"] = recorded or whole
            figures = _figures(ranks, masks, trace.matched, of_row)
            made.append(row | figures | _bandwidth(kind, row["group_size"], figures, measured))
    return made


def _figures(
    ranks: Sequence[Calls], masks: Sequence[np.ndarray], matched: Matched | None, places: list[int]
) -> dict[str, Any]:
    """The figures of some ranks' calls: those at ``places`` that ``masks`` (of each rank) name."""

    def total(values: Callable[[int], np.ndarray]) -> float:
        return float(sum(values(place)[masks[place]].sum() for place in places))

    def transferring(place: int) -> int:
        assert matched is not None
        end, took = (of[place][masks[place]] for of in (matched.end_ns, matched.transfer_ns))
        return length(union(end - took.astype(np.int64), end))

    batches = sum(ranks[place].counted_batches for place in places)
    timed = sum(ranks[place].timed for place in places)
    durations = total(lambda place: ranks[place].end_ns - ranks[place].start_ns)
    calls = sum(int(masks[place].sum()) for place in places)
    moved = total(lambda place: ranks[place].bytes)
    figures: dict[str, Any] = {
        "calls_per_step": calls / batches,
        "mbyte_per_call": moved / calls / 1e6 if calls and moved > 0 else None,
        "mbyte_per_step": moved / batches / 1e6 if moved > 0 else None,
        "ms_per_step": durations / batches / 1e6,
        "exposed_ms": total(lambda place: ranks[place].exposed_ns) / timed / 1e6 if timed else None,
        "overlapped_ms": total(lambda place: ranks[place].hidden_ns) / timed / 1e6 if timed else None,
        "attributed_steps": batches,
    }
    transfer = total(lambda place: matched.transfer_ns[place]) if matched is not None else np.nan
    if matched is not None and not np.isnan(transfer):
        figures |= {
            "transfer_ms": transfer / batches / 1e6,
            "transferring_ms": sum(transferring(place) for place in places) / batches / 1e6,
            "wait_ms": (durations - transfer) / batches / 1e6,
            "clock_residual_us": matched.residual_ns / 1e3,
        }
        figures |= {"algbw_gb_per_s": moved / transfer} if moved > 0 and transfer else {}
    return figures


def _bandwidth(
    kind: str, ranks: int, figures: Mapping[str, Any], measured: Mapping[int, float]
) -> dict[str, Any]:
    """What the interconnect carried, by the algorithm's bandwidth; empty where that is not known."""
    if "algbw_gb_per_s" not in figures:
        return {}
    bus = figures["algbw_gb_per_s"] * bus_factor(kind, ranks)
    bound = measured.get(ranks)
    return {
        "busbw_gb_per_s": bus,
        "busbw_together_gb_per_s": bus * figures["transfer_ms"] / figures["transferring_ms"],
        "busbw_of_measured_pct": 100 * bus * 1e9 / bound if bound else None,
    }


def columns_of(by_rank: bool = False) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN, *([RANK] if by_rank else []), *METRICS]


def shown(rows: Rows) -> list[Column]:
    """The tables' columns."""
    at_once = any(
        (row.get("transfer_ms") or 0) > AT_ONCE * (row.get("transferring_ms") or np.inf) for row in rows
    )
    several = len({row["group_ranks"] for row in rows}) > 1 and {row["groups"] for row in rows} != {1}
    left_out = {
        "group_size", "groups", "mbyte_per_call", "clock_residual_us", "attributed_steps",
        *(() if several else ("group_ranks",)),
        *(() if at_once else ("transferring_ms", "busbw_together_gb_per_s")),
    }  # fmt: skip
    by_rank = [RANK] if "rank" in rows[0] else []
    wanted = [metric for metric in METRICS if metric.name not in left_out]
    return columns([*fields(telling(rows)), *by_rank, *wanted])


_SHOWN, _SHOWN_RANKS = 3, 8  # groups, and ranks of a group, that are named

# A process group's ranks, and those of all groups of one shape.
Members = tuple[int, ...]
Shape = tuple[Members, ...]


def families(ranks: Sequence[Calls]) -> list[tuple[str, Shape, list[np.ndarray]]]:
    """Kinds of collectives by the shape of their groups, and of each rank which of its calls are of it.

    A group that is not recorded is of all ranks; of several that are not recorded nothing is known: no shape.
    """
    members = _members(ranks)
    shapes: dict[tuple[int, ...], list[Members]] = {}
    for group in sorted(set(members.values()), key=lambda one: (len(one), one)):
        shapes.setdefault(tuple(rank - group[0] for rank in group), []).append(group)
    shape_of = {
        name: tuple(shapes[tuple(rank - group[0] for rank in group)]) if group else ()
        for name, group in members.items()
    }
    families: dict[tuple[str, Shape], None] = {}
    for one in ranks:
        pairs = dict.fromkeys(zip(one.kind.tolist(), one.group.tolist(), strict=True))
        families |= {(kind, shape_of[name]): None for kind, name in pairs}
    found = []
    for kind, shape in families:
        names = [name for name in members if shape_of[name] == shape]
        found.append(
            (kind, shape, [(one.kind == kind) & np.isin(one.group.astype(str), names) for one in ranks])
        )
    return found


def _members(ranks: Sequence[Calls]) -> dict[str, Members]:
    """The ranks that made collectives in each process group, by its name."""
    found: dict[str, list[int]] = {}
    for one in ranks:
        for name in dict.fromkeys(one.group.tolist()):
            found.setdefault(name, []).append(one.rank)
    sizes = {name: int(size) for one in ranks for name, size in zip(one.group, one.group_size, strict=True)}
    known: dict[str, Members] = {"": tuple(one.rank for one in ranks), ONE_OF_SEVERAL: ()}
    # More ranks than it has: several groups of one size, whose names are not recorded.
    known |= {name: () for name, members in found.items() if 0 < sizes[name] < len(members)}
    return {name: known.get(name, tuple(members)) for name, members in found.items()}


def groups_of(shape: Shape) -> dict[int, Shape]:
    """The groups that each rank is in."""
    found: dict[int, list[Members]] = {}
    for group in shape:
        for rank in group:
            found.setdefault(rank, []).append(group)
    return {rank: tuple(groups) for rank, groups in found.items()}


def described(shape: Shape) -> dict[str, Any]:
    """Columns of a row: how many ranks a group has, how many groups there are, and which."""
    if not shape:
        return {"group_size": None, "groups": None, "group_ranks": None}
    shown = [_text(group) for group in shape[:_SHOWN]] + ["..."] * (len(shape) > _SHOWN)
    return {"group_size": len(shape[0]), "groups": len(shape), "group_ranks": " | ".join(shown)}


def _text(group: Members) -> str:
    """Ranks in words: ``0-7``, ``0,2,4``."""
    if len(group) > 2 and group == tuple(range(group[0], group[-1] + 1)):
        return f"{group[0]}-{group[-1]}"
    return ",".join(map(str, group[:_SHOWN_RANKS])) + ",..." * (len(group) > _SHOWN_RANKS)
