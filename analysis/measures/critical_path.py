"""Critical path of a step: its parts, and the duration of the step without each of them."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from analysis.display.metrics import OF_A_RUN, RANK, STEP, Metric
from analysis.display.terminal import Answer
from analysis.frames.anatomy import RunTrace, trace_of
from analysis.frames.matching import Clock, Shared
from analysis.frames.measure import measure
from analysis.frames.steps import series_of
from analysis.frames.study import RECORDING, Source, Study, reading
from analysis.measures.longest_path import CriticalPath, Group, WhatIf
from analysis.measures.waits import (
    COMMUNICATION,
    GAPS,
    HOST,
    LAUNCHES,
    LOADING,
    MEMCPY,
    MEMSET,
    SYNCHRONIZATION,
    TEXTS,
    WAIT,
    Recorded,
    read_rank,
    steps_of,
)
from profiling import tables
from profiling.errors import UserError
from profiling.schemas import APART, CLASSES

LEVELS = {
    "rank": RANK,
    "step": STEP,
    "direction": Metric("direction", "fprop, bprop, update, loader or none", text=True, key=True),
    "layer": Metric("layer", "layer of the operator, where it is known", text=True, key=True),
    "operator": Metric("operator", "operator that ran, or that launched the kernel", text=True, key=True),
    "kernel": Metric("kernel", "kernel that ran or was launched, or call that waited", text=True, key=True),
}
PART = Metric("part", "class of kernels, collectives, copies, host, launches, ...", text=True, key=True)
# No heading says step: the figures of a trace without steps are of the whole recording.
METRICS = (
    Metric("steady_steps", "steps averaged: recorded, without warmup", table=False),
    Metric(
        "step_ms",
        "mean step duration, from the last rank's start to the last rank's end",
        "duration\nms",
        priority=0,
    ),
    Metric("path_ms", "time on the critical path; the parts sum to step_ms", "on path\nms"),
    Metric("path_pct", "path_ms in percent of the step", "on path\n%", places=1),
    Metric("pieces", "number of pieces of the path per step", places=1, priority=0),
    Metric("step_without_ms", "duration of the step if this part took no time", "without it\nms", priority=0),
    Metric("saved_ms", "step_ms minus step_without_ms", "saved\nms"),
    Metric("saved_pct", "saved_ms in percent of the step", "saved\n%", places=1),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, part, the fields of --by, then per step:": (
        PART, *LEVELS.values(), *METRICS,
    )
}  # fmt: skip
TOP, TOP_OF_EACH = 40, 10  # rows of ``by`` that a table shows of one run, of each of several

COLLECTIVES, COPIES, WAITING = "collectives", "copies", "waiting for other ranks"
# The parts of a path, which sum to it: classes of kernels, and the rest.
PARTS: dict[str, WhatIf] = {
    name: WhatIf((number,))
    for number, name in enumerate(CLASSES)
    if number not in (COMMUNICATION, MEMCPY, MEMSET)
} | {
    COLLECTIVES: WhatIf((COMMUNICATION,), alone=True),
    COPIES: WhatIf((MEMCPY, MEMSET)),
    "data loading": WhatIf((LOADING,)),
    "host": WhatIf((HOST,)),
    "launches": WhatIf((LAUNCHES,)),
    "synchronization": WhatIf((SYNCHRONIZATION,)),
    "gaps": WhatIf((GAPS,)),
}
# Several parts at once, and waiting, which is no part.
COMBINED = {
    "all of the model's kernels": WhatIf(
        tuple(number for number, name in enumerate(CLASSES) if name not in APART)
    ),
    "all on the host": WhatIf((HOST, LOADING, LAUNCHES, SYNCHRONIZATION)),
    WAITING: WhatIf(alone=True),
}
WHAT_IF = PARTS | COMBINED
_NAMES = {number: name for name, part in PARTS.items() for number in part.parts}


@measure(COLUMNS)
def critical_path(study: Study, by: Sequence[str] = (), top: int | None = None) -> Answer:
    """A row for each run and part of its path, the longest first, or each part of a rank, kernel, ...

    Without ``by`` come those of several parts at once, and what would be saved; it is of whole parts only.

    Raises:
        UserError: no run has profiled steps with kernels that have a place in time.
    """
    found = []
    for source, paths in study.each(study.recorded, partial(paths_of, study)):
        rows = parts_of(paths, by)
        for name in by:
            if len(rows) and (rows[name] == "").all():
                study.note("not_recorded", source, what=f"{name} of kernels")
        found += [rows] if len(rows) else []
    if not found:
        raise study.nothing(
            f"{study.path} holds no profiled step with timed kernels: needed is profile: torch, or a trace"
        )
    parts = pd.concat(found)
    return answer(study, parts if top is None else parts.groupby("run", sort=False).head(top), by, top)


def answer(study: Study, parts: pd.DataFrame, by: Sequence[str] = (), top: int | None = None) -> Answer:
    """The answer of runs' :func:`parts_of`; of ``by`` without ``top`` tables show the longest."""
    frame = study.with_fields(parts)
    runs = frame.groupby("run", sort=False)
    of = study.a_step(frame["run"])
    whole = "recording" if of == RECORDING else "profiled step"
    saved = "" if by else " Saved: the other parts as recorded."
    return Answer(
        frame,
        [*OF_A_RUN, PART, *(LEVELS[name] for name in by), *METRICS],
        title=f"Critical path of {of}",
        caption=f"The pieces sum to the {whole}.{saved}",
        notable=runs.head(TOP if len(runs) == 1 else TOP_OF_EACH) if by and top is None else None,
    )


def parts_of(paths: "RunPaths", by: Sequence[str] = ()) -> pd.DataFrame:
    """The parts of a run's paths, with its ``run``; columns ``part``, ``by`` and :data:`METRICS`."""
    steps, pieces = paths.steps, paths.pieces
    if steps.empty:
        return pd.DataFrame({"run": []}, dtype=object)
    texts = pieces.fillna(dict.fromkeys(TEXTS_OF_PIECES, ""))
    groups = texts.groupby(["part", *by], sort=False)["duration_ns"]
    sums = pd.DataFrame({"ns": groups.sum(), "count": groups.size()})
    if not by:
        sums = sums.reindex(list(PARTS), fill_value=0)
    sums = sums.sort_values("ns", ascending=False, kind="stable")
    if not by:
        of_parts = {
            name: [part for part, what in PARTS.items() if set(what.parts) <= set(combined.parts)]
            for name, combined in COMBINED.items()
        }
        combined = pd.DataFrame({name: sums.loc[parts].sum() for name, parts in of_parts.items()}).T
        sums = pd.concat([sums, combined]).rename_axis("part")
    step_ms = steps["step_ns"].sum() / len(steps) / 1e6
    path_ms = sums["ns"] / len(steps) / 1e6
    frame = pd.DataFrame({
        "steady_steps": len(steps), "step_ms": step_ms, "path_ms": path_ms,
        "path_pct": 100 * path_ms / step_ms, "pieces": sums["count"] / len(steps),
    })  # fmt: skip
    if not by:
        without_ms = steps[list(WHAT_IF)].sum() / len(steps) / 1e6
        saved_ms = step_ms - without_ms
        frame = frame.assign(
            step_without_ms=without_ms, saved_ms=saved_ms, saved_pct=100 * saved_ms / step_ms
        )
        frame = frame[(frame["path_ms"] != 0) | (frame["saved_ms"] != 0)]
    frame = frame.reset_index()
    frame.insert(0, "run", paths.source.id)
    return frame


# --- the paths of a run -------------------------------------------------------------------------------

TEXTS_OF_PIECES = ("kernel", "operator", "layer", "direction")


@dataclass(frozen=True)
class RunPaths:
    """The critical paths of a run: one for each step of the ranks on one clock.

    Attributes:
        steps: a row a path. ``step``; ``step_ns``, from the last rank's start to the last rank's end; and by
            the names of :data:`WHAT_IF` what the step would take without it, ns.
        pieces: a row a piece, in order; the pieces of a path sum to its ``step_ns``. ``path`` (its row of
            ``steps``), ``step``, ``rank``, ``part``, ``start_ns`` on the rank's own clock, ``duration_ns``,
            ``kernel`` (which ran or was launched, or the call that waits), ``operator``, ``layer`` and
            ``direction`` (None: not known).
    """

    source: Source
    steps: pd.DataFrame
    pieces: pd.DataFrame


# Of a run with more kernels the path is that of the steps in its middle that have as many: some seconds.
MOST_KERNELS = 250_000
# Of more ranks so many are read, so that time and memory do not grow with them: first those that the path
# may lead through.
MOST_RANKS = 64


def paths_of(study: Study, source: Source) -> RunPaths:
    """A run's critical paths; a study computes them once."""
    kept: dict[str, RunPaths] = study.kept("critical paths")
    if source.id not in kept:
        trace = trace_of(study, source)
        places, ranks = _read(study, source, trace)
        _note_unknown(study, trace, ranks)
        paths = []
        for members, clocks, collectives in _groups(trace, places, ranks):
            group = Group(members, clocks, collectives)
            paths += [(path, _pieces(path, members, clocks, group)) for path in group.paths(WHAT_IF)]
        steps = pd.DataFrame([
            {"step": path.batch_index, "step_ns": path.end_ns - path.start_ns, **path.free_ns}
            for path, _ in paths
        ])  # fmt: skip
        pieces = [of_path.assign(path=number) for number, (_, of_path) in enumerate(paths)]
        joined = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
        kept[source.id] = RunPaths(source, steps, joined)
    return kept[source.id]


def _read(study: Study, source: Source, trace: RunTrace) -> tuple[Sequence[int], list[Recorded]]:
    """The ranks that are read, by their places, and what they did in the steps that are."""
    folders = [path.parent for path in source.tables("kernels")]
    batches = [steps_of(source, folder) for folder in folders]
    with reading(source):
        kernels = sum(pq.read_metadata(tables.table_path(folder, "kernels")).num_rows for folder in folders)
    steps = sorted({number for of_rank in batches for number in of_rank["batch_index"]})
    if trace.counted is not None:
        steps = [number for number in steps if number in trace.counted.steps]
    count = min(len(steps), max(1, MOST_KERNELS * len(steps) // max(kernels, 1)))
    first = (len(steps) - count) // 2
    selected = steps[first : first + count]
    places = _selected_ranks(trace, selected) if len(folders) > MOST_RANKS else range(len(folders))
    ranks = [
        read_rank(source, folders[place], batches[place], selected) for place in places if len(batches[place])
    ]
    for n, of, what in ((count, len(steps), "steps"), (len(places), len(folders), "ranks")):
        if n < of:
            study.note("path_in_part", source, n=n, of=of, what=what)
    return places, [rank for rank in ranks if len(rank.kernels)]


def _selected_ranks(trace: RunTrace, steps: Sequence[int]) -> list[int]:
    """The places of :data:`MOST_RANKS` ranks to read, in order.

    All that a step's critical path leads through: from rank to rank it goes by way of the one that entered a
    collective last. If there is room, others, as many of each part of the ranks.
    """
    last: Counter[int] = Counter()
    clocks: Sequence[Clock] = [Clock()] * len(trace.ranks)
    if (matched := trace.matched) is not None:
        clocks, calls = matched.clocks, matched.calls
        arrived = (
            calls[(calls["call"] > 0) & calls["step"].isin(steps)].groupby("call")["entered_ns"].idxmax()
        )
        last.update(calls["place"][arrived].tolist())
    edges = [
        pd.DataFrame(clock.to_reference(rank.edges_ns[:, [0, -1]])).assign(step=rank.batch_index, place=place)
        for place, (rank, clock) in enumerate(zip(trace.ranks, clocks, strict=True))
    ]
    of_ranks = pd.concat(edges, ignore_index=True)
    of_steps: Any = of_ranks[of_ranks["step"].isin(steps)].groupby("step")
    for edge in (0, 1):  # the last to begin, and to end
        last.update(of_ranks["place"][of_steps[edge].idxmax()].tolist())
    chosen = [place for place, _ in last.most_common(MOST_RANKS)]
    rest = np.setdiff1d(np.arange(len(trace.ranks)), chosen)
    room = min(MOST_RANKS - len(chosen), len(rest))
    spread = rest[np.linspace(0, len(rest) - 1, room).round().astype(int)]
    return sorted([*chosen, *spread.tolist()])


def _groups(
    trace: RunTrace, places: Collection[int], ranks: Sequence[Recorded]
) -> Iterator[tuple[list[Recorded], list[Clock], list[Shared]]]:
    """Ranks that are on one clock, each alone where clocks are not known; their clocks and collectives."""
    matched = trace.matched
    if matched is None:
        for rank in ranks:
            yield [rank], [Clock()], []
        return
    place = {one.rank: number for number, one in enumerate(trace.ranks)}
    first = np.searchsorted(matched.calls["place"], range(len(trace.ranks)))  # call of each rank
    for clock in np.unique(matched.reference).tolist():
        members = [rank for rank in ranks if matched.reference[place[rank.rank]] == clock]
        position = {place[rank.rank]: number for number, rank in enumerate(members)}
        collectives = []
        for shared in matched.shared:  # as far as the ranks that are read made them
            read = [member for member in shared.members if member in places]
            if read and all(member in position for member in read):
                rows = [row for row, member in enumerate(shared.members) if member in position]
                numbers = (shared.calls - first[list(shared.members), None])[rows]
                of_rows = tuple(position[shared.members[row]] for row in rows)
                collectives.append(replace(shared, members=of_rows, calls=numbers))
        if members:
            yield members, [matched.clocks[place[rank.rank]] for rank in members], collectives


def _pieces(
    path: CriticalPath, ranks: Sequence[Recorded], clocks: Sequence[Clock], group: Group
) -> pd.DataFrame:
    start, texts = path.pieces["begin_ns"].to_numpy(copy=True), []
    of_ranks: Any = path.pieces.groupby("rank")
    for place, mine in of_ranks:
        recorded, activities, which = ranks[place], group.activities[place], mine["activity"].to_numpy()
        row, waits = activities.row[which], activities.kind[which] == WAIT
        named = recorded.kernels[list(TEXTS)].reindex(np.where(waits, -1, row)).astype(object)
        calls = recorded.waits["name"].reindex(row).to_numpy()
        named["short_name"] = named["short_name"].where(~waits, calls)
        texts.append(named.set_axis(mine.index))
        start[mine.index] += clocks[place].ahead_ns(start[mine.index])
    of_pieces = pd.concat([*texts, pd.DataFrame(columns=list(TEXTS))]).rename(
        columns={"short_name": "kernel"}
    )
    return pd.DataFrame({
        "step": path.batch_index,
        "rank": path.pieces["rank"].map(dict(enumerate(rank.rank for rank in ranks))),
        "part": path.pieces["part"].map(_NAMES),
        "start_ns": start,
        "duration_ns": path.pieces["ns"],
        **dict(of_pieces.where(of_pieces.notna(), None)),
    })  # fmt: skip


def _note_unknown(study: Study, trace: RunTrace, ranks: Sequence[Recorded]) -> None:
    source = trace.source
    devices = [rank for rank in ranks if (rank.kernels["device"] >= 0).any()]
    if devices and not any((rank.kernels["launch_ns"] >= 0).any() for rank in devices):
        kernels = sum(len(rank.kernels) for rank in devices)
        study.note("launches_missing", source, n=kernels, of=kernels)
    elif any(not rank.calls_timed for rank in devices):
        study.note("not_recorded", source, what="waits of calls")
    if len(trace.ranks) < source.ranks:
        study.note("path_in_part", source, n=len(trace.ranks), of=source.ranks, what="ranks")
    clocks = len(ranks) if trace.matched is None else len(np.unique(trace.matched.reference))
    if clocks > 1:
        study.note("clocks_unmatched", source, n=clocks)


def foremost(study: Study) -> tuple[RunPaths, pd.DataFrame]:
    """The paths of the run that matters most, and their :func:`parts_of`.

    The slowest of those that were profiled on the most ranks; of traces the job in which most can be saved of
    a step, in percent: milliseconds of different programs cannot be compared. A whole recording only where
    no trace has steps.

    Raises:
        UserError: there is none.
    """
    candidates = [source for source in study.of_kind("trace") if source.tables("kernels")] or [
        _slowest(study)
    ]
    each = [paths for _, paths in study.each(candidates, lambda source: paths_of(study, source))]
    known = [paths for paths in each if len(paths.steps)]
    if not known:
        raise UserError(f"{candidates[0].id} has no profiled step with timed kernels")
    stepped = [paths for paths in known if not paths.source.without_steps] or known
    return max(((paths, parts_of(paths)) for paths in stepped), key=lambda of: _largest_saving(of[1]))


def _largest_saving(parts: pd.DataFrame) -> float:
    """In percent, of a single part: several at once always save more."""
    return float(parts.loc[parts["part"].isin(PARTS), "saved_pct"].max())


def _slowest(study: Study) -> Source:
    """The slowest of the profiled runs on the most ranks."""
    runs = [source for source in study.of_kind("run") if source.tables("kernels")]
    if not runs:
        raise study.nothing("no run has profiled steps")
    most = max(source.ranks for source in runs)
    each = study.each(
        [source for source in runs if source.ranks == most], lambda source: series_of(study, source)
    )
    steps = [(np.median(series.step_ns), source) for source, series in each if len(series.step_ns)]
    return max(steps, key=lambda step: step[0], default=(0.0, runs[0]))[1]
