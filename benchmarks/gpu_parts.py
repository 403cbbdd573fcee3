"""python -m benchmarks.gpu_parts --out DIR --seconds S PART...: the parts of benchmarks.gpu, in one process.

Each writes DIR/parts/PART.json when it has ended, and what it has so far to PART.sofar. benchmarks.gpu starts
this, waits for the files, and goes on in a new process where this one ends or hangs.
"""

import argparse
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import gpu_checks, training
from benchmarks.gpu import PARTS, ROOT
from jobs.doctor import examine
from jobs.machine import this_machine
from jobs.run import Run, make_run
from profiling.errors import UserError
from profiling.markers import open_markers
from profiling.step_clock import Clock, open_clock
from profiling.tools import open_capture
from train import loop, timing
from train.device import choose_device, set_kernels
from train.device_name import device_name
from train.loaders import build_loader
from train.models import build_model, flops_per_image
from train.precision import Precision
from train.rank import _bare_model, compiled, make_optimizer
from train.step import make_step
from train.studies.memory import is_out_of_memory
from train.world import World

# Images/s that ResNet50 in bf16, channels_last, should reach at batch 256, synthetic, by the GPU's name.
TARGETS = {"H200": 3500.0, "H100": 3000.0}
LEAST_OF_BARE = 0.99
MOST_MARKERS_US = 20.0
OUT_OF_TIME = 124  # an exit code, as timeout(1) has it


@dataclass(frozen=True)
class Scale:
    """What is trained: on a GPU in earnest, on a CPU so that the command is tried."""

    run: Mapping[str, Any]
    batches: tuple[int, ...]  # sizes
    precisions: tuple[str, ...]
    compile: tuple[bool | str, ...]
    images: int  # of the data set
    steps: int  # timed together
    cell_s: float  # that one figure may take


ON_GPU = Scale(
    {"model": "resnet50", "image_size": 224, "batch": 256, "compute": "bf16", "channels_last": True,
     "device": "gpu"},
    (256, 32, 64, 128, 512), ("bf16", "fp16", "tf32", "fp32"),
    (False, "reduce-overhead", True, "max-autotune"), 512, 10, 10.0,
)  # fmt: skip
ON_CPU = Scale(
    {"model": "resnet18", "image_size": 32, "batch": 4, "compute": "fp32", "device": "cpu", "threads": 1},
    (4, 2), ("fp32", "bf16"), (False,), 64, 2, 0.5,
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
        if code == OUT_OF_TIME or "not on the PATH" in said:
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


# --- what is measured ----------------------------------------------------------------------------------


def rate(run: Run, device: torch.device, seconds: float, steps: int) -> float:
    """Images/s of our loop: the median over blocks of steps, after a warm-up.

    Raises:
        UserError: the run cannot be done here.
    """
    set_kernels(run, device)
    loader = build_loader(run, 0, 1, device)
    try:
        train = training.our_loop(run, device, compiled(_bare_model(run, device), run), loader)
        return median_rate(train, run.batch, device, seconds, steps)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise UserError("not enough memory") from None
        raise
    finally:
        loader.close()
        free()


def median_rate(
    train: Callable[[int], None], batch: int, device: torch.device, seconds: float, steps: int
) -> float:
    """Images/s of a loop, the median over blocks of so many steps."""
    start = time.monotonic()
    train(steps)
    finish(device)
    found: list[float] = []
    while not found or (time.monotonic() - start < seconds and len(found) < 50):
        before = time.perf_counter()
        train(steps)
        finish(device)
        found.append(steps * batch / (time.perf_counter() - before))
    return float(np.median(found))


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free() -> None:
    """Give back what the cell before had, so that the next one has all of the memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def share_of_peak(run: Run, device: torch.device, images_per_s: float) -> float | None:
    """MFU by the datasheet's peak; None where it is not known."""
    from analysis.measures.kernels import peaks

    peak = peaks.find(device_name(device)) if device.type == "cuda" else None
    if peak is None or run.compute not in peak.flops_per_s:
        return None
    return (
        flops_per_image(build_model(run.model), run.image_size)[1]
        * images_per_s
        / peak.flops_per_s[run.compute]
    )


# --- the parts -----------------------------------------------------------------------------------------


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
        except Exception as error:  # noqa: BLE001 (one check that fails must not cost the others)
            checks = [gpu_checks.failed(error, name)]
        rows += [[one.what, one.found, one.bound, "yes" if one.right else "NO"] for one in checks]
        part.wrong += [f"{one.what}: {one.found:g}, at most {one.bound:g}" for one in checks if not one.right]
        free()
    shutil.rmtree(folder, ignore_errors=True)


def speed(part: Part) -> None:
    run, device = make_run({**part.scale.run, "loader": "synthetic"}), part.device
    set_kernels(run, device)
    torch.manual_seed(0)
    loader = build_loader(run, 0, 1, device)
    ours = training.our_loop(run, device, _bare_model(run, device), loader)
    bare = training.bare_loop(run, device, _bare_model(run, device), training.bare_batches(run, device))
    steps = part.scale.steps
    before = time.monotonic()
    training.by_turns(ours, bare, 1, steps, device)
    one_s = (time.monotonic() - before) / (1 + training.WARM_UP_BLOCKS)
    pairs = max(
        3, min(50, int(min(0.7 * part.left_s, 4 * part.scale.cell_s) / one_s) - training.WARM_UP_BLOCKS)
    )
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
    target = next((target for gpu, target in TARGETS.items() if gpu in name), None)
    if target and ours_rate < target:
        part.wrong.append(f"{ours_rate:.0f} images/s, at least {target:.0f} wanted of a {name}")


def batches(part: Part) -> None:
    _rates(part, "batch", {str(size): {"batch": size} for size in part.scale.batches})


def precisions(part: Part) -> None:
    cells = {
        f"{compute}{', channels_last' if last else ''}": {"compute": compute, "channels_last": last}
        for compute in part.scale.precisions
        for last in (True, False)
    }
    _rates(part, "precision", cells)


def compile_modes(part: Part) -> None:
    _rates(
        part, "compile", {str(mode).lower(): {"compile": mode} for mode in part.scale.compile}, least_s=30.0
    )


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
        rows.append([name, found, run.batch * 1e3 / found, share_of_peak(run, part.device, found)])


def loaders(part: Part) -> None:
    data = gpu_checks.make_data(part.out / "data", part.scale.images)
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
        except (UserError, ImportError) as error:
            part.left_out[name] = str(error)
            continue
        rows.append([name, workers, trained, alone])


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


def markers(part: Part) -> None:
    rows = part.table("collector", "us a step")
    for name, found in training.measure_markers().items():
        rows.append([name, found])
        if found > MOST_MARKERS_US and part.device.type == "cuda":
            part.wrong.append(f"markers, {name}: {found:g} us a step, at most {MOST_MARKERS_US:g} wanted")


class HostCost:
    """A clock that also takes the processor time of this process at each instant of a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.used_ns: list[int] = []

    def start(self) -> None:
        self._clock.start()

    def tick(self) -> int:
        self.used_ns.append(time.process_time_ns())
        return self._clock.tick()

    def settle(self) -> None:
        self._clock.settle()

    def instants_ns(self) -> np.ndarray:
        return self._clock.instants_ns()


def host(part: Part) -> None:
    """Of a small batch, so that the host never waits for a full queue of the device."""
    run = make_run({**part.scale.run, "loader": "synthetic", "batch": min(8, part.scale.run["batch"])})
    run = run.model_copy(update={"batches": 10 if part.device.type == "cpu" else 100})
    set_kernels(run, part.device)
    batches = build_loader(run, 0, 1, part.device)
    model = compiled(_bare_model(run, part.device), run)
    clock = HostCost(open_clock(part.device.type))
    step = make_step(run, model, make_optimizer(model, run, part.device), Precision(run, part.device))
    capture = open_capture("none", part.out, 0)
    loop.train(run, step, batches, open_markers(), clock, capture, lambda index, loss: None)
    ticks = np.array(clock.used_ns).reshape(-1, timing.INSTANTS)[run.batches // 2 :]
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
        "batches": 40,
    }
    rows = part.table("profile", "ms a step", "divided by the unprofiled run")
    folder = part.out / "perturbation"
    shutil.rmtree(folder, ignore_errors=True)
    plain: float | None = None
    wanted = ["none", *(name for name in ("torch", "cupti", "nsys") if name in names)]
    for name, _ in part.cells(wanted, 20.0 if part.device.type == "cuda" else 5.0):
        try:
            found = of_tools.steps_ms(make_run({**fields, "profile": name}), folder / name)["median"]
        except UserError as error:
            part.left_out[name] = str(error)
            continue
        plain = found if name == "none" else plain
        rows.append([name, found, found / plain if plain else None])
    part.left_out |= dict.fromkeys(
        (name for name in names if name not in wanted), "not timed by this command"
    )
    shutil.rmtree(folder, ignore_errors=True)


def studies(part: Part) -> None:
    device = "gpu" if part.device.type == "cuda" else "cpu"
    small = (
        ["--repetitions", "2", "--warmup", "1"]
        if device == "cpu"
        else ["--repetitions", "5", "--warmup", "2"]
    )
    rows = part.table("study", "ended with", "result")
    for name, seconds in part.cells(["layers", "gemm", "order", "capacity"], 10.0):
        out = part.out / "studies" / name
        shutil.rmtree(out, ignore_errors=True)
        command = [f"train.studies.{name}", "--device", device, *small, "--out", str(out)]
        code, said = _command(command, seconds)
        if part.ended_well(f"study {name}", code, said):
            rows.append([name, code, str(out.relative_to(part.out))])


def sweep(part: Part) -> None:
    folder = part.out / "sweep"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = part.out / "sweep.yaml"
    fields = {**part.scale.run, "loader": "synthetic", "batches": 40, "profile": ["none", "torch"]}
    run = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in fields.items())
    file.write_text(f"repetitions: {{none: 2, torch: 1}}\ntime_limit_s: 120\nrun:\n{run}")
    rows = part.table("command", "ended with")
    commands = [["jobs.sweep", str(file), "--out", str(folder)], ["analysis.scaled", str(folder)],
                ["analysis.kernels", str(folder)], ["analysis.report", str(folder)]]  # fmt: skip
    for name, seconds in part.cells([" ".join(words) for words in commands], 5.0):
        code, said = _command(name.split(), seconds)
        if not part.ended_well(name, code, said):
            return
        rows.append([name.replace(str(part.out), "DIR"), code])


def profiles(part: Part) -> None:
    """A step or two of a small network, as each tool writes it; nothing of the environment goes with them."""
    tiny = {
        "model": "resnet18",
        "image_size": 64,
        "batch": 8,
        "batches": 4,
        "attribute_from": 2,
        "threads": 1,
    }
    tiny |= {"device": part.scale.run["device"], "compute": part.scale.run["compute"]}
    rows = part.table("profile", "file", "bytes")
    kept = part.out / "profiles"
    shutil.rmtree(kept, ignore_errors=True)
    from jobs.flags import to_flags

    for name, seconds in part.cells(
        ["torch", "cupti", "nsys", "ncu"] if part.device.type == "cuda" else ["torch"], 10
    ):
        out = part.out / "profiled" / name
        flags = [*to_flags(make_run({**tiny, "profile": name})), f"--out={out}"]
        words = ["train", *flags, "--keep-raw"]
        if name in ("nsys", "ncu"):
            wrap = ["profiling.wrap", "--tool", name, "--out", str(out), "--device", "gpu", "--keep-raw"]
            words = [*wrap, "--first-batch", "2", "--", "-m", "train", *flags]
        code, said = _command(words, seconds, bare=True)
        if not part.ended_well(f"profile {name}", code, said):
            continue
        for path in sorted((out / "rank_0000" / "raw").glob("*")):
            target = kept / name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            rows.append([name, str(target.relative_to(part.out)), target.stat().st_size])
    shutil.rmtree(part.out / "profiled", ignore_errors=True)


_BARE = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMPDIR")


def _command(words: list[str], seconds: float, bare: bool = False) -> tuple[int, str]:
    """The exit code and the last line of a command of ours.

    Args:
        bare: without most of the environment, which tools write into what they keep.
    """
    environment = (
        {name: os.environ[name] for name in _BARE if name in os.environ} if bare else dict(os.environ)
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, timeout=max(5.0, seconds),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME, f"it took more than {seconds:.0f} s"
    return done.returncode, (done.stdout.strip().splitlines() or [""])[-1][:300]


DO: dict[str, Callable[[Part], None]] = {
    "machine": machine, "correctness": correctness, "speed": speed, "batches": batches, "loaders": loaders,
    "precisions": precisions, "markers": markers, "host": host, "perturbation": perturbation,
    "compile": compile_modes, "sweep": sweep, "studies": studies, "profiles": profiles,
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
