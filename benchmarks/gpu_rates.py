"""Parts of benchmarks.gpu: images/s, against a bare loop and by what a run can be given."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import gpu_checks, training
from benchmarks.gpu_part import Part, finish, free
from jobs.run import Run, make_run
from profiling.errors import UserError
from train.device import device_name, is_out_of_memory, set_kernels
from train.loaders import build_loader
from train.loop import stream_of
from train.models import build_model, flops_per_image
from train.rank import bare_model, compiled

# Images/s that ResNet50 in bf16, channels_last, should reach at batch 256, synthetic, by the GPU's name.
TARGETS = {"H200": 3500.0, "H100": 3000.0}
LEAST_OF_BARE = 0.99
LEAST_PAIRS = 3  # of blocks of our loop and of the bare one
LEAST_WITH_DALI = 0.98  # of synthetic data's images/s, or of what the loader alone can do
_LEAST_BLOCKS = 3  # that are timed of a figure, where a step is slow


def rate(run: Run, device: torch.device, seconds: float, steps: int) -> float:
    """Images/s of our loop: the median over blocks of steps, after a warm-up.

    Raises:
        UserError: the run cannot be done here.
    """
    set_kernels(run, device)
    loader = build_loader(run, 0, 1, device)
    try:
        with stream_of(run, device):
            train = training.our_loop(run, device, compiled(bare_model(run, device), run), loader)
            train(run.steps_before_graph + 1)
            return median_rate(train, run.batch, device, seconds, steps)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise UserError("not enough memory") from None
        raise
    finally:
        loader.close()
        if run.compile:
            torch._dynamo.reset()  # else the next model would be one more variant of this one's code
        free()


def median_rate(
    train: Callable[[int], None], batch: int, device: torch.device, seconds: float, steps: int
) -> float:
    """Images/s of a loop, the median over blocks of so many steps."""
    timed(train, 1, device)  # libraries choose their algorithms, and memory is allocated
    start = time.monotonic()
    steps = steps_that_fit(timed(train, 1, device), seconds, steps, _LEAST_BLOCKS)
    timed(train, steps, device)
    found: list[float] = []
    while not found or (time.monotonic() - start < seconds and len(found) < 50):
        found.append(steps * batch / timed(train, steps, device))
    return float(np.median(found))


def timed(train: Callable[[int], None], steps: int, device: torch.device) -> float:
    """Seconds that so many steps take until the device has done them."""
    before = time.perf_counter()
    train(steps)
    finish(device)
    return time.perf_counter() - before


def steps_that_fit(one_s: float, seconds: float, most: int, blocks: int) -> int:
    """Steps to be timed together, of which so many blocks fit into the time if one takes ``one_s``."""
    return max(1, min(most, int(seconds / (blocks * one_s))))


def share_of_peak(run: Run, device: torch.device, images_per_s: float) -> float | None:
    """MFU by the datasheet's peak; None where it is not known."""
    from analysis.measures import peaks

    peak = peaks.find(device_name(device)) if device.type == "cuda" else None
    if peak is None or run.compute not in peak.flops_per_s:
        return None
    return (
        flops_per_image(build_model(run.model), run.image_size)[1]
        * images_per_s
        / peak.flops_per_s[run.compute]
    )


def speed(part: Part) -> None:
    run, device = make_run({**part.scale.run, "loader": "synthetic"}), part.device
    set_kernels(run, device)
    torch.manual_seed(0)
    loader = build_loader(run, 0, 1, device)
    ours = training.our_loop(run, device, bare_model(run, device), loader)
    bare = training.bare_loop(run, device, bare_model(run, device), training.bare_batches(run, device))
    for train in (ours, bare):
        timed(train, 1, device)  # as in median_rate
    one_s = sum(timed(train, 2, device) for train in (ours, bare)) / 2
    least = LEAST_PAIRS + training.WARM_UP_BLOCKS
    if least * one_s > part.left_s:
        part.left_out["pairs"] = f"the time was up: {least} steps of both loops take {least * one_s:.0f} s"
        return
    seconds = min(0.7 * part.left_s, 4 * part.scale.cell_s)
    steps = steps_that_fit(one_s, seconds, part.scale.steps, least)
    pairs = max(LEAST_PAIRS, min(50, int(seconds / (steps * one_s)) - training.WARM_UP_BLOCKS))
    found = training.by_turns(ours, bare, pairs, steps, device).ratio()
    ours_rate, bare_rate = (run.batch * 1e3 / found[f"{name}_ms"] for name in ("ours", "bare"))
    share = found["bare_ms"] / found["ours_ms"]
    rows = part.table("loop", "images/s", "ms a step", "share of the peak")
    rows.append(["scaleprof", ours_rate, found["ours_ms"], share_of_peak(run, device, ours_rate)])
    rows.append(["bare PyTorch", bare_rate, found["bare_ms"], share_of_peak(run, device, bare_rate)])
    low, high = (1 / edge for edge in reversed(found["interval"]))
    part.notes.append(f"{share:.3f} of the bare loop (95 %: {low:.3f} to {high:.3f}, {found['pairs']} pairs)")
    part.notes.append("the run: " + ", ".join(f"{name} {value}" for name, value in part.scale.run.items()))
    if device.type != "cuda":
        return
    if share < LEAST_OF_BARE:
        part.wrong.append(f"{share:.3f} of the bare loop, at least {LEAST_OF_BARE} wanted")
    name = torch.cuda.get_device_name(device)
    target = target_of(name)
    if target and ours_rate < target:
        part.wrong.append(f"{ours_rate:.0f} images/s, at least {target:.0f} wanted of a {name}")


def target_of(gpu: str) -> float | None:
    """Images/s wanted of a GPU of this name; None: nothing is wanted of it, nor of a slice (MIG) of one."""
    if "MIG " in gpu:
        return None
    return next((target for name, target in TARGETS.items() if re.search(rf"\b{name}\b", gpu)), None)


def batches(part: Part) -> None:
    _rates(part, "batch", {str(size): {"batch": size} for size in part.scale.batches})


def precisions(part: Part) -> None:
    cells = {
        f"{compute}{', channels_last' if last else ''}": {"compute": compute, "channels_last": last}
        for compute in part.scale.precisions
        for last in (True, False)
    }
    _rates(part, "precision", cells)


def launches(part: Part) -> None:
    _rates(part, "launches", part.scale.launches, least_s=30.0)


def _rates(part: Part, what: str, cells: Mapping[str, Mapping[str, Any]], least_s: float = 3.0) -> None:
    """A table of images/s of synthetic data, of one varied field."""
    rows = part.table(what, "images/s", "ms a step", "share of the peak")
    for name, seconds in part.cells(list(cells), least_s if part.device.type == "cuda" else 0.5):
        run = make_run({**part.scale.run, "loader": "synthetic", **cells[name]})
        try:
            found = rate(run, part.device, min(part.scale.cell_s, 0.6 * seconds), part.scale.steps)
        except UserError as error:
            part.left_out[f"{what} {name}"] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 (one figure that is not to be had must not cost the others)
            part.failed(f"{what} {name}", error)
            continue
        rows.append([name, found, run.batch * 1e3 / found, share_of_peak(run, part.device, found)])


def loaders(part: Part) -> None:
    data = gpu_checks.make_data(part.work / "data", part.scale.images)
    rows = part.table("loader", "workers", "images/s, training", "images/s, loading alone")
    names = ["synthetic", "dali-gpu", "pytorch", "dali-cpu-to-gpu", "dali-cpu"]
    workers = max(1, min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
    for name, seconds in part.cells(names, 3.0 if part.device.type == "cuda" else 0.5):
        fields = {**part.scale.run, "loader": name, "workers": workers}
        try:
            run = make_run({**fields, **({} if name == "synthetic" else {"data": str(data)})})
            each_s = min(part.scale.cell_s, 0.4 * seconds)
            trained = rate(run, part.device, each_s, part.scale.steps)
            alone = None if name == "synthetic" else _alone(run, part.device, each_s)
        except UserError as error:
            part.left_out[name] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 (one loader that fails must not cost the others)
            part.failed(name, error)
            continue
        rows.append([name, workers, trained, alone])
    if part.device.type == "cuda":
        part.wrong += slow_loaders(rows)


def slow_loaders(rows: Sequence[Sequence[Any]]) -> list[str]:
    """What is wrong with dali-gpu's rate in a table of loaders (name, workers, training, loading alone)."""
    training = {name: trained for name, _, trained, _ in rows}
    alone = {name: rate for name, _, _, rate in rows}
    if not {"synthetic", "dali-gpu"} <= set(training):
        return []
    least = LEAST_WITH_DALI * min(training["synthetic"], alone["dali-gpu"])
    if training["dali-gpu"] >= least:
        return []
    return [f"dali-gpu: {training['dali-gpu']:.0f} images/s, at least {least:.0f} wanted"]


def _alone(run: Run, device: torch.device, seconds: float) -> float:
    """Images/s of a loader whose batches nobody trains on."""
    loader = build_loader(run, 0, 1, device)

    def take(count: int) -> None:
        for _ in range(count):
            next(loader)

    try:
        return median_rate(take, run.batch, device, seconds, 4)
    finally:
        loader.close()
        free()
