"""Loaders of batches, one file a kind; :mod:`jobs.loaders` names them."""

from importlib import import_module
from typing import Protocol

import torch

from jobs.loaders import LOADERS
from jobs.run import Run
from profiling.findings import Finding


class Loader(Protocol):
    """What the training loop asks of a loader: an endless iterator over full batches on the rank's device."""

    @property
    def images_corrupt(self) -> int:
        """Images of this rank's shard that cannot be decoded; they are skipped."""

    @property
    def findings(self) -> list[Finding]:
        """What a reader of the results should know of the data."""

    def __iter__(self) -> "Loader": ...

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(images (batch, 3, H, W), normalised, in the model's layout; labels (batch,) int64).

        Images are float32; of DALI on a GPU float16 where autocast would make that of them.
        """

    def close(self) -> None:
        """End threads and processes."""


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> Loader:
    """The loader of a rank: its share of the data, in batches on its device.

    Raises:
        UserError: no data, none that can be decoded, a library that is not there, or no device for it.
    """
    loader: Loader = import_module(LOADERS[run.loader].module).build_loader(run, rank, world_size, device)
    return loader
