"""Which images a rank reads, their labels, and data that are refused."""

import io

import pytest
from PIL import Image

from jobs.loaders import data_folder
from profiling.errors import UserError
from train.loaders import records
from train.loaders.dataset import find_images, find_records, find_samples

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
    told = records.decode_example(records.read_record(first.path, first.offset, first.size))[records.LABEL]
    assert told == first.read()[1] + 1


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
    one, other = [records.index_path(path) for path in files]
    other.write_text(one.read_text())
    refuse(run, f"{files[1].name} has no complete record at byte .*; create its index again")
    other.write_text("")
    one.write_text("")
    refuse(run, "the indexes in .* are empty")
    one.write_text("0 many")
    refuse(run, "line 1: not the offset and size")
    one.unlink()
    refuse(run, f"{files[0].name} has no index; create it with: python -m train.data index")


IMAGE, LABEL = records.IMAGE, records.LABEL


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
    content = example if isinstance(example, bytes) else records.encode_example(example)
    records.write_records(path, iter([content]))
    records.write_index(path)
    refuse(run_of(tmp_path, data_format="tfrecord"), told)


def test_the_index_may_be_named_as_dalis_own_script_does(own_data_set):
    for path in (own_data_set / "tfrecord").glob("*.tfrecord"):
        records.index_path(path).rename(path.with_suffix(".idx"))
    assert len(samples_of(own_data_set, "tfrecord")) == IMAGES
