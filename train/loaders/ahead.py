"""Copy the next batch from pinned memory to the GPU on its own stream, without blocking the host."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jobs.run import Run
from train.loaders import Batch
from train.loaders.dataset import MEAN, STD


class Ahead(Iterator[Batch]):
    """Batches on a GPU, of batches on the host.

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


def normaliser(run: Run, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes of uint8 images (N, 3, H, W) what the model takes, on ``device``, as torchvision does."""
    layout = memory_format(run)
    mean, std = (255 * torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    scale = 1 / std

    def normalise(images: torch.Tensor) -> torch.Tensor:
        # Bytes change their layout at a quarter of the cost.
        return torch.sub(images.contiguous(memory_format=layout), mean).mul_(scale)

    return normalise


def memory_format(run: Run) -> torch.memory_format:
    """The layout in which the model of a run takes images."""
    return torch.channels_last if run.channels_last else torch.contiguous_format
