"""Every loader, over both forms of the data: the right labels, full batches, the same pixels, the same order.

The pictures here are of one colour each, so that a batch tells from its pixels which pictures it holds.
"""

import colorsys
import io
import subprocess
import sys
from collections import Counter
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from PIL import Image

from jobs.run import make_run
from profiling.errors import UserError
from train.loaders import Ahead, build_loader, dali, dataset, pytorch
from train.loaders.dataset import find_samples
from train.loaders.pytorch import memory_format, normaliser

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
        examples = [{dataset.IMAGE: encoded[i], dataset.LABEL: LABELS[i] + 1} for i in pictures]
        dataset.write_records(path, (dataset.encode_example(example) for example in examples))
        dataset.write_index(path)
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
        pictures = seen(run_of(colours, loader, data_format, workers=workers, batch=BATCH), 9)  # three epochs
        epochs = [pictures[start : start + PICTURES] for start in range(0, 3 * PICTURES, PICTURES)]
        assert all(sorted(epoch) == list(range(PICTURES)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert epochs[0] != sorted(range(PICTURES), key=lambda picture: (LABELS[picture], picture))

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
                for offset, size in dataset.read_index(dataset.index_path(victim))[1:]:
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
        subprocess.run([sys.executable, str(script), str(path), str(theirs)], check=True, capture_output=True)
        assert dataset.read_index(theirs) == dataset.read_index(dataset.index_path(path))


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


# --- batches for a GPU: a batch ahead, on a stream of their own, and the same pixels as on a CPU ---------


def copied(number: int) -> list[str]:
    """What is asked for as the copy of a batch is begun."""
    images, labels = f"images_{number}", f"labels_{number}"
    return ["stream", "stream().__enter__", f"{images}.to", "finish", f"{labels}.to", "Event",
            "Event().record", "stream().__exit__"]  # fmt: skip


HANDED_OVER = ["current_stream", "current_stream().wait_event", "finish().record_stream"]


def test_the_next_batch_is_copied_while_this_one_is_computed():
    """CUDA and the tensors are one mock, which notes in which order its parts are called."""
    cuda = MagicMock()
    pairs = ((getattr(cuda, f"images_{n}"), getattr(cuda, f"labels_{n}")) for n in count())
    batches = Ahead(pairs, CPU, cuda.finish, cuda)
    for number, begun in ((0, ["Stream", *copied(0)]), (1, [])):
        _, labels = next(batches)
        after = [f"labels_{number}.to().record_stream", *copied(number + 1)]
        assert [call[0] for call in cuda.mock_calls] == [*begun, *HANDED_OVER, *after]
        assert labels == getattr(cuda, f"labels_{number}").to.return_value
        assert getattr(cuda, f"images_{number + 1}").to.call_args.kwargs == {"non_blocking": True}
        cuda.reset_mock()


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_become_the_same_pixels_on_the_device_as_in_a_worker(data_set, channels_last):
    run = run_of(data_set, channels_last=channels_last)
    samples = find_samples(run, 0, 1)
    batch = {}
    for normalised in (True, False):
        torch.manual_seed(3)
        batch[normalised] = torch.stack([pytorch.Images(samples, 32, normalised)[i][0] for i in range(6)])
    assert batch[False].dtype == torch.uint8 and batch[False].nbytes * 4 == batch[True].nbytes
    images = normaliser(run, CPU)(batch[False])
    assert images.dtype == torch.float32 and torch.allclose(images, batch[True], atol=1e-5)
    assert images.is_contiguous(memory_format=memory_format(run))


def test_dali_writes_the_layout_that_the_model_takes_and_the_same_pixels(data_set):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (it exists for Linux only)")
    batch = {}
    for channels_last, compute in ((False, "fp32"), (True, "bf16")):
        run = run_of(data_set, "dali-cpu", channels_last=channels_last, compute=compute, workers=1)
        loader = dali.build_loader(run, 0, 1, CPU)
        images, labels = next(loader)
        assert images.shape == (4, 3, 32, 32) and labels.dtype == torch.int64
        assert images.is_contiguous(memory_format=memory_format(run))
        batch[channels_last] = images.clone()
        loader.close()
    assert torch.equal(batch[False], batch[True]) and batch[True].dtype == torch.float32
    # What autocast would make of the images, where DALI has that type.
    loader = dali.build_loader(run_of(data_set, "dali-cpu", compute="fp16", workers=1), 0, 1, CPU)
    assert next(loader)[0].dtype == torch.float16
    loader.close()


@pytest.mark.parametrize(("loader", "pins"), [("dali-cpu", True), ("dali-cpu-to-gpu", False)])
def test_a_gpu_copies_what_dali_leaves_on_the_host_from_pinned_memory_one_batch_ahead(
    monkeypatch, loader, pins
):
    """DALI's own memory on the host is pageable: the host would wait for each copy."""
    batch = {"images": torch.zeros(2, 3, 4, 4), "labels": torch.zeros(2, 1, dtype=torch.int32)}
    pinned, ahead = [], []
    library = SimpleNamespace(DALIGenericIterator=lambda *_, **__: repeat([batch]))
    monkeypatch.setattr(dali, "_pipeline", lambda *_: None)
    monkeypatch.setattr(dali, "_dali", lambda _: library)
    monkeypatch.setattr(dali, "Ahead", lambda batches, *_: ahead.append(1) or batches)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor)
    batches = dali.PipelineBatches(make_run({"loader": loader}), 0, torch.device("cuda", 0), [])
    images, labels = next(batches)
    batches.close()
    assert pinned == ([images.shape, labels.shape] if pins else []) and bool(ahead) is pins
    assert labels.shape == (2,) and labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("capability", "gigabytes", "fields", "load", "preallocates"),
    [((9, 0), 80, {}, 0.8, True), ((9, 0), 80, {"hw_decoder_load": 0.5}, 0.5, True),
     ((8, 0), 80, {}, None, True), ((8, 9), 24, {}, None, False), ((9, 0), 80, {"workers": 32}, 0.8, False)],
)  # fmt: skip
def test_dalis_decoder_is_told_what_the_gpu_has(
    monkeypatch, capability, gigabytes, fields, load, preallocates
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 10**9)
    )
    run = make_run({"loader": "dali-gpu", "workers": 8, **fields})
    options = dali.on_its_engines(run, torch.device("cuda", 0))
    assert options["device"] == "mixed" and options.get("hw_decoder_load") == load
    assert ("preallocate_width_hint" in options) is preallocates
