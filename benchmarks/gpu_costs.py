"""Parts of benchmarks.gpu: what do the markers, the host's share of a step, and profilers cost?"""

import shutil
import time

import numpy as np

from benchmarks import training
from benchmarks.gpu_part import Part, finish
from jobs.doctor import examine
from jobs.machine import this_machine
from jobs.run import make_run
from profiling.clocks import open_clock
from profiling.errors import UserError
from profiling.markers import open_markers
from profiling.tools import open_capture
from train import loop
from train.device import set_kernels
from train.loaders import build_loader
from train.loop import Precision, make_step
from train.rank import bare_model, compiled, make_optimizer

MOST_MARKERS_US = 20.0


def markers(part: Part) -> None:
    rows = part.table("collector", "us a step")
    for name, found in training.measure_markers().items():
        rows.append([name, found])
        if found > MOST_MARKERS_US and part.device.type == "cuda":
            part.wrong.append(f"markers, {name}: {found:g} us a step, at most {MOST_MARKERS_US:g} wanted")


def host(part: Part) -> None:
    """Of a small batch, so that the host never waits for a full queue of the device."""
    run = make_run({**part.scale.run, "loader": "synthetic", "batch": min(8, part.scale.run["batch"])})
    run = run.model_copy(update={"batches": 10 if part.device.type == "cpu" else 100})
    set_kernels(run, part.device)
    batches = build_loader(run, 0, 1, part.device)
    model = compiled(bare_model(run, part.device), run)
    at_instants: list[int] = []
    clock = training.ObservedClock(
        open_clock(part.device.type), lambda: at_instants.append(time.process_time_ns())
    )
    step = make_step(run, model, make_optimizer(model, run, part.device), Precision(run, part.device))
    capture = open_capture("none", part.work, 0)
    loop.train(run, step, batches, open_markers(), clock, capture, lambda index, loss: None)
    ticks = np.array(at_instants).reshape(-1, loop.INSTANTS)[run.batches // 2 :]
    stages = np.diff(ticks, axis=1)
    rows = part.table("stage", "ms of processor time a step")
    names = ("load", "forward", "backward", "update", "end")
    rows += [[name, float(np.median(stages[:, i])) / 1e6] for i, name in enumerate(names)]
    ours = float(np.median(ticks[:, -1] - ticks[:, 0])) / 1e6
    rows.append(["whole step", ours])
    bare = training.bare_loop(run, part.device, model, training.bare_batches(run, part.device))
    bare(run.batches // 2)
    finish(part.device)
    used = []
    for _ in range(run.batches // 2):
        before = time.process_time_ns()
        bare(1)
        used.append(time.process_time_ns() - before)
    finish(part.device)
    rows.append(["bare PyTorch, whole step", float(np.median(used)) / 1e6])


def perturbation(part: Part) -> None:
    from benchmarks import perturbation as of_tools

    here = this_machine()
    names, absent = of_tools.tools_here(examine(here), part.device.type == "cuda")
    part.left_out |= absent
    fields = {
        **part.scale.run,
        "loader": "synthetic",
        "batch": min(64, part.scale.run["batch"]),
        "batches": 24,
    }
    rows = part.table("profile", "ms a step", "divided by the unprofiled run")
    folder = part.work / "perturbation"
    shutil.rmtree(folder, ignore_errors=True)
    plain: float | None = None
    wanted = ["none", *(name for name in ("torch", "cupti", "nsys") if name in names)]
    for name, seconds in part.cells(wanted, 12.0 if part.device.type == "cuda" else 5.0):
        try:
            found = of_tools.steps_ms(make_run({**fields, "profile": name}), folder / name, seconds)["median"]
        except of_tools.OutOfTime as error:
            part.left_out[name] = str(error)
            continue
        except UserError as error:
            part.failed(name, error)
            continue
        plain = found if name == "none" else plain
        rows.append([name, found, found / plain if plain else None])
    part.left_out |= dict.fromkeys(
        (name for name in names if name not in wanted), "not timed by this command"
    )
    shutil.rmtree(folder, ignore_errors=True)
