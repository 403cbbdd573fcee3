"""python -m benchmarks.gpu_parts ... PART...: some parts of benchmarks.gpu, which starts it.

Each writes parts/PART.json below --work when it has ended, and what it has so far to PART.sofar.
benchmarks.gpu waits for the files, and goes on in a new process where this one ends or hangs.
"""

import argparse
import faulthandler
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_checks, gpu_commands, gpu_costs, gpu_rates
from benchmarks.gpu import AGAIN, GRACE_S, PARTS, STARTED
from benchmarks.gpu_part import Part, free, line_of, scale_of
from benchmarks.gpu_report import left_out
from jobs.doctor import examine
from jobs.machine import this_machine
from jobs.run import make_run
from profiling.errors import EXIT_DONE, run_command
from train.device import choose_device
from train.world import World

# Checks that start processes under a tool.
TOOLS, COUNTERS = ("cupti", "nsys"), ("ncu",)
_IMAGES = 16  # for checks: few, since drawing hundreds takes minutes on a host with few cores


def machine(part: Part) -> None:
    rows = part.table("what", "found")
    for finding in examine(this_machine()):
        remedy = "" if finding.present or not finding.remedy else f" ({finding.remedy})"
        rows.append([finding.name, finding.detail + remedy])
    rows += [
        ["python", platform.python_version()],
        ["PyTorch's build", torch.__version__],
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
    _check(part, [name for name in gpu_checks.CHECKS if name not in (*TOOLS, *COUNTERS)])


def tools(part: Part) -> None:
    _check(part, TOOLS)


def counters(part: Part) -> None:
    _check(part, COUNTERS)


def _check(part: Part, names: Sequence[str]) -> None:
    """A table of these checks."""
    data = gpu_checks.make_data(part.work / "data", _IMAGES)
    folder = part.work / "checks"
    folder.mkdir(exist_ok=True)
    lab = gpu_checks.Lab(part.device, folder, data, max(20.0, part.left_s / 2))
    rows = part.table("check", "found", "at most", "right")
    for name, _ in part.cells(list(names), 5.0):
        try:
            checks = gpu_checks.CHECKS[name](lab)
        except gpu_checks.Absent as error:
            part.left_out[name] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 (one check that fails must not cost the others)
            part.failed(name, error)
            continue
        rows += [[one.what, one.found, one.bound, "yes" if one.right else "NO"] for one in checks]
        part.wrong += [f"{one.what}: {one.found:g}, at most {one.bound:g}" for one in checks if not one.right]
        free()
    shutil.rmtree(folder, ignore_errors=True)


DO: dict[str, Callable[[Part], None]] = {
    "machine": machine, "correctness": correctness, "speed": gpu_rates.speed, "batches": gpu_rates.batches,
    "loaders": gpu_rates.loaders, "precisions": gpu_rates.precisions, "markers": gpu_costs.markers,
    "host": gpu_costs.host, "tools": tools, "perturbation": gpu_costs.perturbation,
    "compile": gpu_rates.launches, "sweep": gpu_commands.sweep, "studies": gpu_commands.studies,
    "counters": counters, "profiles": gpu_commands.profiles,
}  # fmt: skip


def do_part(name: str, device: torch.device, out: Path, work: Path, end: float) -> bool:
    """Do a part and write its result, whatever becomes of it; whether this process is fit for another."""
    start = time.monotonic()
    part = Part(name, device, scale_of(device), out, work, start + (end - start) * PARTS[name][1])
    if start > end:
        part.save(left_out("the time was up"))
        return True
    status: dict[str, Any] = {"status": "done"}
    print(f"=== {name}", flush=True)
    # Where a part hangs stands in the log before it is ended.
    faulthandler.dump_traceback_later(part.left_s + GRACE_S / 2)
    try:
        DO[name](part)
    except Exception as error:  # noqa: BLE001 (one part that fails must not cost the others)
        traceback.print_exc()
        status = {"status": "failed", "why": line_of(error)}
    finally:
        faulthandler.cancel_dump_traceback_later()
    part.save({**status, **part.found(), "seconds": round(time.monotonic() - start, 1)})
    return status["status"] == "done"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("parts", nargs="+")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    device = choose_device(make_run({"device": given.device}), World())
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.zeros(1, device=device)  # wakes a GPU, or shows that it cannot be used
    out, work = given.out.resolve(), given.work.resolve()
    (work / "parts" / STARTED).touch()
    for name in given.parts:
        if not do_part(name, device, out, work, end):
            return AGAIN  # an error may have left this process without its GPU, or without memory
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
