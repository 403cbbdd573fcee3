"""python -m benchmarks.gpu_parts --out DIR --seconds S PART...: the parts of benchmarks.gpu, in one process.

Each writes DIR/parts/PART.json when it has ended, and what it has so far to PART.sofar. benchmarks.gpu starts
this, waits for the files, and goes on in a new process where this one ends or hangs.
"""

import argparse
import platform
import shutil
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_checks, gpu_commands, gpu_costs, gpu_rates
from benchmarks.gpu import PARTS
from benchmarks.gpu_part import ON_CPU, ON_GPU, Part, free
from jobs.doctor import examine
from jobs.machine import this_machine
from jobs.run import make_run
from train.device import choose_device
from train.world import World


def machine(part: Part) -> None:
    rows = part.table("what", "found")
    for finding in examine(this_machine()):
        rows.append([finding.name, finding.detail + (f" ({finding.remedy})" if finding.remedy else "")])
    rows += [
        ["python", platform.python_version()],
        ["torch", torch.__version__],
        ["CUDA", torch.version.cuda],
    ]
    names = ("pydantic", "pyarrow", "nvidia-dali-cuda130", "nvidia-dali-cuda120", "cupti-python", "triton")
    for name in names:
        try:
            rows.append([name, metadata.version(name)])
        except metadata.PackageNotFoundError:
            part.left_out[name] = "not installed"
    if part.device.type == "cuda":
        rows += [[name, str(value)] for name, value in _properties(part.device).items()]


def _properties(device: torch.device) -> dict[str, Any]:
    had = torch.cuda.get_device_properties(device)
    names = ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size")
    found = {name: getattr(had, name) for name in names if hasattr(had, name)}
    return {
        **found,
        "cuDNN": torch.backends.cudnn.version(),
        "built for": " ".join(torch.cuda.get_arch_list()),
    }


def correctness(part: Part) -> None:
    data = gpu_checks.make_data(part.out / "data", part.scale.images)
    folder = part.out / "checks"
    folder.mkdir(exist_ok=True)
    lab = gpu_checks.Lab(part.device, folder, data)
    rows = part.table("check", "found", "at most", "right")
    for name, _ in part.cells(list(gpu_checks.CHECKS), 5.0):
        try:
            checks = gpu_checks.CHECKS[name](lab)
        except gpu_checks.Absent as error:
            part.left_out[name] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 (one check that fails must not cost the others)
            checks = [gpu_checks.failed(error, name)]
        rows += [[one.what, one.found, one.bound, "yes" if one.right else "NO"] for one in checks]
        part.wrong += [f"{one.what}: {one.found:g}, at most {one.bound:g}" for one in checks if not one.right]
        free()
    shutil.rmtree(folder, ignore_errors=True)


DO: dict[str, Callable[[Part], None]] = {
    "machine": machine, "correctness": correctness, "speed": gpu_rates.speed, "batches": gpu_rates.batches,
    "loaders": gpu_rates.loaders, "precisions": gpu_rates.precisions, "markers": gpu_costs.markers,
    "host": gpu_costs.host, "perturbation": gpu_costs.perturbation, "compile": gpu_rates.launches,
    "sweep": gpu_commands.sweep, "studies": gpu_commands.studies, "profiles": gpu_commands.profiles,
}  # fmt: skip


def do_part(name: str, device: torch.device, out: Path, end: float) -> None:
    """Do a part and write its result, whatever becomes of it."""
    start = time.monotonic()
    scale = ON_GPU if device.type == "cuda" else ON_CPU
    part = Part(name, device, scale, out, start + (end - start) * PARTS[name][1])
    status: dict[str, Any] = {"status": "done"}
    try:
        DO[name](part)
    except Exception as error:  # noqa: BLE001 (one part that fails must not cost the others)
        traceback.print_exc()
        status = {"status": "failed", "why": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    part.save({**status, **part.found(), "seconds": round(time.monotonic() - start, 1)}, ".json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("parts", nargs="+")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    device = choose_device(make_run({"device": given.device}), World())
    if device.type == "cpu":
        torch.set_num_threads(1)
    out = given.out.resolve()
    (out / "parts").mkdir(parents=True, exist_ok=True)
    for name in given.parts:
        do_part(name, device, out, end)


if __name__ == "__main__":
    main()
