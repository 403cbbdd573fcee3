"""Read the step and the allreduces that are replayed on more ranks, from the runs of a point.

- A gradient is ready at the end of the last backward kernel of its layer on rank 0 (median over the profiled
  steps). If the trace has no layers, the buckets that were sent are used, ready when their allreduce began.
- Stages last as long as in the unprofiled runs. With several ranks, the backward pass includes the wait for
  gradients, so its duration is that in the trace, divided by the profiler's slowdown of the other stages.
- Allreduces last from the arrival of the last rank; overlapping ones are one interval.
- Stragglers are those of analysis.stragglers, from the same collectives.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.frames.anatomy import RunTrace, anatomy_of, trace_of
from analysis.frames.kernel_sums import query
from analysis.frames.steps import counted_steps, in_steps
from analysis.frames.study import Source, Study, reading
from analysis.measures.lateness import STRAGGLER, Lateness, judge, of_collectives
from analysis.prediction.allreduce import Exchanges, Layout
from profiling import schemas, tables

# On the wire; the precision of gradients is a field of the run.
WIRE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
# What NCCL's kernels say of themselves: ncclDevKernel_AllReduce_Sum_f32_RING_LL.
_ALGORITHM = re.compile(r"nccl.*_(ring|tree)_", re.IGNORECASE)

_READY = """
select batch_index as step, layer::varchar as layer, max(start_ns + duration_ns) as ready_ns
from read_parquet($kernels)
where direction::varchar = 'bprop' and "class"::varchar <> 'communication'
    and layer is not null and start_ns is not null and duration_ns >= 0 and batch_index is not null
group by all order by all
"""
_ALLREDUCE_NAMES = """
select distinct short_name::varchar as name from read_parquet($kernels)
where "class"::varchar = 'communication' and short_name::varchar ilike '%allreduce%'
"""


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a rank without the exchange of gradients; medians, ns."""

    load_ns: float
    forward_ns: float
    backward_ns: float
    tail_ns: float  # after the backward pass and the exchange: the update, and what follows it
    ready_ns: np.ndarray  # when each gradient is ready, from the start of the backward pass; rising
    elements: np.ndarray  # of each gradient
    whole_buckets: bool  # ``elements`` are of buckets as they were sent, not of single gradients
    # Of each step and rank without stragglers, the stages in which no rank waits for another.
    own_ns: np.ndarray
    own_load_ns: np.ndarray  # the loading in it
    # (stragglers, steps), by how much they are later than the others, and the loading in it.
    late_ns: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)))
    late_load_ns: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)))
    waits_share: float = 1.0  # of the loading, the part in which the device waits for it


@dataclass(frozen=True)
class Traced:
    """The traced step of a point, and its allreduces."""

    step: Step
    exchanges: Exchanges
    exposed_share: float = math.nan  # of the step in exposed transfer, mean of the ranks


class Late(NamedTuple):
    """The stragglers; arrays (ranks, steps), ns."""

    ranks: Sequence[int] = ()
    late_ns: np.ndarray = np.zeros((0, 1))  # how long the others waited for each
    load_ns: np.ndarray = np.zeros((0, 1))  # what its loading took longer than the others'


NOBODY = Late()
# When each gradient is ready, ns from the start of the backward pass, and its elements; in that order.
Gradients = tuple[np.ndarray, np.ndarray]


def traced(study: Study, point: pd.Series) -> Traced | str:
    """What a point's trace says; or what it lacks."""
    runs = [run for run in point["profiled"] if _kernels_of_rank_0(run[0]).is_file()]
    if not runs:
        return "no profiled run"
    source, series = min(runs, key=lambda run: run[0].fields["profile"] != "torch")
    if source.fields["backend"] in ("horovod", "dp"):
        return f"no DDP buckets in backend {source.fields['backend']}"
    read = study.use(source, lambda source: _read(study, source))
    if read is None:
        return "damaged trace"
    recorded, gradients, trace, names = read
    if not len(recorded):
        return "no recorded step"
    calls, late = (allreduces(trace), NOBODY) if point["world_size"] > 1 else (None, NOBODY)
    if calls is not None:
        assert trace.matched is not None
        late = late_ranks(of_collectives(trace.matched, series), source.hosts)
    # Of a program that was watched, the precision of gradients may be unknown.
    wire_bytes = WIRE_BYTES.get(source.fields["grad"])
    ready = gradients or (_sent(calls, recorded, wire_bytes) if wire_bytes else None)
    if ready is None:
        return "neither kernels with layers nor allreduces with sizes"
    step = step_of(point, recorded, *ready, gradients is None, calls, late)
    if step is None:
        return "stages of no duration"
    exposed = math.nan
    if len(parts := anatomy_of(trace)):
        wall, loading = parts["wall_ns"].sum(), parts.loc[parts["stage"] == "load", "wall_ns"].sum()
        # While the host waits for data, the device may still have kernels to run.
        waits = parts["loader_wait_ns"].sum()
        step = replace(step, waits_share=min(1.0, waits / loading) if loading else 1.0)
        if "exposed_transfer_ns" in parts and wall:
            exposed = parts["exposed_transfer_ns"].sum(skipna=False) / wall
    layout = Layout(point["world_size"], point["nodes"])
    return Traced(step, exchanges(calls, layout, algorithms_of(names)), exposed)


def _read(study: Study, source: Source) -> tuple[pd.DataFrame, Gradients | None, RunTrace, Sequence[str]]:
    """Rank 0's attributed steps that count, in order, and its gradients; all ranks' trace, and the names of
    the kernels of allreduces.
    """
    kernels, counted = _kernels_of_rank_0(source), counted_steps(study, source)
    with reading(source):
        steps = tables.read(kernels.parent, "batches", schemas.TIMES_OF_BATCHES).to_pandas()
    steps = steps[steps["attributed"].eq(True)].sort_values("batch_index", kind="stable")
    steps = steps[in_steps(steps["batch_index"].to_numpy(), counted.steps)]
    ends = query(study, source, _READY, kernels=[kernels])
    names = query(study, source, _ALLREDUCE_NAMES, kernels=source.tables("kernels"))
    gradients = None
    if source.manifest and source.manifest.ranks and source.manifest.ranks[0].gradient_elements:
        layers = _since_backward(ends, "ready_ns", steps).groupby(ends["layer"]).median()
        gradients = ready_in_order(source.manifest.ranks[0].gradient_elements, dict(layers))
    return steps, gradients, trace_of(study, source), list(map(str, names["name"]))


def _kernels_of_rank_0(source: Source) -> Path:
    return tables.table_path(tables.rank_directory(source.path, 0), "kernels")


def ready_in_order(counts: Mapping[str, int], layers: Mapping[str, float]) -> Gradients | None:
    """The gradients in the order in which they are ready.

    A parameter whose layer has no kernel is ready with the one registered before it, which the backward pass
    reaches later. None where that is so of most elements: layers have other names in the trace. ``counts``:
    elements by parameter, as the model registers them; ``layers``: when the backward pass of each is done.
    """
    ready = pd.Series([layers.get(name.rpartition(".")[0], np.nan) for name in counts], dtype=float)
    elements = np.array(list(counts.values()))
    if elements[ready.notna()].sum() < elements.sum() / 2:
        return None
    instants = ready.ffill().fillna(ready.max()).to_numpy()
    # Of those ready at the same time the last registered comes first.
    order = np.lexsort((-np.arange(len(ready)), instants))
    return instants[order], elements[order]


def _sent(calls: pd.DataFrame | None, recorded: pd.DataFrame, wire_bytes: int) -> Gradients | None:
    """The buckets as they were sent; None where steps sent different numbers of them."""
    if calls is None or not _have_sizes(calls):
        return None
    steps, count = np.unique(calls["step"], return_counts=True)
    if len(set(count)) > 1 or not np.isin(steps, recorded["batch_index"]).all():
        return None
    place = calls.groupby("step").cumcount()
    ready = _since_backward(calls, "start_ns", recorded).groupby(place).median()
    elements = (calls["bytes"].groupby(place).median() / wire_bytes).round()
    order = np.argsort(ready.to_numpy(), kind="stable")
    return ready.to_numpy()[order], elements.to_numpy()[order]


def _since_backward(rows: pd.DataFrame, name: str, steps: pd.DataFrame) -> pd.Series:
    """What happened to each row when, ns since the backward pass of its ``step`` began; of known steps."""
    rows = rows[rows["step"].isin(steps["batch_index"])]
    of = steps.set_index("batch_index").loc[rows["step"]]
    # Whole numbers first: a float holds times since 1970 to 256 ns.
    since = rows[name].to_numpy() - of["start_ns"].to_numpy()
    return pd.Series(since - (of["load_ns"] + of["forward_ns"]).to_numpy(), rows.index)


def step_of(
    point: pd.Series, recorded: pd.DataFrame, ready_ns: np.ndarray, elements: np.ndarray,
    whole_buckets: bool, calls: pd.DataFrame | None, late: Late = NOBODY,
) -> Step | None:  # fmt: skip
    """The step of a point; None where the stages by which the profiler's slowdown is known took no time."""
    alone = point["world_size"] == 1
    # Steps of ranks by themselves, without stragglers; set to one level, as runs differ for other reasons.
    owns, loads, timings = [], [], []
    for _, series in point["timed"]:
        ranks = np.setdiff1d(np.arange(len(series.rank_ns)), late.ranks)
        steady = np.ix_(ranks, np.flatnonzero(series.steady))
        stages = {name: of_ranks[steady].ravel() for name, of_ranks in series.rank_stages.items()}
        whole = series.rank_ns[steady].ravel()
        timings.append(pd.DataFrame(stages))
        loads.append(stages["load"])
        owns.append(whole if alone else stages["load"] + stages["forward"] + stages["update"])
    timed = pd.concat(timings).median()
    level = np.median(np.concatenate(owns))
    seen = recorded[["forward_ns", "backward_ns", "update_ns"]].median().rename(lambda name: name[:-3])
    compared = ["backward"] if alone else ["forward", "update"]
    recorded_ns, timed_ns = float(sum(seen[compared])), float(sum(timed[compared]))
    if recorded_ns <= 0 or timed_ns <= 0:
        return None
    slowed = recorded_ns / timed_ns
    backward = float(seen["backward"] if alone else ready_ns[-1])
    after = 0.0
    if calls is not None and len(calls):
        last = _since_backward(calls, "end_ns", recorded).groupby(calls["step"]).max()
        done = recorded["batch_index"].map(last).fillna(0).clip(lower=backward)
        after = max(float((recorded["backward_ns"] - done).median()), 0.0)
    return Step(
        float(timed["load"]),
        float(timed["forward"]),
        backward / slowed,
        float(timed["update"] + timed["other"]) + after / slowed,
        ready_ns / slowed,
        elements,
        whole_buckets,
        np.concatenate([run - np.median(run) + level for run in owns]),
        np.concatenate(loads).astype(float),
        late.late_ns / slowed,
        late.load_ns / slowed,
    )


def _have_sizes(calls: pd.DataFrame) -> bool:
    return len(calls) > 0 and bool(np.isfinite(calls["bytes"]).all())


def exchanges(
    calls: pd.DataFrame | None, layout: Layout, algorithms: frozenset[str] = frozenset()
) -> Exchanges:
    """The intervals in which allreduces ran; none where they or their sizes are not known."""
    if calls is None or not _have_sizes(calls):
        nothing = np.array([])
        return Exchanges(nothing, nothing, nothing, nothing, nothing)
    calls = calls.sort_values(["step", "arrived_ns"], kind="stable")
    begin = calls["arrived_ns"].to_numpy()
    reach = np.maximum.accumulate(np.maximum(calls["end_ns"].to_numpy(), begin + 1))
    heads = np.flatnonzero(np.concatenate([[True], begin[1:] >= reach[:-1]]))
    tails = np.append(heads[1:], len(begin)) - 1
    ranks, nodes = (np.full(len(heads), count) for count in (layout.ranks, layout.nodes))
    sizes = np.add.reduceat(calls["bytes"].to_numpy(), heads)
    lasted = (reach[tails] - begin[heads]).astype(float)
    return Exchanges(ranks, tails - heads + 1, sizes, lasted, nodes, algorithms)


def allreduces(trace: RunTrace) -> pd.DataFrame | None:
    """A run's allreduces of all ranks; None where they do not match, or tables are missing.

    Columns, in the order of rank 0's calls, on its clock: ``step, bytes`` (NaN: not known), ``start_ns``
    (rank 0's), ``arrived_ns`` (when the last rank had come), ``end_ns`` (median over ranks). Groups of fewer
    ranks are left out: they exchange no gradients of DDP.
    """
    ranks = trace.source.world_size
    if len(trace.ranks) != ranks or trace.matched is None:
        return None
    calls = trace.collectives
    calls = calls[(calls["collective"] == "allreduce") & (calls["call"] > 0)]
    calls = calls[calls.groupby("call")["rank"].transform("size") == ranks]
    calls = calls.assign(start_ns=calls["entered_ns"])
    arrived = calls.groupby("call")["entered_ns"].transform("max")
    # Since the arrival, so that a float holds it to the nanosecond.
    lasted = (calls["left_ns"] - arrived).groupby(calls["call"]).transform("median").round().astype(np.int64)
    calls = calls.assign(arrived_ns=arrived, end_ns=arrived + lasted)
    return calls.loc[calls["rank"] == 0, ["step", "bytes", "start_ns", "arrived_ns", "end_ns"]]


def algorithms_of(names: Iterable[str]) -> frozenset[str]:
    """The algorithms in the names of NCCL's kernels: ring, tree; none if a name has none."""
    matches = [_ALGORITHM.search(name) for name in set(names)]
    return frozenset(one[1].lower() for one in matches if one) if all(matches) else frozenset()


def late_ranks(lateness: Lateness | None, nodes: Sequence[str]) -> Late:
    if lateness is None:
        return NOBODY
    ranks = np.flatnonzero(judge(lateness, nodes)[0] == STRAGGLER).tolist()
    late = lateness.late_ns[ranks]
    return Late(ranks, late.astype(float), np.clip(lateness.parts_ns["load"][ranks], 0, late))
