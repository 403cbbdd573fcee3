"""What is a part of benchmarks.gpu, and what has it found so far?"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import ROOT

OUT_OF_TIME = 124  # an exit code, as timeout(1) has it


@dataclass(frozen=True)
class Scale:
    """What is trained: on a GPU in earnest, on a CPU so that the command is tried."""

    run: Mapping[str, Any]
    batches: tuple[int, ...]  # sizes
    precisions: tuple[str, ...]
    launches: Mapping[str, Mapping[str, Any]]  # ways to launch a step's kernels, each with its fields
    images: int  # of the data set
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
    512, 10, 10.0,
)  # fmt: skip
ON_CPU = Scale(
    {"model": "resnet18", "image_size": 32, "batch": 4, "compute": "fp32", "device": "cpu", "threads": 1},
    (4, 2), ("fp32", "bf16"), {"eager": {}}, 64, 2, 0.1,
)  # fmt: skip


@dataclass
class Part:
    """What a part has found so far; it is written after every cell, too.

    Attributes:
        tables: each a title-less table of columns and rows.
        wrong: what is not right.
    """

    name: str
    device: torch.device
    scale: Scale
    out: Path
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
        every = asdict(self)
        return {name: every[name] for name in ("tables", "notes", "left_out", "wrong")}

    def save(self, found: Mapping[str, Any], suffix: str) -> None:
        """Write the part's file, whole or as it was."""
        path = self.out / "parts" / f"{self.name}{suffix}"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(found, default=str))
        partial.replace(path)

    def ended_well(self, what: str, code: int, said: str) -> bool:
        """Whether a command did what it should; if not, that is noted."""
        if code == OUT_OF_TIME or "on the PATH" in said:
            self.left_out[what] = said
        elif code:
            self.wrong.append(f"{what} ended with {code}: {said}")
        return not code

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
            self.save(self.found(), ".sofar")


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
    """The exit code and the last line of a command of ours.

    Args:
        bare: without most of the environment, which tools write into what they keep.
    """
    environment = (
        {name: os.environ[name] for name in BARE if name in os.environ} if bare else dict(os.environ)
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, timeout=max(5.0, seconds),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME, f"it took more than {seconds:.0f} s"
    return done.returncode, (done.stdout.strip().splitlines() or [""])[-1][:300]
