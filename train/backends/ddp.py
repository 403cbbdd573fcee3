"""PyTorch's DistributedDataParallel: NCCL between GPUs, Gloo between CPUs."""

import os
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import unquote, urlsplit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from jobs.run import Run
from profiling.errors import UserError
from train.rendezvous import open_store
from train.world import World, gloo_interface

# Ranks of one job start within minutes; a rank that never comes must not hold an allocation for long.
MEETING_TIME = timedelta(minutes=5)

# Precisions of gradients that need a hook; DDP's own exchange is in that of the parameters, fp32.
_SENT_AS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Ddp:
    """Ranks joined in torch.distributed's default group."""

    findings: Sequence[str] = ()

    def __init__(self, run: Run, world: World, device: torch.device) -> None:
        self._run, self._device = run, device
        library = "nccl" if device.type == "cuda" else "gloo"
        self.description = f"ddp/{library}"
        if library == "gloo":
            os.environ.update(gloo_interface(os.environ, world))
        try:
            store = meeting_store(world)
            dist.init_process_group(
                library,
                init_method=None if store else world.rendezvous,
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=MEETING_TIME,
                device_id=device if library == "nccl" else None,
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"the {world.size} ranks did not meet at {world.rendezvous}: {reason}; "
                "are all of them running, and is the address right (MASTER_ADDR, MASTER_PORT)?"
            ) from error

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=self._run.bucket_mb,
            # Gradients live in the buckets: no copy back after the exchange.
            gradient_as_bucket_view=True,
        )
        if self._run.grad in _SENT_AS:
            wrapped.register_comm_hook(_SENT_AS[self._run.grad], send_as)
        return wrapped

    def wrap_optimizer(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module
    ) -> torch.optim.Optimizer:
        return optimizer

    def gather(self, value: str) -> list[str]:
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


def meeting_store(world: World) -> dist.Store | None:
    """The store through which ranks find each other; None: PyTorch finds it by the address."""
    if world.size == 1:
        return dist.HashStore()  # within the process: DDP's own cost can be measured at P = 1
    if world.host:
        return open_store(world, MEETING_TIME)
    if world.rendezvous.startswith("file:"):
        # PyTorch would take the address for the path as it stands: with "%20", for a folder with a space.
        return dist.FileStore(unquote(urlsplit(world.rendezvous).path), world.size)
    return None


def send_as(kind: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's hook for a bucket of gradients: averages it over the ranks, with ``kind`` on the wire.

    PyTorch's own hooks do the same, but that for bf16 refuses to work over Gloo, which can send it.
    """
    # Divided before the sum, which would leave fp16's range more easily.
    sent = bucket.buffer().to(kind).div_(dist.get_world_size())

    def received(done: torch.futures.Future) -> torch.Tensor:
        return bucket.buffer().copy_(done.value()[0])

    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(received)


def open_backend(run: Run, world: World, device: torch.device) -> Ddp:
    """Join the other ranks.

    Raises:
        UserError: they do not meet.
    """
    return Ddp(run, world, device)
