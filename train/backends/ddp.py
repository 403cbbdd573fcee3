"""PyTorch's DistributedDataParallel: NCCL between GPUs, Gloo between CPUs."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from jobs.run import Run
from profiling.errors import UserError
from train.world import World, gloo_interface

# Ranks of one job start within minutes; a rank that never comes must not hold an allocation for long.
MEETING_TIME = timedelta(minutes=5)

# grad -> the hook that sends gradients in it; DDP's own exchange is in the parameters' precision.
_HOOKS = {"fp32": None, "fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class Ddp:
    """Ranks joined in torch.distributed's default group."""

    def __init__(self, run: Run, world: World, device: torch.device) -> None:
        self._run, self._device = run, device
        self._meeting: tempfile.TemporaryDirectory | None = None
        library = "nccl" if device.type == "cuda" else "gloo"
        self.description = f"ddp/{library}"
        if library == "gloo":
            os.environ.update(gloo_interface(os.environ, world))
        try:
            dist.init_process_group(
                library,
                init_method=world.rendezvous or self._alone(),
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
        hook = _HOOKS[self._run.grad]
        if hook is not None:
            wrapped.register_comm_hook(dist.group.WORLD, hook)
        return wrapped

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
        if self._meeting is not None:
            self._meeting.cleanup()

    def _alone(self) -> str:
        """A meeting place for one rank, so that DDP's own cost can be measured at P = 1."""
        self._meeting = tempfile.TemporaryDirectory(prefix="scaleprof-")
        return f"file://{self._meeting.name}/rendezvous"


def open_backend(run: Run, world: World, device: torch.device) -> Ddp:
    """Join the other ranks.

    Raises:
        UserError: they do not meet.
    """
    return Ddp(run, world, device)
