"""One rank: there is nobody to exchange gradients with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.run import Run
from train.world import World

if TYPE_CHECKING:
    import torch


class Single:
    """The backend of one rank."""

    description = "single"
    findings: Sequence[str] = ()

    def wrap(self, model: "torch.nn.Module") -> "torch.nn.Module":
        return model

    def wrap_optimizer(
        self, optimizer: "torch.optim.Optimizer", model: "torch.nn.Module"
    ) -> "torch.optim.Optimizer":
        return optimizer

    def gather(self, value: str) -> list[str]:
        return [value]

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None

    def abandon(self) -> None:
        return None


def open_backend(run: Run, world: World, device: "torch.device") -> Single:
    """The backend of one rank."""
    return Single()
