"""python -m benchmarks.gpu [--minutes 8]: is scaleprof right on this GPU, and how fast? All in one command.

What matters most comes first, and each part's result is written as soon as it is there: if the time runs out,
or a part fails, the others stand, and what was left out is named with the reason. A part that hangs is ended,
and the next one begins in a new process. Results below --out: gpu.json and gpu.md with hardware and versions,
a sweep with its report, small raw profiles.

    python -m benchmarks.gpu                     an environment of the project's own
    python3 -m benchmarks.gpu --wheels FOLDER    Python 3.11 to 3.13, torch 2.11 to 2.13; the rest from wheels
    python -m benchmarks.gpu --device cpu        sized down: that the command works, and nothing of a GPU

Exit code 1: a part failed, or a result is not right.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Nothing but the standard library: what else is needed may still be in --wheels.
ROOT = Path(__file__).resolve().parents[1]
# part -> (what it answers, the share of the time left that it may take), what matters most first
PARTS: dict[str, tuple[str, float]] = {
    "machine": ("What is measured, with which versions?", 0.10),
    "correctness": ("Does a GPU compute what a CPU does?", 0.30),
    "speed": ("Images/s against a bare PyTorch loop, and against the targets", 0.30),
    "batches": ("Images/s by batch size, and the share of the peak", 0.30),
    "loaders": ("Images/s by loader, and each loader's own limit", 0.40),
    "precisions": ("Images/s by precision and memory layout", 0.30),
    "markers": ("What do the markers of a step cost?", 0.30),
    "host": ("What does a step cost the host?", 0.30),
    "perturbation": ("What does each profiler cost?", 0.50),
    "compile": ("Images/s by compile mode and CUDA graphs", 0.60),
    "sweep": ("A sweep, its table and its report", 0.60),
    "studies": ("The single-node studies", 0.80),
    "profiles": ("Small raw profiles, as test data", 1.00),
}
WORKER = ["-m", "benchmarks.gpu_parts"]
_GRACE_S = 20.0  # beyond its share before a part is ended


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it [8]")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu", help="[results/gpu]")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels: all that is needed beside torch")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto", help="[auto]")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; one of: {', '.join(PARTS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if given.wheels:
        environment["PYTHONPATH"] = os.pathsep.join([str(install(given.wheels, given.out)), str(ROOT)])
    report: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "minutes": given.minutes,
        "parts": {name: left_out("not reached") for name in parts},
    }
    run_parts(parts, given, environment, report, time.monotonic() + 60 * given.minutes)
    print(as_markdown(report))
    wrong = [name for name, one in report["parts"].items() if one["status"] == "failed" or one.get("wrong")]
    return 1 if wrong else 0


def install(wheels: Path, out: Path) -> Path:
    """Unpack the wheels into a folder of their own, without a registry; torch stays the machine's."""
    site = out.resolve() / "site"
    if not site.is_dir():
        # Names, so that of a folder for several releases of Python pip takes those that fit.
        names = sorted({path.name.split("-")[0] for path in wheels.glob("*.whl")})
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        command += ["--find-links", str(wheels), "--target", str(site), *names]
        subprocess.run(command, check=True)
    return site


def run_parts(
    parts: Sequence[str],
    given: argparse.Namespace,
    environment: Mapping[str, str],
    report: dict[str, Any],
    end: float,
) -> None:
    """Do the parts in one process, and in another what is left when that has ended before its time."""
    left = list(parts)
    while left:
        if end - time.monotonic() < 5:
            report["parts"] |= {name: left_out("the time was up") for name in left}
            break
        left = work(left, given, environment, report, end)
        write(report, given.out)
    write(report, given.out)


def work(
    left: list[str],
    given: argparse.Namespace,
    environment: Mapping[str, str],
    report: dict[str, Any],
    end: float,
) -> list[str]:
    """One process for the parts that are left; those that it did not come to are returned."""
    results = given.out / "parts"
    results.mkdir(exist_ok=True)
    for name in left:
        for suffix in (".json", ".sofar"):
            (results / f"{name}{suffix}").unlink(missing_ok=True)
    log = given.out / "log.txt"
    command = [sys.executable, *WORKER, "--out", str(given.out), "--device", given.device]
    command += ["--seconds", f"{end - time.monotonic():.0f}", *left]
    with log.open("a") as said:
        worker = subprocess.Popen(
            command, cwd=ROOT, env=dict(environment), stdout=said, stderr=said, start_new_session=True
        )
    while left:
        share = (end - time.monotonic()) * PARTS[left[0]][1] + _GRACE_S
        why = wait_for(results / f"{left[0]}.json", worker, share)
        if why:
            stop(worker)
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            so_far = results / f"{left[0]}.sofar"
            found = json.loads(so_far.read_text()) if so_far.exists() else {}
            report["parts"][left[0]] = {**found, "status": "failed", "why": " ".join([why, *last])[:500]}
            return left[1:]
        report["parts"][left[0]] = json.loads((results / f"{left[0]}.json").read_text())
        print(f"{left[0]}: {report['parts'][left[0]]['status']}", file=sys.stderr, flush=True)
        write(report, given.out)
        left = left[1:]
    worker.wait()
    return []


def wait_for(result: Path, worker: subprocess.Popen, seconds: float) -> str:
    """Wait for a part's file; why it does not come, or "" when it is there."""
    deadline = time.monotonic() + seconds
    while not result.exists():
        if worker.poll() is not None and not result.exists():
            return f"its process ended with exit code {worker.returncode}:"
        if time.monotonic() > deadline:
            return f"it took more than {seconds:.0f} s:"
        time.sleep(0.1)
    return ""


def stop(worker: subprocess.Popen) -> None:
    """End a process with all that it has started."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def left_out(why: str) -> dict[str, Any]:
    return {"status": "left out", "why": why}


def write(report: Mapping[str, Any], out: Path) -> None:
    """Both files, each whole or as it was."""
    for name, text in (("gpu.json", json.dumps(report, indent=1) + "\n"), ("gpu.md", as_markdown(report))):
        partial = out / f"{name}.partial"
        partial.write_text(text)
        partial.replace(out / name)


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# scaleprof on this GPU",
        "",
        f"    {report['command']}",
        "",
        f"Started {report['started']}.",
        "",
    ]
    for name, part in report["parts"].items():
        lines += [f"## {PARTS[name][0]}", ""]
        if part["status"] != "done":
            lines += [f"{part['status']}: {part['why']}", ""]
        for table in part.get("tables", []):
            lines += [*_table(table), ""]
        lines += [f"- {note}" for note in part.get("notes", [])]
        lines += [f"- left out: {what}: {why}" for what, why in part.get("left_out", {}).items()]
        lines += [f"- **not right**: {what}" for what in part.get("wrong", [])]
        lines += [f"- took {part['seconds']:.0f} s", ""] if "seconds" in part else [""]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Mapping[str, Any]) -> list[str]:
    rows = [[_cell(value) for value in row] for row in table["rows"]]
    head = [f"| {' | '.join(table['columns'])} |", f"|{' --- |' * len(table['columns'])}"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
