"""Parts of benchmarks.gpu that are commands of ours: a sweep with its report, studies, raw profiles."""

import json
import shutil

from benchmarks.gpu_part import Part, command
from jobs.flags import to_flags
from jobs.run import make_run


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
        words = [f"train.studies.{name}", "--device", device, *small, "--out", str(out)]
        code, said = command(words, seconds)
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
    for name, _ in part.cells([" ".join(words) for words in commands], 5.0):
        # The sweep is nearly all of it; if it takes too long there is nothing to answer from.
        code, said = command(name.split(), part.left_s)
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
    for name, seconds in part.cells(
        ["torch", "cupti", "nsys", "ncu"] if part.device.type == "cuda" else ["torch"], 10
    ):
        out = part.out / "profiled" / name
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
            rows.append([name, str(target.relative_to(part.out)), target.stat().st_size])
    shutil.rmtree(part.out / "profiled", ignore_errors=True)
