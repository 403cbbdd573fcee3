"""Which images a rank reads, their labels, and data that are refused; TFRecord files; the made set."""

import errno
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jobs.run import data_folder
from profiling.errors import UserError
from tests.analysis.commands import run
from train import data
from train.loaders import dataset
from train.loaders.dataset import (
    IMAGE,
    LABEL,
    decode_example,
    encode_example,
    find_images,
    find_records,
    find_samples,
    index_of,
    index_path,
    read_index,
    read_record,
    write_index,
    write_records,
)

from .conftest import CLASSES, IMAGES, run_of

FORMATS = ("images", "tfrecord")


def tiny_jpeg(shade: int = 0) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 99, 7)).save(out, "JPEG")
    return out.getvalue()


def samples_of(folder, data_format):
    place = data_folder(folder, data_format)
    return find_images(place) if data_format == "images" else find_records(place)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("world_size", [1, 4, 5])
def test_shards_are_disjoint_and_complete(data_set, data_format, world_size):
    run = run_of(data_set, data_format=data_format)
    shards = [find_samples(run, rank, world_size) for rank in range(world_size)]
    held = [sample for shard in shards for sample in shard]
    assert len(held) == len(set(held)) == IMAGES
    assert set(held) == set(samples_of(data_set, data_format))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_a_picture_has_the_same_label_in_both_forms(data_set):
    by_form = [{sample.read() for sample in samples_of(data_set, form)} for form in FORMATS]
    assert by_form[0] == by_form[1] and len(by_form[0]) == IMAGES
    assert {label for _, label in by_form[0]} == set(range(CLASSES))
    # In the record it is ImageNet's: from 1 on.
    first = find_records(data_set / "tfrecord")[0]
    assert decode_example(read_record(first.path, first.offset, first.size))[LABEL] == first.read()[1] + 1


def test_classes_are_numbered_by_name_and_images_may_lie_deeper(tmp_path):
    for name in ("b/x.JPG", "a/deep/er/y.png", "a/z.jpeg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(tiny_jpeg())
    found = {str(s.path.relative_to(tmp_path)): s.label for s in find_images(tmp_path)}
    assert found == {"a/z.jpeg": 0, "a/deep/er/y.png": 0, "b/x.JPG": 1}


# --- data that are not there --------------------------------------------------------------------------


def refuse(run, match):
    with pytest.raises(UserError, match=match) as error:
        find_samples(run, 0, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data_format", FORMATS)
def test_missing_data_are_one_line_that_says_how_to_get_some(tmp_path, data_format):
    refuse(run_of(tmp_path / "none", data_format=data_format), "no data folder .*none; correct --data")
    demo = tmp_path / "data" / "demo"
    refuse(run_of(demo, data_format=data_format), "no data folder .*demo; make a small set with")
    refuse(run_of(tmp_path, data_format=data_format), "no images|no TFRecord files")
    refuse(run_of(tmp_path, data_format=data_format).model_copy(update={"data": None}), "needs --data DIR")


def test_records_without_an_index_or_with_that_of_another_file(own_data_set):
    run = run_of(own_data_set, data_format="tfrecord")
    files = sorted((own_data_set / "tfrecord").glob("*.tfrecord"))
    one, other = [index_path(path) for path in files]
    other.write_text(one.read_text())
    refuse(run, f"{files[1].name} has no complete record at byte .*; create its index again")
    other.write_text("")
    one.write_text("")
    refuse(run, "the indexes in .* are empty")
    damaged = (b"0 many", b"0\n", b"0 32 5\n", b"-1 32\n", b"0 32\n\n0 32\n", b"\xff\xfe\x00")
    for text in (*damaged, b"0 " + b"9" * 5000):
        one.write_bytes(text)
        refuse(run, r"line \d: not the offset and size")
    one.unlink()
    refuse(run, f"{files[0].name} has no index; create it with: python -m train.data index")


@pytest.mark.parametrize(
    ("example", "told"),
    [
        (b"\xff\xff no protobuf", "no tf.train.Example"),
        ({IMAGE: tiny_jpeg()}, "without image/encoded and image/class/label"),
        ({IMAGE: b"x", LABEL: 0}, "label 0, but ImageNet's"),
        ({IMAGE: b"x", LABEL: 1001}, "label 1001, but"),
    ],
)
def test_records_of_another_content_are_told_not_skipped(tmp_path, example, told):
    path = tmp_path / "x.tfrecord"
    write_records(path, iter([example if isinstance(example, bytes) else encode_example(example)]))
    write_index(path)
    refuse(run_of(tmp_path, data_format="tfrecord"), told)


def test_the_index_may_be_named_as_dalis_own_script_does(own_data_set):
    for path in (own_data_set / "tfrecord").glob("*.tfrecord"):
        index_path(path).rename(path.with_suffix(".idx"))
    assert len(samples_of(own_data_set, "tfrecord")) == IMAGES


# --- TFRecord files and their Examples: what is written is read, and damage is never taken for data -------

CONTENTS = [b"", b"one", b"\x00" * 700, bytes(range(256)) * 3]


@pytest.fixture
def record_file(tmp_path):
    path = tmp_path / "some.tfrecord"
    write_records(path, iter(CONTENTS))
    return path


def test_a_record_begins_as_tensorflow_writes_it(record_file):
    # Length 3, its masked checksum, "one", its masked checksum: worked out from the format's definition.
    assert record_file.read_bytes()[16:35] == bytes.fromhex("0300000000000000b099490e6f6e6501405508")


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


# --- the data set of one's own, whole or not at all, and the command that indexes TFRecord files -------


def files_below(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_pictures_are_like_photos(data_set):
    pictures = [sample.read()[0] for sample in find_images(data_set / "images")]
    sizes = [len(picture) for picture in pictures]
    assert 95_000 <= np.mean(sizes) <= 105_000
    assert max(sizes) < 1.2 * min(sizes)
    assert len(set(pictures)) == IMAGES
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")


def test_a_set_of_another_kind_is_left_alone(own_data_set):
    before = files_below(own_data_set)
    assert data.make(own_data_set, IMAGES, CLASSES, seed=1) == f"{own_data_set} already exists"
    (own_data_set.parent / "file").write_text("mine")
    for place in (own_data_set, own_data_set.parent / "file"):
        with pytest.raises(UserError, match="contains something else; choose another folder, or remove it"):
            data.make(place, IMAGES, CLASSES, seed=2)
    assert files_below(own_data_set) == before and (own_data_set.parent / "file").read_text() == "mine"


def test_an_interrupted_set_is_none_and_is_made_anew(tmp_path, monkeypatch):
    folder = tmp_path / "deep" / "set"

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(dataset, "write_records", full_disk)
        with pytest.raises(OSError, match="No space"):
            data.make(folder, 4, 2, 0)
    assert not folder.exists()
    data.make(folder, 6, 2, 0)
    assert len(find_images(folder / "images")) == len(find_records(folder / "tfrecord")) == 6
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


# --- the commands -------------------------------------------------------------------------------------


def test_make_by_command(tmp_path):
    folder = tmp_path / "a set"
    done = run("train.data", "make", folder, "--images", "4", "--classes", "2")
    assert done.code == 0
    assert done.out == f"made {folder}: images: 4, classes: 2\n"
    done = run("train.data", "make", folder, "--images", "2", "--classes", "4")
    assert done.code == 2 and done.out == ""
    assert "2 images of 4 classes" in done.err


def test_index_by_command_goes_on_after_a_bad_file_and_leaves_no_half_index(own_data_set, tmp_path):
    good, cut = sorted((own_data_set / "tfrecord").glob("*.tfrecord"))
    before = dataset.index_path(good).read_text()
    for path in (good, cut):
        dataset.index_path(path).unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    foreign = tmp_path / "foreign"
    foreign.write_text("Dear diary, today I had no TFRecord file.")
    done = run("train.data", "index", foreign, cut, tmp_path / "none", good)
    assert done.code == 1
    assert done.out == f"{good}: {IMAGES // 2} records\n"
    lines = done.err.splitlines()
    assert len(lines) == 3 and all(line.startswith("scaleprof: error: ") for line in lines)
    assert f"{foreign} is not" in lines[0]
    assert f"{cut} ends in" in lines[1]
    assert str(tmp_path / "none") in lines[2]
    assert dataset.index_path(good).read_text() == before
    assert not dataset.index_path(cut).exists() and not dataset.index_path(foreign).exists()
