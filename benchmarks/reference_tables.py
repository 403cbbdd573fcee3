"""python -m benchmarks.reference_tables: how fast, and in how much memory, are PyProf tables summed up?

The task: the kernel efficiencies (compute, FLOPS, bandwidth; means by batch size and nodes) of the
reference's 32 kernel tables. Ours is the command a user types; the peer is the pandas loop of the
reference's notebook: one whole table after the other, one function a figure. Each repetition is a process of
its own, by turns; time is of the whole process, interpreter and imports included (what the imports take by
themselves stands beside); memory is its peak (Linux). Both must print the same figures, else nothing is
written. "Ours, corrected" has no peer that does the same: it counts the batches of each table first.

    python -m benchmarks.reference_tables DIR               the folder that holds pyprof_kernels/
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, facts, machine, write
from profiling.errors import UserError, run_command

BAR_TIMES, BAR_MEMORY = 3.0, 0.6

# ru_maxrss would begin at the size of the process that forked us.
_PEAK = """
import sys
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, file=sys.stderr)
"""
OURS = """
import contextlib, runpy, sys
sys.argv = ["analysis.efficiency", sys.argv[1], "--method", METHOD, "--format", "csv"]
with contextlib.suppress(SystemExit):
    runpy.run_module("analysis.efficiency", run_name="__main__")
"""
# The loop as the reference's notebook has it: each table read whole, one function a figure, a mean by group.
PEER = """
import glob, os, sys
import pandas as pd

PEAK_TFLOPS, PEAK_GB_PER_S = 4.29, 288

def compute_efficiency(df):
    sums = df[["Kernel", "Sil(ns)", "FLOPs"]].groupby("Kernel").sum()
    sums = sums.sort_values(by="Sil(ns)", ascending=False)
    idle = sums[sums["FLOPs"] == 0].sum()["Sil(ns)"]
    busy = sums[sums["FLOPs"] != 0].sum()["Sil(ns)"]
    return busy / (idle + busy) * 100

def tflops_per_s(df):
    return df["FLOPs"].sum() / (df["Sil(ns)"].sum() * 1e-9) * 1e-12

def bandwidth(df):
    df["bandwidth"] = 1e9 * df["Bytes"] / df["Sil(ns)"]
    df["weight"] = df["Sil(ns)"] / df["Sil(ns)"].sum()
    df["weighted"] = df["bandwidth"] * df["weight"]
    return df["weighted"].sum() * 1e-9

rows = []
for path in sorted(glob.glob(os.path.join(sys.argv[1], "pyprof_kernels", "*.gzip"))):
    name = os.path.basename(path).split("_config_")[1].split("_")
    df = pd.read_parquet(path)
    rows.append([int(name[7]), int(name[0]), compute_efficiency(df), tflops_per_s(df), bandwidth(df)])
columns = ["batch", "nodes", "compute_efficiency_pct", "tflops_per_s", "bandwidth_gb_per_s"]
table = pd.DataFrame(rows, columns=columns)
table["bandwidth_efficiency_pct"] = table["bandwidth_gb_per_s"] / PEAK_GB_PER_S * 100
table["flops_efficiency_pct"] = table["tflops_per_s"] / PEAK_TFLOPS * 100
print(table.groupby(["batch", "nodes"]).mean().round(6).reset_index().to_csv(index=False))
"""


def measure(code: str, data: Path) -> dict[str, Any]:
    """Run ``code`` in a fresh process: seconds (clock, CPU), peak in MB, and what it printed."""
    start, used = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-c", code + _PEAK, str(data)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    seconds, now = time.perf_counter() - start, os.times()
    cpu_s = now.children_user + now.children_system - used.children_user - used.children_system
    if done.returncode:
        raise UserError(f"a repetition failed: {done.stderr.strip().splitlines()[-1]}")
    peak_mb = int(done.stderr.strip().splitlines()[-1]) / 1024
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak_mb, "printed": done.stdout.strip()}


def compare(data: Path, repetitions: int) -> dict[str, Any]:
    """Ours (both methods) and the peer by turns, after one unmeasured round that warms the page cache.

    Raises:
        UserError: the published method and the peer do not print the same.
    """
    codes = {
        "ours": OURS.replace("METHOD", '"published"'),
        "peer": PEER,
        "ours, corrected": OURS.replace("METHOD", '"corrected"'),
        "imports of ours": "import duckdb, analysis.measures.efficiency",
        "imports of the peer": "import pandas, pyarrow.parquet",
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in codes}
    for repetition in range(repetitions + 1):
        for name, code in codes.items():
            measured = measure(code, data)
            if repetition:
                found[name].append(measured)
    if found["ours"][0]["printed"] != found["peer"][0]["printed"]:
        raise UserError("ours and the peer disagree; see the two tables of a run with --repetitions 1")
    sides: dict[str, Any] = {
        name: {
            "median_s": round(statistics.median(one["seconds"] for one in some), 3),
            "range_s": [round(f(one["seconds"] for one in some), 3) for f in (min, max)],
            "median_cpu_s": round(statistics.median(one["cpu_s"] for one in some), 3),
            "median_peak_mb": round(statistics.median(one["peak_mb"] for one in some), 1),
        }
        for name, some in found.items()
    }
    for name in ("ours", "ours, corrected"):
        sides[name]["times_faster"] = round(sides["peer"]["median_s"] / sides[name]["median_s"], 2)
        sides[name]["memory_ratio"] = round(
            sides[name]["median_peak_mb"] / sides["peer"]["median_peak_mb"], 2
        )
    return sides


def as_markdown(result: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# Kernel efficiencies of the reference's 32 tables",
        "",
        f"`{result['command']}`, {result['repetitions']} repetitions, medians; {facts(result['machine'])}.",
        "",
        f"Bar: at least {BAR_TIMES:g} times faster than the pandas loop, in at most {BAR_MEMORY:g} of its "
        "memory.",
        "",
        "| | seconds (range) | CPU, s | peak, MB | times faster | of its memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, side in result["sides"].items():
        low, high = side["range_s"]
        faster, memory = side.get("times_faster", ""), side.get("memory_ratio", "")
        seconds = f"{side['median_s']} ({low} to {high})"
        cells = [name, seconds, side["median_cpu_s"], side["median_peak_mb"], faster, memory]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference_tables", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("data", type=Path, metavar="DIR", help="the folder that holds pyprof_kernels/")
    arguments = parser.parse_args()
    if not (arguments.data / "pyprof_kernels").is_dir():
        raise UserError(f"{arguments.data} has no folder pyprof_kernels: give the reference's kernel tables")
    where = machine(("duckdb", "pandas", "pyarrow", "numpy"))
    sides = compare(arguments.data.resolve(), arguments.repetitions)
    result = {
        "command": f"python -m benchmarks.reference_tables DIR --repetitions {arguments.repetitions}",
        "repetitions": arguments.repetitions,
        "machine": where,
        "sides": sides,
    }
    write("reference_tables", result, as_markdown(result))
    return (
        0 if sides["ours"]["times_faster"] >= BAR_TIMES and sides["ours"]["memory_ratio"] <= BAR_MEMORY else 1
    )


if __name__ == "__main__":
    run_command(main)
