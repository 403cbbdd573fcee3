"""Data loaders, one file per kind; :data:`jobs.run.LOADERS` lists them."""

from abc import abstractmethod
from collections.abc import Iterator
from importlib import import_module

import torch

from jobs.run import LOADERS, Run

Batch = tuple[torch.Tensor, torch.Tensor]


class Loader(Iterator[Batch]):
    """What the training loop asks of a loader: an endless iterator over full batches on the rank's device."""

    @abstractmethod
    def __next__(self) -> Batch:
        """(images (batch, 3, H, W), normalised, in the model's layout; labels (batch,) int64).

        Images are float32; of DALI on a GPU float16 where autocast would make that of them.
        """

    def close(self) -> None:
        """End threads and processes."""


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> Loader:
    """The loader of a rank: its share of the data, in batches on its device.

    Raises:
        UserError: no data, a library that is not there, or no device for it.
    """
    loader: Loader = import_module(LOADERS[run.loader].module).build_loader(run, rank, world_size, device)
    return loader
