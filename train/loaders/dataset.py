"""A rank's samples of a data set, the same for every loader.

A data set is a folder of classes with images (``class/image.jpg``), or TFRecord files, each with its index. A
rank's share is every ``world_size``-th sample from its *global* rank on. All loaders prepare images alike: a
random crop of 8 to 100 % of the area, resized; a random flip; normalization with ImageNet's mean and
deviation. An image that cannot be decoded ends the run.
"""

from dataclasses import dataclass
from pathlib import Path

from jobs.run import MAKE_DATA, Run, data_folder, images_below, no_data_in, record_files
from profiling.errors import UserError
from train.loaders import records
from train.models import CLASSES

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)


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


def find_samples(run: Run, rank: int, world_size: int) -> list[Sample]:
    """The samples of a rank, in file order.

    Raises:
        UserError: no data, fewer samples than ranks, or an index that does not fit its file.
    """
    if run.data is None:
        raise UserError(f"loader {run.loader} needs --data DIR; {MAKE_DATA}")
    folder = data_folder(run.data, run.data_format).absolute()
    samples = find_images(folder) if run.data_format == "images" else find_records(folder)
    if len(samples) < world_size:
        raise UserError(f"{folder} has {len(samples)} images for {world_size} ranks")
    return samples[rank::world_size]


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
        entries = records.read_index(index)
        for entry in entries[:1]:  # it may be the index of another file
            example_of(path, *entry)
        samples += [Sample(path, -1, offset, size) for offset, size in entries]
    if not samples:
        raise UserError(f"the indexes in {folder} are empty; create them again: python -m train.data index")
    return samples


def example_of(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    """(encoded image, label from 0) of a record; ImageNet's labels in records start at 1.

    Raises:
        UserError: there is no whole record, or it is no Example with an image and a label.
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
