"""A rank's shard of a data set, the same for every loader; images that cannot be decoded are skipped.

A data set is a folder of classes with images (``class/image.jpg``), or TFRecord files, each with its index. A
rank's shard is every ``world_size``-th sample from its *global* rank on. All loaders prepare images alike: a
random crop of 8 to 100 % of the area, resized; a random flip; ImageNet's mean and deviation taken off.
"""

import io
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jobs.loaders import MAKE_DATA, data_folder, images_below, no_data_in, record_files
from jobs.run import Run
from profiling.errors import UserError
from profiling.findings import Finding
from train.loaders import records
from train.models import CLASSES

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
# Images of a rank that are decoded before training (4 ms each); of more only the ends are read.
FULL_CHECK_IMAGES = 1000
READ_AHEAD_IMAGES = 4096  # that a loader may have read beyond the last batch
_END_BYTES = 64


@dataclass(frozen=True)
class Sample:
    """An image: a file (size 0), or a record of a TFRecord file at ``offset``."""

    path: Path
    label: int  # of a record: -1, since it stands in the record
    offset: int = 0
    size: int = 0

    def read(self) -> tuple[bytes, int]:
        """(the encoded image, its label from 0)."""
        if not self.size:
            return self.path.read_bytes(), self.label
        return example_of(self.path, self.offset, self.size)

    @property
    def place(self) -> str:
        return f"{self.path}, byte {self.offset}" if self.size else str(self.path)


class Undecodable(UserError):
    """An image that cannot be decoded came up while loading."""


@dataclass(frozen=True)
class Shard:
    """A rank's samples that can be decoded, and where those are that cannot."""

    samples: list[Sample]
    corrupt: list[str]

    @property
    def findings(self) -> list[Finding]:
        data = {"what": "images skipped", "n": len(self.corrupt)}
        return [Finding("records_damaged", data=data | {"first": self.corrupt[0]})] if self.corrupt else []


def find_shard(run: Run, rank: int, world_size: int) -> Shard:
    """The samples of a rank that ``run`` reaches, in file order.

    Raises:
        UserError: no data, no whole image among them, or an index that does not fit its file.
    """
    if run.data is None:
        raise UserError(f"loader {run.loader} needs --data DIR; {MAKE_DATA}")
    folder = data_folder(run.data, run.data_format)
    samples = find_images(folder) if run.data_format == "images" else find_records(folder)
    mine = reached(samples[rank::world_size], run, rank)
    shard = sift(mine, is_whole if len(mine) <= FULL_CHECK_IMAGES else looks_whole)
    if not shard.samples:
        raise UserError(
            f"{folder} has no readable image for rank {rank} of {world_size} (images in all: {len(samples)}; "
            f"of this rank, corrupt: {len(shard.corrupt)})"
        )
    return shard


def sift(samples: Sequence[Sample], check: Callable[[Sample], bool]) -> Shard:
    """The samples that ``check`` finds good, and the places of the others."""
    with ThreadPoolExecutor() as pool:  # files wait for the disk, and decoding lets other threads run
        good = list(pool.map(check, samples))
    pairs = list(zip(samples, good, strict=True))
    return Shard(
        [sample for sample, right in pairs if right], [sample.place for sample, right in pairs if not right]
    )


def reached(samples: list[Sample], run: Run, rank: int) -> list[Sample]:
    """The samples that a rank's run reaches: files at random, records from the first on, as they are read."""
    most = run.batches * run.rank_batch + READ_AHEAD_IMAGES
    if len(samples) <= most or run.data_format == "tfrecord":
        return samples[:most]
    drawn = random.Random(data_seed(run, rank)).sample(range(len(samples)), most)
    return [samples[place] for place in sorted(drawn)]


def data_seed(run: Run, rank: int) -> int:
    """The seed of a rank's order and augmentation; ranks differ in it."""
    return run.seed * 1_000_003 + rank


def find_images(folder: Path) -> list[Sample]:
    """All images of ``folder/class/``, labelled by the classes' order."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    samples = [Sample(path, label) for label, place in enumerate(classes) for path in images_below(place)]
    if len(classes) > CLASSES:
        raise UserError(f"{folder} has {len(classes)} classes (folders), but a model has {CLASSES}")
    if not samples:
        raise no_data_in(folder, "images")
    return samples


def find_records(folder: Path) -> list[Sample]:
    """All images of the TFRecord files of ``folder``, by their indexes."""
    files = record_files(folder)
    if not files:
        raise no_data_in(folder, "tfrecord")
    samples = []
    for path in files:
        index = records.index_path(path)
        if not index.is_file():
            index = path.with_suffix(".idx")  # as DALI's own script names it, at its user's choice
        if not index.is_file():
            raise UserError(f"{path} has no index; create it with: python -m train.data index {path}")
        # The label is read with the image: all of a large set's would take minutes.
        samples += [Sample(path, -1, offset, size) for offset, size in records.read_index(index)]
    if not samples:
        raise UserError(f"the indexes in {folder} are empty; create them again: python -m train.data index")
    return samples


def example_of(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    """(encoded image, label from 0) of a record; ImageNet's labels in records start at 1.

    Raises:
        UserError: there is no record, or it is no Example with an image and a label.
        ValueError: the record is damaged.
    """
    data, where = records.read_record(path, offset, size), f"{path}, byte {offset}"
    try:
        features = records.decode_example(data)
    except ValueError as error:
        raise UserError(f"{where}: no tf.train.Example ({error})") from None
    image, label = features.get(records.IMAGE), features.get(records.LABEL)
    if not isinstance(image, bytes) or not isinstance(label, int):
        raise UserError(
            f"{where}: an Example without {records.IMAGE} and {records.LABEL}, as ImageNet's have"
        )
    if not 1 <= label <= CLASSES:
        raise UserError(f"{where}: label {label}, but ImageNet's records count from 1 to {CLASSES}")
    return image, label - 1


def is_whole(sample: Sample) -> bool:
    """Whether an image can be decoded; DALI decodes whatever Pillow does.

    Raises:
        UserError: there is no record, or it holds no image: the index or the format is wrong, not an image.
    """
    from PIL import Image

    try:
        content = sample.read()[0]
        if not _has_ends(content[:2], content[-_END_BYTES:]):
            return False
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False
    return True


def looks_whole(sample: Sample) -> bool:
    """Whether an image begins and ends as its kind does, without reading it; records are only found.

    Raises:
        UserError: there is no record where the index says.
    """
    if sample.size:
        records.check_head(sample.path, sample.offset, sample.size)
        return True
    try:
        with sample.path.open("rb") as file:
            head = file.read(2)
            file.seek(max(0, sample.path.stat().st_size - _END_BYTES))
            return _has_ends(head, file.read())
    except OSError:
        return False


def _has_ends(head: bytes, end: bytes) -> bool:
    # A truncated JPEG lacks its last two bytes; Pillow alone takes some of these for whole.
    return bool(end) and (head != b"\xff\xd8" or b"\xff\xd9" in end)


class Skipping:
    """A loader over a shard that skips images that cannot be decoded.

    Where one of a large shard proves corrupt in its turn, all are decoded, and loading starts over.

    Args:
        open_batches: endless batches of a shard, with ``close``. It raises :class:`Undecodable`, as ``next``
            of the batches does.
    """

    def __init__(self, shard: Shard, open_batches: Callable[[Shard], Any]) -> None:
        self._shard, self._open = shard, open_batches
        try:
            self._batches = open_batches(shard)
        except Undecodable as error:
            self._batches = self._without_corrupt(error)

    @property
    def images_corrupt(self) -> int:
        return len(self._shard.corrupt)

    @property
    def findings(self) -> list[Finding]:
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

    def _without_corrupt(self, error: Undecodable) -> Any:
        """Batches of the shard's whole images; ``error`` stands if all of them are whole, or none."""
        sifted = sift(self._shard.samples, is_whole)
        if not sifted.corrupt or not sifted.samples:
            raise error
        self._shard = Shard(sifted.samples, self._shard.corrupt + sifted.corrupt)
        return self._open(self._shard)
