"""What is a part of benchmarks.gpu, and what has it found so far?"""

import gc
import json
import math
import os
import re
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import DONE, ROOT, SO_FAR
from jobs.processes import Limits, Process, run_processes
from profiling.errors import UserError
from profiling.tables import whole_file

OUT_OF_TIME = 124  # an exit code, as timeout(1) has it
# What commands of ours, and PyTorch, say where the machine lacks something: nothing is wrong then.
_LACKS = re.compile(
    r"on the PATH|needs the package|needs an NVIDIA GPU and its driver|has no permission|restricts profiling"
    r"|find a working triton"
)


@dataclass(frozen=True)
class Scale:
    """What is trained: on a GPU in earnest, on a CPU so that the command is tried."""

    run: Mapping[str, Any]
    batches: tuple[int, ...]  # sizes
    precisions: tuple[str, ...]
    launches: Mapping[str, Mapping[str, Any]]  # ways to launch a step's kernels, each with its fields
    images: int  # of the loaders' data set
    steps: int  # timed together
    cell_s: float  # that one figure may take


ON_GPU = Scale(
    {"model": "resnet50", "image_size": 224, "batch": 256, "compute": "bf16", "channels_last": True,
     "device": "gpu"},
    (256, 32, 64, 128, 512), ("bf16", "fp16", "tf32", "fp32"),
    {"eager": {}, "eager, batch 32": {"batch": 32}, "graph, batch 32": {"graph": True, "batch": 32},
     "graph": {"graph": True}, "compile reduce-overhead": {"compile": "reduce-overhead"},
     "compile": {"compile": True}, "compile, graph": {"compile": True, "graph": True},
     "compile max-autotune": {"compile": "max-autotune"}},
    256, 10, 5.0,
)  # fmt: skip
# Of a GPU's memory for an image of 224 x 224: ResNet50 in bf16 keeps up to 69 MB of it (saved_bytes).
_IMAGE_BYTES = 110e6
ON_CPU = Scale(
    {"model": "resnet18", "image_size": 32, "batch": 4, "compute": "fp32", "device": "cpu", "threads": 1},
    (4, 2), ("fp32", "bf16"), {"eager": {}}, 64, 2, 0.1,
)  # fmt: skip


def scale_of(device: torch.device) -> Scale:
    """What is trained on a device."""
    if device.type == "cpu":
        return ON_CPU
    memory_bytes = torch.cuda.get_device_properties(device).total_memory
    return that_fits(ON_GPU, memory_bytes, torch.cuda.get_device_capability(device))


def that_fits(scale: Scale, memory_bytes: int, capability: tuple[int, int]) -> Scale:
    """A scale for a GPU of less memory, or without units for bf16 (below compute capability 8.0)."""
    fitting = max(size for size in (8, *scale.batches) if size == 8 or size * _IMAGE_BYTES <= memory_bytes)
    run = {**scale.run, "batch": min(scale.run["batch"], fitting)}
    if capability < (8, 0):
        run["compute"] = "fp16"
    return replace(scale, run=run)


@dataclass
class Part:
    """What a part has found so far; it is written after every cell, too.

    Attributes:
        out: for the results.
        work: for all else.
        tables: each a title-less table of columns and rows.
        left_out: what was not done, and why.
        wrong: what is not right.
    """

    name: str
    device: torch.device
    scale: Scale
    out: Path
    work: Path
    end: float  # of its time, by time.monotonic
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def found(self) -> dict[str, Any]:
        """What stands in the report."""
        return {name: getattr(self, name) for name in ("tables", "notes", "left_out", "wrong")}

    def save(self, found: Mapping[str, Any], ending: str = DONE) -> None:
        """Write the part's file, whole or as it was."""
        with whole_file(self.work / "parts" / f"{self.name}{ending}") as file:
            file.write(json.dumps(_finite(found), default=str, allow_nan=False).encode())

    def keep(self, folder: Path) -> None:
        """Pack a folder into the results, as one file."""
        with (
            whole_file(self.out / f"{folder.name}.tar.gz") as file,
            tarfile.open(fileobj=file, mode="w:gz") as pack,
        ):
            pack.add(folder, folder.name)

    def ended_well(self, what: str, code: int, said: str) -> bool:
        """Whether a command did what it should; if not, that is noted."""
        if code == OUT_OF_TIME:
            self.left_out[what] = said
        elif code:
            self.could_not(what, f"ended with {code}: {said}")
        return not code

    def could_not(self, what: str, why: str) -> None:
        """Note what could not be done: not right, or left out where the machine lacks what it needs."""
        if machine_lacks(why):
            self.left_out[what] = why
        else:
            self.wrong.append(f"{what}: {why}")

    def failed(self, what: str, error: Exception) -> None:
        """Note an error that costs one figure; the others are still to be had.

        Raises:
            RuntimeError: after this error the GPU serves this process no more.
        """
        traceback.print_exception(error)
        self.could_not(what, line_of(error))
        finish(self.device)
        free()

    def table(self, *columns: str) -> list[list[Any]]:
        """A new table's rows, to be added to."""
        rows: list[list[Any]] = []
        self.tables.append({"columns": list(columns), "rows": rows})
        return rows

    def cells(self, names: Iterator[str] | list[str], least_s: float) -> Iterator[tuple[str, float]]:
        """Each name with the seconds that it may take; those for which none are left are named."""
        todo = list(names)
        for number, name in enumerate(todo):
            if self.left_s < least_s:
                self.left_out |= dict.fromkeys(todo[number:], "the time was up")
                return
            yield name, self.left_s / (len(todo) - number)
            self.save(self.found(), SO_FAR)


def _finite(found: Any) -> Any:
    """The same without infinities and NaN, which are no JSON."""
    if isinstance(found, Mapping):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def machine_lacks(said: str) -> bool:
    """Whether what a command said is that the machine lacks a tool, or a permission."""
    return _LACKS.search(said) is not None


def line_of(error: BaseException) -> str:
    """An error in one line; of one of ours what it says, which names no class."""
    said = " ".join(str(error).split())[:400]
    return said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free() -> None:
    """Give back what the cell before had, so that the next one has all of the memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


BARE = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMPDIR")


def command(words: list[str], seconds: float, bare: bool = False) -> tuple[int, str]:
    """The exit code and the last line of a command of ours; all that it says is printed.

    Args:
        bare: without most of the environment, which tools write into what they keep.
    """
    argv = [sys.executable, "-m", *words]
    if bare:
        argv = ["env", "-i", *(f"{name}={os.environ[name]}" for name in BARE if name in os.environ), *argv]
    print("+", *words, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        # So nothing that it has started, under a profiler say, keeps the GPU when its time is up.
        ended = run_processes([Process(argv, {}, "rank")], log, Limits(max(5.0, seconds)), ROOT)
        said = log.read_text(errors="replace").strip()
    print(said, flush=True)
    if ended.kind == "time limit":
        return OUT_OF_TIME, f"it took more than {seconds:.0f} s"
    return ended.exit_code, (said.splitlines() or ["it said nothing"])[-1][:300]
