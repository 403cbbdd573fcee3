"""PyTorch's DistributedDataParallel: NCCL between GPUs, Gloo between CPUs."""

import inspect
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from jobs.run import Run
from profiling.errors import UserError
from train.backends import Backend
from train.device import is_out_of_memory, pci_address
from train.world import World, check_interface, gather_at, gloo_interface, open_store

MEETING_TIME = timedelta(minutes=5)  # in which the ranks of a job start
# NCCL's watchdog aborts ranks after it; longer than any `hang_limit_s`, where the launcher keeps all stacks.
COLLECTIVE_TIME = timedelta(hours=2)
_CONNECTED_BY = {
    "nccl": "NCCL_DEBUG=INFO shows which interface it takes; `interface` in the site file "
    "(NCCL_SOCKET_IFNAME) names another",
    "gloo": "are all of them running, and can they reach each other over `interface` in the site file "
    "(GLOO_SOCKET_IFNAME)?",
}

# Precisions of gradients that need a hook; DDP's own exchange is in that of the parameters, fp32.
_SENT_AS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Ddp(Backend):
    """Ranks joined in torch.distributed's default group; UserError if they do not meet."""

    def __init__(self, run: Run, world: World, device: torch.device) -> None:
        self._run, self._device = run, device
        library = "nccl" if device.type == "cuda" else "gloo"
        self.description = f"ddp/{library}"
        if library == "gloo":
            check_interface(os.environ, "GLOO_SOCKET_IFNAME", run.network)
            os.environ.update(gloo_interface(os.environ, world))
        self._world, self._gathered = world, 0
        try:
            self._store = store = meeting_store(world)
        except (dist.DistError, RuntimeError, ValueError) as error:
            raise UserError(
                f"the {world.size} ranks did not meet at {world.rendezvous or world.host}: {_line(error)}; "
                "are all of them running, and is the address right (MASTER_ADDR, MASTER_PORT)?"
            ) from error
        if library == "nccl" and world.size > 1:
            properties = torch.cuda.get_device_properties(device)
            uuid = str(getattr(properties, "uuid", ""))
            gpu = Gpu(socket.gethostname(), pci_address(device), uuid, properties.name)
            every = gather_at(dist.PrefixStore("gpus", store), world, json.dumps(asdict(gpu)))
            check_gpus([Gpu(**json.loads(text)) for text in every])
        try:
            dist.init_process_group(
                library,
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=COLLECTIVE_TIME if library == "nccl" else MEETING_TIME,
                device_id=device if library == "nccl" else None,
            )
            # From now on the slowest rank is waited for, not one that may never come.
            store.set_timeout(COLLECTIVE_TIME)
        except (dist.DistError, RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise UserError(
                f"{library.upper() if library == 'nccl' else 'Gloo'} did not connect the {world.size} ranks: "
                f"{_line(error)}; {_CONNECTED_BY[library]}"
            ) from error

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=self._run.bucket_mb,
            **buffers(self._run.broadcast_buffers),
            # Gradients live in the buckets: no copy back after the exchange.
            gradient_as_bucket_view=True,
        )
        if self._run.grad in _SENT_AS:
            wrapped.register_comm_hook(_SENT_AS[self._run.grad], send_as)
        return wrapped

    def gather(self, value: str) -> list[str]:
        if self._device.type == "cuda":
            # Words need no GPU: NCCL would copy them there and back, and wait for it.
            self._gathered += 1
            return gather_at(dist.PrefixStore(f"gather {self._gathered}", self._store), self._world, value)
        values: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self._device.type == "cuda":
            dist.barrier(device_ids=[self._device.index])
        else:
            dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    def abandon(self) -> None:
        # Destroying NCCL's communicators waits for all ranks, of which the others still train.
        if self._device.type != "cuda":
            dist.destroy_process_group()


def buffers(broadcast: bool) -> dict[str, Any]:
    """What DistributedDataParallel is told of buffers; its word for that changed in PyTorch 2.13."""
    if broadcast:
        return {}  # as it does by itself
    word = "forward_sync_buffers"
    known = word in inspect.signature(DistributedDataParallel).parameters
    return {word if known else "broadcast_buffers": False}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def meeting_store(world: World) -> dist.Store:
    """The store through which ranks find each other."""
    if world.size == 1:
        return dist.HashStore()  # within the process: DDP's own cost can be measured at P = 1
    if world.host:
        return open_store(world, MEETING_TIME)
    if world.rendezvous.startswith("file:"):
        # PyTorch would take the address for the path as it stands: with "%20", for a folder with a space.
        return dist.FileStore(unquote(urlsplit(world.rendezvous).path), world.size)
    found = rendezvous(world.rendezvous, world.rank, world.size, timeout=MEETING_TIME)
    store: dist.Store = next(found)[0]
    return store


def send_as(kind: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's hook that averages a bucket of gradients with ``kind`` on the wire, over Gloo, too."""
    # Divided before the sum, which would leave fp16's range more easily.
    sent = bucket.buffer().to(kind).div_(dist.get_world_size())

    def received(done: torch.futures.Future) -> torch.Tensor:
        return bucket.buffer().copy_(done.value()[0])

    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(received)


# --- NCCL refuses two ranks on one GPU, in words that name neither --------------------------------------


@dataclass(frozen=True)
class Gpu:
    """The GPU of a rank: its host, its PCI address there ("" if PyTorch does not say), its UUID and name."""

    host: str
    address: str
    uuid: str
    name: str


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


open_backend = Ddp
