"""Runs of ranks that wait for each other, with planted stragglers: batches tables, and kernels if profiled.

Each batch a rank updates, loads, goes forward and backward; then all exchange gradients, which begins when
the last has come and ends on all ranks together.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jobs.run import Run
from profiling import tables
from tests.analysis.synthetic import MS, START_NS, Truth, run_of, write_run

UPDATE, LOAD, FORWARD, BACKWARD, TRANSFER = 5.0, 2.0, 30.0, 60.0, 3.0  # ms: a batch of 100 ms
BATCHES = 50


@dataclass
class Planted:
    """What one rank does otherwise; ms a batch, of every ``every``-th batch.

    Attributes:
        own: between its load and its forward pass.
        slower: its kernels take so many times as long, forward and backward.
        clock_ms: its clock is ahead; ``jump_ms`` more from the middle of the recorded batches on.
        waits: whether the others wait for it (else its exchange ends when it comes, theirs without it).
    """

    load: float = 0.0
    forward: float = 0.0
    own: float = 0.0
    slower: float = 1.0
    every: int = 1
    clock_ms: float = 0.0
    jump_ms: float = 0.0
    waits: bool = True


@dataclass
class Job:
    """``ranks`` with ``planted`` ones; ``broadcast``: the forward pass begins when rank 0 has come to it."""

    ranks: int = 8
    nodes: int = 1
    noise: float = 0.01
    seed: int = 1
    broadcast: bool = False
    planted: dict[int, Planted] = field(default_factory=dict)

    def run(self, **fields) -> Run:
        shape = {"nodes": self.nodes, "gpus_per_node": self.ranks // self.nodes}
        return run_of(batches=BATCHES, **shape, **fields)


def write(directory: Path, job: Job, **fields) -> Path:
    """A run of the job, with fields of its Run (``profile="torch"`` writes kernels of the later half)."""
    run = job.run(**fields)
    result = write_run(directory, run, Truth(step_ms={job.ranks: 100.0}))
    times = _times(job)
    for rank in range(job.ranks):
        _write_rank(tables.rank_directory(result, rank), rank, run, job, times)

    return result


def _times(job: Job) -> dict[str, np.ndarray]:
    """Instants in ms, (ranks, batches), of each batch, by name."""
    generator = np.random.default_rng(job.seed)

    def stage(centre: float) -> np.ndarray:
        return centre * (1 + job.noise * generator.standard_normal((job.ranks, BATCHES)))

    update, load, forward, backward = stage(UPDATE), stage(LOAD), stage(FORWARD), stage(BACKWARD)
    for rank, one in job.planted.items():
        when = slice(0, None, one.every)
        forward[rank] *= one.slower
        backward[rank] *= one.slower
        load[rank, when] += one.load
        forward[rank, when] += one.forward
    apart = np.array([not job.planted.get(rank, Planted()).waits for rank in range(job.ranks)])
    found = {name: np.zeros((job.ranks, BATCHES)) for name in
             ("start", "loaded", "begun", "forwarded", "ready", "exchanged", "end")}  # fmt: skip
    start = np.zeros(job.ranks)
    for batch in range(BATCHES):
        loaded = start + load[:, batch]
        begun = loaded + np.array([job.planted.get(rank, Planted()).own for rank in range(job.ranks)])
        begin = np.maximum(begun, loaded[0]) if job.broadcast else begun
        forwarded = begin + forward[:, batch]
        ready = forwarded + backward[:, batch]
        together = ready[~apart].max() + TRANSFER
        exchanged = np.where(apart, ready + TRANSFER, together)
        end = exchanged + update[:, batch]
        for name, values in zip(found, (start, loaded, begun, forwarded, ready, exchanged, end), strict=True):
            found[name][:, batch] = values
        # A rank apart begins with the others again: what it was behind it makes up for nobody.
        start = np.where(apart, end[~apart].mean() if (~apart).any() else end, end)
    return found


def _write_rank(directory: Path, rank: int, run: Run, job: Job, times: dict[str, np.ndarray]) -> None:
    at = {name: START_NS + np.rint(values[rank] * MS).astype(np.int64) for name, values in times.items()}
    attributed = np.arange(BATCHES) >= (run.first_attributed if run.profile != "none" else BATCHES)
    columns = {
        "rank": np.full(BATCHES, rank),
        "batch_index": np.arange(BATCHES),
        "start_ns": at["start"],
        "load_ns": at["loaded"] - at["start"],
        "forward_ns": at["forwarded"] - at["begun"],
        "backward_ns": at["exchanged"] - at["forwarded"],
        "update_ns": at["end"] - at["exchanged"],
        "end_ns": at["end"],
        "images": np.full(BATCHES, run.batch),
        "loss": np.linspace(7, 1, BATCHES),
        "attributed": attributed,
    }
    tables.write(tables.as_table("batches", columns), directory, "batches")
    if not attributed.any():
        return
    planted = job.planted.get(rank, Planted())
    rows = []
    recorded = np.flatnonzero(attributed)
    for batch in recorded:
        clock = planted.clock_ms + (planted.jump_ms if batch >= recorded[len(recorded) // 2] else 0.0)
        shift = round(clock * MS)
        kernels = (("conv_fprop", "convolution", "fprop", at["begun"][batch], FORWARD * planted.slower * MS),
                   ("conv_bprop", "convolution", "bprop", at["forwarded"][batch],
                    BACKWARD * planted.slower * MS),
                   ("ncclAllReduce", "communication", "bprop", at["ready"][batch],
                    at["exchanged"][batch] - at["ready"][batch]))  # fmt: skip
        rows += [{"rank": rank, "batch_index": int(batch), "name": name, "short_name": name, "class": kind,
                  "direction": direction, "start_ns": int(start) + shift, "duration_ns": round(length),
                  "device": 0, "bytes": 1e8}
                 for name, kind, direction, start, length in kernels]  # fmt: skip
    table = tables.as_table("kernels", {name: [row[name] for row in rows] for name in rows[0]})
    tables.write(table, directory, "kernels")
