"""NVIDIA DALI pipelines: decoding on the GPU, on the CPU with a copy to the GPU, or on the CPU only."""

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from jobs.run import INSTALL_DALI, LOADERS, Run
from profiling.errors import UserError
from profiling.process import cores
from train.loaders import Ahead, Batch, Loader, dataset
from train.loaders.dataset import CROP_AREA, CROP_ASPECT, MEAN, STD, Sample, data_seed, find_samples

_HOPPER = (9, 0)
# As DALI's own example for ImageNet has them; for each thread they take the bytes below.
_IMAGENETS_LARGEST = {
    "preallocate_width_hint": 5980, "preallocate_height_hint": 6430,
    "device_memory_padding": 211025920, "host_memory_padding": 140544512,
}  # fmt: skip
_LARGEST_BYTES = 0.35e9
_MOST_MEMORY = 0.1  # of a GPU's, which batches need too
_SHUFFLE_BUFFER = 4096  # records held to draw from, where the reader cannot jump in a file


class PipelineBatches(Loader):
    """Batches of a DALI pipeline, on the device."""

    def __init__(self, run: Run, rank: int, device: torch.device, samples: Sequence[Sample]) -> None:
        self._device = device
        self._iterator: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="scaleprof-index-")
        try:
            pipeline = _pipeline(run, samples, data_seed(run, rank), device, Path(self._folder.name))
            # Without a size the iterator never ends, and every batch is full.
            iterator = _dali("plugin.pytorch").DALIGenericIterator
            self._iterator = iterator(pipeline, ["images", "labels"], size=-1)
        except RuntimeError as error:
            self.close()
            raise _as_ours(error) from error
        self._channels_last = run.channels_last
        copied = device.type == "cuda" and run.loader == "dali-cpu"
        self._ready = Ahead(self._pinned(), device, lambda images: images) if copied else self._batches()

    def __next__(self) -> Batch:
        return next(self._ready)

    def _batches(self) -> Iterator[Batch]:
        """Batches where DALI leaves them: on the GPU, or on the host."""
        while True:
            try:
                batch = next(self._iterator)[0]
            except RuntimeError as error:
                raise _as_ours(error) from error
            images = batch["images"]
            # DALI has written them as NHWC: seen as NCHW that is channels_last, and nothing is copied.
            images = images.permute(0, 3, 1, 2) if self._channels_last else images
            yield images, batch["labels"].flatten().long()

    def _pinned(self) -> Iterator[Batch]:
        """Batches in pinned memory, of which a GPU copies by itself; DALI's own on the host is pageable."""
        for images, labels in self._batches():
            yield images.pin_memory(), labels.pin_memory()

    def close(self) -> None:
        # Dropping the pipeline ends its threads.
        self._iterator = None
        self._folder.cleanup()


def _pipeline(run: Run, samples: Sequence[Sample], seed: int, device: torch.device, scratch: Path) -> Any:
    """The pipeline of a loader: read, decode and crop, resize, flip, normalise."""
    fn, types = _dali("fn"), _dali("types")
    on_gpu = run.loader != "dali-cpu"

    @_dali().pipeline_def(
        batch_size=run.rank_batch,
        num_threads=threads_of(run),
        device_id=device.index if on_gpu else None,
        seed=seed,
    )
    def pipeline() -> tuple[Any, Any]:
        encoded, labels = _reader(samples, seed, scratch)
        images = fn.decoders.image_random_crop(
            encoded,
            output_type=types.RGB,
            random_area=list(CROP_AREA),
            random_aspect_ratio=list(CROP_ASPECT),
            **(on_its_engines(run, device) if run.loader == "dali-gpu" else {"device": "cpu"}),
        )
        images = fn.resize(images, resize_x=run.image_size, resize_y=run.image_size, antialias=True)
        # dali-cpu-to-gpu does all its work on the CPU; what is copied is the finished batch.
        images = fn.crop_mirror_normalize(
            images,
            # What autocast would make of them first of all; there is no bf16 among DALI's types.
            dtype=types.FLOAT16 if run.compute == "fp16" else types.FLOAT,
            output_layout="HWC" if run.channels_last else "CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=fn.random.coin_flip(),
        )
        if run.loader == "dali-cpu-to-gpu":
            images = images.gpu()
        return images, labels.gpu() if on_gpu else labels

    return pipeline()


def threads_of(run: Run) -> int:
    """DALI's threads: the run's workers, or (0) the rank's share of the node's cores that it may use."""
    return run.workers or max(1, min(cores(), (os.cpu_count() or 1) // run.ranks_per_node))


def on_its_engines(run: Run, device: torch.device) -> dict[str, Any]:
    """Options of the decoder on a GPU: the share of its JPEG engines, and memory that is allocated at once.

    DALI's default of 0.65 is for the five engines of an A100; from Hopper on there are seven.
    """
    words: dict[str, Any] = {"device": "mixed"}
    if run.hw_decoder_load is not None:
        words["hw_decoder_load"] = run.hw_decoder_load
    elif torch.cuda.get_device_capability(device) >= _HOPPER:
        words["hw_decoder_load"] = 0.8
    total = torch.cuda.get_device_properties(device).total_memory
    if threads_of(run) * _LARGEST_BYTES <= _MOST_MEMORY * total:
        words |= _IMAGENETS_LARGEST
    return words


def _reader(samples: Sequence[Sample], seed: int, scratch: Path) -> tuple[Any, Any]:
    """(encoded images, labels from 0) of a rank's samples, in a new order each epoch."""
    fn, types, tfrecord = _dali("fn"), _dali("types"), _dali("tfrecord")
    if not samples[0].size:
        # The first epoch would come in file order, class after class.
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
        return fn.readers.file(
            files=[str(samples[place].path) for place in order],
            labels=[samples[place].label for place in order],
            shuffle_after_epoch=True,
            name="reader",
        )
    # An index that names this rank's records only: DALI then skips the others.
    files = sorted({sample.path for sample in samples})
    indexes = [scratch / f"{number}.idx" for number in range(len(files))]
    for path, index in zip(files, indexes, strict=True):
        mine = [sample for sample in samples if sample.path == path]
        index.write_text("".join(f"{sample.offset} {sample.size}\n" for sample in mine))
    record = fn.readers.tfrecord(
        path=[str(path) for path in files],
        index_path=[str(index) for index in indexes],
        features={
            dataset.IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            dataset.LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        },
        random_shuffle=True,
        initial_fill=min(len(samples), _SHUFFLE_BUFFER),
        name="reader",
    )
    # ImageNet's labels start at 1 in TFRecord files.
    return record[dataset.IMAGE], fn.cast(record[dataset.LABEL], dtype=types.INT32) - 1


def _dali(name: str = "") -> Any:
    """DALI, or a module of it; untyped, for its own stubs say too little of what operators return."""
    return import_module("nvidia.dali" + ("." + name if name else ""))


def _as_ours(error: RuntimeError) -> UserError:
    """DALI's error in a line: which operator met with what; it names no file."""
    text = " ".join(str(error).split())
    where = re.search(r"operator `nvidia\.dali\.fn\.([\w.]+)`", text)
    what = re.search(r"encountered: (.*?)( Current pipeline object is no longer valid|$)", text)
    line = f"DALI's {where[1] if where else 'pipeline'} failed: {what[1] if what else text[:300]}"
    undecodable = where is not None and where[1].startswith("decoders.")
    return UserError(line + "; an image cannot be decoded: loader pytorch says which" * undecodable)


def build_loader(run: Run, rank: int, world_size: int, device: torch.device) -> PipelineBatches:
    """A DALI loader of a rank, or UserError."""
    try:
        _dali()
    except ImportError as error:
        raise UserError(
            f"loader {run.loader} needs NVIDIA DALI ({error}); {INSTALL_DALI}; or use loader pytorch"
        ) from None
    if device.type != "cuda" and (instead := LOADERS[run.loader].on_cpu):
        raise UserError(f"loader {run.loader} needs a GPU; on a CPU use {instead}")
    return PipelineBatches(run, rank, device, find_samples(run, rank, world_size))
