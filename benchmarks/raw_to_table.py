"""python -m benchmarks.raw_to_table: how long, in how much memory, from 64 ranks' raw profiles to the table?

The set is that of ``benchmarks.synthetic_sweep``: 64 ranks, 50 batches of 4,062 kernels under Nsight Systems
(what clusters have most; 13 million kernels, 21 million calls), and unprofiled runs of 1 and 64 ranks. Timed
are the two commands that a user types, ``profiling.convert`` on all profiles and ``analysis.scaled``, from
start to exit, on two cores. Memory is the sum, over all processes of a command, of the peak of each (Linux).

    python -m benchmarks.raw_to_table            # needs 2.5 GB in the folder of temporary files
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import ROOT, facts, machine, write
from benchmarks.synthetic_sweep import write_sweep
from profiling.errors import UserError, run_command

BAR_S, BAR_GB, CORES = 180.0, 2.0, 2
KERNELS = 4062  # of a batch
_EVERY_S = 0.25  # looking for processes takes time of the cores that are measured


def timed(command: list[str]) -> dict[str, float]:
    """Seconds of a command, its CPU seconds, and the sum of its processes' peaks in GB (1e9 bytes).

    Raises:
        UserError: it failed.
    """
    peaks: dict[int, int] = {}
    used, start = os.times(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=said, stderr=said)
        while process.poll() is None:
            for number in _tree(process):
                peaks[number] = max(peaks.get(number, 0), _peak_bytes(number))
            time.sleep(_EVERY_S)
        seconds, now = time.perf_counter() - start, os.times()
        if process.returncode:
            said.seek(0)
            raise UserError(f"{command[0]} failed: {said.read().strip().splitlines()[-1:]}")
    cpu_s = now.children_user + now.children_system - used.children_user - used.children_system
    return {
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_gb": round(sum(peaks.values()) / 1e9, 2),
    }


def _tree(process: psutil.Process) -> list[int]:
    try:
        return [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def _peak_bytes(number: int) -> int:
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# From raw profiles of many ranks to the table", "",
        f"{facts(report['machine'])}; {report['ranks']} ranks, {report['batches']} batches, "
        f"{report['kernels']:,} kernels, {report['raw_gb']} GB of SQLite exports of Nsight Systems. Bars: "
        f"both commands together in less than {BAR_S:g} s on {CORES} cores, each in less than {BAR_GB:g} GB "
        "(the sum of its processes' peaks).", "", f"    {report['command']}", "",
        "| command | seconds | CPU, s | peaks, GB |", "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    lines += [
        f"| `{name}` | {one['seconds']} | {one['cpu_s']} | {one['peak_gb']} |"
        for name, one in report["commands"].items()
    ]
    return "\n".join([*lines, "", f"Together {report['seconds']} s.", ""])


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.raw_to_table", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--batches", type=int, default=50)
    given = parser.parse_args()
    where = machine(("duckdb", "numpy", "pandas", "pyarrow"))
    if hasattr(os, "sched_setaffinity"):  # the commands inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "sweep"
        kernels = write_sweep(sweep, (1, given.ranks), (given.ranks,), given.batches, KERNELS)
        raw = sorted(sweep.glob("run_*/*.sqlite"))
        raw_gb = round(sum(path.stat().st_size for path in raw) / 1e9, 2)
        where["load_before"] = round(os.getloadavg()[0], 1)  # ours, of the writing, among it
        commands = {
            "python -m profiling.convert": timed(["profiling.convert", *map(str, raw)]),
            "python -m analysis.scaled": timed(["analysis.scaled", str(sweep)]),
        }
    report: dict[str, Any] = {
        "command": f"python -m benchmarks.raw_to_table --ranks {given.ranks} --batches {given.batches}",
        "machine": where, "ranks": given.ranks, "batches": given.batches, "kernels": kernels,
        "raw_gb": raw_gb, "commands": commands,
        "seconds": round(sum(one["seconds"] for one in commands.values()), 1),
    }  # fmt: skip
    write("raw_to_table", report, as_markdown(report))
    missed = report["seconds"] >= BAR_S or any(one["peak_gb"] >= BAR_GB for one in commands.values())
    return 1 if missed else 0


if __name__ == "__main__":
    run_command(main)
