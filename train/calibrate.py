"""Measure the peaks of this machine; sweeps do so at their start.

    python -m train.calibrate --out results/quick/calibration.json     (started as ranks by jobs.sweep)

Efficiencies are relative to these peaks: a matrix product, a memory copy, and an allreduce over all ranks.
Ranks on a CPU share its cores and memory, so peaks are measured for 1, 2, 4 ... and all ranks at a time.
Allreduces of other numbers of ranks stay in the file.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jobs.run import make_run
from jobs.run_fields import make_parser
from jobs.store import Allreduce, Calibration, read_calibration, write_record
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.process import cores, run_and_leave
from train.backends import Backend, open_backend
from train.device import choose_device, device_name
from train.loop import Precision
from train.world import World, read_world

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

TOTAL_S = 1.5  # of measuring; allocation, first calls, barriers and the ranks' start come on top
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
# ResNet50's gradients in fp32: the message whose bandwidth matters here.
ALLREDUCE_BYTES = 25_557_032 * 4
_TASKS = Path("/proc/self/task")
_BUSY = 0.1  # of the time that threads wait for a core; by then what is measured is as much too low
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Timed:
    """An action that is timed repeatedly, for its best rate. It runs once untimed, when this is made."""

    def __init__(self, work: float, action: Callable[[], object], device: torch.device) -> None:
        self._work, self._action, self._synchronize = work, action, synchronizer(device)
        self._seconds()

    def rate(self, seconds: float) -> float:
        """The best work a second within ``seconds``: a bound is what the machine can do."""
        end = time.perf_counter() + seconds
        best = self._seconds()
        while time.perf_counter() < end:
            best = min(best, self._seconds())
        return self._work / best

    def _seconds(self) -> float:
        start = time.perf_counter()
        self._action()
        self._synchronize()
        return time.perf_counter() - start


def gemm_on(device: torch.device, precision: str) -> Timed:
    """A square matrix product, in FLOPs (2 n^3)."""
    size, kind = GEMM_SIZE[device.type], _TYPES[precision]
    # Random, not zeros: some devices are faster on zeros than on any real data.
    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=kind)
    return Timed(2 * size**3, lambda: torch.mm(left, right, out=out), device)


def copy_on(device: torch.device) -> Timed:
    """A copy within the device's memory, in bytes read plus written."""
    source = torch.randn(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return Timed(2 * source.nbytes, lambda: target.copy_(source), device)


def allreduce_rates(
    device: torch.device, seconds: float, size: int = ALLREDUCE_BYTES,
    group: "ProcessGroup | None" = None, rounds: int = 1, most: int = 50,
) -> list[float]:  # fmt: skip
    """Bus bytes/s of an allreduce, as nccl-tests defines it: bytes / time x 2(P-1)/P. On every rank alike.

    Args:
        size: bytes.
        group: the ranks that make it; None: all.
        rounds: of ``seconds`` each, which give a rate each: the best.
        most: calls in a round.
    """
    tensor = torch.zeros(size // 4, device=device)
    synchronize = synchronizer(device)

    def timed() -> float:
        start = time.perf_counter()
        torch.distributed.all_reduce(tensor, group=group)
        synchronize()
        return time.perf_counter() - start

    torch.distributed.all_reduce(tensor[:1], group=group)  # which connects them
    # Every rank must do the same number: the first, untimed one tells the first how many fit.
    count = torch.tensor([max(2, min(most, round(seconds / max(timed(), 1e-6))))]).to(device)
    torch.distributed.broadcast(count, group=group, group_src=0)
    calls, ranks = int(count.item()), torch.distributed.get_world_size(group)
    best = [min(timed() for _ in range(calls)) for _ in range(rounds)]
    return [tensor.nbytes / each * 2 * (ranks - 1) / ranks for each in best]


def synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def calibrate(
    world: World, device: torch.device, precision: str, backend: Backend, threads: int = 0, network: str = "",
    peaks: bool = True,
) -> Calibration | None:  # fmt: skip
    """Measure together with the other ranks; the result is rank 0's (None on the others).

    Args:
        network: over which ranks of several nodes exchange, to be recorded.
        peaks: without, an allreduce alone.
    """
    start = time.perf_counter()
    # Numbers of ranks a node that are measured together: powers of two, and all.
    powers = {1 << power for power in range(world.local_size.bit_length())} | {world.local_size}
    counts = sorted(count for count in powers if count <= world.local_size) if peaks else []
    share = TOTAL_S / (2 * len(counts) + (1 if world.size > 1 else 0))
    gemm, copy, allreduces, waiting = {}, {}, [], 0.0
    for count in counts:
        backend.barrier()
        if world.local_rank < count:
            gemm[count], copy[count], waited = rank_peaks(device, precision, threads, count, share)
            waiting = max(waiting, waited)
    if world.size > 1:
        backend.barrier()
        (bus,) = allreduce_rates(device, share)
        size = {"nodes": world.nodes, "ranks_per_node": world.local_size}
        allreduces.append(Allreduce(**size, network=network, bus_bytes_per_s=bus))
    if world.rank:
        return None
    data = {"figure": "measured peaks", "why": f"cores busy for {min(waiting, 1):.0%}"}
    return Calibration(
        gemm_flops_per_s=gemm,
        copy_bytes_per_s=copy,
        allreduces=allreduces,
        device=device_name(device),
        precision=precision,
        seconds=time.perf_counter() - start,
        findings=[Finding("uncertain", data=data)] if waiting >= _BUSY else [],
    )


def rank_peaks(
    device: torch.device, precision: str, threads: int, count: int, seconds: float
) -> tuple[float, float, float]:
    """FLOP/s and bytes/s of one of ``count`` ranks, and for which share of the time it waited for a core."""
    used = threads or max(1, cores() // count)
    if device.type == "cpu":
        torch.set_num_threads(used)
    before, begun = waited_s(), time.perf_counter()
    gemm, copy = gemm_on(device, precision).rate(seconds), copy_on(device).rate(seconds)
    # Ranks with more threads than cores wait for each other; a GPU's peaks need no core to be free.
    if device.type != "cpu" or used * count > cores():
        return gemm, copy, 0.0
    now, threads_s = waited_s(), (time.perf_counter() - begun) * used
    return gemm, copy, max(0.0, now - before) / threads_s if now is not None and before is not None else 0.0


def waited_s() -> float | None:
    """How long the threads of this process have waited for a core; None: not known."""
    waits = []
    for path in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waits.append(int(path.read_text().split()[1]))
    return sum(waits) / 1e9 if waits else None


def main() -> None:
    parser = make_parser("python -m train.calibrate", __doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the file to write")
    add("--device", default="auto", choices=("auto", "cpu", "gpu"), help="where to compute [auto]")
    add("--precision", default="fp32", choices=sorted(_TYPES), help="precision of the matrix product [fp32]")
    add("--threads", type=int, default=0, help="CPU threads per rank [its share of the cores]")
    add("--network", default="eth", help="network between the nodes, recorded with the peaks [eth]")
    add("--allreduce", action="store_true", help="measure only the allreduce, and add it to the file")
    arguments = parser.parse_args()
    world = read_world(os.environ)
    if arguments.allreduce and world.size == 1:
        raise UserError("--allreduce needs several ranks")
    ranks = {"nodes": world.nodes, "gpus_per_node": world.local_size}
    run = make_run({**ranks, "device": arguments.device, "compute": arguments.precision})
    device = choose_device(run, world)
    Precision(run, device)  # sets whether fp32 products may use TF32
    with open_backend(run, world, device) as backend:
        result = calibrate(
            world, device, arguments.precision, backend, arguments.threads, arguments.network,
            not arguments.allreduce,
        )  # fmt: skip
        backend.barrier()
    if result is not None:
        for line in result.findings:
            print(f"scaleprof: {line}", file=sys.stderr)
        write_record(arguments.out, result.beside(read_calibration(arguments.out)))


if __name__ == "__main__":
    run_and_leave(main)
