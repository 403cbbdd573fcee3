"""Backends, which exchange gradients between ranks: those of one process; others have a file each.

``BACKENDS`` in :mod:`jobs.run` lists them.
"""

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Self

import torch

from jobs.run import BACKENDS, Run
from profiling.errors import UserError
from profiling.findings import Finding
from train.loop import AUTOCAST
from train.world import World

_GLOO_LOST = re.compile(
    r"gloo.*(reset by peer|closed by peer|broken pipe|timed out)", re.IGNORECASE | re.DOTALL
)


class Backend:
    """What the training loop asks of a backend; this one is of a rank that has no others."""

    description = "single"  # and the library, e.g. "ddp/gloo"
    findings: Sequence[Finding] = ()

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model whose backward pass exchanges gradients."""
        return model

    def wrap_optimizer(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module
    ) -> torch.optim.Optimizer:
        """The optimizer of ``model`` (the wrapped one), for a backend that exchanges gradients through it."""
        return optimizer

    def gather(self, value: str) -> list[str]:
        """``value`` of every rank, in rank order, on every rank."""
        return [value]

    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:
        """Leave the group, of which every rank has done its work; the process may then end."""

    def abandon(self) -> None:
        """Leave what can be left without the other ranks: this one has failed, and they do not know."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Close it, or abandon it after an error: to close it would wait for the others."""
        self.abandon() if error else self.close()


class DataParallel(Backend):
    """torch.nn.DataParallel: one process copies the model to all GPUs of its node for each batch.

    The scheme that DDP replaced, kept to show what its broadcasts cost: before each batch the first GPU's
    parameters go to all, the batch is cut into a piece for each, and the gradients are added up on the first.
    On a CPU there are no devices to copy to: the model runs as it is, on the whole batch.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._autocast = AUTOCAST.get(run.compute)
        self._gpus = run.gpus_per_node if device.type == "cuda" else 0
        gpus = f"{self._gpus} GPU{'s' * (self._gpus > 1)}"
        self.description = f"dp/{gpus}" if self._gpus else "dp/no device"
        if self._gpus > (seen := torch.cuda.device_count()):
            raise UserError(
                f"backend dp is to drive {gpus}, and this process sees {seen}; "
                "the one rank of a node needs them all (CUDA_VISIBLE_DEVICES, --gpu-bind=none)"
            )
        if not self._gpus:
            data = {"option": "backend dp", "limit": "without devices"}
            self.findings = [Finding("option_limited", data=data)]

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if self._gpus and self._autocast:
            autocast_in_threads(model, "cuda", self._autocast)
        # It takes every GPU it sees for its own, also where the run is on the CPU.
        return torch.nn.DataParallel(model, device_ids=list(range(self._gpus))) if self._gpus else model


def autocast_in_threads(model: torch.nn.Module, device_type: str, kind: torch.dtype) -> None:
    """Have ``model`` compute in ``kind`` wherever autocast is on, also in threads other than the main one.

    Autocast's type is each thread's own. In those of its replicas DataParallel switches autocast on without
    naming one, which is fp16 on GPUs: "bf16" would be computed in fp16, and no loss be scaled.
    """
    model.register_forward_pre_hook(lambda *_: torch.set_autocast_dtype(device_type, kind))


def peers_lost(error: Exception) -> bool:
    """Whether an error of PyTorch's says that another rank has stopped responding."""
    from torch.distributed import DistError

    # Horovod's error is known by its name: it is not always installed.
    lost = isinstance(error, DistError) or type(error).__name__ == "HorovodInternalError"
    return lost or _GLOO_LOST.search(str(error)) is not None


def open_backend(run: Run, world: World, device: torch.device) -> Backend:
    """The backend of a run, joined with the other ranks; UserError: they do not meet."""
    name = run.backend
    if name == "auto":
        name = "single" if world.size == 1 else "ddp"
    if name == "single":
        return Backend()
    if name == "dp":
        return DataParallel(run, device)
    backend: Backend = import_module(BACKENDS[name]).open_backend(run, world, device)
    return backend
