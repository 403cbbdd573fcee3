"""Sweeps of clusters whose truth is known: ranks compute, exchange gradients in buckets, wait for each other.

What a rank does is planted by arithmetic, batch by batch, and then read as a sweep's results are: batches of
unprofiled runs, and one traced run of each point of several ranks. Nothing here knows how it is predicted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.matching import match
from analysis.frames.steps import Series
from analysis.frames.study import Source
from analysis.measures.lateness import of_collectives
from analysis.measures.points import POINT_FIELDS, points_of_runs
from analysis.prediction.allreduce import FLAT, LEVELS, Layout
from analysis.prediction.configurations import Configuration, of_points
from analysis.prediction.traced_step import NOBODY, Late, Traced, exchanges, late_ranks, step_of
from jobs.run import Run

MS = 1e6
LOAD, FORWARD, BACKWARD, UPDATE = 3 * MS, 30 * MS, 55 * MS, 8 * MS
LAYERS, ELEMENTS = 25, 1_000_000  # of each layer: 100 MB of gradients in fp32
BUCKET_MB = 25.0
BATCH = 64
BATCHES, WARM = 40, 0
PROFILED_SLOWER = 1.1  # computing, under the profiler

Allreduce = Callable[[float, Layout], float]  # (bytes, layout) -> ns


def links(form: str, alphas_us: Sequence[float], gb_per_s: Sequence[float]) -> Allreduce:
    """An allreduce of a form, with the latency and bandwidth of each kind of link."""
    terms = np.array([*(1e3 * alpha for alpha in alphas_us), *(1 / beta for beta in gb_per_s)])
    of = next(one for one in (*FLAT, *LEVELS) if one.name == form)

    def allreduce(size: float, layout: Layout) -> float:
        counts = of.columns(np.array([layout.ranks]), np.array([layout.nodes]))[:, 0]
        counts[len(alphas_us) :] *= size
        return float(counts @ terms)

    return allreduce


@dataclass(frozen=True)
class Cluster:
    """What is planted.

    Attributes:
        allreduce: what one costs.
        gpus_per_node: that a node holds.
        slow: rank -> its forward and backward passes take so many times as long, on jobs that have it.
        stray: share of a rank's batches that are late by ``stray_ns``, at random.
        run_noise: standard deviation of a run's pace, and of its network's, relative.
        batch_noise: that of a stage of a batch, likewise of an allreduce.
        strong: the batch of the job is constant; ``fixed``: share of a rank's computing on the fewest ranks
            that no smaller batch saves.
    """

    allreduce: Allreduce
    gpus_per_node: int = 1
    slow: Mapping[int, float] = field(default_factory=dict)
    stray: float = 0.0
    stray_ns: float = 15 * MS
    run_noise: float = 0.01
    batch_noise: float = 0.01
    strong: bool = False
    fixed: float = 0.1

    def layout(self, ranks: int) -> Layout:
        return Layout(ranks, -(-ranks // self.gpus_per_node))

    def computing(self, ranks: int) -> float:
        """Of a rank, over that of one rank."""
        return self.fixed + (1 - self.fixed) / ranks if self.strong else 1.0


@dataclass(frozen=True)
class Ran:
    """A run: arrays (ranks, batches) of instants and stages, and (ranks, calls, batches), ns."""

    start: np.ndarray
    load: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    update: np.ndarray
    call_start: np.ndarray
    call_end: np.ndarray


def buckets() -> tuple[np.ndarray, np.ndarray]:
    """(when each bucket is ready, as a share of the backward pass; its bytes)."""
    ready, sizes, held = [], [], 0.0
    for layer in range(LAYERS):
        held += 4 * ELEMENTS
        if held >= BUCKET_MB * 2**20 or layer == LAYERS - 1:
            ready.append((layer + 1) / LAYERS)
            sizes.append(held)
            held = 0.0
    return np.array(ready), np.array(sizes)


def run(
    cluster: Cluster, ranks: int, generator: np.random.Generator, batches: int = BATCHES, slower: float = 1.0,
    run_noise: float | None = None,
) -> Ran:  # fmt: skip
    """One run of a job."""
    noise = cluster.run_noise if run_noise is None else run_noise
    pace, net = np.exp(noise * generator.standard_normal(2))
    shape = (ranks, batches)
    factor = pace * slower * cluster.computing(ranks) * np.ones((ranks, 1))
    for rank, times in cluster.slow.items():
        factor[rank : rank + 1] *= times

    def stage(mean: float, of: np.ndarray | float) -> np.ndarray:
        return mean * of * (1 + cluster.batch_noise * generator.standard_normal(shape))

    host = pace * slower * cluster.computing(ranks)
    load, update = stage(LOAD, host), stage(UPDATE, host)
    forward, backward = stage(FORWARD, factor), stage(BACKWARD, factor)
    forward += cluster.stray_ns * (generator.random(shape) < cluster.stray)
    shares, sizes = buckets()
    calls = len(shares) if ranks > 1 else 0
    lasts = np.array([cluster.allreduce(size, cluster.layout(ranks)) for size in sizes[:calls]]) * net
    found = {name: np.zeros(shape) for name in ("start", "exchanged")}
    begin, finish = np.zeros((ranks, calls, batches)), np.zeros((ranks, calls, batches))
    now = np.zeros(ranks)
    for batch in range(batches):
        found["start"][:, batch] = now
        backwards = now + load[:, batch] + forward[:, batch]
        done = np.zeros(ranks)
        for call in range(calls):
            own = np.maximum(backwards + backward[:, batch] * shares[call], done)
            took = lasts[call] * (1 + cluster.batch_noise * generator.standard_normal())
            done = np.full(ranks, own.max() + took)
            begin[:, call, batch], finish[:, call, batch] = own, done
        exchanged = np.maximum(backwards + backward[:, batch], done)
        found["exchanged"][:, batch] = exchanged
        now = exchanged + update[:, batch]
    held = found["exchanged"] - found["start"] - load - forward
    return Ran(found["start"], load, forward, held, update, begin, finish)


def truth_ms(cluster: Cluster, ranks: int, batches: int = 100) -> float:
    """The median batch of a job of so many ranks, over all that runs may be."""
    ran = run(cluster, ranks, np.random.default_rng(1), batches, run_noise=0.0)
    return float(np.median(_series(ran, cluster).step_ns)) / 1e6


def _series(ran: Ran, cluster: Cluster) -> Series:
    ends = ran.start + ran.load + ran.forward + ran.backward + ran.update
    ranks, batches = ran.start.shape
    job = BATCH if cluster.strong else BATCH * ranks
    stages = {name: getattr(ran, name) for name in ("load", "forward", "backward", "update")}
    nothing = np.zeros(batches, dtype=bool)
    return Series(ends - ran.start, np.full(batches, float(job)), stages, nothing, WARM)


# --- as a sweep's results -----------------------------------------------------------------------------


def measured(
    cluster: Cluster, sizes: Sequence[int], runs: int, seed: int
) -> tuple[Configuration, list[Traced | str]]:
    """The points of a sweep on these numbers of ranks, and what their traces say."""
    generator = np.random.default_rng(seed)
    points = [_point(cluster, ranks, runs, generator) for ranks in sizes]
    steps = [_traced(cluster, point, generator) for point in points]
    return of_points(points, cluster.strong), steps


def _point(cluster: Cluster, ranks: int, runs: int, generator: np.random.Generator) -> pd.Series:
    layout = cluster.layout(ranks)
    size = {"nodes": layout.nodes, "gpus_per_node": ranks // layout.nodes, "bucket_mb": BUCKET_MB}
    values = Run.model_validate(size).model_dump()
    batch = BATCH / ranks if cluster.strong else BATCH
    fields = {name: values[name] for name in (*POINT_FIELDS, "profile")} | {"batch": batch}
    of = _source(fields)
    return points_of_runs([(of, _series(run(cluster, ranks, generator), cluster)) for _ in range(runs)]).iloc[
        0
    ]


def _source(fields: Mapping[str, Any]) -> Source:
    return Source("planted", "run", dict(fields), Path("planted"))


def _traced(cluster: Cluster, point: pd.Series, generator: np.random.Generator) -> Traced | str:
    ranks = point["world_size"]
    ran = run(cluster, ranks, generator, BATCHES // 2, PROFILED_SLOWER)
    batches = ran.start.shape[1]
    stages = ("load", "forward", "backward", "update")
    columns = {f"{name}_ns": getattr(ran, name)[0] for name in stages}
    recorded = pd.DataFrame({"start_ns": ran.start[0], "batch_index": np.arange(batches), **columns})
    # A gradient is ready when its layer's kernels end: on rank 0, whatever it then waits for.
    share = (np.arange(LAYERS) + 1) / LAYERS
    own = BACKWARD * PROFILED_SLOWER * cluster.computing(ranks) * cluster.slow.get(0, 1.0)
    pace = np.median(ran.forward[0]) / (
        FORWARD * PROFILED_SLOWER * cluster.computing(ranks) * cluster.slow.get(0, 1.0)
    )
    ready = own * share * pace
    calls, late = _calls(ran, cluster) if ranks > 1 else (None, NOBODY)
    step = step_of(point, recorded, ready, np.full(LAYERS, ELEMENTS), False, calls, late)
    assert step is not None
    return Traced(step, exchanges(calls, cluster.layout(ranks)))


def _calls(ran: Ran, cluster: Cluster) -> tuple[pd.DataFrame, Late]:
    """The allreduces in the order in which they were made, and the late ranks."""
    ranks, calls, batches = ran.call_start.shape
    index = np.repeat(np.arange(batches), calls)
    size = np.tile(buckets()[1], batches)
    start, end = (np.moveaxis(one, 2, 1).reshape(ranks, -1) for one in (ran.call_start, ran.call_end))
    every = pd.DataFrame({
        "place": np.repeat(np.arange(ranks), len(index)), "step": np.tile(index, ranks),
        "collective": "allreduce", "group": "", "group_size": 0, "start_ns": start.ravel(),
        "end_ns": end.ravel(),
    })  # fmt: skip
    matched, _ = match(every, ranks)
    assert matched is not None
    lateness = of_collectives(matched, _series(ran, cluster))
    late = late_ranks(lateness, [f"node {rank // cluster.gpus_per_node}" for rank in range(ranks)])
    starts, ends = (matched.calls[name].to_numpy().reshape(ranks, -1) for name in ("entered_ns", "left_ns"))
    return pd.DataFrame({
        "step": index, "bytes": size, "start_ns": starts[0], "arrived_ns": starts.max(axis=0),
        "end_ns": np.median(ends, axis=0),
    }), late  # fmt: skip
