"""The critical paths of a run's steps, by name: from its tables to pieces that can be summed and drawn."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from analysis.display.perfetto import Slices, Words
from analysis.frames.anatomy import RunTrace, trace_of
from analysis.frames.matching import Ahead
from analysis.frames.study import Source, Study, reading
from analysis.measures.critical_path.activities import (
    COMMUNICATION,
    MEMCPY,
    MEMSET,
    WAIT,
    Activities,
    Recorded,
    read_rank,
    steps_of,
)
from analysis.measures.critical_path.edges import GAPS, HOST, LAUNCHES, LOADING, SYNCHRONIZATION
from analysis.measures.critical_path.steps import Collectives, CriticalPath, Group, WhatIf
from analysis.measures.timeline import NOTHING_MORE, Added, Tracks
from profiling import tables
from profiling.findings import Finding
from profiling.schemas import APART, CLASSES

COLLECTIVES, MODEL_KERNELS, WAITING = "collectives", "all of the model's kernels", "waiting for other ranks"
COPIES = "copies"
_APART = {
    COLLECTIVES: WhatIf((COMMUNICATION,), alone=True),
    COPIES: WhatIf((MEMCPY, MEMSET)),
    "data loading": WhatIf((LOADING,)),
    "host": WhatIf((HOST,)),
    "launches": WhatIf((LAUNCHES,)),
    "synchronization": WhatIf((SYNCHRONIZATION,)),
    "gaps": WhatIf((GAPS,)),
}
# The parts of a path, which sum to it: classes of kernels, and the rest.
PARTS: dict[str, WhatIf] = {
    name: WhatIf((number,))
    for number, name in enumerate(CLASSES)
    if number not in (COMMUNICATION, MEMCPY, MEMSET)
} | _APART
# Several parts at once, and what is no part.
TOGETHER = {
    MODEL_KERNELS: WhatIf(tuple(number for number, name in enumerate(CLASSES) if name not in APART)),
    "all on the host": WhatIf((HOST, LOADING, LAUNCHES, SYNCHRONIZATION)),
    WAITING: WhatIf(alone=True),
}
WHAT_IF = PARTS | TOGETHER
_PART_OF = {number: name for name, one in PARTS.items() for number in one.parts}


@dataclass(frozen=True)
class StepPath:
    """The critical path of a step of ranks on one clock; arrays of one element a piece, in order.

    Attributes:
        step_ns: from the last rank's start to the last rank's end; the pieces sum to it.
        free_ns: what the step would take without each of :data:`WHAT_IF`.
        start_ns: on the rank's own clock.
        kernel: which ran or was launched; of a call that waits for the device the call.
    """

    batch_index: int
    step_ns: int
    free_ns: dict[str, int]
    rank: np.ndarray
    part: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    kernel: np.ndarray
    operator: np.ndarray
    layer: np.ndarray
    direction: np.ndarray


@dataclass(frozen=True)
class RunPaths:
    """The critical paths of a run's steps, and findings on what they do not show."""

    source: Source
    steps: tuple[StepPath, ...]
    findings: tuple[Finding, ...]


# Of a run with more kernels the path is that of the steps in its middle that have as many: some seconds.
MOST_KERNELS = 250_000
# Of more ranks so many are looked at, so that time and memory do not grow with them: first those that the
# path may lead through.
MOST_RANKS = 64


def paths_of(study: Study, source: Source) -> RunPaths:
    """A run's critical paths; a study computes them once."""
    kept: dict[str, RunPaths] = study.kept("critical paths")
    if source.id not in kept:
        trace = trace_of(study, source)
        places, ranks, in_part = _read(source, trace)
        steps = tuple(step for group in _groups(trace, places, ranks) for step in group)
        findings = [Finding(code, source.id, data=data) for code, data in (*in_part, *_unknown(trace, ranks))]
        kept[source.id] = RunPaths(source, steps, tuple(findings))
    return kept[source.id]


_Found = tuple[str, dict[str, int | str]]  # the code and the data of a finding


def _read(source: Source, trace: RunTrace) -> tuple[Sequence[int], list[Recorded], list[_Found]]:
    """Which ranks and steps of a run are looked at: the ranks' places, what they did, and if not all."""
    folders = [path.parent for path in source.tables("kernels")]
    batches = [steps_of(source, folder) for folder in folders]
    with reading(source):
        kernels = sum(pq.read_metadata(tables.table_path(folder, "kernels")).num_rows for folder in folders)
    steps = sorted({number for one in batches for number in one["batch_index"].to_pylist()})
    if trace.counted is not None:
        steps = [number for number in steps if number in trace.counted.steps]
    count = min(len(steps), max(1, MOST_KERNELS * len(steps) // max(kernels, 1)))
    first = (len(steps) - count) // 2
    looked_at = steps[first : first + count]
    places = looked_at_ranks(trace, looked_at) if len(folders) > MOST_RANKS else range(len(folders))
    ranks = [
        read_rank(source, folders[place], batches[place], looked_at)
        for place in places
        if len(batches[place])
    ]
    found = []
    if count < len(steps):
        found.append(("path_in_part", {"n": count, "of": len(steps), "what": "steps"}))
    if len(places) < len(folders):
        found.append(("path_in_part", {"n": len(places), "of": len(folders), "what": "ranks"}))
    return places, [one for one in ranks if len(one.kind)], found


def looked_at_ranks(trace: RunTrace, steps: Sequence[int]) -> list[int]:
    """Which :data:`MOST_RANKS` of a run's ranks to look at, in order: their places.

    All that a step's critical path leads through: from rank to rank it goes by way of the one that entered a
    collective last. If there is room, others, as many of each part of the ranks.
    """
    last: Counter[int] = Counter()
    clocks: Sequence[Ahead] = [Ahead()] * len(trace.ranks)
    if (matched := trace.matched) is not None:
        clocks = matched.ahead
        for one in matched.shared:
            inside = np.isin(trace.calls[one.members[0]].batch_index[one.calls[0]], steps)
            entered = one.of(matched.start_ns)[:, inside]
            last.update(one.members[row] for row in entered.argmax(axis=0).tolist())
    for step in steps:
        recorded = [place for place, rank in enumerate(trace.ranks) if step in rank.batch_index]
        of_step = ((trace.ranks[place], clocks[place]) for place in recorded)
        edges = [clock.remove(one.edges_ns[one.batch_index == step][0])[[0, -1]] for one, clock in of_step]
        if edges:
            last.update(recorded[number] for number in np.argmax(edges, axis=0).tolist())
    chosen = [place for place, _ in last.most_common(MOST_RANKS)]
    rest = np.setdiff1d(np.arange(len(trace.ranks)), chosen)
    room = min(MOST_RANKS - len(chosen), len(rest))
    spread = rest[np.linspace(0, len(rest) - 1, room).round().astype(int)]
    return sorted([*chosen, *spread.tolist()])


def _groups(
    trace: RunTrace, places: Collection[int], ranks: Sequence[Recorded]
) -> Iterator[Iterator[StepPath]]:
    """The paths of ranks that are on one clock; of each rank alone where clocks are not known."""
    matched = trace.matched
    if matched is None:
        for one in ranks:
            yield _paths([one], [Ahead()], [])
        return
    place = {calls.rank: number for number, calls in enumerate(trace.calls)}
    for clock in np.unique(matched.clock).tolist():
        members = [one for one in ranks if matched.clock[place[one.rank]] == clock]
        position = {place[one.rank]: number for number, one in enumerate(members)}
        shared = []
        for made in matched.shared:  # as those of the ranks that are looked at make them
            mine = [member for member in made.members if member in places]
            if mine and all(member in position for member in mine):
                rows = [row for row, member in enumerate(made.members) if member in position]
                among = tuple(position[made.members[row]] for row in rows)
                shared.append(Collectives(made.kind, among, made.calls[rows]))
        if members:
            yield _paths(members, [matched.ahead[place[one.rank]] for one in members], shared)


def _paths(
    ranks: Sequence[Recorded], clocks: Sequence[Ahead], shared: Sequence[Collectives]
) -> Iterator[StepPath]:
    group = Group(ranks, clocks, shared)
    for path in group.paths(WHAT_IF):
        yield _named(path, ranks, clocks, group.activities)


def _named(
    path: CriticalPath, ranks: Sequence[Recorded], clocks: Sequence[Ahead], activities: Sequence[Activities]
) -> StepPath:
    count = len(path.part)
    start = np.zeros(count, np.int64)
    texts = {
        name: np.full(count, None, dtype=object) for name in ("short_name", "operator", "layer", "direction")
    }
    for place in np.unique(path.rank).tolist():
        mine = path.rank == place
        recorded, which = ranks[place], path.activity[mine]
        begin = path.begin_ns[mine]
        start[mine] = begin + clocks[place].at(begin)
        waits = activities[place].kind[which] == WAIT
        row = activities[place].row[which]
        for name, of in texts.items():
            of[mine] = recorded.texts[name].of(np.where(waits, -1, row))
        texts["short_name"][mine] = np.where(
            waits, recorded.wait_names.of(np.where(waits, row, -1)), texts["short_name"][mine]
        )
    numbers = np.array([one.rank for one in ranks])
    return StepPath(
        path.batch_index,
        path.end_ns - path.start_ns,
        path.free_ns,
        numbers[path.rank],
        np.array([_PART_OF[part] for part in path.part.tolist()], dtype=object),
        start,
        path.ns,
        texts["short_name"],
        texts["operator"],
        texts["layer"],
        texts["direction"],
    )


def _unknown(trace: RunTrace, ranks: Sequence[Recorded]) -> Iterator[_Found]:
    devices = [one for one in ranks if (one.kernels["device"] >= 0).any()]
    if devices and not any((one.kernels["launch_ns"] >= 0).any() for one in devices):
        every = sum(len(one.kind) for one in devices)
        yield "launches_missing", {"n": every, "of": every}
    elif any(not one.calls_timed for one in devices):
        yield "not_recorded", {"what": "waits of calls"}
    if len(trace.ranks) < trace.source.ranks:
        yield "path_in_part", {"n": len(trace.ranks), "of": trace.source.ranks, "what": "ranks"}
    clocks = len(ranks) if trace.matched is None else len(np.unique(trace.matched.clock))
    if clocks > 1:
        yield "clocks_unmatched", {"n": clocks}


WHAT = "pieces of the critical path"


def added(study: Study, source: Source) -> Added:
    """The tracks of a run's ranks; none where it has no path."""
    if not source.tables("kernels"):
        return NOTHING_MORE
    paths = study.use(source, lambda one: paths_of(study, one))
    steps = paths.steps if paths else ()
    ranks = sorted({rank for step in steps for rank in step.rank.tolist()})
    return WHAT, {rank: _of_rank(steps, rank) for rank in ranks}


def _of_rank(steps: Sequence[StepPath], rank: int) -> Tracks:
    columns = {
        name: np.concatenate([getattr(step, name)[step.rank == rank] for step in steps])
        for name in ("start_ns", "duration_ns", "part", "kernel", "operator", "layer")
    }
    batch = np.concatenate([np.full((step.rank == rank).sum(), step.batch_index) for step in steps])
    order = np.argsort(columns["start_ns"], kind="stable")
    column = {name: values[order] for name, values in columns.items()}
    # Where clocks drift, a piece may overlap the next by a nanosecond of rounding.
    reach = np.maximum.accumulate(column["start_ns"] + column["duration_ns"])
    start = np.maximum(column["start_ns"], np.append(column["start_ns"][:1], reach[:-1]))
    slices = Slices(
        np.zeros(len(order), np.int32),
        start,
        reach,
        _words(column["part"]),
        Words.same("critical path", len(order)),
        {
            **{name: _words(column[name]) for name in ("kernel", "operator", "layer")},
            "step": batch[order].astype(np.int64),
        },
    )
    return Tracks(["critical path"], slices)


def _words(texts: np.ndarray) -> Words:
    known = {text: code for code, text in enumerate(dict.fromkeys(one for one in texts.tolist() if one))}
    codes = [known.get(one, -1) for one in texts.tolist()]
    return Words(np.array(codes, np.int32), list(known))
