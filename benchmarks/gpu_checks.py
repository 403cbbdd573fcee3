"""Does a GPU compute what a CPU does, and do its tools agree? Checks of benchmarks.gpu, and of tests/gpu.

Each check trains for a few steps and compares. On a CPU some of them run too, so that they do not fail for
the first time on the day that a GPU is there.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_part import machine_lacks
from benchmarks.perturbation import LIMIT_S, OutOfTime, steps_ms
from jobs.run import STEPS_BEFORE_GRAPH, Run, make_run
from profiling import tables
from profiling.errors import UserError
from profiling.tools import Options, check_can_record, is_importable
from train import data
from train.loaders import build_loader
from train.rank import Finished, run_rank
from train.world import World

STEPS = 4
_KEPT_BYTES = 86e6  # by ResNet50 in fp32 of an image of 224 x 224 until its backward pass (saved_bytes)


class Absent(UserError):
    """What a check needs is not on this machine."""


@dataclass(frozen=True)
class Check:
    """What was compared, what came of it, and the most that is right."""

    what: str
    found: float
    bound: float

    @property
    def right(self) -> bool:
        return self.found <= self.bound  # False for NaN, too


@dataclass(frozen=True)
class Lab:
    """Where checks are done.

    Attributes:
        folder: for what runs leave.
        data: a small data set.
        limit_s: for a run under a tool.
    """

    device: torch.device
    folder: Path
    data: Path
    limit_s: float = LIMIT_S

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    def run(self, **fields: Any) -> Run:
        """A short run on the device."""
        small = {"model": "resnet18", "image_size": 64, "batch": 16, "batches": STEPS, "workers": 0}
        # In many steps, or of few pixels, batch norm makes much of what rounding makes different.
        small |= {} if self.gpu else {"batch": 8, "threads": 1}
        device = "gpu" if self.gpu else "cpu"
        return make_run({**small, "device": device, "learning_rate": 1e-4, **fields})

    def train(self, name: str, **fields: Any) -> tuple[Finished, Any]:
        """A short run in this process, and its steps as a DataFrame."""
        out = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        finished = run_rank(self.run(**fields), World(), out, False, lambda text: None)
        return finished, tables.read(tables.rank_directory(out, 0), "batches").to_pandas()


def precisions(lab: Lab) -> list[Check]:
    """Losses of each precision against fp32 on the CPU: the same start, close for a few steps."""
    truth = lab.train("cpu", device="cpu")[1].loss.to_numpy()
    # Of fp32 rounding and the order of sums; TF32 has 10 bits, bf16 7, fp16 10 and a scaled loss.
    bounds = (
        {"fp32": 2e-3, "tf32": 2e-2, "bf16": 5e-2, "fp16": 5e-2} if lab.gpu else {"fp32": 1e-6, "bf16": 5e-2}
    )
    ways: list[dict[str, Any]] = [{"compute": compute} for compute in bounds]
    ways += [{"compute": "bf16", "channels_last": True}, {"compute": "fp32", "channels_last": True}]
    checks = []
    for way in ways:
        losses = lab.train("precision", **way)[1].loss.to_numpy()
        off = float(np.max(np.abs(losses / truth - 1)))
        bound = bounds[way["compute"]] if "channels_last" not in way else max(2e-3, bounds[way["compute"]])
        said = f"{way['compute']}{', channels_last' if 'channels_last' in way else ''}"
        checks.append(Check(f"loss, {said}, against a CPU's fp32", off, bound))
    return checks


def backends(lab: Lab) -> list[Check]:
    """DDP with one rank (over NCCL on a GPU) against no backend."""
    plain, ddp = (lab.train(name, backend=name)[1].loss.to_numpy() for name in ("single", "ddp"))
    return [Check("loss, ddp against single", float(np.max(np.abs(ddp / plain - 1))), 2e-3)]


def loaders(lab: Lab) -> list[Check]:
    """The first batches on the device against those on the CPU, of the same seed."""
    ways: list[tuple[str, str, float]] = [("pytorch", "pytorch", 1e-4)]
    if _has_dali():
        ways += [("dali-cpu", "dali-cpu", 1e-5)]
        # The JPEG decoder of a GPU rounds otherwise: a few of 255 steps of colour, of some 0.017 each.
        ways += [("dali-cpu-to-gpu", "dali-cpu", 1e-4), ("dali-gpu", "dali-cpu", 0.1)] if lab.gpu else []
    checks = []
    for name, peer, bound in ways:
        here, there = _batches(lab, name, lab.device), _batches(lab, peer, torch.device("cpu"))
        off = max(float((one[0] - other[0]).abs().mean()) for one, other in zip(here, there, strict=True))
        labels = sum(int((one[1] != other[1]).sum()) for one, other in zip(here, there, strict=True))
        checks.append(Check(f"pixels of {name} against {peer} on a CPU, mean", off, bound))
        checks.append(Check(f"labels of {name} that differ", labels, 0))
    return checks


def clocks(lab: Lab) -> list[Check]:
    """The steps by the clock of the loop against the kernels of the torch profiler."""
    finished, steps = lab.train("clocks", profile="torch", attribute_from=STEPS // 2)
    kernels = tables.read(tables.rank_directory(finished.out, 0), "kernels").to_pandas()
    inside = steps[steps.attributed].set_index("batch_index")
    own = kernels[kernels.batch_index.isin(inside.index) & kernels.direction.isin(["fprop", "bprop"])]
    start, end = (inside.loc[own.batch_index, name].to_numpy() for name in ("start_ns", "end_ns"))
    outside = np.maximum(
        start - own.start_ns.to_numpy(), own.start_ns.to_numpy() + own.duration_ns.to_numpy() - end
    )
    busy = float(own.groupby("batch_index").duration_ns.sum().median())
    whole = float((inside.end_ns - inside.start_ns).median())
    checks = [Check("kernels outside their step, us", float(max(0, outside.max())) / 1e3, 200.0)]
    return [*checks, Check("time of kernels, divided by that of the step", busy / whole, 1.02)]


def graphs(lab: Lab) -> list[Check]:
    """Steps launched as CUDA graphs against the same steps kernel by kernel, with one rank of DDP, too."""
    if not lab.gpu:
        return []
    batches = STEPS_BEFORE_GRAPH + STEPS
    checks = []
    for backend in ("single", "ddp"):
        eager, graph = (
            lab.train("graph", backend=backend, batches=batches, graph=wanted)[1].loss.to_numpy()
            for wanted in (False, True)
        )
        off = float(np.max(np.abs(graph / eager - 1)))
        checks.append(Check(f"loss, graph against eager, {backend}", off, 2e-3))
    return checks


def cupti(lab: Lab) -> list[Check]:
    """CUPTI's kernels against those of the torch profiler."""
    return _against_torch(lab, "cupti") if lab.gpu else []


def nsys(lab: Lab) -> list[Check]:
    """The kernels in a report of nsys against those of the torch profiler."""
    return _against_torch(lab, "nsys") if lab.gpu else []


def ncu(lab: Lab) -> list[Check]:
    """The kernels that ncu runs again and again against those of the torch profiler: their number alone.

    It flushes caches before each: durations are others.
    """
    return _against_torch(lab, "ncu", with_time=False) if lab.gpu else []


def _against_torch(lab: Lab, tool: str, with_time: bool = True) -> list[Check]:
    (count, total), (of_torch, total_of_torch) = _kernels(lab, tool), _kernels(lab, "torch")
    checks = [Check(f"kernels of a step, {tool} against torch, relative", abs(count / of_torch - 1), 0.02)]
    if with_time:
        off = abs(total / total_of_torch - 1)
        checks.append(Check(f"their time, {tool} against torch, relative", off, 0.10))
    return checks


@cache
def _kernels(lab: Lab, tool: str) -> tuple[float, float]:
    """Of a recorded step of a tiny run: how many kernels, copies and sets apart, and their time in ns.

    Raises:
        Absent: the tool is not on this machine, may not do it, or takes too long.
    """
    try:
        check_can_record(tool, Options(gpu=True))
    except UserError as error:
        raise Absent(str(error)) from None
    if tool == "cupti" and not is_importable("cupti.cupti"):
        raise Absent("cupti-python is not installed")
    run = lab.run(profile=tool, attribute_from=STEPS // 2)
    out = Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=lab.folder)) / "run"
    try:
        steps_ms(run, out, lab.limit_s)
    except UserError as error:
        if isinstance(error, OutOfTime) or machine_lacks(str(error)):
            raise Absent(str(error)) from None
        raise
    kernels = tables.read(tables.rank_directory(out, 0), "kernels").to_pandas()
    kernels = kernels[~kernels["class"].isin(["memcpy", "memset"])]
    steps = STEPS - STEPS // 2
    return len(kernels) / steps, float(kernels.duration_ns.sum()) / steps


def memory(lab: Lab) -> list[Check]:
    """Running out of memory is one line, and the next run starts as if nothing had been."""
    if not lab.gpu:
        return []
    # Of the GPU's own size: a batch that is much too large would first fill the host's memory.
    batch = int(1.2 * torch.cuda.get_device_properties(lab.device).total_memory / _KEPT_BYTES)
    said = ""
    try:
        lab.train("memory", model="resnet50", image_size=224, batch=batch, batches=1)
    except UserError as error:
        said = str(error)
    torch.cuda.empty_cache()
    after = lab.train("after", batches=2)[1].loss
    unsaid = 0.0 if said.startswith("not enough memory for") else 1.0
    return [
        Check("out of memory, and no line that says so", unsaid, 0.0),
        Check("losses after that which are not finite", float((~np.isfinite(after)).sum()), 0.0),
    ]


CHECKS: Mapping[str, Callable[[Lab], list[Check]]] = {
    "precisions": precisions, "backends": backends, "loaders": loaders, "clocks": clocks, "graphs": graphs,
    "cupti": cupti, "memory": memory, "nsys": nsys, "ncu": ncu,
}  # fmt: skip


def make_data(folder: Path, images: int) -> Path:
    """A data set of so many images, for checks and loaders, below a folder."""
    place = folder / f"{images}-images"
    data.make(place, images, classes=4, seed=0)
    return place


def _has_dali() -> bool:
    return is_importable("nvidia.dali")


def _batches(lab: Lab, loader: str, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    fields = {"loader": loader, "data": str(lab.data), "workers": 0 if loader == "pytorch" else 2, "batch": 8}
    torch.manual_seed(0)
    batches = build_loader(make_run({**fields, "image_size": 64}), 0, 1, device)
    try:
        taken = [next(batches) for _ in range(2)]
        return [(images.float().cpu().clone(), labels.cpu().clone()) for images, labels in taken]
    finally:
        batches.close()
