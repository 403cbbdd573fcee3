"""One random batch, created once on the device: the upper limit for every other loader."""

import torch

from jobs.run import Run
from train.loaders import Batch, Loader
from train.loaders.ahead import memory_format
from train.loaders.dataset import data_seed
from train.models import CLASSES


class Synthetic(Loader):
    """The same random batch, for ever."""

    def __init__(self, run: Run, rank: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(data_seed(run, rank))
        size = (run.rank_batch, 3, run.image_size, run.image_size)
        images = torch.randn(size, generator=generator).to(device)
        self._images = images.contiguous(memory_format=memory_format(run))
        self._labels = torch.randint(CLASSES, (run.rank_batch,), generator=generator).to(device)

    def __next__(self) -> Batch:
        return self._images, self._labels


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> Synthetic:
    """The synthetic loader of a rank; ranks differ in their seed."""
    return Synthetic(run, rank, device)
