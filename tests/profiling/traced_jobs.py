"""Traces of all ranks of a job, made by code: what each batch takes, and who is late, is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.profiling.traces import Trace

DEVICE = "NVIDIA A100-SXM4-40GB"
START_US = 1_750_000_000_000_000.0  # of the first batch, since the epoch


@dataclass(frozen=True)
class Planted:
    """What each batch of each rank is made of, in microseconds.

    Attributes:
        forward, backward, update: the model's kernels.
        transfer: of the collective, since the last rank came to it.
        late: rank -> by how much its backward pass is longer: the others wait for it.
        idle: between the update and the next batch.
        elements: float32 of the collective.
        head: by how much the first batches are longer: the device idles at their end.
    """

    ranks: int = 2
    batches: int = 4
    forward: float = 300.0
    backward: float = 500.0
    update: float = 50.0
    transfer: float = 100.0
    idle: float = 40.0
    late: tuple[tuple[int, float], ...] = ()
    elements: int = 1_000_000
    head: tuple[float, ...] = ()

    @property
    def slowest(self) -> float:
        """By how much the last rank is behind."""
        return max((us for _, us in self.late), default=0.0)

    @property
    def batch(self) -> float:
        talks = self.transfer + self.slowest if self.ranks > 1 else 0.0
        return self.forward + self.backward + talks + self.update + self.idle


def trace_of(
    planted: Planted, rank: int, marker: str = "ProfilerStep#{}", first: int = 3, **facts: Any
) -> Trace:
    """The trace of one rank.

    Args:
        marker: the range around a batch, with its number; "": none.
        facts: further fields of the trace; ``distributedInfo`` None: without.
    """
    members = list(range(planted.ranks))
    group = {
        "pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": len(members),
        "ranks": members,
    }  # fmt: skip
    distributed = {
        "backend": "nccl", "rank": rank, "world_size": planted.ranks, "pg_config": [group],
        "nccl_version": "2.21.5",
    }  # fmt: skip
    given = {
        "deviceProperties": [{"id": 0, "name": DEVICE}],
        "distributedInfo": distributed if planted.ranks > 1 else None,
        **facts,
    }
    trace = Trace(**{name: value for name, value in given.items() if value is not None})
    late = dict(planted.late).get(rank, 0.0)
    for number in range(planted.batches):
        at = START_US + number * planted.batch + sum(planted.head[:number])
        _batch(trace, planted, at, first + number, marker, late, sum(planted.head[number : number + 1]))
    return trace


def _batch(
    trace: Trace, planted: Planted, at: float, number: int, marker: str, late: float, longer: float
) -> None:
    if marker:
        trace.range(marker.format(number), at, at + planted.batch + longer - 1)
    trace.host("aten::mm", at + 1, at + 9, more={"Sequence number": 5, "Fwd thread id": 0})
    trace.kernel("ampere_bf16_s16816gemm_bf16_128x128", at + 2, at + 2, at + planted.forward)
    done = at + planted.forward
    backward = planted.backward + late
    trace.host("MmBackward0", at + 10, at + 19, thread=2, more={"Sequence number": 5, "Fwd thread id": 1})
    trace.host("aten::mm", at + 11, at + 18, thread=2)
    trace.kernel("ampere_bf16_s16816gemm_bf16_128x128_bwd", at + 12, done, done + backward, thread=2)
    done += backward
    if planted.ranks > 1:
        waits = planted.slowest - late
        trace.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 20, done, done + waits + planted.transfer,
            stream=20, **{
                "Collective name": "allreduce", "In msg nelems": planted.elements, "dtype": "Float",
                "Out msg nelems": planted.elements, "Group size": planted.ranks, "Process Group Name": "0",
                "Process Group Ranks": str(list(range(planted.ranks))),
            },
        )  # fmt: skip
        done += waits + planted.transfer
    trace.range("Optimizer.step#SGD.step", at + 30, at + 39)
    name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<float>(float)"
    trace.kernel(name, at + 31, done, done + planted.update)


def write_job(folder: Path, planted: Planted, name: str = "rank{}.json", **options: Any) -> Path:
    """The traces of all ranks of a job, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(planted.ranks):
        path = folder / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        trace_of(planted, rank, **options).write(path)
    return folder
