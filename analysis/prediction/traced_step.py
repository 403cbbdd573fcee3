"""Read from a point's runs the step and the allreduces that analysis.prediction.simulate replays.

- When each gradient is ready: at the end of the last backward kernel of its layer, on rank 0 (median of the
  attributed batches). Which parameters there are rank 0's report says. Where the trace knows no layers, the
  buckets that were sent stand in, ready when their allreduce began.
- How long the stages are: in the point's unprofiled runs. The backward pass of several ranks holds the wait
  for gradients, so its own length is the trace's, less what the profiler slowed the other stages down by.
- What allreduces took: the times in which one or more of them ran, from the last rank's arrival.
- Which ranks are late again and again: those that analysis.stragglers names, by the same collectives.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.frames.anatomy import RunTrace, anatomy_of, trace_of
from analysis.frames.kernel_sums import query_arrays
from analysis.frames.steps import Series, counted_steps, in_steps
from analysis.frames.study import Source, Study, reading
from analysis.measures.lateness import STRAGGLER, Lateness, judge, of_collectives
from analysis.measures.points import Point
from analysis.prediction.allreduce import Exchanges, Layout
from analysis.prediction.simulate import Step
from profiling import schemas, tables

# On the wire; the precision of gradients is a field of the run.
WIRE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
# What NCCL's kernels say of themselves: ncclDevKernel_AllReduce_Sum_f32_RING_LL.
_ALGORITHM = re.compile(r"nccl.*_(ring|tree)_", re.IGNORECASE)

_READY = """
select batch_index, layer::varchar as layer, max(start_ns + duration_ns) as ready_ns
from read_parquet($kernels)
where direction::varchar = 'bprop' and "class"::varchar <> 'communication'
    and layer is not null and start_ns is not null and duration_ns >= 0 and batch_index is not null
group by all order by all
"""
_ALLREDUCE_NAMES = """
select distinct short_name::varchar as name from read_parquet($kernels)
where "class"::varchar = 'communication' and short_name::varchar ilike '%allreduce%'
"""


@dataclass(frozen=True)
class Traced:
    """What the trace of a point says.

    Attributes:
        exchanges: its allreduces; none where one rank ran.
        exposed_share: of the step, what it transfers while nothing is computed, the mean of the ranks; NaN:
            not known.
    """

    step: Step
    exchanges: Exchanges
    exposed_share: float = math.nan


@dataclass(frozen=True)
class Late:
    """A rank that is late again and again; arrays of one element an attributed batch, ns."""

    late_ns: np.ndarray  # how long the others waited for it
    load_ns: np.ndarray  # what its loading took longer than the others'


@dataclass(frozen=True)
class Allreduces:
    """Of attributed batches, in order; arrays of one element a call, on rank 0's clock."""

    batch_index: np.ndarray
    bytes: np.ndarray  # NaN: not known
    start_ns: np.ndarray  # rank 0's
    arrived_ns: np.ndarray  # when the last rank had come
    end_ns: np.ndarray  # median over ranks
    algorithms: frozenset[str] = frozenset()  # ring, tree, where kernels are called after them
    late: Mapping[int, Late] = field(default_factory=dict)  # by rank

    @property
    def have_sizes(self) -> bool:
        return bool(len(self.end_ns)) and bool(np.isfinite(self.bytes).all())


def traced(study: Study, point: Point) -> Traced | str:
    """What a point's trace says; or what it lacks to say when gradients are ready."""
    runs = [one for one in point.profiled if tables.table_path(_rank_0(one[0]), "kernels").is_file()]
    if not runs:
        return "no profiled run"
    source, series = min(runs, key=lambda one: one[0].fields["profile"] != "torch")
    if source.fields["backend"] in ("horovod", "dp"):
        return f"no DDP buckets in backend {source.fields['backend']}"
    read = study.use(source, lambda source: _read(study, source))
    if read is None:
        return "damaged trace"
    recorded, gradients, trace, names = read
    if not len(recorded["start_ns"]):
        return "no recorded step"
    calls = allreduces(trace, names, series) if point.world_size > 1 else None
    # Of a program that was watched, the precision of gradients may be unknown.
    wire_bytes = WIRE_BYTES.get(source.fields["grad"])
    sent = _sent(calls, recorded, wire_bytes) if gradients is None and wire_bytes else None
    if gradients is None and sent is None:
        return "neither kernels with layers nor allreduces with sizes"
    ready_ns, elements = gradients or sent or (np.array([]), np.array([]))
    step = step_of(point, recorded, ready_ns, elements, gradients is None, calls)
    if step is None:
        return "stages of no duration"
    ranks = anatomy_of(trace)
    # A host that waits for data keeps no device waiting that still has kernels to run.
    loading = sum(int(one["wall_ns"][one["stage"] == "load"].sum()) for one in ranks)
    waits = sum(int(one["loader_wait_ns"].sum()) for one in ranks)
    step = replace(step, waits_share=min(1.0, waits / loading) if loading else 1.0)
    exposed = math.nan
    if ranks and all("exposed_transfer_ns" in one for one in ranks):
        wall = sum(int(one["wall_ns"].sum()) for one in ranks)
        exposed = sum(int(one["exposed_transfer_ns"].sum()) for one in ranks) / wall if wall else math.nan
    exchanged = exchanges(calls, Layout(point.world_size, point.fields["nodes"]))
    return Traced(step, exchanged, exposed)


def _read(
    study: Study, source: Source
) -> tuple[dict[str, np.ndarray], "Gradients | None", RunTrace, Sequence[str]]:
    """Of rank 0 its attributed batches that count, in order, and when its gradients are ready; of all ranks
    the trace, and the names of the kernels that made allreduces.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    kernels = [tables.table_path(_rank_0(source), "kernels")]
    counted = counted_steps(study, source)
    with reading(source):
        every = tables.read(_rank_0(source), "batches", schemas.TIMES_OF_BATCHES)
        order = np.argsort(every["batch_index"].to_numpy(), kind="stable")
        order = order[every["attributed"].to_numpy(zero_copy_only=False)[order]]
        order = order[in_steps(every["batch_index"].to_numpy()[order], counted.steps if counted else None)]
        batches = {
            name: every[name].to_numpy(zero_copy_only=False)[order] for name in schemas.TIMES_OF_BATCHES
        }
    gradients = _ready(source, query_arrays(study, source, _READY, kernels=kernels), batches)
    names = query_arrays(study, source, _ALLREDUCE_NAMES, kernels=source.tables("kernels"))
    return batches, gradients, trace_of(study, source), list(map(str, names["name"]))


def _rank_0(source: Source) -> Path:
    return tables.rank_directory(source.path, 0)


# --- when gradients are ready ---------------------------------------------------------------------------


Gradients = tuple[np.ndarray, np.ndarray]
"""When each gradient is ready, ns from the begin of the backward pass, and its elements; in that order."""


def _ready(
    source: Source, columns: Mapping[str, np.ndarray], recorded: Mapping[str, np.ndarray]
) -> Gradients | None:
    """The gradients by the ends of their layers' kernels (``batch_index, layer, ready_ns``)."""
    manifest = source.manifest
    counts = manifest.ranks[0].gradient_elements if manifest and manifest.ranks else {}
    if not counts:
        return None
    begin = dict(zip(recorded["batch_index"].tolist(), _backward_begin(recorded).tolist(), strict=True))
    by_layer: dict[str, list[float]] = {}
    for batch, layer, at in zip(columns["batch_index"], columns["layer"], columns["ready_ns"], strict=True):
        if int(batch) in begin:
            by_layer.setdefault(str(layer), []).append(float(at) - begin[int(batch)])
    return ready_in_order(counts, {layer: float(np.median(at)) for layer, at in by_layer.items()})


def ready_in_order(counts: Mapping[str, int], layers: Mapping[str, float]) -> Gradients | None:
    """The gradients in the order in which they are ready.

    A parameter whose layer has no kernel of its own is ready with the one registered before it, which the
    backward pass comes to later. None where that is so of most elements: the trace names its layers
    otherwise.

    Args:
        counts: elements by parameter, in the order in which the model registers them.
        layers: when the backward pass of each layer is done.
    """
    at = [layers.get(name.rpartition(".")[0]) for name in counts]
    elements = np.array(list(counts.values()))
    has_time = np.array([one is not None for one in at], dtype=bool)
    if elements[has_time].sum() < elements.sum() / 2:
        return None
    latest = max(one for one in at if one is not None)
    ready = []
    for one in at:
        latest = latest if one is None else one
        ready.append(latest)
    # Of those ready at one instant the last registered comes first: autograd goes backwards.
    instants = np.array(ready)
    order = np.lexsort((-np.arange(len(ready)), instants))
    return instants[order], elements[order]


def _sent(calls: Allreduces | None, recorded: Mapping[str, np.ndarray], wire_bytes: int) -> Gradients | None:
    """The same of the buckets as they were sent, where every batch sent as many."""
    if calls is None or not calls.have_sizes:
        return None
    batches, count = np.unique(calls.batch_index, return_counts=True)
    if len(set(count)) > 1 or not np.isin(batches, recorded["batch_index"]).all():
        return None
    begin = _backward_begin(recorded)[np.searchsorted(recorded["batch_index"], batches)]
    shape = (len(batches), int(count[0]))
    ready = np.median(calls.start_ns.reshape(shape) - begin[:, None], axis=0)
    elements = np.median(calls.bytes.reshape(shape), axis=0) / wire_bytes
    order = np.argsort(ready, kind="stable")
    return ready[order], np.rint(elements[order])


def _backward_begin(stages: Mapping[str, np.ndarray]) -> np.ndarray:
    return stages["start_ns"] + stages["load_ns"] + stages["forward_ns"]


# --- stages ---------------------------------------------------------------------------------------------


def step_of(
    point: Point,
    recorded: Mapping[str, np.ndarray],
    ready_ns: np.ndarray,
    elements: np.ndarray,
    whole_buckets: bool,
    calls: Allreduces | None,
) -> Step | None:
    """The step of a point: the trace's backward pass, the unprofiled runs' other stages.

    None where the stages that tell how much the profiler slowed it down took no time.
    """
    alone = point.world_size == 1
    late = calls.late if calls is not None else {}
    own, load, stages = _own(point, late)
    seen = {name: float(np.median(recorded[f"{name}_ns"])) for name in ("forward", "backward", "update")}
    compared = ("backward",) if alone else ("forward", "update")
    recorded_ns, timed_ns = (sum(of[name] for name in compared) for of in (seen, stages))
    if recorded_ns <= 0 or timed_ns <= 0:
        return None
    slowed = recorded_ns / timed_ns
    backward = seen["backward"] if alone else float(ready_ns[-1])
    after = 0.0
    if calls is not None and len(calls.end_ns):
        last = dict.fromkeys(recorded["batch_index"].tolist(), 0)
        for batch, end in zip(calls.batch_index.tolist(), calls.end_ns.tolist(), strict=True):
            last[batch] = max(last.get(batch, 0), end)
        ends = np.array([last[batch] for batch in recorded["batch_index"].tolist()])
        begin = _backward_begin(recorded)
        done = np.maximum(begin + backward, ends)
        after = max(float(np.median(begin + recorded["backward_ns"] - done)), 0.0)
    return Step(
        stages["load"],
        stages["forward"],
        backward / slowed,
        stages["update"] + stages["end"] + after / slowed,
        ready_ns / slowed,
        elements,
        whole_buckets,
        own,
        load,
        np.stack([one.late_ns for one in late.values()]) / slowed if late else np.zeros((0, 1)),
        np.stack([one.load_ns for one in late.values()]) / slowed if late else np.zeros((0, 1)),
    )


def _own(point: Point, late: Iterable[int]) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """(what batches of ranks take by themselves, their loading, medians of the stages) in the timed runs, ns.

    Runs are set to one level: that they differ is no lateness of a rank. Ranks of ``late`` are left out.
    """
    several = point.world_size > 1
    owns, loads, timings = [], [], []
    for _, series in point.timed:
        ranks = np.setdiff1d(np.arange(len(series.rank_ns)), list(late))
        steady = np.ix_(ranks, np.flatnonzero(series.steady))
        stages = {name: of_ranks[steady].ravel() for name, of_ranks in series.rank_stages.items()}
        whole = series.rank_ns[steady].ravel()
        timings.append({**stages, "end": whole - sum(stages.values())})
        loads.append(stages["load"])
        owns.append(stages["load"] + stages["forward"] + stages["update"] if several else whole)
    medians = {name: float(np.median(np.concatenate([one[name] for one in timings]))) for name in timings[0]}
    level = float(np.median(np.concatenate(owns)))
    own = np.concatenate([run - np.median(run) + level for run in owns])
    return own, np.concatenate(loads).astype(float), medians


# --- the exchange ---------------------------------------------------------------------------------------


def exchanges(calls: Allreduces | None, layout: Layout) -> Exchanges:
    """The stretches of time in which allreduces ran; none where nothing, or no size, is known of them.

    A stretch that took no time (as floats hold it) says nothing of what a byte costs, and is left out.
    """
    if calls is None or not calls.have_sizes:
        nothing = np.array([])
        return Exchanges(nothing, nothing, nothing, nothing, nothing)
    order = np.lexsort((calls.arrived_ns, calls.batch_index))
    begin, end = calls.arrived_ns[order], np.maximum(calls.end_ns, calls.arrived_ns + 1)[order]
    # Batches follow each other, so that no call of one runs into the next.
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] >= reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(begin) - 1]])
    lasted = (reach[tails] - begin[heads]).astype(float)
    calls_of_each = np.diff(np.concatenate([heads, [len(begin)]]))
    bytes_of_each = np.add.reduceat(calls.bytes[order], heads)
    took = lasted > 0
    ranks, nodes = (np.full(int(took.sum()), count) for count in (layout.ranks, layout.nodes))
    return Exchanges(ranks, calls_of_each[took], bytes_of_each[took], lasted[took], nodes, calls.algorithms)


def together(parts: Sequence[Exchanges]) -> Exchanges:
    """The allreduces of several traces."""
    names = [one.name for one in fields(Exchanges) if one.name != "algorithms"]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    return Exchanges(**arrays, algorithms=frozenset().union(*(one.algorithms for one in parts)))


def allreduces(trace: RunTrace, names: Iterable[str], series: Series) -> Allreduces | None:
    """A run's allreduces of all ranks; None where they do not match, or tables are missing.

    Those of a process group of fewer ranks exchange no gradients of DDP's: they are left out.

    Args:
        names: of the kernels that made them.
        series: the run's batches.
    """
    source, ranks, matched = trace.source, trace.calls, trace.matched
    if len(ranks) != source.world_size or not trace.has_collectives or matched is None:
        return None
    whole = [
        one.calls for one in matched.shared if one.kind == "allreduce" and len(one.members) == len(ranks)
    ]
    calls = np.concatenate([np.empty((len(ranks), 0), np.int64), *whole], axis=1)
    calls = calls[:, np.argsort(calls[0], kind="stable")]
    start, end = (
        np.stack([values[mine] for values, mine in zip(of_ranks, calls, strict=True)])
        for of_ranks in (matched.start_ns, matched.end_ns)
    )
    arrived = start.max(axis=0)
    # Since the arrival, so that a float holds it to the nanosecond.
    lasted = np.rint(np.median(end - arrived, axis=0)).astype(np.int64)
    batch, size = (getattr(ranks[0], name)[calls[0]] for name in ("batch_index", "bytes"))
    return Allreduces(
        batch, size, start[0], arrived, arrived + lasted,
        algorithms_of(names),
        late_ranks(of_collectives(ranks, matched, series), source.hosts),
    )  # fmt: skip


def algorithms_of(names: Iterable[str]) -> frozenset[str]:
    """What NCCL calls the algorithm of its kernels: ring, tree; none where a kernel does not say."""
    matches = [_ALGORITHM.search(name) for name in set(names)]
    return frozenset(one[1].lower() for one in matches if one) if all(matches) else frozenset()


def late_ranks(lateness: Lateness | None, nodes: Sequence[str]) -> dict[int, Late]:
    """The ranks that are late again and again, beyond chance."""
    if lateness is None:
        return {}
    load = lateness.parts_ns["load"]
    return {
        rank: Late(lateness.late_ns[rank].astype(float), np.clip(load[rank], 0, lateness.late_ns[rank]))
        for rank, (verdict, _) in enumerate(judge(lateness, nodes))
        if verdict == STRAGGLER
    }
