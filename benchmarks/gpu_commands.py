"""Parts of benchmarks.gpu that are commands of ours: a sweep with its report, studies, raw profiles."""

import json
import shutil
from pathlib import Path

from benchmarks.gpu_part import Part, command
from jobs.run import make_run
from jobs.run_fields import to_flags

_ANSWERS = ("analysis.scaled", "analysis.kernels")


def studies(part: Part) -> None:
    on_cpu = part.device.type == "cpu"
    small = ["--repetitions", "2", "--warmup", "1"] if on_cpu else ["--repetitions", "5", "--warmup", "2"]
    device = ["--device", "cpu" if on_cpu else "gpu"]
    rows = part.table("study", "ended with", "result")
    folder = _new(part.work / "studies")
    for name, seconds in part.cells(["layers", "gemm", "order", "capacity"], 10.0):
        words = [f"train.studies.{name}", *device, *small, "--out", str(folder / name)]
        code, said = command(words, seconds)
        if part.ended_well(f"study {name}", code, said):
            rows.append([name, code, f"studies/{name}"])
        part.keep(folder)


def sweep(part: Part) -> None:
    file, folder = part.work / "sweep.yaml", _new(part.work / "sweep")  # named after the file
    fields = {**part.scale.run, "loader": "synthetic", "batches": 40, "profile": ["none", "torch"]}
    run = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in fields.items())
    file.write_text(f"repetitions: {{none: 2, torch: 1}}\ntime_limit_s: 300\nrun:\n{run}")
    rows = part.table("command", "ended with")
    commands = {"jobs.sweep": ["jobs.sweep", str(file), "--out", str(part.work)],
                **{name: [name, str(folder)] for name in (*_ANSWERS, "analysis.report")}}  # fmt: skip
    for name, _ in part.cells(list(commands), 5.0):
        # The sweep is nearly all of it.
        code, said = command(commands[name], part.left_s)
        if part.ended_well(name, code, said):
            rows.append([name, code])
        elif name == "jobs.sweep":
            part.left_out |= dict.fromkeys((*_ANSWERS, "analysis.report"), "the sweep did not end well")
            break
    part.keep(folder)
    if (folder / "report.html").is_file():
        shutil.copyfile(folder / "report.html", part.out / "report.html")


def _new(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


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
    kept, folder = _new(part.work / "profiles"), _new(part.work / "profiled")
    for name, seconds in part.cells(
        ["torch", "nsys", "ncu"] if part.device.type == "cuda" else ["torch"], 10
    ):
        out = folder / name
        flags = [*to_flags(make_run({**tiny, "profile": name})), f"--out={out}"]
        words = ["train", *flags, "--keep-raw"]
        if name in ("nsys", "ncu"):
            wrap = ["profiling.wrap", "--tool", name, "--out", str(out), "--device", "gpu", "--keep-raw"]
            words = [*wrap, "--first-batch", "2", "--", "-m", "train", *flags]
        code, said = command(words, seconds, bare=True)
        if not part.ended_well(f"profile {name}", code, said):
            continue
        for path in sorted((out / "rank_0000" / "raw").glob("*")):
            target = kept / name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            rows.append([name, f"profiles/{name}/{path.name}", target.stat().st_size])
        part.keep(kept)
