"""Critical path of a step: its parts, and the duration of the step without each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.display.metrics import OF_A_RUN, RANK, STEP, Metric
from analysis.display.output import Answer
from analysis.frames.anatomy import RunTrace, trace_of
from analysis.frames.divide import union
from analysis.frames.matching import TOGETHER, Clock
from analysis.frames.measure import measure
from analysis.frames.steps import in_steps, series_of
from analysis.frames.study import RECORDING, Source, Study
from analysis.measures import waits
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
    Metric("step_ms", "mean step, last start to last end of the ranks", "all ranks\nms", priority=0),
    Metric("path_ms", "time on the critical path; the parts sum to step_ms", "on path\nms"),
    Metric("path_pct", "path_ms in percent of the step", "on path\n%", places=1),
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

WAITS_AS_HOST = "waits of calls, which count as host"
COLLECTIVES, COPIES, WAITING = "collectives", "copies", "waiting for other ranks"
# The parts of a path, which sum to it, by numbers of waits.py: classes of kernels, and the rest.
PARTS: dict[str, tuple[int, ...]] = {
    name: (number,)
    for number, name in enumerate(CLASSES)
    if number not in (waits.COMMUNICATION, waits.MEMCPY, waits.MEMSET)
} | {
    COLLECTIVES: (waits.COMMUNICATION,),
    COPIES: (waits.MEMCPY, waits.MEMSET),
    "data loading": (waits.LOADING,),
    "host": (waits.HOST,),
    "launches": (waits.LAUNCHES,),
    "synchronization": (waits.SYNCHRONIZATION,),
    "gaps": (waits.GAPS,),
}
# Several parts at once, and waiting, which is no part.
COMBINED: dict[str, tuple[int, ...]] = {
    "all of the model's kernels": tuple(number for number, name in enumerate(CLASSES) if name not in APART),
    "all on the host": (waits.HOST, waits.LOADING, waits.LAUNCHES, waits.SYNCHRONIZATION),
    WAITING: (),
}
WHAT_IF = PARTS | COMBINED  # what takes no time
ALONE = (COLLECTIVES, WAITING)  # of these no rank waits for another one either
_NAMES = {number: name for name, numbers in PARTS.items() for number in numbers}


@measure(COLUMNS)
def critical_path(study: Study, by: Sequence[str] = (), top: int | None = None) -> Answer:
    """A row for each run and part of its path, the longest first, or each part of a rank, kernel, ...

    Without ``by`` come those of several parts at once, and what would be saved; it is of whole parts only.
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
    groups = pieces.fillna("").groupby(["part", *by], sort=False)["duration_ns"]
    sums = groups.sum().to_frame("ns")
    if not by:
        sums = sums.reindex(list(PARTS), fill_value=0)
    sums = sums.sort_values("ns", ascending=False, kind="stable")
    for name, numbers in ({} if by else COMBINED).items():
        sums.loc[name] = sums.loc[[part for part in PARTS if set(PARTS[part]) <= set(numbers)]].sum()
    step_ms = steps["step_ns"].sum() / len(steps) / 1e6
    path_ms = sums["ns"] / len(steps) / 1e6
    figures = {"steady_steps": len(steps), "step_ms": step_ms, "path_ms": path_ms}
    frame = pd.DataFrame(figures | {"path_pct": 100 * path_ms / step_ms})
    if not by:
        less_ms = steps[list(WHAT_IF)].sum() / len(steps) / 1e6
        saved_ms = step_ms - less_ms
        frame = frame.assign(step_without_ms=less_ms, saved_ms=saved_ms, saved_pct=100 * saved_ms / step_ms)
        frame = frame[(frame["path_ms"] != 0) | (frame["saved_ms"] != 0)]
    frame = frame.reset_index()
    frame.insert(0, "run", paths.source.id)
    return frame


@dataclass(frozen=True)
class RunPaths:
    """The critical paths of a run: one for each step of the ranks on one clock.

    Attributes:
        steps: a row a path. ``step``; ``step_ns``, from the last rank's start to the last rank's end; and by
            the names of :data:`WHAT_IF` what the step would take without it, ns.
        pieces: a row a piece, in order; they sum to the ``step_ns`` of their ``path`` (a row of ``steps``).
            ``step``, ``rank``, ``part``, ``start_ns`` on the rank's own clock, ``duration_ns``, ``kernel``,
            ``operator``, ``layer`` and ``direction`` (None: not known).
    """

    source: Source
    steps: pd.DataFrame
    pieces: pd.DataFrame


# Of more kernels those of as many steps in the run's middle are read, and of more ranks so many, first those
# that the path may lead through, so that time and memory do not grow with them.
MOST_KERNELS = 250_000
MOST_RANKS = 64


def paths_of(study: Study, source: Source) -> RunPaths:
    """A run's critical paths; a study computes them once."""
    kept: dict[str, RunPaths] = study.kept("critical paths")
    if source.id not in kept:
        trace = trace_of(study, source)
        ranks = _read(study, trace)
        _note_unknown(study, trace, list(ranks.values()))
        clocks, reference = [Clock()] * len(trace.ranks), np.arange(len(trace.ranks))
        if trace.matched is not None:
            clocks, reference = list(trace.matched.clocks), trace.matched.reference
        steps: list[dict[str, int]] = []
        pieces = []
        for _, of_clock in pd.Series(list(ranks)).groupby(reference[list(ranks)]):
            places = of_clock.tolist()
            group = Group([ranks[place] for place in places], [clocks[place] for place in places])
            for step, of_path in group.paths():
                pieces.append(of_path.assign(path=len(steps)))
                steps.append(step)
        joined = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
        kept[source.id] = RunPaths(source, pd.DataFrame(steps), joined)
    return kept[source.id]


def _read(study: Study, trace: RunTrace) -> dict[int, waits.Recorded]:
    """What the ranks that are read did in the steps that are, by their places."""
    source = trace.source
    if not trace.ranks or trace.collectives_alone:
        return {}
    recorded = np.unique(np.concatenate([rank.batch_index for rank in trace.ranks]))
    steps = recorded[in_steps(recorded, trace.counted.steps)].tolist()
    count = min(len(steps), max(1, MOST_KERNELS * len(steps) // max(kernels_of(source), 1)))
    first = (len(steps) - count) // 2
    selected = steps[first : first + count]
    every = [place for place, rank in enumerate(trace.ranks) if len(rank.batch_index)]
    places = every if len(every) <= MOST_RANKS else _selected_ranks(trace, selected, every)
    for n, of, what in ((count, len(steps), "steps"), (len(places), len(every), "ranks")):
        if n < of:
            study.note("path_in_part", source, n=n, of=of, what=what)
    # Collectives on a common clock, of which all ranks that are read made their part.
    calls = trace.collectives
    calls = calls[calls["transfer_ns"].notna() & calls["place"].isin(places)]
    calls = calls.assign(members=calls.groupby("call")["place"].transform("size"))
    ranks = {place: waits.read_rank(trace, place, selected, calls) for place in places}
    return {place: rank for place, rank in ranks.items() if len(rank.kernels)}


def kernels_of(source: Source) -> int:
    """How many kernels were recorded; 0 where tables are damaged."""
    try:
        return sum(pq.read_metadata(path).num_rows for path in source.tables("kernels"))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return 0


def _selected_ranks(trace: RunTrace, steps: Sequence[int], places: Sequence[int]) -> list[int]:
    """:data:`MOST_RANKS` of the ranks at these places, in order.

    First those that a critical path leads through: it goes to the last rank to enter a collective. If there
    is room, others at equal distances.
    """
    clocks: Sequence[Clock] = [Clock()] * len(trace.ranks)
    last = []
    if (matched := trace.matched) is not None:
        clocks, calls = matched.clocks, matched.calls
        calls = calls[(calls["call"] > 0) & calls["step"].isin(steps) & calls["place"].isin(places)]
        last.append(calls["place"][calls.groupby("call")["entered_ns"].idxmax()])
    edges_ns = {
        place: pd.DataFrame(
            clocks[place].to_reference(trace.ranks[place].edges_ns[:, [0, -1]]),
            pd.Index(trace.ranks[place].batch_index, name="step"),
        )
        for place in places
    }
    of_ranks = pd.concat(edges_ns, names=["place"]).reset_index()
    of_steps: Any = of_ranks[of_ranks["step"].isin(steps)].groupby("step")
    last += [of_ranks["place"][of_steps[edge].idxmax()] for edge in (0, 1)]  # to begin, and to end
    chosen = pd.concat(last).value_counts().index[:MOST_RANKS]
    rest = np.setdiff1d(places, chosen)
    room = min(MOST_RANKS - len(chosen), len(rest))
    spread = rest[np.linspace(0, len(rest) - 1, room).round().astype(int)]
    return sorted([*chosen, *spread.tolist()])


def _note_unknown(study: Study, trace: RunTrace, ranks: Sequence[waits.Recorded]) -> None:
    source = trace.source
    kernels = [rank.kernels[rank.kernels["device"] >= 0] for rank in ranks]
    kernels = [of_rank for of_rank in kernels if len(of_rank)]
    if kernels and not any((of_rank["launch_ns"] >= 0).any() for of_rank in kernels):
        count = sum(len(of_rank) for of_rank in kernels)
        study.note("launches_missing", source, n=count, of=count)
    # Without the time at which calls returned none of them is known to wait.
    elif not all((of_rank["launch_end_ns"] >= 0).any() for of_rank in kernels):
        study.note("not_recorded", source, what=WAITS_AS_HOST)
    if len(trace.ranks) < source.ranks:
        study.note("path_in_part", source, n=len(trace.ranks), of=source.ranks, what="ranks")
    clocks = len(ranks) if trace.matched is None else len(np.unique(trace.matched.reference))
    if clocks > 1:
        study.note("clocks_unmatched", source, n=clocks)


# --- the longest path ---------------------------------------------------------------------------------
# All ranks with aligned clocks form one graph, in which a collective ends on every rank a fixed time after
# the last rank entered it. What came before a step is fixed as recorded, so each step is a graph of its own.

_NEVER = -(1 << 60)  # ns: the length of an edge that is not there


class Path(NamedTuple):
    """The longest path of a step: a row of :class:`RunPaths`' steps, and its pieces."""

    step: dict[str, int]
    pieces: pd.DataFrame


class Group:
    """Ranks on one clock: what they recorded, as edges between nodes that are numbered in order of time.

    ``clocks``: by default such that show the same; ``activities`` and ``steps``: of each and of all ranks, by
    the clock of the group; ``times_ns``: of each node; ``first``: the number of a rank's first node before
    they were ordered; ``order``: where in that order each node is. ``edges`` are by their heads; ``rank,
    activity``: to which the time is charged; ``across``: whether it is from a collective's last arrival, so
    that another rank may have been waited for.
    """

    def __init__(self, ranks: Sequence[waits.Recorded], clocks: Sequence[Clock] | None = None) -> None:
        self.ranks, self.clocks = ranks, clocks or [Clock()] * len(ranks)
        self.activities, steps = [], []
        for recorded, clock in zip(ranks, self.clocks, strict=True):
            activities = waits.activities_of(recorded)
            times = {name: clock.to_reference(getattr(activities, name)) for name in ("start_ns", "end_ns")}
            self.activities.append(replace(activities, **times))
            edges_ns = ["start_ns", "load_end_ns", "end_ns"]
            on_clock = pd.DataFrame(clock.to_reference(recorded.steps[edges_ns].to_numpy()), columns=edges_ns)
            steps.append(on_clock.assign(step=recorded.steps["batch_index"].to_numpy()))
        self.steps = pd.concat(steps, ignore_index=True)
        times_ns = [np.stack([rank.start_ns, rank.end_ns], axis=1).ravel() for rank in self.activities]
        self.first = np.cumsum([0, *map(len, times_ns)])
        met = self._met()
        edges = []
        for place, (activities, of_rank) in enumerate(zip(self.activities, steps, strict=True)):
            of_met, met_ns = met[met["rank"] == place], np.full(len(activities), _NEVER)
            met_ns[of_met["activity"]] = of_met["last_ns"]
            loading = union(of_rank["start_ns"].to_numpy(), of_rank["load_end_ns"].to_numpy())
            own, first = waits.edges_of(activities, loading, met_ns), self.first[place]
            tail = own["tail"].where(own["tail"] < 0, own["tail"] + first)
            edges.append(own.assign(tail=tail, head=own["head"] + first, rank=place, across=False))
        # A collective has a node of its own: the moment at which the last rank enters it.
        start, node = self.first[met["rank"]] + 2 * met["activity"], self.first[-1] + met["number"]
        lasts = met["end_ns"] - met["last_ns"]
        whose = {"rank": met["rank"], "activity": met["activity"]}
        edges += [
            waits.make_edges(start, node, 0, waits.COMMUNICATION).assign(**whose, across=False),
            waits.make_edges(node, start + 1, lasts, waits.COMMUNICATION).assign(**whose, across=True),
        ]
        every = np.concatenate([*times_ns, met.drop_duplicates("number")["last_ns"]])
        joined = pd.concat(edges, ignore_index=True)
        del edges, times_ns
        order = np.lexsort((_levels(every, joined["tail"].to_numpy(), joined["head"].to_numpy()), every))
        self.times_ns = every[order]
        self.order = np.append(np.argsort(order), -1).astype(np.int32)  # of no node: -1
        joined["tail"], joined["head"] = self.order[joined["tail"]], self.order[joined["head"]]
        self.edges = joined.sort_values("head", kind="stable", ignore_index=True)

    def _met(self) -> pd.DataFrame:
        """The collectives that ranks made together, and at whose ends they had waited for the last of them.

        A row a rank and collective: ``rank, activity, start_ns, end_ns, last_ns``, when the last rank
        entered, and ``number`` of the collective.
        """
        found = []
        for place, (recorded, activities) in enumerate(zip(self.ranks, self.activities, strict=True)):
            ran = np.flatnonzero(activities.kernel_class >= 0)
            calls = recorded.kernels[["call", "members", "collective"]].iloc[activities.row[ran]]
            times = {"start_ns": activities.start_ns[ran], "end_ns": activities.end_ns[ran]}
            found.append(calls.assign(rank=place, activity=ran, **times)[calls["call"].to_numpy() > 0])
        met = pd.concat(found, ignore_index=True)
        met["last_ns"] = met.groupby("call")["start_ns"].transform("max")
        waited = met["end_ns"] > met["last_ns"]
        of_calls = waited.groupby(met["call"])
        # A sender may be done while the receiver is still to come.
        waited &= met["collective"].isin(TOGETHER) | of_calls.transform("all")
        met = met[waited & (of_calls.transform("size") == met["members"])].reset_index(drop=True)
        return met.assign(number=pd.factorize(met["call"])[0])

    def paths(self) -> Iterator[Path]:
        """The path of each step that all ranks recorded."""
        of_steps: Any = self.steps.groupby("step")
        for step, of_step in of_steps:
            start, end = int(of_step["start_ns"].max()), int(of_step["end_ns"].max())
            if len(of_step) == len(self.ranks) and end > start:
                yield self._path(int(step), start, end, of_step["end_ns"].tolist())

    def _path(self, step: int, start_ns: int, end_ns: int, ends_ns: Sequence[int]) -> Path:
        edges, nodes = self._between(step, start_ns, end_ns, ends_ns)
        tail, head, ns, part = (edges[name].to_numpy() for name in ("tail", "head", "ns", "part"))
        ends = tail.tolist(), head.tolist()  # a loop reads Python's integers faster
        at_ns = moments(*ends, ns, nodes)
        # Back from the end, by what binds; of edges that are equally late by the first.
        binding = np.flatnonzero(at_ns[tail] + ns == at_ns[head])[::-1]
        edge_of = np.full(nodes, -1)
        edge_of[head[binding]] = binding
        path, node = [], nodes - 1
        while (edge := int(edge_of[node])) >= 0:
            path.append(edge)
            node = ends[0][edge]
        pieces = edges.iloc[path[::-1]]
        pieces = pieces.assign(begin_ns=start_ns + pieces["ns"].cumsum() - pieces["ns"])[pieces["ns"] > 0]
        times = {"step": step, "step_ns": end_ns - start_ns, **dict.fromkeys(WHAT_IF, end_ns - start_ns)}
        for name, numbers in WHAT_IF.items():
            alone = name in ALONE
            if alone or pieces["part"].isin(numbers).any():  # else nothing changes
                free = np.where(np.isin(part, numbers), np.minimum(ns, 0), ns)
                free = np.where(edges["across"], _NEVER, free) if alone else free
                times[name] = int(moments(*ends, free, nodes)[-1])
        return Path(times, self._named(pieces.reset_index(drop=True), step))

    def _between(
        self, step: int, start_ns: int, end_ns: int, ends_ns: Sequence[int]
    ) -> tuple[pd.DataFrame, int]:
        """The edges of a step, and how many nodes it has: from 1, in order of time, the last its end."""
        first, behind = np.searchsorted(self.times_ns, [start_ns, end_ns], side="right").tolist()
        mine = self.edges.iloc[slice(*np.searchsorted(self.edges["head"], [first, behind]))]
        tail, head, ns = (mine[name].to_numpy() for name in ("tail", "head", "ns"))
        begun = np.maximum(self.times_ns[tail] + ns - start_ns, 0)
        begun = np.where(tail < 0, self.times_ns[head] - start_ns, begun)
        inside = tail >= first
        mine = mine.assign(
            tail=np.where(inside, tail - first + 1, 0), head=head - first + 1, ns=np.where(inside, ns, begun)
        )
        last = behind - first + 1
        lasts = [self._last(place, step, of_rank, start_ns) for place, of_rank in enumerate(ends_ns)]
        nodes, sink_ns, part, activity, rank = np.concatenate(lasts, axis=1)
        sinks = waits.make_edges(np.maximum(nodes - first + 1, 0), last, sink_ns, part)
        sinks = sinks.assign(activity=activity, rank=rank, across=False)
        return pd.concat([mine, sinks], ignore_index=True), last + 1

    def _last(self, rank: int, step: int, end_ns: int, start_ns: int) -> np.ndarray:
        """Edges from what a rank did last in a step, on each of its chains, to the step's end.

        The last of all tells when the rank's step ended; on other chains all had to be done by then. A column
        an edge: node (-1: none), ns, part, activity and rank.
        """
        activities = self.activities[rank]
        mine = np.flatnonzero((activities.batch_index == step) & (activities.end_ns <= end_ns))
        mine = mine[np.lexsort((activities.end_ns[mine], activities.chain[mine]))]
        lasts = mine[np.diff(activities.chain[mine], append=-1) != 0]
        since = activities.end_ns[lasts]
        latest = since == since.max(initial=start_ns)
        if not latest.any():  # nothing was recorded in it
            return np.array([[-1], [end_ns - start_ns], [waits.GAPS], [0], [rank]])
        ns = np.where(latest, end_ns - np.maximum(since, start_ns), 0)
        part = np.where(activities.kind[lasts] == waits.KERNEL, waits.GAPS, waits.HOST)
        nodes = self.order[self.first[rank] + 2 * lasts + 1]
        return np.stack([nodes, ns, part, lasts, np.full(len(lasts), rank)])

    def _named(self, pieces: pd.DataFrame, step: int) -> pd.DataFrame:
        """The pieces of a path as :class:`RunPaths` has them."""
        named = []
        of_ranks: Any = pieces.groupby("rank")
        for rank, mine in of_ranks:
            recorded, activities = self.ranks[rank], self.activities[rank]
            row, waited = activities.row[mine["activity"]], activities.kind[mine["activity"]] == waits.WAIT
            texts = recorded.kernels[list(waits.TEXTS)].reindex(np.where(waited, -1, row)).astype(object)
            texts = texts.set_axis(mine.index).rename(columns={"short_name": "kernel"})
            texts["kernel"] = texts["kernel"].mask(waited, recorded.waits["name"].reindex(row).to_numpy())
            begin = mine["begin_ns"].to_numpy()
            times = {"start_ns": begin + self.clocks[rank].ahead_ns(begin), "duration_ns": mine["ns"]}
            part = mine["part"].map(_NAMES)
            of_rank = pd.DataFrame({"step": step, "rank": recorded.rank, "part": part, **times})
            named.append(of_rank.join(texts.where(texts.notna(), None)))
        return pd.concat(named).sort_index()


def moments(tail: Sequence[int], head: Sequence[int], ns: np.ndarray, nodes: int) -> np.ndarray:
    """When each node is at the earliest, in ns since the beginning; a node without edges is there at once.

    Edges (``tail, head, ns``) are in order of their heads; ``tail < head``.
    """
    at_ns = [0] * nodes
    for before, after, length in zip(tail, head, ns.tolist(), strict=True):
        reached = at_ns[before] + length
        if reached > at_ns[after]:
            at_ns[after] = reached
    return np.array(at_ns, np.int64)


def _levels(times_ns: np.ndarray, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Of nodes at one time how many edges lead from one to the next until there."""
    level = np.zeros(len(times_ns), np.int64)
    at_once = (tail >= 0) & (times_ns[tail] == times_ns[head])
    tail, head = tail[at_once], head[at_once]
    while (early := level[head] <= level[tail]).any():
        np.maximum.at(level, head[early], level[tail[early]] + 1)
    return level


def foremost(study: Study) -> tuple[RunPaths, pd.DataFrame]:
    """The paths of the run that matters most, and their :func:`parts_of`; UserError: there is none.

    The slowest of those that were profiled on the most ranks; of traces the job in which most can be saved of
    a step, in percent. A whole recording only where no trace has steps.
    """
    candidates = [source for source in study.of_kind("trace") if source.tables("kernels")]
    if not candidates:
        runs = [source for source in study.of_kind("run") if source.tables("kernels")]
        if not runs:
            raise study.nothing("no run has profiled steps")
        most = max(source.ranks for source in runs)
        largest = [source for source in runs if source.ranks == most]
        of_runs = study.each(largest, partial(series_of, study))
        steps = [(np.median(series.step_ns), source) for source, series in of_runs if len(series.step_ns)]
        candidates = [max(steps, key=lambda step: step[0], default=(0.0, runs[0]))[1]]
    each = [paths for _, paths in study.each(candidates, partial(paths_of, study))]
    known = [paths for paths in each if len(paths.steps)]
    if not known:
        raise UserError(f"{candidates[0].id} has no profiled step with timed kernels")
    stepped = [paths for paths in known if not paths.source.without_steps] or known
    # Of a single part: several at once always save more.
    return max(
        ((paths, parts_of(paths)) for paths in stepped),
        key=lambda found: float(found[1].loc[found[1]["part"].isin(PARTS), "saved_pct"].max()),
    )
