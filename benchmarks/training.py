"""python -m benchmarks.training: what does our training loop cost, against a bare PyTorch loop?

The peer is the loop that PyTorch's users write: no markers, no clock, nothing recorded; with DALI, its data
come from a pipeline as in DALI's own example. Model, weights, data, precision and optimizer are the same.
Both train in one process by turns, a step each: ours, bare, bare, ours, so that whatever else the machine
does falls on both. The ratio of a cell is of medians over steps, its interval a bootstrap over their pairs;
the bar is for the median of all cells' pairs. On a shared machine even that is noisy: what does not change
with the neighbours, benchmarks.training_instructions counts.

Beside that: the loops around next to no arithmetic, whose noise hides nothing, and the markers of one step
(Forward Pass, Backward Pass, Model Update, End of Batch).

    OMP_NUM_THREADS=1 python -m benchmarks.training        (6 minutes; on a quiet machine also without)
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import child
from jobs.machine import versions
from jobs.run import Run, make_run
from jobs.run_fields import make_parser
from profiling.clocks import Clock, HostClock, open_clock
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command
from profiling.markers import Markers, nvtx_emitter, open_markers, torch_emitter
from profiling.tools import open_capture
from train import data, loop
from train.device import choose_device
from train.loaders import build_loader, dataset
from train.loaders.pytorch import memory_format
from train.loop import AUTOCAST, Precision, make_step
from train.models import build_model
from train.rank import make_optimizer, speaker
from train.world import World

BAR_RATIO, BAR_MARKERS_US = 1.01, 20.0
# Whose releases are said, where they are installed.
RELEASES = ("python", "torch", "torchvision", "nvidia-dali-cuda130")
BLOCK, WARM_UP_BLOCKS = 1, 5  # steps a block: neighbours of a tenth of a second meet the same noise
# Half precision is for devices that have it: on a CPU that has not, a step takes 10 s.
ON_GPUS = [{"model": "resnet50", "loader": "synthetic", "compute": "bf16"}]
CELLS = [
    {"model": "resnet18", "loader": "synthetic", "compute": "fp32"},
    {"model": "resnet18", "loader": "dali-cpu", "compute": "fp32"},
    {"model": "resnet50", "loader": "synthetic", "compute": "fp32"},
    {"model": "resnet50", "loader": "dali-cpu", "compute": "fp32"},
]

Loop = Callable[[int], None]  # trains for so many steps


class ObservedClock(HostClock):
    """A clock that calls something at each instant of a step, too."""

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call

    def start(self) -> None:
        self._clock.start()

    def tick(self) -> None:
        self._call()
        self._clock.tick()

    def settle(self) -> None:
        self._clock.settle()

    def instants_ns(self) -> np.ndarray:
        return self._clock.instants_ns()


def our_loop(
    run: Run,
    device: torch.device,
    model: torch.nn.Module,
    batches: Iterator[loop.Batch],
    clock_of: Callable[[str], Clock] = open_clock,
) -> Loop:
    """What a rank of a sweep does, its reports of progress included (they go nowhere)."""
    optimizer = make_optimizer(model, run, device)
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the process)
    speak = speaker(run, device, lambda text: print(text, file=nowhere, flush=True))
    step, markers = make_step(run, model, optimizer, Precision(run, device)), open_markers()

    def train(count: int) -> None:
        clock, capture = clock_of(device.type), open_capture("none", Path(), 0)
        block = run.model_copy(update={"batches": count})
        loop.train(block, step, batches, markers, clock, capture, speak)

    return train


def bare_loop(run: Run, device: torch.device, model: torch.nn.Module, batches: Iterator[loop.Batch]) -> Loop:
    """The loop of PyTorch's users, with the same settings."""
    optimizer = make_optimizer(model, run, device)
    criterion = torch.nn.CrossEntropyLoss()
    half = AUTOCAST.get(run.compute)
    scaler = torch.amp.GradScaler(device.type) if half is torch.float16 else None
    model.train()

    def train(count: int) -> None:
        for _ in range(count):
            images, labels = next(batches)
            optimizer.zero_grad()
            if half:
                with torch.autocast(device.type, half):
                    loss = criterion(model(images), labels)
            else:
                loss = criterion(model(images), labels)
            if scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()

    return train


def bare_batches(run: Run, device: torch.device) -> Iterator[loop.Batch]:
    """The peer's data: a tensor for ever, or a DALI pipeline as DALI's users write it."""
    if run.loader == "synthetic":
        images = torch.randn(run.batch, 3, run.image_size, run.image_size).to(device)
        images = images.contiguous(memory_format=memory_format(run))
        labels = torch.randint(1000, (run.batch,)).to(device)
        while True:
            yield images, labels
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    dali: Any = fn  # its stubs say too little of what operators return
    kinds: Any = types
    on_gpu = device.type == "cuda"

    @pipeline_def(batch_size=run.batch, num_threads=run.workers, device_id=0 if on_gpu else None)  # type: ignore
    def pipeline() -> Any:
        jpegs, labels = dali.readers.file(file_root=str(Path(str(run.data)) / "images"), random_shuffle=True)
        images = dali.decoders.image_random_crop(
            jpegs, device="cpu", output_type=kinds.RGB, random_area=dataset.CROP_AREA
        )
        images = dali.resize(images, resize_x=run.image_size, resize_y=run.image_size)
        mean, std = ([255 * value for value in values] for values in (dataset.MEAN, dataset.STD))
        images = dali.crop_mirror_normalize(
            images, dtype=kinds.FLOAT, mean=mean, std=std, mirror=dali.random.coin_flip()
        )
        return images, labels

    for (batch,) in DALIGenericIterator(pipeline(), ["data", "label"]):
        yield batch["data"].to(device), batch["label"].squeeze(-1).long().to(device)


@dataclass
class Pairs:
    """Seconds a step, ours and bare, of blocks done next to each other."""

    ours: np.ndarray
    bare: np.ndarray

    def ratio(self) -> dict[str, Any]:
        """Medians in ms, their ratio and the median of the pairs' ratios, with 95 % intervals over pairs."""
        generator = np.random.default_rng(0)
        drawn = generator.integers(0, len(self.ours), (4000, len(self.ours)))
        ratios = np.median(self.ours[drawn], axis=1) / np.median(self.bare[drawn], axis=1)
        pairs = self.ours / self.bare
        ours, bare = float(np.median(self.ours)), float(np.median(self.bare))
        return {
            "ours_ms": round(ours * 1e3, 3),
            "bare_ms": round(bare * 1e3, 3),
            "ratio": round(ours / bare, 4),
            "interval": _interval(ratios),
            "pairs_ratio": round(float(np.median(pairs)), 4),
            "pairs_interval": _interval(np.median(pairs[drawn], axis=1)),
            "pairs": len(self.ours),
        }


def over_all(pairs: Sequence[Pairs]) -> dict[str, Any]:
    """The median ratio of all cells' pairs, with its interval over pairs."""
    ratios = np.concatenate([one.ours / one.bare for one in pairs])
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(ratios, len(ratios))) for _ in range(4000)]
    return {"ratio": round(float(np.median(ratios)), 4), "interval": _interval(np.array(medians)),
            "pairs": len(ratios)}  # fmt: skip


def _interval(resampled: np.ndarray) -> list[float]:
    return [round(float(edge), 4) for edge in np.percentile(resampled, [2.5, 97.5])]


def by_turns(ours: Loop, bare: Loop, pairs: int, batches: int, device: torch.device) -> Pairs:
    """Blocks of ``batches`` steps, ours and bare, bare and ours, ...; the first ones are not counted."""
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    loops = [("ours", ours), ("bare", bare)]
    for pair in range(-WARM_UP_BLOCKS, pairs):
        for name, train in loops if pair % 2 == 0 else reversed(loops):
            start = time.perf_counter()
            train(batches)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if pair >= 0:
                seconds[name].append((time.perf_counter() - start) / batches)
    return Pairs(np.array(seconds["ours"]), np.array(seconds["bare"]))


def measure_cell(cell: dict[str, str], pairs: int, folder: Path, batch: int, image_size: int) -> Pairs:
    """Ours against bare for one model, loader and precision."""
    run = make_run(
        {
            **cell,
            "batch": batch,
            "image_size": image_size,
            "workers": 1,
            "data": str(folder),
            "learning_rate": 1e-3,
        }
    )
    device = choose_device(run, World())
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build_model(run.model).to(device))
    loader = build_loader(run, 0, 1, device)
    ours = our_loop(run, device, models[0], loader)
    bare = bare_loop(run, device, models[1], bare_batches(run, device))
    try:
        return by_turns(ours, bare, pairs, BLOCK, device)
    finally:
        loader.close()


def measure_tiny(pairs: int) -> dict[str, Any]:
    """The loops around a layer of 12 inputs, on the CPU: what ours adds to a step, in microseconds."""
    run = make_run({"device": "cpu", "loader": "synthetic"})
    cpu = torch.device("cpu")
    batch = (torch.randn(1, 3, 2, 2), torch.zeros(1, dtype=torch.long))

    def for_ever() -> Iterator[loop.Batch]:
        while True:
            yield batch

    models = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 10)) for _ in range(2)]
    ours, bare = our_loop(run, cpu, models[0], for_ever()), bare_loop(run, cpu, models[1], for_ever())
    found = by_turns(ours, bare, pairs, 200, cpu)
    added = np.median(found.ours - found.bare) * 1e6
    return {"bare_us": round(float(np.median(found.bare)) * 1e6, 1), "added_us": round(float(added), 1)}


def markers_us(markers: Markers, sets: int = 500, blocks: int = 21) -> float:
    """Microseconds of one step's markers, the median over blocks."""
    found = []
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(sets):
            with markers.forward:
                pass
            with markers.backward:
                pass
            with markers.update:
                pass
            markers.end_of_batch()
        found.append((time.perf_counter() - start) / sets)
    return round(statistics.median(found) * 1e6, 2)


def measure_markers() -> dict[str, float]:
    """A step's markers: without a collector, with the torch profiler on, through NVTX where it is found."""
    from torch.profiler import ProfilerActivity, profile

    found = {"no collector": markers_us(open_markers({}))}
    nvtx = nvtx_emitter({"NVTX_INJECTION64_PATH": "a collector is attached, as far as markers know"})
    ranges = torch_emitter()
    assert ranges is not None  # torch is imported above
    if nvtx is not None:
        found["NVTX, nobody listening"] = markers_us(Markers([nvtx]))
    with profile(activities=[ProfilerActivity.CPU]):
        found["torch profiler"] = markers_us(Markers([ranges]))
        if nvtx is not None:
            found["torch profiler, and NVTX"] = markers_us(Markers([nvtx, ranges]))
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    if "FAKE_GPUS" in os.environ:
        gpu = "none (stand-ins for NVIDIA's libraries)"
    releases = {name: release for name, release in versions().items() if name in RELEASES}
    return {**child.machine(()), "gpu": gpu, **releases}


def as_markdown(report: dict[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# Our training loop against a bare PyTorch loop", "",
        f"{child.facts(report['machine'])}; {report['threads']} intra-op threads. Batches of "
        f"{report['batch']} images of {report['image_size']} px, {BLOCK} a block. Bar: at most {BAR_RATIO:g} "
        "of the bare loop's step time.", "", f"    {report['command']}", "",
        "| model | loader | compute | ours, ms | bare, ms | ratio of medians (95 %) | of pairs (95 %) |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for one in report["cells"]:
        cells = [
            one["model"],
            one["loader"],
            one["compute"],
            f"{one['ours_ms']:.2f}",
            f"{one['bare_ms']:.2f}",
        ]
        for name in ("ratio", "pairs_ratio"):
            low, high = one[name.replace("ratio", "interval")]
            cells.append(f"{one[name]:.3f} ({low:.3f} to {high:.3f})")
        lines.append(f"| {' | '.join(cells)} |")
    tiny, every = report["tiny"], report["over_all"]
    low, high = every["interval"]
    lines += [
        "", f"Over all {every['pairs']} pairs: {every['ratio']:.3f} ({low:.3f} to {high:.3f}).",
        "",
        f"Around next to no arithmetic ({tiny['bare_us']:g} us a step), our loop adds "
        f"{tiny['added_us']:g} us a step: its clock, markers, losses and reports of progress.",
        "", f"One step's markers (bar: at most {BAR_MARKERS_US:g} us):", "",
        "| collector | us a step |", "| --- | ---: |",
        *(f"| {name} | {value:.2f} |" for name, value in report["markers_us"].items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = make_parser("python -m benchmarks.training", __doc__)
    parser.add_argument("--pairs", type=int, default=200, help="of steps, ours and bare [200]")
    parser.add_argument("--batch", type=int, default=2, help="[2]")
    parser.add_argument("--image-size", type=int, default=64, help="[64]")
    parser.add_argument("--out", type=Path, default=child.RESULTS)
    given = parser.parse_args()
    where, measured = machine(), []
    tried = CELLS + (ON_GPUS if torch.cuda.is_available() else [])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        data.make(folder, images=64, classes=4, seed=0)
        for cell in tried:
            measured.append(measure_cell(cell, given.pairs, folder, given.batch, given.image_size))
            print(json.dumps({**cell, **measured[-1].ratio()}), file=sys.stderr)
    cells = [{**cell, **pairs.ratio()} for cell, pairs in zip(tried, measured, strict=True)]
    report: dict[str, Any] = {
        "command": "OMP_NUM_THREADS=1 python -m benchmarks.training",
        "machine": where,
        "threads": torch.get_num_threads(),
        "batch": given.batch,
        "image_size": given.image_size,
        "cells": cells,
        "over_all": over_all(measured),
        "tiny": measure_tiny(given.pairs),
        "markers_us": measure_markers(),
    }
    child.write("training", report, as_markdown(report), given.out)
    missed = report["over_all"]["ratio"] > BAR_RATIO
    missed_markers = [value for value in report["markers_us"].values() if value > BAR_MARKERS_US]
    return EXIT_FAILED if missed or missed_markers else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
