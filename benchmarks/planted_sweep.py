"""Sweeps of a data-parallel job in which what slows it down is planted: its cause, and by how much.

Each batch of a rank loads, computes forward and backward layer by layer, and updates. Gradients fill buckets
while the backward pass goes on; the sum of a bucket over a ring of ranks begins when the last rank has its
gradients and the sum before is done, and takes 2 (P - 1) alpha + 2 (P - 1) / P n / beta. All ranks leave it
together. So what a slow rank costs the others is not planted, but follows.

Noise is as in real runs: batches of a rank vary, now and then one is late by much, ranks differ a little from
each other, and runs of one point differ from each other.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jobs import store
from jobs.run import Run
from jobs.run_fields import format_id
from jobs.store import Manifest, RankReport
from profiling import tables

START_NS, MS = 1_790_000_000_000_000_000, 1_000_000
MIB = 1 << 20
DEVICE = "NVIDIA A100-SXM4-40GB"
IMAGES = 32  # a rank's batch whose kernels take FORWARD_MS and BACKWARD_MS
LOAD_MS, FORWARD_MS, BACKWARD_MS, UPDATE_MS, COPY_MS = 1.0, 38.0, 78.0, 6.0, 0.3
# Elements of the gradients of each layer, as the forward pass comes to them; 25.6 million in all.
ELEMENTS = (10_000, 75_000, 75_000, 280_000, 280_000, 1_100_000, 1_100_000, 1_180_000, 4_500_000,
            4_500_000, 4_500_000, 8_000_000)  # fmt: skip
BUCKET_BYTES = 25 * MIB
TRACED_MS = 2.0  # that the profiler adds to the host's side of a recorded batch


@dataclass(frozen=True)
class Network:
    """A ring's latency of a message, in microseconds, and bandwidth of a link, in 1e9 bytes a second."""

    alpha_us: float = 5.0
    beta_gb_per_s: float = 200.0

    def allreduce_ms(self, size: float, ranks: int) -> float:
        messages = 2 * (ranks - 1)
        return messages * self.alpha_us / 1e3 + messages / ranks * size / self.beta_gb_per_s / 1e6


@dataclass(frozen=True)
class Noise:
    """Standard deviations, as shares: of a rank's batch, between ranks, between runs.

    ``often`` of a rank's batches are late by a random time, ``late`` of a batch on average.
    """

    batch: float = 0.01
    ranks: float = 0.003
    runs: float = 0.008
    often: float = 0.005
    late: float = 0.05


NO_NOISE = Noise(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Job:
    """A job on ``ranks`` ranks of ``nodes`` nodes, and what is planted in it.

    Attributes:
        slow: ranks that ``gpu``, ``host_ms`` and ``load_ms`` are of; empty: all, if there are several.
        gpu: by how much longer kernels take (0.25: a quarter).
        host_ms: by how much their launches come late, a batch; of each ``every``-th one.
        load_ms: by how much longer the next batch is waited for.
        by_turns_ms: by how much longer one rank waits for the next batch, each batch another one.
        bursts_ms: by how much longer each rank waits in every fourth batch, as for four workers, on average.
        copies_ms: by how much longer copies between host and device take, a batch, on all ranks.
        fixed: by how much longer the kernels of a batch take than its images need, of a batch of 32.
        batch: images of a rank's batch.
    """

    ranks: int = 8
    nodes: int = 1
    network: Network = field(default_factory=Network)
    slow: tuple[int, ...] = ()
    gpu: float = 0.0
    host_ms: float = 0.0
    every: int = 1
    load_ms: float = 0.0
    by_turns_ms: float = 0.0
    bursts_ms: float = 0.0
    copies_ms: float = 0.0
    fixed: float = 0.0
    all_load_ms: float = 0.0
    batch: int = IMAGES

    def run(self, profile: str, batches: int) -> Run:
        fields = {
            "nodes": self.nodes, "gpus_per_node": self.ranks // self.nodes, "profile": profile,
            "batches": batches, "batch": self.batch, "loader": "pytorch",
        }  # fmt: skip
        return Run.model_validate(fields)

    def of(self, amount: float) -> np.ndarray:
        """An amount, by rank: that of the slow ones, or of all ranks if there are several."""
        found = np.zeros(self.ranks)
        if self.ranks > 1:
            found[list(self.slow) or slice(None)] = amount
        return found


Pair = tuple[np.ndarray, np.ndarray]  # begins and ends


class Times:
    """Instants of a run in ms; arrays (ranks, batches), and of kernels pairs of (what, ranks, batches).

    Attributes:
        start, loaded, forwarded, exchanged, end: of a batch; exchanged: backward pass and sums are done.
        copy, forward, backward: kernels, layer by layer.
        exchange: the sums of buckets, from a rank's arrival on.
    """

    def __init__(self, ranks: int, batches: int, sums: int) -> None:
        def instants() -> np.ndarray:
            return np.zeros((ranks, batches))

        def pair(count: int) -> Pair:
            return np.zeros((count, ranks, batches)), np.zeros((count, ranks, batches))

        self.start, self.loaded, self.forwarded = instants(), instants(), instants()
        self.exchanged, self.end = instants(), instants()
        self.copy, self.exchange = pair(1), pair(sums)
        self.forward, self.backward = pair(len(ELEMENTS)), pair(len(ELEMENTS))


def buckets() -> list[tuple[int, float]]:
    """(how many layers, from the last, have their gradients when it is full, bytes) of each bucket."""
    found, held = [], 0
    for count, elements in enumerate(reversed(ELEMENTS), 1):
        held += 4 * elements
        if held >= BUCKET_BYTES or count == len(ELEMENTS):
            found.append((count, float(held)))
            held = 0
    return found


def times_of(
    job: Job, batches: int, noise: Noise, generator: np.random.Generator, traced: int, own: np.ndarray
) -> Times:
    """When everything happens in a run whose batches from the ``traced``-th on a profiler records.

    Args:
        own: by how much longer the kernels of each rank take than the others', as a share.
    """
    ranks, several = job.ranks, job.ranks > 1
    level = float(np.exp(noise.runs * generator.normal()))
    by_batch = level * (1 + noise.batch * generator.normal(size=(ranks, batches)))
    now_and_then = generator.random((ranks, batches)) < noise.often
    alone_ms = LOAD_MS + FORWARD_MS + BACKWARD_MS + UPDATE_MS
    late = now_and_then * generator.exponential(noise.late * alone_ms, (ranks, batches))
    pace = ((job.batch / IMAGES + job.fixed) * (1 + job.of(job.gpu)) * (1 + own))[:, None] * by_batch
    host = (
        job.of(job.host_ms)[:, None] * (np.arange(batches) % job.every == 0)
        + late
        + TRACED_MS * (np.arange(batches) >= traced)
    )
    load = (LOAD_MS + job.of(job.load_ms) + several * job.all_load_ms)[:, None] * by_batch
    if several and (job.by_turns_ms or job.bursts_ms):
        turn = (5 * np.arange(batches) + np.arange(batches) // ranks) % ranks
        load[turn, np.arange(batches)] += job.by_turns_ms
        load[:, 3::4] += generator.exponential(job.bursts_ms, load[:, 3::4].shape)
    # The update does not depend on the images.
    update = UPDATE_MS * level * (1 + job.of(job.gpu))
    times = Times(ranks, batches, len(buckets()) if several else 0)
    now = np.zeros(ranks)
    for batch in range(batches):
        times.start[:, batch] = now
        times.loaded[:, batch] = now = now + load[:, batch]
        now = _kernel(times.copy, 0, batch, now, COPY_MS + several * job.copies_ms)
        layers = len(ELEMENTS)
        for layer in range(layers):
            late_by = host[:, batch] / layers  # its launch
            now = _kernel(times.forward, layer, batch, now + late_by, FORWARD_MS / layers * pace[:, batch])
        times.forwarded[:, batch] = now
        for layer in range(layers):
            now = _kernel(times.backward, layer, batch, now, BACKWARD_MS / layers * pace[:, batch])
        now = np.maximum(now, _sums(times, job, batch))
        times.exchanged[:, batch] = now
        times.end[:, batch] = now = now + update
    return times


def _kernel(kind: Pair, place: int, batch: int, begin: np.ndarray, ms: np.ndarray | float) -> np.ndarray:
    """Note a kernel of all ranks, and when it ends."""
    kind[0][place, :, batch], kind[1][place, :, batch] = begin, begin + ms
    return kind[1][place, :, batch]


def _sums(times: Times, job: Job, batch: int) -> np.ndarray:
    """Note the sums of a batch's buckets, and when the last one ends, by rank."""
    done = np.zeros(job.ranks)
    for number, (count, size) in enumerate(buckets()[: len(times.exchange[0])]):
        arrival = np.maximum(times.backward[1][count - 1, :, batch], done)
        done = np.full(job.ranks, arrival.max() + job.network.allreduce_ms(size, job.ranks))
        times.exchange[0][number, :, batch], times.exchange[1][number, :, batch] = arrival, done
    return done


def step_ms(job: Job) -> float:
    """A batch of the job without noise."""
    times = times_of(job, 3, NO_NOISE, np.random.default_rng(0), 3, np.zeros(job.ranks))
    return float((times.end - times.start)[:, -1].max())


def strength(plant: Callable[[float], Job], size: float, most: float = 1e6) -> float:
    """How strong a cause must be for a batch to take ``size`` longer than without it (0.2: a fifth)."""
    from scipy.optimize import brentq

    wanted = (1 + size) * step_ms(plant(0.0))
    high = 1e-3
    while step_ms(plant(high)) < wanted and high < most:
        high *= 2
    return float(brentq(lambda value: step_ms(plant(value)) - wanted, 0.0, high, xtol=1e-9 * high))


# --- the results --------------------------------------------------------------------------------------

# Of a rank, its times and the first recorded batch: the columns of a table of kernels.
Recorder = Callable[[int, Any, int], dict[str, Any]]
# As :func:`times_of`, of jobs and times of any kind.
Simulator = Callable[[Any, int, Noise, np.random.Generator, int, np.ndarray], Any]


def write_sweep(
    directory: Path,
    jobs: Sequence[Any],
    seed: int = 0,
    noise: Noise | None = None,
    repetitions: dict[str, int] | None = None,
    batches: int = 50,
    recorded: "Recorder | None" = None,
    simulator: "Simulator | None" = None,
) -> None:
    """The results of a sweep: of each job as many runs of each profile as ``repetitions`` says.

    Args:
        recorded: what a profiler recorded of a rank; by default a kernel for each layer and pass.
        simulator: when everything happens; by default :func:`times_of`.
    """
    noise = noise or Noise()
    # A rank's GPU is the same in all runs.
    own = np.random.default_rng(seed).normal(0, noise.ranks, max(job.ranks for job in jobs))
    for job in jobs:
        for profile, count in (repetitions or {"none": 3, "torch": 1}).items():
            for repetition in range(count):
                _write_run(
                    directory, job, profile, repetition, batches, noise, own, seed,
                    recorded or layer_kernels, simulator or times_of,
                )  # fmt: skip
    record = '{"sweep": {}, "order_seed": 1, "launcher": "local", "order": [], "excluded": []}\n'
    store.write_text(directory / store.SWEEP, record)


def _write_run(
    directory: Path, job: Any, profile: str, repetition: int, batches: int, noise: Noise,
    own: np.ndarray, seed: int, recorded: Recorder, simulator: Simulator,
) -> None:  # fmt: skip
    run = job.run(profile, batches)
    name = format_id(run, repetition, 0)
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    traced = run.first_attributed if profile != "none" else batches
    times = simulator(job, batches, noise, generator, traced, own[: job.ranks])
    reports = [_report(rank, run) for rank in range(run.ranks)]
    for report in reports:
        folder = tables.rank_directory(directory / name, report.rank)
        folder.mkdir(parents=True)
        _write_rank(folder, report.rank, run, times, traced, recorded)
        store.write_record(folder / store.RANK_REPORT, report)
    manifest = Manifest(
        run=run, repetition=repetition, exit_code=0, command=["python", "-m", "train"], ranks=reports,
        started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:00+00:00", seconds=60.0,
    )  # fmt: skip
    store.write_record(directory / name / store.MANIFEST, manifest)


def _report(rank: int, run: Run) -> RankReport:
    return RankReport(
        rank=rank, world_size=run.ranks, local_rank=rank % run.gpus_per_node,
        hostname=f"node{rank // run.gpus_per_node}", device=DEVICE,
        backend="ddp/nccl" if run.ranks > 1 else "single", batches_done=run.batches,
        images_done=run.batches * run.batch, losses_finite=True, parameter_digest="0" * 64,
        training_flops_per_image=2.4e10, forward_flops_per_image=8e9, startup_ns=5_000 * MS,
        gradient_elements={} if rank else {
            f"{layer_name(n)}.weight": size for n, size in enumerate(ELEMENTS)
        },
    )  # fmt: skip


def layer_name(number: int) -> str:
    return f"layer{number}"


def as_ns(instants: np.ndarray) -> np.ndarray:
    return START_NS + np.rint(instants * MS).astype(np.int64)


def _write_rank(directory: Path, rank: int, run: Run, times: Any, traced: int, recorded: Recorder) -> None:
    names = ("start", "loaded", "forwarded", "exchanged", "end")
    start, loaded, forwarded, exchanged, end = (as_ns(getattr(times, name)[rank]) for name in names)
    index = np.arange(run.batches)
    columns = {
        "rank": np.full(run.batches, rank), "batch_index": index, "start_ns": start,
        "load_ns": loaded - start, "forward_ns": forwarded - loaded, "backward_ns": exchanged - forwarded,
        "update_ns": end - exchanged, "end_ns": end, "images": np.full(run.batches, run.batch),
        "loss": np.linspace(7, 1, run.batches), "attributed": index >= traced,
    }  # fmt: skip
    tables.write(tables.as_table("batches", columns), directory, "batches")
    if traced < run.batches:
        tables.write(tables.as_table("kernels", recorded(rank, times, traced)), directory, "kernels")


def layer_kernels(rank: int, times: Times, traced: int) -> dict[str, list]:
    """The kernels of the recorded batches, a few of each layer, as columns: a :data:`Recorder`."""
    layers = range(len(ELEMENTS))
    sizes = [size for _, size in buckets()][: len(times.exchange[0])]
    kinds: list[tuple[str, str, str, Pair, list[str | None], float, list[float]]] = [
        ("copy", "memcpy", "fprop", times.copy, [None], 0.0, [1e6]),
        ("conv_fprop", "convolution", "fprop", times.forward, [layer_name(n) for n in layers], 2e10,
         [1e9] * len(layers)),
        ("conv_bprop", "convolution", "bprop", times.backward, [layer_name(n) for n in reversed(layers)],
         4e10, [1e9] * len(layers)),
        ("sgd", "optimizer", "update", (times.exchanged[None], times.end[None]), [None], 0.0, [3e8]),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication", "bprop", times.exchange,
         [None] * len(sizes), 0.0, sizes),
    ]  # fmt: skip
    rows: dict[str, list] = {}
    for name, kind, direction, (begin, end), of_layers, flops, moved in kinds:
        for place, layer in enumerate(of_layers):
            starts, ends = as_ns(begin[place, rank, traced:]), as_ns(end[place, rank, traced:])
            count = len(starts)
            row = {
                "batch_index": list(range(traced, traced + count)), "start_ns": starts.tolist(),
                "duration_ns": (ends - starts).tolist(), "launch_ns": (starts - 1000).tolist(),
            }  # fmt: skip
            same = {
                "rank": rank, "name": name, "short_name": name, "class": kind, "direction": direction,
                "layer": layer, "device": 0, "stream": 20 if kind == "communication" else 7,
                "flops": flops, "bytes": moved[place],
            }  # fmt: skip
            for column, values in {**row, **{key: [value] * count for key, value in same.items()}}.items():
                rows.setdefault(column, []).extend(values)
    return rows
