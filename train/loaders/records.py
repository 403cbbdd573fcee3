"""Write TFRecord files and DALI's index of them.

Format: records of (length: uint64, its masked CRC32C: uint32, data, their masked CRC32C: uint32), all
little-endian. The data are a protobuf ``tf.train.Example``: a map of names to lists of bytes, floats or
integers. DALI needs an index of each file, with a line ``offset size`` per record.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from jobs.store import write_text
from profiling.errors import UserError

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
    """(offset, size) of each record, with its lengths and checksums: what DALI's index says.

    Raises:
        UserError: it is no TFRecord file, or it is truncated; the message says where.
    """
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
    """The data of one record.

    Raises:
        UserError: the file does not hold it (its index is of another file, or it is cut short), or its data
            are damaged.
    """
    with path.open("rb") as file:
        file.seek(offset)
        record = file.read(size)
    if len(record) != size or _size_from_head(record[:_HEAD]) != size:
        raise UserError(
            f"{path} has no complete record at byte {offset}; "
            "create its index again: python -m train.data index"
        )
    data = record[_HEAD:-_TAIL]
    if record[-_TAIL:] != _masked_crc(data):
        raise UserError(
            f"{path}: the record at byte {offset} is damaged: its checksum is not that of its data"
        )
    return data


# --- Example ------------------------------------------------------------------------------------------

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
    """The first value of each bytes or integer feature of an Example.

    Raises:
        ValueError: the data are no Example.
    """
    try:
        example = _Example.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    values = {each.name: each.feature.bytes.value or each.feature.integers.value
              for each in example.features.entries}  # fmt: skip
    return {name: some[0] for name, some in values.items() if some}
