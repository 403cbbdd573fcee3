"""Where do batches come from? One file a kind of loader, one line in :data:`LOADERS`."""

from importlib import import_module
from typing import TYPE_CHECKING

from jobs.run import Run
from profiling.errors import UserError, did_you_mean
from train.loaders.base import Loader

if TYPE_CHECKING:
    import torch

LOADERS = {
    "dali-gpu": "train.loaders.dali",
    "dali-cpu-to-gpu": "train.loaders.dali",
    "dali-cpu": "train.loaders.dali",
    "pytorch": "train.loaders.pytorch",
    "synthetic": "train.loaders.synthetic",
}


def build_loader(run: Run, rank: int, world_size: int, device: "torch.device") -> Loader:
    """The loader of a rank: its share of the data, in batches on its device.

    Raises:
        UserError: no such loader, no data, or no device for it.
    """
    if run.loader not in LOADERS:
        raise UserError(f"no loader {run.loader!r}{did_you_mean(run.loader, LOADERS)}")
    return import_module(LOADERS[run.loader]).build_loader(run, rank, world_size, device)
