"""python -m benchmarks.second_world: is the cause that the diagnosis names first the planted one?

A job unlike that of ``benchmarks/planted_sweep.py``: hosts launch kernels ahead of their device, worker
processes load batches into a queue, collectives run on a stream of their own. Each kind of cause is planted
in a sweep of 1 and 8 ranks (two nodes), three runs without a profiler and one under it, as strong as makes a
step on 8 ranks 6 % and 20 % longer, with the usual noise of ``planted_sweep``.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.diagnosis import as_row, diagnosis, in_order
from analysis.diagnosis.evidence import Evidence
from analysis.frames.load import load
from benchmarks.child import facts, finish, machine
from benchmarks.planted_sweep import (
    ELEMENTS,
    IMAGES,
    NO_NOISE,
    Noise,
    as_ns,
    buckets,
    layer_name,
    write_sweep,
)
from jobs.run import Run
from profiling.errors import EXIT_DONE, run_command

LAYERS, FORWARD_MS, BACKWARD_MS, UPDATE_MS, COPY_MS = len(ELEMENTS), 30.0, 62.0, 4.0, 0.4
BUCKETS = {
    layers - 1: size for layers, size in buckets()
}  # layer of the backward pass that fills it -> bytes
WORKERS, PREFETCH, LOAD_MS, NEXT_MS = 4, 1, 60.0, 0.3  # a worker needs LOAD_MS for a batch
LAUNCH_MS, TRACED_LAUNCH_MS, CALL_MS = 0.12, 0.04, 0.006  # the host's work before a launch; the call
ALPHA_US, BETA_GB_PER_S = 8.0, 200.0
SIZES_PCT = (6.0, 20.0)
STEPS, STEADY = 60, 10  # of a run, and those before it is steady


class Plan:
    """What each step of a run would take; arrays (ranks, steps) in ms or factors, which plants change."""

    def __init__(self, ranks: int, steps: int, batch: int = IMAGES) -> None:
        def of(value: float) -> np.ndarray:
            return np.full((ranks, steps), value)

        self.ranks, self.steps, self.share = ranks, steps, batch / IMAGES
        self.load, self.launch, self.stall = of(LOAD_MS * self.share), of(LAUNCH_MS), of(0.0)
        self.forward, self.backward, self.fixed = of(1.0), of(1.0), 0.0
        self.copy = of(COPY_MS)
        self.transfer = np.ones(steps)
        self.alpha_us, self.beta, self.small, self.contention, self.buckets = (
            ALPHA_US, BETA_GB_PER_S, 0, 0.0, dict(BUCKETS),
        )  # fmt: skip


Plant = Callable[[Plan, float, np.random.Generator], None]


@dataclass(frozen=True)
class World:
    """A job on ``ranks`` ranks in which ``plant`` changes the plan by the strength ``x``."""

    plant: Plant | None = None
    x: float = 0.0
    ranks: int = 8
    batch: int = IMAGES

    @property
    def nodes(self) -> int:
        return 2 if self.ranks > 4 else 1

    def run(self, profile: str, batches: int) -> Run:
        fields = {
            "nodes": self.nodes, "gpus_per_node": self.ranks // self.nodes, "profile": profile,
            "batches": batches, "batch": self.batch, "loader": "pytorch", "workers": WORKERS,
        }  # fmt: skip
        return Run.model_validate(fields)


Kernel = tuple[dict[str, Any], np.ndarray]  # its facts; begins, ends and launches: (3, ranks, steps), ms


class Times:
    """Instants in ms, arrays (ranks, steps), and the kernels that ran."""

    def __init__(self, ranks: int, steps: int) -> None:
        self.start, self.loaded, self.forwarded, self.exchanged, self.end = np.zeros((5, ranks, steps))
        self.kernels: dict[tuple[str, int], Kernel] = {}


def simulated(
    world: World, steps: int, noise: Noise, generator: np.random.Generator, traced: int, own: np.ndarray
) -> Times:
    """When everything happens in a run of the world: a :data:`benchmarks.planted_sweep.Simulator`."""
    ranks = world.ranks
    plan = Plan(ranks, steps, world.batch)
    level = float(np.exp(noise.runs * generator.normal()))
    pace = level * (1 + own)[:, None] * (1 + noise.batch * generator.normal(size=(ranks, steps)))
    late = generator.random((ranks, steps)) < noise.often
    plan.stall += late * generator.exponential(noise.late * 100, (ranks, steps))
    if world.plant:
        world.plant(plan, world.x, generator)
    plan.launch[:, traced:] += TRACED_LAUNCH_MS
    times = Times(ranks, steps)

    def note(
        name: str, number: int, begin: np.ndarray, end: np.ndarray, launch: np.ndarray, **of: Any
    ) -> None:
        kernel = times.kernels.setdefault((name, number), ({"name": name, **of}, np.zeros((3, ranks, steps))))
        kernel[1][:, :, step] = begin, end, launch

    host, device = np.zeros(ranks), np.zeros(ranks)
    worker = np.zeros((ranks, WORKERS))
    taken: list[np.ndarray] = []

    def launched(name: str, number: int, ms: np.ndarray | float, **of: Any) -> None:
        nonlocal host, device
        host = host + plan.launch[:, step]
        begin = np.maximum(device, host + CALL_MS)
        device = begin + ms
        note(name, number, begin, device, host, **of)

    def collective(arrival: np.ndarray, size: float) -> np.ndarray:
        messages = 2 * (ranks - 1)
        ms = messages * plan.alpha_us / 1e3 + messages / ranks * size / plan.beta / 1e6
        return np.full(ranks, arrival.max() + ms * plan.transfer[step])

    allreduce = {"class": "communication", "stream": 20, "flops": 0.0, "collective": "allreduce"}
    for step in range(steps):
        times.start[:, step] = host
        slot = taken[step - PREFETCH * WORKERS] if step >= PREFETCH * WORKERS else np.zeros(ranks)
        ready = np.maximum(worker[:, step % WORKERS], slot) + plan.load[:, step]
        worker[:, step % WORKERS] = ready
        host = np.maximum(host, ready) + NEXT_MS
        taken.append(host)
        device = np.maximum(device, host)
        times.loaded[:, step] = host
        launched(
            "Memcpy HtoD (Pinned -> Device)", 0, plan.copy[:, step], **_model("memcpy", "fprop", None, 0.0)
        )
        for layer in range(LAYERS):
            if layer == LAYERS // 3:
                host = host + plan.stall[:, step]
            ms = FORWARD_MS / LAYERS * (plan.share + plan.fixed) * plan.forward[:, step] * pace[:, step]
            launched("conv_fprop", layer, ms, **_layer(layer, "fprop"))
            if ranks > 1 and layer < plan.small:
                done = collective(device, 4096.0)
                note("ncclDevKernel_AllGather_RING_LL", layer, device, done, host,
                     **{**allreduce, "collective": "allgather", "direction": "fprop", "bytes": 4096.0,
                        "stream": 21})  # fmt: skip
                device = done
        times.forwarded[:, step] = device
        sent = np.zeros(ranks)
        for layer in range(LAYERS):
            ms = BACKWARD_MS / LAYERS * (plan.share + plan.fixed) * plan.backward[:, step] * pace[:, step]
            busy = sent > device  # a collective runs beside it
            launched(
                "conv_bprop", layer, ms * (1 + plan.contention * busy), **_layer(LAYERS - 1 - layer, "bprop")
            )
            if ranks > 1 and layer in plan.buckets:
                size = float(plan.buckets[layer])
                arrival = np.maximum(np.maximum(device, host), sent)
                sent = collective(arrival, size)
                note("ncclDevKernel_AllReduce_Sum_f32_RING_LL", layer, arrival, sent, host,
                     **{**allreduce, "direction": "bprop", "bytes": size})  # fmt: skip
        device = np.maximum(device, sent)
        times.exchanged[:, step] = device
        launched("sgd", 0, np.full(ranks, UPDATE_MS * level), **_model("optimizer", "update", None, 0.0))
        times.end[:, step] = host = np.maximum(host, device)
    return times


def _model(kind: str, direction: str, layer: str | None, flops: float) -> dict[str, Any]:
    return {"class": kind, "direction": direction, "layer": layer, "stream": 7, "flops": flops, "bytes": 1e9}


def _layer(layer: int, direction: str) -> dict[str, Any]:
    flops = 2e10 if direction == "fprop" else 4e10
    return _model("convolution", direction, layer_name(layer), flops)


def recorded(rank: int, times: Times, traced: int) -> dict[str, Any]:
    """The kernels of the recorded steps, as columns: a :data:`benchmarks.planted_sweep.Recorder`."""
    rows: dict[str, list] = {}
    for of, instants in times.kernels.values():
        starts, ends, calls = as_ns(instants[:, rank, traced:])
        count = len(starts)
        row = {
            "batch_index": range(traced, traced + count), "start_ns": starts.tolist(),
            "duration_ns": (ends - starts).tolist(), "launch_ns": calls.tolist(),
        }  # fmt: skip
        same = {"rank": rank, "device": 0, "short_name": of["name"], "layer": None, "collective": None, **of}
        for name, values in {**row, **{name: [value] * count for name, value in same.items()}}.items():
            rows.setdefault(name, []).extend(values)
    return rows


# --- what is planted ------------------------------------------------------------------------------------


def _factor(name: str, ranks: slice | list[int] = slice(None), steps: slice = slice(None)) -> Plant:
    """Make an array of a plan longer by the share ``x``."""

    def plant(plan: Plan, x: float, _: np.random.Generator) -> None:
        getattr(plan, name)[ranks, steps] *= 1 + x

    return plant


def _more(name: str, ranks: slice | list[int] = slice(None), steps: slice = slice(None)) -> Plant:
    """Make an array of a plan longer by ``x`` ms."""

    def plant(plan: Plan, x: float, _: np.random.Generator) -> None:
        getattr(plan, name)[ranks, steps] += x

    return plant


def _now_and_then(name: str, share: float, ranks: slice | list[int] = slice(None)) -> Plant:
    """Lengthen an array of a plan by exponential times of ``x`` ms, in that share of steps of each rank."""

    def plant(plan: Plan, x: float, generator: np.random.Generator) -> None:
        there = generator.random((plan.ranks, plan.steps)) < share
        getattr(plan, name)[ranks] += (x * there * generator.exponential(1.0, there.shape))[ranks]

    return plant


def _both(*plants: Plant) -> Plant:
    def plant(plan: Plan, x: float, generator: np.random.Generator) -> None:
        for one in plants:
            one(plan, x, generator)

    return plant


def _compute(ranks: slice | list[int] = slice(None), steps: slice = slice(None)) -> Plant:
    """Make all kernels of the model longer by the share ``x``."""
    return _both(_factor("forward", ranks, steps), _factor("backward", ranks, steps))


def _small(plan: Plan, x: float, _: np.random.Generator) -> None:
    """Small collectives in the forward pass, as of SyncBatchNorm, on a network of high latency."""
    plan.small, plan.alpha_us = LAYERS, ALPHA_US + x


def _contention(plan: Plan, x: float, _: np.random.Generator) -> None:
    """Kernels beside a collective are slower; links are thin, so that there is much of that."""
    plan.beta, plan.contention = BETA_GB_PER_S / 20, x


def _fixed(plan: Plan, x: float, _: np.random.Generator) -> None:
    """Kernels take longer than their images need."""
    plan.fixed = x


def _unequal(plan: Plan, x: float, generator: np.random.Generator) -> None:
    """Ranks draw sequences of unlike lengths: kernels of a step take a random time."""
    by_step = np.exp(x * generator.normal(size=(plan.ranks, plan.steps)) - x * x / 2)
    plan.forward *= by_step
    plan.backward *= by_step


def _moving(plan: Plan, x: float, _: np.random.Generator) -> None:
    """The slow rank is another one from the middle of the run on."""
    half = plan.steps // 2
    for rank, steps in ((1, slice(0, half)), (6, slice(half, None))):
        plan.backward[rank, steps] *= 1 + x


def _by_turns(plan: Plan, x: float, _: np.random.Generator) -> None:
    """Two ranks are slow by turns."""
    for rank in (2, 5):
        steps = slice(rank % 2, None, 2)
        plan.backward[rank, steps] *= 1 + x


def _degrading(plan: Plan, x: float, _: np.random.Generator) -> None:
    plan.transfer *= np.linspace(1, 1 + x, plan.steps)


def _jitter(plan: Plan, x: float, generator: np.random.Generator) -> None:
    plan.transfer += x * generator.exponential(1.0, plan.steps)


def _congested(plan: Plan, x: float, generator: np.random.Generator) -> None:
    plan.transfer += x * (generator.random(plan.steps) < 0.1)


def _bandwidth(plan: Plan, x: float, _: np.random.Generator) -> None:
    plan.beta /= 1 + x


def _latency(plan: Plan, x: float, _: np.random.Generator) -> None:
    plan.alpha_us += x


def _late_bucket(plan: Plan, x: float, _: np.random.Generator) -> None:
    """All gradients are exchanged at once when the backward pass has ended, on thin links."""
    plan.buckets = {LAYERS - 1: sum(BUCKETS.values())}
    plan.beta /= 1 + x


def _bursts(plan: Plan, x: float, generator: np.random.Generator) -> None:
    """A worker process that is slow: each fourth batch of a rank, ranks out of step with each other."""
    for rank in range(plan.ranks):
        slow = plan.load[rank, rank % WORKERS :: WORKERS]
        slow += x * generator.exponential(1.0, slow.shape)


def _tails(plan: Plan, x: float, generator: np.random.Generator) -> None:
    """A lognormal scatter of steps at every size: nothing that scaling brings."""
    scatter = np.exp(0.02 * generator.normal(size=plan.steps))
    plan.forward *= scatter
    plan.backward *= scatter


def _steps(name: str, every: int) -> Plant:
    """Make an array of a plan longer by ``x`` ms in each so many-th step, on all ranks."""
    return _more(name, steps=slice(None, None, every))


def _latency_of(alpha_us: float) -> Plant:
    """A latency of the network that does not depend on the strength."""

    def plant(plan: Plan, _: float, __: np.random.Generator) -> None:
        plan.alpha_us = alpha_us

    return plant


def _checkpoint(plan: Plan, x: float, _: np.random.Generator) -> None:
    plan.stall[:, ::20] += x


def _heavy_tailed(plan: Plan, x: float, generator: np.random.Generator) -> None:
    """Files of very unlike sizes: the time that a batch needs is lognormal."""
    plan.load *= np.exp(x * generator.normal(size=plan.load.shape))


def _cold(plan: Plan, x: float, _: np.random.Generator) -> None:
    """A cold cache of files, which fills during the run."""
    plan.load *= 1 + x * np.exp(-np.arange(plan.steps) / 20)


def _nodes_by_turns(plan: Plan, x: float, _: np.random.Generator) -> None:
    """The storage serves one node after the other, for five steps each."""
    for node in range(2):
        ranks = slice(4 * node, 4 * node + 4)
        plan.load[ranks, (np.arange(plan.steps) // 5 + node) % 2 == 0] *= 1 + x


def _collected(plan: Plan, x: float, _: np.random.Generator) -> None:
    """Garbage collection of Python: each seventh step of a rank, ranks out of step with each other."""
    for rank in range(plan.ranks):
        plan.stall[rank, rank % 7 :: 7] += x


def _in_spells(name: str, rank: int) -> Plant:
    """Make an array of a plan longer by the share ``x`` on a rank, in spells of eight steps of sixteen."""

    def plant(plan: Plan, x: float, _: np.random.Generator) -> None:
        getattr(plan, name)[rank, np.arange(plan.steps) // 8 % 2 == 1] *= 1 + x

    return plant


def _slower_and_slower(name: str) -> Plant:
    """Make an array of a plan longer from step to step, by the share ``x`` at the end."""

    def plant(plan: Plan, x: float, _: np.random.Generator) -> None:
        array = getattr(plan, name)
        array *= np.linspace(1, 1 + x, plan.steps)

    return plant


def _slow_hosts(plan: Plan, _: float, __: np.random.Generator) -> None:
    """Hosts that launch kernels no faster than the devices run them, whatever the strength."""
    plan.launch[:] = 1.5 * (FORWARD_MS + BACKWARD_MS) / (2 * LAYERS)


@dataclass(frozen=True)
class Kind:
    """A kind of cause.

    Attributes:
        right: what may be named first; ``straggler 5 host`` is a late rank and why.
        vague: what is true, and says less.
        everywhere: it is planted on one rank, too, and scaling loses nothing by it.
        sizes: percent by which a step gets longer.
        repetitions: how many runs of each profile there are.
        traced: ranks whose kernels a profiled run recorded; 0: all.
    """

    plant: Plant | None
    right: tuple[str, ...]
    vague: tuple[str, ...] = ()
    everywhere: bool = False
    sizes: tuple[float, ...] = SIZES_PCT
    batch: int = IMAGES
    repetitions: tuple[tuple[str, int], ...] = (("none", 3), ("torch", 1))
    traced: int = 0


NODE = [4, 5, 6, 7]
WAITS = ("imbalance", "cannot_tell")
JITTER = ("imbalance",)  # where nothing is planted: 8 equal ranks wait for the slowest, 1.4 % of a step
NETWORK = ("transfer", "latency")
LATE_HALF = slice(STEPS // 2, None)
TIMED = (("none", 4),)
KINDS = {
    "data: loaders of all ranks": Kind(_factor("load"), ("data",)),
    "data: on changing ranks": Kind(_now_and_then("load", 0.3), ("data",), WAITS),
    "data: seldom, long": Kind(_now_and_then("load", 0.03), ("data",), WAITS),
    "data: a slow worker of each rank": Kind(_bursts, ("data",), WAITS),
    "data: one rank": Kind(_factor("load", [5]), ("straggler 5 loader",), ("data",)),
    "data: one node": Kind(
        _factor("load", NODE), ("straggler 4-7 node", "straggler 4-7 loader", "data"), WAITS),
    "data: all, each 20th step": Kind(_steps("load", 20), ("data",), WAITS),
    "data: from the middle on": Kind(_factor("load", steps=LATE_HALF), ("data",), WAITS),
    "data: files of unlike sizes": Kind(_heavy_tailed, ("data",), WAITS),
    "data: a cold cache": Kind(_cold, ("data",), WAITS),
    "data: nodes by turns": Kind(_nodes_by_turns, ("data",), WAITS),
    "data: one rank, now and then": Kind(
        _now_and_then("load", 0.2, [5]), ("straggler 5 loader", "data"), WAITS),
    "data: at every size": Kind(_factor("load"), ("none",), JITTER, everywhere=True),
    "data: at every size, bursts": Kind(_bursts, ("data", "none"), WAITS, everywhere=True),
    "host: all ranks launch slowly": Kind(_factor("launch"), ("host",), ("idle",)),
    "host: one rank launches slowly": Kind(_factor("launch", [2]), ("straggler 2 host",), ("host",)),
    "host: one rank pauses": Kind(_more("stall", [2]), ("straggler 2 host",), ("host",)),
    "host: pauses of changing ranks": Kind(_now_and_then("stall", 0.1), ("host",), WAITS),
    "host: rank 0 logs, each 10th step": Kind(
        _more("stall", [0], slice(None, None, 10)), ("straggler 0 host", "host"), WAITS),
    "host: the same, at every size": Kind(
        _more("stall", [0], slice(None, None, 10)), ("straggler 0 host", "none"), everywhere=True),
    "host: at every size": Kind(_factor("launch"), ("none",), JITTER, everywhere=True),
    "host: one node": Kind(_factor("launch", NODE), ("straggler 4-7 node", "straggler 4-7 host"), ("host",)),
    "host: checkpoints": Kind(_checkpoint, ("host",), ("idle", *WAITS)),
    "host: garbage collection": Kind(_collected, ("host",), WAITS),
    "host: slower and slower": Kind(_slower_and_slower("launch"), ("host",), ("idle", "cannot_tell")),
    "host: one rank, in spells": Kind(
        _in_spells("launch", 2), ("straggler 2 host", "host"), ("straggler 2 GPU or host", *WAITS)),
    "GPU: one rank": Kind(_compute([3]), ("straggler 3 GPU",), WAITS),
    "GPU: one rank, backward alone": Kind(_factor("backward", [3]), ("straggler 3 GPU",), WAITS),
    "GPU: one rank, forward alone": Kind(_factor("forward", [3]), ("straggler 3 GPU",), WAITS),
    "GPU: one rank, from the middle on": Kind(_compute([3], LATE_HALF), ("straggler 3 GPU",), WAITS),
    "GPU: two ranks": Kind(_compute([1, 6]), ("straggler 1, 6 GPU",), ("straggler 1, 6 GPU or host", *WAITS)),
    "GPU: one rank, in spells": Kind(
        _both(_in_spells("forward", 3), _in_spells("backward", 3)), ("straggler 3 GPU",), WAITS),
    "GPU: one rank has more images": Kind(
        _both(_compute([6]), _factor("load", [6]), _factor("copy", [6])), ("straggler 6 GPU",), WAITS),
    "GPU: all ranks, forward alone": Kind(_factor("forward"), ("computation",)),
    "GPU: at every size": Kind(_compute(), ("none",), JITTER, everywhere=True),
    "GPU: at every size, slower and slower": Kind(
        _both(_slower_and_slower("forward"), _slower_and_slower("backward")), ("none",), JITTER,
        everywhere=True),
    "GPU: one node": Kind(_compute(NODE), ("straggler 4-7 node", "straggler 4-7 GPU"), WAITS),
    "GPU: another rank from the middle on": Kind(
        _moving, ("straggler 1 GPU", "straggler 6 GPU", "straggler 1, 6 GPU", "imbalance"), ("cannot_tell",)),
    "GPU: two ranks by turns": Kind(_by_turns, ("straggler 2, 5 GPU", "imbalance"), ("cannot_tell",)),
    "GPU: all ranks (power)": Kind(_compute(), ("computation",)),
    "GPU: all, from the middle on": Kind(_compute(steps=LATE_HALF), ("computation",)),
    "imbalance: random lengths": Kind(_unequal, ("imbalance",), ("cannot_tell",)),
    "network: bandwidth": Kind(_bandwidth, ("transfer",), ("cannot_tell",)),
    "network: latency": Kind(_latency, ("latency", "transfer"), ("cannot_tell",)),
    "network: small collectives": Kind(_small, ("latency", "transfer"), ("cannot_tell",)),
    "network: degrades": Kind(_degrading, ("transfer",), ("latency", "cannot_tell")),
    "network: jitter": Kind(_jitter, ("transfer",), ("latency", "cannot_tell")),
    "network: congested now and then": Kind(_congested, ("transfer",), ("latency", "cannot_tell")),
    "network: one bucket": Kind(_late_bucket, ("transfer",), ("cannot_tell",)),
    "contention with collectives": Kind(_contention, ("computation",), ("transfer",)),
    "copies: all ranks": Kind(_more("copy"), ("copies",)),
    "copies: one rank": Kind(_more("copy", [4]), ("straggler 4 GPU", "straggler 4 copies", "copies"), WAITS),
    "copies: now and then": Kind(_now_and_then("copy", 0.2), ("copies",), WAITS),
    "small batch": Kind(_fixed, ("computation",), batch=8 * IMAGES),
    "nothing": Kind(None, ("none",), JITTER, sizes=(0.0,)),
    "nothing, heavy tails": Kind(_tails, ("none",), JITTER, everywhere=True, sizes=(0.0,)),
    "two: data and bandwidth": Kind(_both(_factor("load"), _bandwidth), ("data", "transfer")),
    "two: latency and slow GPU": Kind(
        _both(_latency_of(100.0), _compute([3])), ("straggler 3 GPU", *NETWORK)),
    "two: loader of one rank, GPU of another": Kind(
        _both(_factor("load", [5]), _compute([3])), ("straggler 3 GPU", "straggler 5 loader"),
        ("straggler 3, 5 GPU", *WAITS)),
    "two: slow hosts at every size, and bandwidth": Kind(
        _both(_slow_hosts, _bandwidth), ("transfer",), everywhere=True),
    "traces of half the ranks: bandwidth": Kind(_bandwidth, ("cannot_tell",), traced=4),
    "traces of half the ranks: a slow GPU": Kind(
        _compute([6]), ("cannot_tell",), ("straggler 6 GPU or host",), traced=4),
    "no profile: data": Kind(_factor("load"), ("data",), repetitions=TIMED),
    "no profile: bandwidth": Kind(_bandwidth, ("cannot_tell",), repetitions=TIMED),
    "no profile: forward of one GPU": Kind(
        _factor("forward", [3]), ("straggler 3 GPU or host",), WAITS, repetitions=TIMED),
    "two: copies and bandwidth": Kind(_both(_more("copy"), _bandwidth), ("copies", "transfer")),
    "two: hosts and data of one rank": Kind(
        _both(_factor("launch"), _factor("load", [5])), ("host", "straggler 5 loader"), ("data",)),
}  # fmt: skip


# --- what is named --------------------------------------------------------------------------------------


def strength(kind: Kind, size: float) -> float:
    """How strong a cause must be for a step of 8 ranks to take ``size`` longer (0.2: a fifth)."""
    from scipy.optimize import brentq

    def step_ms(x: float) -> float:
        generator = np.random.default_rng(0)  # the same draws for every strength
        world, equal = World(kind.plant, x), np.zeros(8)
        runs = [simulated(world, STEPS, NO_NOISE, generator, STEPS, equal) for _ in range(4)]
        return float(np.mean([(times.end - times.start)[:, STEADY:].mean() for times in runs]))

    wanted, high = (1 + size) * step_ms(0.0), 1e-2
    while step_ms(high) < wanted and high < 1e6:
        high *= 8
    return float(brentq(lambda x: step_ms(x) - wanted, 0.0, high, rtol=1e-3))


def named(rows: list[dict[str, Any]]) -> str:
    """What rows of ``analysis.summary`` name first: a cause; of late ranks, which and why."""
    for row in rows:
        if row["code"] == "straggler_costs":
            return f"straggler {row['rank']} {row['why']}"
        if row["code"] == "cause_of_loss":
            return str(row["cause"])
        if row["code"] == "cause_uncertain":
            return f"{row['cause']}?"
        if row["code"] == "loss_unexplained":
            return "cannot_tell"
    return "none"


def cell(name: str, size_pct: float, seeds: int) -> dict[str, Any]:
    """What is named first in sweeps with a cause of that size, and the texts where that is not right."""
    kind = KINDS[name]
    x = strength(kind, size_pct / 100) if size_pct else 0.0
    base = World(kind.plant if kind.everywhere else None, x, ranks=1, batch=kind.batch)
    jobs = [base, World(kind.plant, x)]
    first: Counter[str] = Counter()
    texts = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            write_sweep(
                Path(folder), jobs, seed, repetitions=dict(kind.repetitions), batches=STEPS,
                recorded=recorded, simulator=simulated,
            )  # fmt: skip
            for rank in range(kind.traced, 8) if kind.traced else ():
                for table in Path(folder).glob(f"run_*/rank_{rank:04d}/kernels.parquet"):
                    table.unlink()
            rows = [as_row(one) for one in in_order(diagnosis(Evidence(load(Path(folder)))))]
        first[found := named(rows)] += 1
        if found not in kind.right:
            texts[found] = [row["text"] for row in rows]
    return judged(name, size_pct, first) | {"texts": texts}


def judged(name: str, size_pct: float, first: Counter[str]) -> dict[str, Any]:
    """How many of the sweeps name first what is right, true with a doubt or in part, nothing, or wrong."""
    kind = KINDS[name]
    right, doubt, vague = (
        sum(first[one] for one in names)
        for names in (kind.right, [f"{one}?" for one in (*kind.right, *kind.vague)], kind.vague)
    )
    none, sweeps = first["none"] * ("none" not in kind.right), sum(first.values())
    return {
        "planted": name, "size_pct": size_pct, "sweeps": sweeps, "right": right, "doubt": doubt,
        "vague": vague, "none": none, "wrong": sweeps - right - doubt - vague - none,
        "first": dict(first.most_common()),
    }  # fmt: skip


_COUNTED = ("right", "doubt", "vague", "none", "wrong")


def as_markdown(report: dict[str, Any]) -> str:
    rows = report["rows"]
    lines = [
        "# Is the cause that is named first the planted one?", "",
        "`python -m benchmarks.second_world`: sweeps of 1 and 8 ranks of a simulated job with hosts that run",
        "ahead, loaders with worker processes, and two nodes. A row counts what the diagnosis names first:",
        "the planted cause, one that is true and says less, none, or a wrong one. The machine:",
        f"{facts(report['machine'])}.", "",
        "| size, % | sweeps | right | right, with doubt | true, says less | none | wrong |",
        "| --: " * 7 + "|",
    ]  # fmt: skip
    for size in dict.fromkeys(row["size_pct"] for row in rows):
        of = [row for row in rows if row["size_pct"] == size]
        sums = " | ".join(str(sum(row[name] for row in of)) for name in ("sweeps", *_COUNTED))
        lines.append(f"| {size:g} | {sums} |")
    lines += ["", "| planted | size, % | right | with doubt | true, says less | none | wrong | named first |",
              "| --- " + "| --: " * 6 + "| --- |"]  # fmt: skip
    for row in rows:
        figures = " | ".join(f"{row[name]:g}" for name in ("size_pct", *_COUNTED))
        said = ", ".join(f"{name} {count}" for name, count in row["first"].items())
        lines.append(f"| {row['planted']} | {figures} | {said} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="sweeps of each kind and size [3]")
    parser.add_argument("--only", default="", help="kinds whose name holds this [all]")
    given = parser.parse_args()
    cells = [(name, size) for name, kind in KINDS.items() for size in kind.sizes if given.only in name]
    rows = []
    with ProcessPoolExecutor() as workers:
        for row in workers.map(cell, *zip(*cells, strict=True), [given.seeds] * len(cells)):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    report = {"machine": machine(["numpy"]), "rows": rows}
    finish("second_world", report, as_markdown(report), given.only)
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
