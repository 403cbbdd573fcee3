"""Which images a rank reads, their labels, and which of them are left out."""

import io

import pytest
from PIL import Image

from jobs.loaders import data_folder
from profiling.errors import UserError
from train.loaders import dataset, records
from train.loaders.dataset import Sample, find_images, find_records, find_shard, reached

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
    shards = [find_shard(run, rank, world_size) for rank in range(world_size)]
    held = [sample for shard in shards for sample in shard.samples]
    assert len(held) == len(set(held)) == IMAGES
    assert set(held) == set(samples_of(data_set, data_format))
    sizes = [len(shard.samples) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert not any(shard.corrupt or shard.findings for shard in shards)


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


# --- corrupt images -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", tiny_jpeg()[:300], tiny_jpeg()[:-2], None])
def test_a_corrupt_image_is_left_out_counted_and_told(own_data_set, content):
    victim = sorted((own_data_set / "images").rglob("*.jpg"))[4]
    victim.unlink()
    victim.symlink_to("nowhere") if content is None else victim.write_bytes(content)
    shard = find_shard(run_of(own_data_set), 0, 1)
    assert shard.corrupt == [str(victim)]
    assert len(shard.samples) == IMAGES - 1 and victim not in {sample.path for sample in shard.samples}
    assert shard.findings[0].data == {"what": "images skipped", "n": 1, "first": str(victim)}


def test_of_many_images_only_the_ends_are_read(own_data_set, monkeypatch):
    monkeypatch.setattr(dataset, "FULL_CHECK_IMAGES", 3)
    monkeypatch.setattr(Sample, "read", lambda self: pytest.fail("the whole image was read"))
    pictures = sorted((own_data_set / "images").rglob("*.jpg"))
    pictures[0].write_bytes(pictures[0].read_bytes()[:-5000])
    pictures[1].write_bytes(b"")
    shard = find_shard(run_of(own_data_set), 0, 1)
    assert shard.corrupt == [str(pictures[0]), str(pictures[1])]
    assert len(find_shard(run_of(own_data_set, data_format="tfrecord"), 0, 1).samples) == IMAGES


# --- only what the run reaches ------------------------------------------------------------------------


def test_of_a_large_set_a_run_looks_only_at_what_it_will_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "READ_AHEAD_IMAGES", 10)
    samples = [Sample(tmp_path / str(index), 0) for index in range(1000)]
    run = run_of(tmp_path, batch=4, batches=5)
    drawn = reached(samples, run, rank=0)
    assert len(drawn) == len(set(drawn)) == 30 and set(drawn) < set(samples)
    assert drawn == sorted(drawn, key=samples.index) and drawn != samples[:30]
    assert drawn == reached(samples, run, rank=0)
    assert drawn != reached(samples, run_of(tmp_path, batch=4, batches=5, seed=1), rank=0)
    # Records are read in file order: the first are those that are reached.
    assert reached(samples, run_of(tmp_path, data_format="tfrecord", batch=4, batches=5), 0) == samples[:30]
    assert reached(samples[:20], run, rank=0) == samples[:20]
    assert [len(samples[rank::3]) for rank in range(3)] == [334, 333, 333]


# --- data that are not there --------------------------------------------------------------------------


def refuse(run, match):
    with pytest.raises(UserError, match=match) as error:
        find_shard(run, 0, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data_format", FORMATS)
def test_missing_data_are_one_line_that_says_how_to_get_some(tmp_path, data_format):
    refuse(run_of(tmp_path / "none", data_format=data_format), "no data folder .*none; correct --data")
    demo = tmp_path / "data" / "demo"
    refuse(run_of(demo, data_format=data_format), "no data folder .*demo; make a small set with")
    refuse(run_of(tmp_path, data_format=data_format), "no images|no TFRecord files")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"\xff\xd8 broken")
    refuse(run_of(tmp_path), "no readable image for rank 0 of 1")
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
