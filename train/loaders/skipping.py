"""What if an image proves corrupt only when its turn comes? Then all are looked at, and it is left out.

Of a large shard only the ends of images are read before (:mod:`train.loaders.dataset`). To look at all takes
seconds, longer than a batch, but a run that has come far is not lost.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from train.loaders.dataset import Shard, Undecodable, is_whole, sift


class Batches(Protocol):
    """Endless batches of a shard; ``next`` raises :class:`Undecodable` where an image cannot be decoded."""

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]: ...

    def close(self) -> None: ...


class Skipping:
    """A loader over a shard, which skips the images that cannot be decoded.

    Args:
        open_batches: starts over with a shard; it may raise :class:`Undecodable`, too.
    """

    def __init__(self, shard: Shard, open_batches: Callable[[Shard], Batches]) -> None:
        self._shard, self._open = shard, open_batches
        try:
            self._batches = open_batches(shard)
        except Undecodable as error:
            self._batches = self._without_corrupt(error)

    @property
    def images_corrupt(self) -> int:
        return len(self._shard.corrupt)

    @property
    def findings(self) -> list[str]:
        return self._shard.findings

    def __iter__(self) -> "Skipping":
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            return next(self._batches)
        except Undecodable as error:
            self._batches.close()
            self._batches = self._without_corrupt(error)
            return next(self._batches)

    def close(self) -> None:
        self._batches.close()

    def _without_corrupt(self, error: Undecodable) -> Batches:
        """Batches of the shard's whole images; ``error`` stands if all of them are whole, or none."""
        sifted = sift(self._shard.samples, is_whole)
        if not sifted.corrupt or not sifted.samples:
            raise error
        self._shard = Shard(sifted.samples, self._shard.corrupt + sifted.corrupt)
        return self._open(self._shard)
