"""Write TFRecord files and DALI's index of them.

Format: records of (length: uint64, its masked CRC32C: uint32, data, their masked CRC32C: uint32), all
little-endian. The data are a protobuf ``tf.train.Example``: a map of names to lists of bytes, floats or
integers. DALI needs an index of each file, with a line ``offset size`` per record.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import google_crc32c

from jobs.store import write_text
from profiling.errors import UserError

_HEAD, _TAIL = 12, 4  # bytes before and after a record's data
_CRC_MASK = 0xA282EAD8
# A line of an index: offset and size, of 18 digits at most.
_ENTRY = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")

_64_BITS = (1 << 64) - 1

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


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """An Example of single bytes or integer features."""

    def feature(value: bytes | int) -> bytes:
        if isinstance(value, bytes):
            return _field(1, _field(1, value))
        return _field(3, _field(1, _encode_varint(value)))

    pairs = (_field(1, name.encode()) + _field(2, feature(value)) for name, value in features.items())
    return _field(1, b"".join(_field(1, pair) for pair in pairs))


def decode_example(data: bytes) -> dict[str, bytes | int]:
    """The first value of each bytes or integer feature of an Example.

    Raises:
        ValueError: the data are no Example.
    """
    values_by_name: dict[str, bytes | int] = {}
    for features in _fields(data).get(1, []):
        for entry in _fields(_as_bytes(features)).get(1, []):
            parts = _fields(_as_bytes(entry))
            if not (1 in parts and 2 in parts):
                continue  # as protobuf has it: what is not there is empty
            name, feature = _as_bytes(parts[1][0]).decode(), _fields(_as_bytes(parts[2][0]))
            kind = next((kind for kind in (1, 3) if kind in feature), 0)  # bytes, integers
            values = _fields(_as_bytes(feature[kind][0])).get(1, []) if kind else []
            if values and kind == 1:
                values_by_name[name] = _as_bytes(values[0])
            elif values:
                # A list of integers is packed into bytes, or written one by one.
                first = values[0]
                number = _varint(first, 0)[0] if isinstance(first, bytes) else first
                values_by_name[name] = number - (1 << 64) if number >> 63 else number
    return values_by_name


def _field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _fields(data: bytes) -> dict[int, list[bytes | int]]:
    """A protobuf message as field number -> values."""
    fields: dict[int, list[bytes | int]] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: bytes | int
        if kind == 0:
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            length, place = _varint(data, place) if kind == 2 else (8 if kind == 1 else 4, place)
            value, place = data[place : place + length], place + length
            if place > len(data):
                raise ValueError("a field ends after its message")
        else:
            raise ValueError(f"no protobuf: wire type {kind}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _as_bytes(value: bytes | int) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("no Example: a number where a message should be")
    return value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if place >= len(data) or shift > 63:
            raise ValueError("no protobuf: a number does not end")
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value & _64_BITS, place


def _encode_varint(value: int) -> bytes:
    value &= _64_BITS  # a negative number is its two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
