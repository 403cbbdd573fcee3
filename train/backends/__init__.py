"""Backends with which ranks exchange gradients, one file each; ``BACKENDS`` in :mod:`jobs.run` lists them."""

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Self

from jobs.run import BACKENDS, Run
from profiling.findings import Finding
from train.world import World

if TYPE_CHECKING:
    import torch

_GLOO_LOST = re.compile(
    r"gloo.*(reset by peer|closed by peer|broken pipe|timed out)", re.IGNORECASE | re.DOTALL
)


class Backend:
    """What the training loop asks of a backend; this one is of a rank that has no others."""

    description = "single"  # and the library, e.g. "ddp/gloo"
    findings: Sequence[Finding] = ()

    def wrap(self, model: "torch.nn.Module") -> "torch.nn.Module":
        """The model whose backward pass exchanges gradients."""
        return model

    def wrap_optimizer(
        self, optimizer: "torch.optim.Optimizer", model: "torch.nn.Module"
    ) -> "torch.optim.Optimizer":
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


def peers_lost(error: Exception) -> bool:
    """Whether an error of PyTorch's says that another rank has stopped responding."""
    from torch.distributed import DistError

    # Horovod's error is known by its name: it is not always installed.
    lost = isinstance(error, DistError) or type(error).__name__ == "HorovodInternalError"
    return lost or _GLOO_LOST.search(str(error)) is not None


def open_backend(run: Run, world: World, device: "torch.device") -> Backend:
    """The backend of a run, joined with the other ranks.

    Raises:
        UserError: the ranks do not meet.
    """
    name = run.backend
    if name == "auto":
        name = "single" if world.size == 1 else "ddp"
    backend: Backend = import_module(BACKENDS[name]).open_backend(run, world, device)
    return backend
