"""Every loader, over both forms of the data: the right labels, full batches, the same pixels, the same order.

The pictures here are of one colour each, so that a batch tells from its pixels which pictures it holds.
"""

import colorsys
import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from profiling.errors import UserError
from train.loaders import build_loader, dataset, records

from .conftest import IMAGES, run_of

PICTURES, CLASSES, BATCH = 12, 3, 4
CPU = torch.device("cpu")
COLOURS = [
    tuple(int(255 * part) for part in colorsys.hsv_to_rgb(i / PICTURES, 0.6, 0.8)) for i in range(PICTURES)
]
LABELS = [picture % CLASSES for picture in range(PICTURES)]
FORMATS = ("images", "tfrecord")
LOADERS = [("pytorch", 0), ("pytorch", 2), ("dali-cpu", 2)]


def needs(loader: str) -> None:
    if loader.startswith("dali"):
        pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (it exists for Linux only)")


def picture(colour: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (60, 45), colour).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    """Twelve pictures, each of its own colour, of three classes, in both forms; two record files."""
    folder = tmp_path_factory.mktemp("colours")
    encoded = []
    for number, colour in enumerate(COLOURS):
        encoded.append(picture(colour))
        place = folder / "images" / f"class{LABELS[number]}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03d}.jpg").write_bytes(encoded[-1])
    (folder / "tfrecord").mkdir()
    for number in range(2):
        path = folder / "tfrecord" / f"part{number}"
        pictures = range(number, PICTURES, 2)
        examples = [{records.IMAGE: encoded[i], records.LABEL: LABELS[i] + 1} for i in pictures]
        records.write_records(path, (records.encode_example(example) for example in examples))
        records.write_index(path)
    return folder


def pictures_in(images: torch.Tensor) -> list[int]:
    """Which picture each image of a batch is, by its colour; it must be of that colour all over."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (dataset.MEAN, dataset.STD))
    found = []
    for image in images:
        seen = (image * std + mean) * 255
        distance = [(seen - torch.tensor(colour).view(3, 1, 1)).abs().max() for colour in COLOURS]
        nearest = int(torch.stack(distance).argmin())
        assert distance[nearest] < 6
        found.append(nearest)
    return found


def batches(run, count, rank=0, world_size=1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    loader = build_loader(run, rank, world_size, CPU)
    try:
        return [tuple(part.clone() for part in next(loader)) for _ in range(count)]
    finally:
        loader.close()


def seen(run, count, rank=0, world_size=1) -> list[int]:
    """The pictures of the first batches, each with the right label and all batches full."""
    found = []
    for images, labels in batches(run, count, rank, world_size):
        assert images.shape == (run.batch, 3, run.image_size, run.image_size)
        assert images.dtype == torch.float32 and images.is_contiguous()
        assert labels.shape == (run.batch,) and labels.dtype == torch.int64
        pictures = pictures_in(images)
        assert labels.tolist() == [LABELS[picture] for picture in pictures]
        found += pictures
    return found


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("loader", "workers"), LOADERS)
class TestEveryLoader:
    def test_labels_are_right_and_every_epoch_is_whole(self, colours, loader, workers, data_format):
        needs(loader)
        run = run_of(colours, loader, data_format, workers=workers, batch=BATCH)
        pictures = seen(run, 9)  # three epochs
        epochs = [pictures[start : start + PICTURES] for start in range(0, 3 * PICTURES, PICTURES)]
        assert all(sorted(epoch) == list(range(PICTURES)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        in_file_order = sorted(range(PICTURES), key=lambda picture: (LABELS[picture], picture))
        assert epochs[0] != in_file_order

    def test_batches_are_full_where_an_epoch_does_not_divide(self, colours, loader, workers, data_format):
        needs(loader)
        run = run_of(colours, loader, data_format, workers=workers, batch=5)
        counts = Counter(seen(run, 12))  # five epochs
        assert set(counts) == set(range(PICTURES)) and set(counts.values()) == {5}
        larger = run_of(colours, loader, data_format, workers=workers, batch=32)
        assert set(Counter(seen(larger, 3)).values()) == {8}

    def test_the_seed_decides_order_and_augmentation(self, data_set, loader, workers, data_format):
        needs(loader)
        torch.manual_seed(7)  # as a rank does; loading in its own process draws from this generator
        first = batches(run_of(data_set, loader, data_format, workers=workers), 4)
        torch.manual_seed(7)
        again = batches(run_of(data_set, loader, data_format, workers=workers), 4)
        other = batches(run_of(data_set, loader, data_format, workers=workers, seed=3), 4)
        assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True)
                   for a, b in zip(one, two, strict=True))  # fmt: skip
        assert not any(torch.equal(one[0], two[0]) for one, two in zip(first, other, strict=True))

    def test_an_image_that_cannot_be_decoded_ends_the_run(self, own_data_set, loader, workers, data_format):
        needs(loader)
        suffix = "jpg" if data_format == "images" else "tfrecord"
        for victim in (own_data_set / data_format).rglob(f"*.{suffix}"):
            content = bytearray(victim.read_bytes())
            if data_format == "images":
                content[2:] = bytes(500)
            else:  # the data of all records, whose checksums then differ
                for offset, size in records.read_index(records.index_path(victim))[1:]:
                    content[offset + 12 : offset + size - 4] = bytes(size - 16)
            victim.write_bytes(content)
        with pytest.raises(UserError) as error:
            batches(run_of(own_data_set, loader, data_format, workers=workers), IMAGES)
        assert "\n" not in str(error.value) and "Traceback" not in str(error.value)
        assert loader != "pytorch" or str(own_data_set) in str(error.value)


def test_our_index_is_the_one_that_dalis_script_makes(data_set, tmp_path):
    needs("dali")
    script = Path(sys.executable).parent / "tfrecord2idx"
    for path in sorted((data_set / "tfrecord").glob("*.tfrecord")):
        theirs = tmp_path / "theirs"
        command = [sys.executable, str(script), str(path), str(theirs)]
        subprocess.run(command, check=True, capture_output=True)
        assert records.read_index(theirs) == records.read_index(records.index_path(path))


# --- which loader -------------------------------------------------------------------------------------


def test_synthetic_batches_are_the_same_for_ever_and_each_ranks_own(tmp_path):
    run = run_of(tmp_path, "synthetic")
    (images, labels), (same, _) = batches(run, 2)
    assert torch.equal(images, same) and images.shape == (4, 3, 32, 32) and labels.dtype == torch.int64
    assert not torch.equal(images, batches(run, 1, rank=1, world_size=2)[0][0])


def test_without_dali_the_user_is_told_what_to_install(data_set, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(UserError, match=r"needs NVIDIA DALI .*pip install nvidia-dali"):
        build_loader(run_of(data_set, "dali-cpu"), 0, 1, CPU)
