"""Data loaders, one file per kind; :data:`jobs.run.LOADERS` lists them."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

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


class Ahead(Iterator[Batch]):
    """Batches on a GPU, of batches on the host: the next is copied on a stream of its own, and nothing waits.

    Args:
        batches: pinned (images, labels), without end.
        finish: images on the device -> as the model takes them.
        cuda: the streams, as of ``torch.cuda``.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        device: torch.device,
        finish: Callable[[torch.Tensor], torch.Tensor],
        cuda: Any = torch.cuda,
    ) -> None:
        self._batches, self._device, self._finish, self._cuda = batches, device, finish, cuda
        self._stream = cuda.Stream(device)
        self._next: tuple[Batch, Any] | None = None

    def __next__(self) -> Batch:
        (images, labels), copied = self._next or self._fetch()
        computing = self._cuda.current_stream(self._device)
        computing.wait_event(copied)
        for tensor in (images, labels):
            # Its memory is the copying stream's, which must not use it again before this batch is done.
            tensor.record_stream(computing)
        self._next = self._fetch()
        return images, labels

    def _fetch(self) -> tuple[Batch, Any]:
        images, labels = next(self._batches)
        with self._cuda.stream(self._stream):
            on_device = (
                self._finish(images.to(self._device, non_blocking=True)),
                labels.to(self._device, non_blocking=True),
            )
            copied = self._cuda.Event()
            copied.record(self._stream)
        return on_device, copied


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> Loader:
    """The loader of a rank: its share of the data, in batches on its device; UserError: something lacks."""
    loader: Loader = import_module(LOADERS[run.loader].module).build_loader(run, rank, world_size, device)
    return loader
