"""A rank's samples of a data set, the same for every loader, and reading and writing of TFRecord files.

A data set is a folder of classes with images (``class/image.jpg``), or TFRecord files, each with its index. A
rank's share is every ``world_size``-th sample from its *global* rank on. All loaders prepare images alike: a
random crop of 8 to 100 % of the area, resized; a random flip; normalization with ImageNet's mean and
deviation. An image that cannot be decoded ends the run.

Format of TFRecord files: records of (length: uint64, its masked CRC32C: uint32, data, their masked CRC32C:
uint32), all little-endian. The data are a protobuf ``tf.train.Example``: a map of names to lists of bytes,
floats or integers. DALI needs an index of each file, with a line ``offset size`` per record.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from jobs.run import MAKE_DATA, Run, data_folder, images_below, no_data_in, record_files
from jobs.store import write_text
from profiling.errors import UserError
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
    """The samples of a rank, in file order; UserError: too few, or an index that does not fit its file."""
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
        index = index_path(path)
        if not index.is_file():
            index = path.with_suffix(".idx")  # as DALI's own script names it, at its user's choice
        if not index.is_file():
            raise UserError(f"{path} has no index; create it with: python -m train.data index {path}")
        # The label is read with the image: all of a large set's would take minutes.
        entries = read_index(index)
        for entry in entries[:1]:  # it may be the index of another file
            example_of(path, *entry)
        samples += [Sample(path, -1, offset, size) for offset, size in entries]
    if not samples:
        raise UserError(f"the indexes in {folder} are empty; create them again: python -m train.data index")
    return samples


def example_of(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    """(encoded image, label from 0) of a record, or UserError; ImageNet's labels in records start at 1."""
    data, where = read_record(path, offset, size), f"{path}, byte {offset}"
    try:
        features = decode_example(data)
    except ValueError as error:
        raise UserError(f"{where}: no tf.train.Example ({error})") from None
    image, label = features.get(IMAGE), features.get(LABEL)
    if not isinstance(image, bytes) or not isinstance(label, int):
        raise UserError(f"{where}: an Example without {IMAGE} and {LABEL}, as ImageNet's have")
    if not 1 <= label <= CLASSES:
        raise UserError(f"{where}: label {label}, but ImageNet's records count from 1 to {CLASSES}")
    return image, label - 1


_HEAD, _TAIL = 12, 4  # bytes before and after a record's data
_CRC_MASK = 0xA282EAD8
# A line of an index: offset and size, of 18 digits at most.
_ENTRY = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")

IMAGE, LABEL = "image/encoded", "image/class/label"


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """Write a TFRecord file."""
    with path.open("wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + _masked_crc(length) + data + _masked_crc(data))


def index_of(path: Path) -> list[tuple[int, int]]:
    """(offset, size) of each record, with its lengths and checksums: what DALI's index says; or UserError."""
    entries, offset, total = [], 0, path.stat().st_size
    with path.open("rb") as file:
        while offset < total:
            size = _size_from_head(file.read(_HEAD))
            if size is None and total - offset >= _HEAD:
                raise UserError(f"{path} is not a TFRecord file, or is damaged at byte {offset}")
            if size is None or offset + size > total:
                raise UserError(f"{path} ends in the middle of a record, at byte {offset}; download it again")
            entries.append((offset, size))
            offset += size
            file.seek(offset)
    return entries


def _size_from_head(head: bytes) -> int | None:
    """The bytes of a record with its lengths and checksums; None: it has no whole and right head."""
    if len(head) < _HEAD or head[8:] != _masked_crc(head[:8]):
        return None
    return _HEAD + struct.unpack("<Q", head[:8])[0] + _TAIL


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF)


def index_path(record_file: Path) -> Path:
    """Where the index of a TFRecord file is: beside it, as ``FILE.idx``."""
    return record_file.with_name(record_file.name + ".idx")


def write_index(record_file: Path) -> int:
    """Write DALI's index of a TFRecord file beside it, whole or not at all; returns the number of records."""
    entries, index_file = index_of(record_file), index_path(record_file)
    write_text(index_file, "".join(f"{offset} {size}\n" for offset, size in entries))
    return len(entries)


def read_index(index_file: Path) -> list[tuple[int, int]]:
    """The (offset, size) pairs of an index."""
    entries = []
    for number, line in enumerate(index_file.read_bytes().splitlines(), 1):
        match = _ENTRY.fullmatch(line)
        if match is None or int(match[2]) < _HEAD + _TAIL:
            raise UserError(
                f"{index_file}, line {number}: not the offset and size of a record; "
                "create it again: python -m train.data index"
            )
        entries.append((int(match[1]), int(match[2])))
    return entries


def read_record(path: Path, offset: int, size: int) -> bytes:
    """The data of one record; UserError: the file does not hold it, or they are damaged."""
    with path.open("rb") as file:
        file.seek(offset)
        record = file.read(size)
    if len(record) != size or _size_from_head(record[:_HEAD]) != size:
        again = "create its index again: python -m train.data index"
        raise UserError(f"{path} has no complete record at byte {offset}; {again}")
    data = record[_HEAD:-_TAIL]
    if record[-_TAIL:] != _masked_crc(data):
        raise UserError(f"{path}: the record at byte {offset} is damaged: not its data's checksum")
    return data


# tf.train.Example, in as far as images need it: lists of floats are passed over.
_EXAMPLE = """
name: "scaleprof/example.proto"  package: "scaleprof"  syntax: "proto3"
message_type { name: "Bytes"  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Integers"  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
    field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: "Bytes" }
    field { name: "integers" number: 3 type: TYPE_MESSAGE type_name: "Integers" } }
message_type { name: "Entry"
    field { name: "name" number: 1 type: TYPE_STRING }
    field { name: "feature" number: 2 type: TYPE_MESSAGE type_name: "Feature" } }
message_type { name: "Features"
    field { name: "entries" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Entry" } }
message_type { name: "Example"
    field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
"""
_POOL = DescriptorPool()
_POOL.Add(text_format.Parse(_EXAMPLE, FileDescriptorProto()))
_Example: Any = GetMessageClass(_POOL.FindMessageTypeByName("scaleprof.Example"))


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """An Example of single bytes or integer features."""
    example = _Example()
    for name, value in features.items():
        kind = "bytes" if isinstance(value, bytes) else "integers"
        example.features.entries.add(name=name, feature={kind: {"value": [value]}})
    encoded: bytes = example.SerializeToString()
    return encoded


def decode_example(data: bytes) -> dict[str, bytes | int]:
    """The first value of each bytes or integer feature of an Example, or ValueError."""
    try:
        example = _Example.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    values = {each.name: each.feature.bytes.value or each.feature.integers.value
              for each in example.features.entries}  # fmt: skip
    return {name: some[0] for name, some in values.items() if some}
