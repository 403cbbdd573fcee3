"""TFRecord files, their Examples and indexes: what is written is read, and damage is never taken for data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.errors import UserError
from train.loaders.records import (
    decode_example,
    encode_example,
    index_of,
    index_path,
    read_index,
    read_record,
    write_index,
    write_records,
)

CONTENTS = [b"", b"one", b"\x00" * 700, bytes(range(256)) * 3]


@pytest.fixture
def record_file(tmp_path):
    path = tmp_path / "some.tfrecord"
    write_records(path, iter(CONTENTS))
    return path


# --- records ------------------------------------------------------------------------------------------


def test_a_record_begins_as_tensorflow_writes_it(record_file):
    # Length 3, its masked checksum, "one", its masked checksum: worked out from the format's definition.
    written = record_file.read_bytes()[16:35]
    assert written == bytes.fromhex("0300000000000000b099490e6f6e6501405508")


@given(contents=st.lists(st.binary(max_size=600), max_size=6))
def test_what_is_written_is_read(tmp_path_factory, contents):
    path = tmp_path_factory.mktemp("records") / "x"
    write_records(path, iter(contents))
    assert write_index(path) == len(contents)
    entries = read_index(index_path(path))
    assert [read_record(path, *entry) for entry in entries] == contents
    assert sum(size for _, size in entries) == path.stat().st_size


def test_a_file_cut_short_anywhere_is_refused_unless_cut_between_records(record_file):
    whole, entries = record_file.read_bytes(), index_of(record_file)
    ends = {0, *(offset + size for offset, size in entries)}
    for length in range(len(whole)):
        record_file.write_bytes(whole[:length])
        if length in ends:
            assert index_of(record_file) == [entry for entry in entries if sum(entry) <= length]
            continue
        with pytest.raises(UserError, match="ends in the middle of a record") as error:
            index_of(record_file)
        assert "\n" not in str(error.value) and str(record_file) in str(error.value)
        cut = next(entry for entry in entries if sum(entry) > length)
        with pytest.raises(UserError, match="no complete record"):
            read_record(record_file, *cut)


@given(st.data())
def test_damage_anywhere_is_noticed_and_no_wrong_record_is_read(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    write_records(path, iter(CONTENTS))
    entries, content = index_of(path), bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    for (offset, size), right in zip(entries, CONTENTS, strict=True):
        if offset <= place < offset + size:
            with pytest.raises(UserError):
                read_record(path, offset, size)
        else:
            assert read_record(path, offset, size) == right
    if any(offset <= place < offset + 12 for offset, _ in entries):  # a length, or its checksum
        with pytest.raises(UserError, match="damaged at byte"):
            index_of(path)


# --- indexes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"0 10\n", b"0\n", b"0 32 5\n", b"-1 32\n", b"0 32\n\n0 32\n", b"\xff\xfe\x00", b"0 " + b"9" * 5000],
)
def test_a_damaged_index_is_refused_with_its_line(tmp_path, text):
    index = tmp_path / "x.idx"
    index.write_bytes(text)
    with pytest.raises(UserError, match=r"x\.idx, line \d: not the offset and size") as error:
        read_index(index)
    assert "\n" not in str(error.value)


# --- Examples -----------------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=30)
VALUES = st.binary(max_size=300) | st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_an_example_comes_back(features):
    assert decode_example(encode_example(features)) == features


def test_an_example_of_another_writer_is_read():
    """As protobuf may write it too: integers one by one, other kinds of features, fields we do not know."""
    name = b"\x0a\x01k"
    one_by_one = name + b"\x12\x04\x1a\x02\x08\x07"  # int64_list { value: 7 }, not packed
    floats = b"\x0a\x01f\x12\x08\x12\x06\x0a\x04\x00\x00\x80\x3f"
    empty = b"\x0a\x01e\x12\x00"
    entries = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (one_by_one, floats, empty))
    unknown = b"\x78\x05" + b"\x7d" + bytes(4) + b"\x79" + bytes(8)  # fields 15 of three wire types
    assert decode_example(b"\x0a" + bytes([len(entries)]) + entries + unknown) == {"k": 7}


@given(st.data())
def test_a_damaged_example_is_refused_or_read_but_never_crashes(data):
    whole = encode_example({"image/encoded": b"\xff\xd8" * 20, "image/class/label": 300})
    content = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_example(bytes(content))
    except ValueError:
        return
    assert all(isinstance(value, bytes | int) for value in found.values())
