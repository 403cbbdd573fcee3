"""What does the training loop ask of a loader?"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Loader(Protocol):
    """An endless iterator over full batches on the rank's device."""

    @property
    def images_corrupt(self) -> int:
        """Images of this rank's shard that cannot be decoded; they are skipped."""

    @property
    def findings(self) -> list[str]:
        """What a reader of the results should know of the data, a sentence each."""

    def __iter__(self) -> "Loader": ...

    def __next__(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """(images (batch, 3, H, W) float32, normalised; labels (batch,) int64)."""

    def close(self) -> None:
        """End threads and processes."""
