"""Has every rank a GPU of its own? NCCL refuses two ranks on one, in words that name neither.

Before NCCL connects them, the ranks tell each other their host and GPU through the store at which they met.
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from profiling.errors import UserError
from train.rendezvous import gather_at
from train.world import World

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store


@dataclass(frozen=True)
class Gpu:
    """The GPU of a rank: its host, its PCI address there ("" if PyTorch does not say), its UUID and name."""

    host: str
    address: str
    uuid: str
    name: str


def gpu_of(device: "torch.device") -> Gpu:
    """The GPU ``device`` of this process."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    address = "" if None in numbers else ":".join(f"{number:02x}" for number in numbers)
    return Gpu(socket.gethostname(), address, str(getattr(properties, "uuid", "")), properties.name)


def exchange(store: "Store", world: World, mine: Gpu) -> list[Gpu]:
    """Every rank's GPU, in rank order; waits for all ranks, as long as the store does."""
    return [Gpu(**json.loads(text)) for text in gather_at(store, world, json.dumps(asdict(mine)))]


def check_gpus(gpus: Sequence[Gpu]) -> None:
    """Raise UserError where two ranks have the same GPU, or slices (MIG) of one."""
    first: dict[tuple[str, str], int] = {}
    for rank, gpu in enumerate(gpus):
        place = (gpu.host, gpu.address or gpu.uuid)
        other = first.setdefault(place, rank)
        if other == rank:
            continue
        if gpus[other].uuid != gpu.uuid or "MIG " in gpu.name:
            raise UserError(
                f"ranks {other} and {rank} have MIG slices of one GPU ({gpu.host}, {gpu.name}), between "
                "which NCCL does not work: use one slice of each GPU, or switch MIG off"
            )
        raise UserError(
            f"ranks {other} and {rank} have the same GPU ({gpu.host}, {gpu.name}, {gpu.uuid}), and NCCL "
            "needs one for each: CUDA_VISIBLE_DEVICES or the batch system shows both ranks that one alone; "
            "start fewer ranks, or show each its own (srun --gpus-per-task=1) or all (--gpu-bind=none)"
        )
