"""python -m benchmarks.gpu [--minutes 8]: is scaleprof right on this GPU, and how fast? All in one command.

What matters most comes first, and each part's result is written as soon as it is there: if the time runs out,
or a part fails, the others stand, and what was left out is named with the reason. A part that hangs is ended,
and the next one begins in a new process, as after a part that failed.

    python -m benchmarks.gpu                     an environment of the project's own
    python3 -m benchmarks.gpu --wheels FOLDER    Python 3.11 to 3.13, torch 2.11 to 2.13; the rest from wheels
    python -m benchmarks.gpu --device cpu        sized down: that the command works, and nothing of a GPU

Results are a few files in --out: gpu.md and gpu.json with hardware and versions, log.txt with all that was
printed, a sweep's report.html, and sweep.tar.gz, studies.tar.gz and profiles.tar.gz (small raw profiles).
Everything else is below --work, and may be deleted.

Exit code 1: a part failed, or a result is not right.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_report import as_markdown, is_bad, left_out, write
from benchmarks.gpu_wheels import install

# Nothing but the standard library: what else is needed may still be in --wheels.
ROOT = Path(__file__).resolve().parents[1]
# part -> (what it answers, the share of the time left that it may take), what matters most first
PARTS: dict[str, tuple[str, float]] = {
    "machine": ("what is measured, with which versions?", 0.15),
    "correctness": ("does a GPU compute what a CPU does?", 0.25),
    "speed": ("images/s against a bare PyTorch loop, and against the targets", 0.30),
    "batches": ("images/s by batch size, and the share of the peak", 0.30),
    "loaders": ("images/s by loader, and each loader's own limit", 0.40),
    "precisions": ("images/s by precision and memory layout", 0.30),
    "markers": ("what do the markers of a step cost?", 0.30),
    "host": ("what does a step cost the host?", 0.30),
    "tools": ("do cupti and nsys record what the torch profiler records?", 0.40),
    "perturbation": ("what does each profiler cost?", 0.50),
    "compile": ("images/s by compile mode and CUDA graphs", 0.60),
    "sweep": ("a sweep, its table and its report", 0.60),
    "studies": ("the single-node studies", 0.60),
    "counters": ("does ncu record the same kernels?", 0.60),
    "profiles": ("small raw profiles, as test data", 1.00),
}
WORKER = ["-m", "benchmarks.gpu_parts"]
DONE, SO_FAR = ".json", ".sofar"  # endings of the files of a part
STARTED = "started"  # a file: PyTorch is imported, and the device answers
AGAIN = 75  # a worker's exit code after a part that failed: the others are for a new process
_START_S = 120.0  # to import PyTorch from a cold disk, and to wake the device
GRACE_S = 20.0  # beyond its share before a part is ended
_LEAST_S = 5.0
_NOT_REACHED = "not reached"


def main() -> int:
    given = _arguments()
    end = time.monotonic() + 60 * given.minutes
    # Who stops it (a batch system, a time limit) ends what it has started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = given.out.resolve()
    work = given.work.resolve() if given.work else out / "work"
    (work / "parts").mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    report: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "minutes": given.minutes,
        "wheels": {},
        "parts": {name: {"question": PARTS[name][0], **left_out(_NOT_REACHED)} for name in given.parts},
    }
    if given.wheels:
        site, report["wheels"] = install(given.wheels, work)
        paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    Campaign(out, work, given.device, end, environment, report).run(given.parts)
    print(as_markdown(report))
    return 1 if any(map(is_bad, report["parts"].values())) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it [8]")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu", help="[results/gpu]")
    parser.add_argument("--work", type=Path, help="for what need not be kept: data, wheels, runs [OUT/work]")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels: all that is needed beside torch")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="[gpu]")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    given = parser.parse_args()
    given.parts = given.parts.split(",")
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; one of: {', '.join(PARTS)}")
    if given.wheels and not any(given.wheels.glob("*.whl")):
        parser.error(f"{given.wheels} holds no wheels: python -m benchmarks.gpu_wheels FOLDER downloads them")
    return given


@dataclass
class Campaign:
    """Parts, done in one process after another.

    Attributes:
        out: for the results.
        work: for all else; ``parts`` below it is where the processes leave each part's result.
        end: of the time, by time.monotonic.
        environment: of the processes.
        report: what is written; each part's result is added.
    """

    out: Path
    work: Path
    device: str
    end: float
    environment: dict[str, str]
    report: dict[str, Any]

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def run(self, parts: Sequence[str]) -> None:
        """Do the parts in one process, and in another what is left when that has ended before its time."""
        left = list(parts)
        try:
            while left and self.left_s >= _LEAST_S:
                left = self._in_one_process(left)
        except KeyboardInterrupt:
            self._leave_out("it was stopped")
        self._leave_out("the time was up")

    def _in_one_process(self, parts: list[str]) -> list[str]:
        """One process for the parts; those that are left for another are returned."""
        results = self.work / "parts"
        for name in (STARTED, *(f"{part}{ending}" for part in parts for ending in (DONE, SO_FAR))):
            (results / name).unlink(missing_ok=True)
        command = [sys.executable, *WORKER, "--out", str(self.out), "--work", str(self.work)]
        command += ["--device", self.device, "--seconds", f"{self.left_s:.0f}", *parts]
        with self._log.open("a") as said:
            # Of this session: whoever ends that, ends this process too.
            worker = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=said, stderr=said, process_group=0
            )
        number = 0
        try:
            if why := wait_for(results / STARTED, worker, _START_S):
                self._add(parts[0], self._result(parts[0], why))
                self._leave_out(f"no part can begin here: see {parts[0]}")
                return []
            for number, name in enumerate(parts):
                share = max(0.0, self.left_s * PARTS[name][1]) + GRACE_S
                why = wait_for(results / f"{name}{DONE}", worker, share)
                if why and worker.returncode == AGAIN:
                    return parts[number:]
                self._add(name, self._result(name, why))
                if why:
                    return parts[number + 1 :]
            return []
        except KeyboardInterrupt:
            for name in parts[number:]:
                self._add(name, result := self._result(name, "it was stopped:"))
                if result["status"] == "failed":  # the one that was being done
                    break
            raise
        finally:
            stop(worker)

    @property
    def _log(self) -> Path:
        return self.out / "log.txt"

    def _result(self, name: str, why: str) -> dict[str, Any]:
        """What a part has written; or what it had so far, why it did not end, and what was printed last."""
        ended, so_far = (self.work / "parts" / f"{name}{ending}" for ending in (DONE, SO_FAR))
        if ended.exists():
            return json.loads(ended.read_text())
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        found = json.loads(so_far.read_text()) if so_far.exists() else {}
        return {**found, "status": "failed", "why": " ".join([why, *last])[:500]}

    def _add(self, name: str, result: dict[str, Any]) -> None:
        self.report["parts"][name] = {"question": PARTS[name][0], **result}
        print(f"{name}: {result['status']}", file=sys.stderr, flush=True)
        write(self.report, self.out)

    def _leave_out(self, why: str) -> None:
        """Say why the parts were left out that have not been reached."""
        for part in self.report["parts"].values():
            if part.get("why") == _NOT_REACHED:
                part |= left_out(why)
        write(self.report, self.out)


def wait_for(result: Path, worker: subprocess.Popen, seconds: float) -> str:
    """Wait for a file of a process; why it does not come, or "" when it is there."""
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
    with suppress(ProcessLookupError):  # it has ended by itself, and so has what it started
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


if __name__ == "__main__":
    sys.exit(main())
