"""PyTorch's own loader (torchvision v2 transforms in DataLoader workers), and one random batch, repeated.

For a GPU, workers leave pixels as bytes in pinned memory; the next batch is copied to the GPU and normalised
there, one step ahead.
"""

import io
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from jobs.run import Run
from profiling.errors import UserError
from train.loaders import Ahead, Batch, Loader
from train.loaders.dataset import CROP_AREA, CROP_ASPECT, MEAN, STD, Sample, data_seed, find_samples
from train.models import CLASSES, import_torchvision


class Images(Dataset):
    """Images, decoded and augmented: ((3, size, size), label); ``normalised``: in float32, else as uint8."""

    def __init__(self, samples: Sequence[Sample], size: int, normalised: bool = True) -> None:
        import_torchvision()
        from torchvision.transforms import v2

        self._samples = samples
        crop = v2.RandomResizedCrop(size, scale=CROP_AREA, ratio=CROP_ASPECT, antialias=True)
        last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if normalised else []
        self._transform = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), *last])

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        sample = self._samples[index]
        try:
            content, label = sample.read()
            with Image.open(io.BytesIO(content)) as image:
                pixels = image.convert("RGB")
        except (OSError, SyntaxError, ValueError):
            raise UserError(f"{sample.place} cannot be decoded; remove it") from None
        return self._transform(pixels), label


class Endless(Sampler):
    """Epochs without end, each in a new order; the order follows from the seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._count, generator=generator).tolist()


class LoaderBatches(Loader):
    """Batches of a DataLoader, on the device."""

    def __init__(self, run: Run, rank: int, device: torch.device, samples: Sequence[Sample]) -> None:
        seed = data_seed(run, rank)
        on_gpu = device.type == "cuda"
        forks = run.workers > 0 and sys.platform == "linux"
        loader = DataLoader(
            Images(samples, run.image_size, normalised=not on_gpu),
            batch_size=run.rank_batch,
            sampler=Endless(len(samples), seed),
            num_workers=run.workers,
            # A forked worker has torchvision as imported here (train.models).
            multiprocessing_context=multiprocessing.get_context("fork") if forks else None,
            pin_memory=on_gpu,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed),
        )
        self._batches: Any = iter(loader)
        self._here = run.workers == 0
        on_host = self._on_host()
        self._ready = Ahead(on_host, device, normaliser(run, device)) if on_gpu else on_host

    def __next__(self) -> Batch:
        return next(self._ready)

    def _on_host(self) -> Iterator[Batch]:
        while True:
            try:
                with one_thread() if self._here else nullcontext():
                    images, labels = next(self._batches)
            except UserError as error:
                # A worker's error comes wrapped in its traceback, at whose end it stands.
                raise UserError(str(error).strip().rpartition("UserError: ")[2]) from None
            yield images, labels

    def close(self) -> None:
        """End the workers."""
        # The traceback of a failed batch may hold the iterator.
        if not self._here:
            self._batches._shutdown_workers()


@contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic in one thread, as in DataLoader's workers: two on busy cores take 43 ms an image, not 4."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


class Synthetic(Loader):
    """One random batch, created once on the device, for ever: the upper limit for every other loader."""

    def __init__(self, run: Run, rank: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(data_seed(run, rank))
        size = (run.rank_batch, 3, run.image_size, run.image_size)
        images = torch.randn(size, generator=generator).to(device)
        self._images = images.contiguous(memory_format=memory_format(run))
        self._labels = torch.randint(CLASSES, (run.rank_batch,), generator=generator).to(device)

    def __next__(self) -> Batch:
        return self._images, self._labels


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> Loader:
    """A loader of PyTorch's for a rank, or UserError; ranks differ in its seed."""
    if run.loader == "synthetic":
        return Synthetic(run, rank, device)
    return LoaderBatches(run, rank, device, find_samples(run, rank, world_size))
