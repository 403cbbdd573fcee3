"""python -m benchmarks.report_speed DIR: how long do the report and its view take, in how much memory?

Measured are the command that a user types, on the reference's tables (DIR, 32 of PyProf and TAU) and on
sweeps of 8, 16, 32 and 64 ranks with 50 batches of 4,062 kernels each (13 million at 64), and the time from
opening each page in a headless Chromium until it stands and until all its charts do. The line through the
sweeps' times says whether the cost grows in proportion to the ranks. On two cores; memory is the sum of the
processes' peaks.

    python -m benchmarks.report_speed ../shared/data/surfboard          # needs 3 GB in the temporary folder
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import facts, machine, write
from benchmarks.raw_to_table import CORES, KERNELS, timed
from benchmarks.synthetic_sweep import write_sweep
from profiling.errors import UserError, run_command

RANKS, BATCHES = (8, 16, 32, 64), 50
VIEWS = 3  # of each page; as often the reference's report is made, of which the median counts
BAR_REFERENCE_S, BAR_REFERENCE_MB = 12.0, 5.0
BAR_LARGE_S, BAR_LARGE_GB, BAR_VIEW_S = 60.0, 2.0, 3.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def view_s(page: Path) -> tuple[float, float]:
    """Seconds from opening a page until it stands, and until all its charts do; medians over browsers.

    Raises:
        UserError: there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        raise UserError("no Chromium on this machine: apt-get install chromium")
    taken = []
    with sync_playwright() as playwright:
        for _ in range(VIEWS):
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="commit")
            tab.wait_for_selector("body[data-ready]", timeout=120_000)
            first = time.perf_counter() - start
            tab.wait_for_function("globalThis.Plotly", timeout=120_000)
            tab.evaluate("openForPrint()")  # else a chart is drawn when it comes near the view
            taken.append((first, time.perf_counter() - start))
            browser.close()
    first, whole = np.median(taken, axis=0)
    return round(float(first), 2), round(float(whole), 2)


def reported(directory: Path, page: Path) -> dict[str, float]:
    """The report's time, memory and size, and the time until it is seen."""
    made = timed(["analysis.report", str(directory), "--output", str(page)])
    first, whole = view_s(page)
    return {**made, "page_mb": round(page.stat().st_size / 1e6, 2), "view_s": first, "drawn_s": whole}


def of_sweep(ranks: int, folder: Path) -> dict[str, Any]:
    """The report of a sweep of one and of so many ranks, all under Nsight Systems too."""
    sweep = folder / f"sweep_{ranks}"
    kernels = write_sweep(sweep, (1, ranks), (1, ranks), BATCHES, KERNELS)
    raw = sorted(sweep.glob("run_*/*.sqlite"))
    timed(["profiling.convert", *map(str, raw)])
    for path in raw:
        path.unlink()
    try:
        return {"ranks": ranks, "kernels": kernels, **reported(sweep, folder / "report.html")}
    finally:
        shutil.rmtree(sweep)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    rows = [("the reference's tables", report["reference"])]
    rows += [(f"{one['ranks']} ranks, {one['kernels']:,} kernels", one) for one in report["sweeps"]]
    lines = [
        "# How long the report takes", "",
        f"{facts(report['machine'])}; {CORES} cores. Bars: the reference's tables in {BAR_REFERENCE_S:g} s "
        f"and {BAR_REFERENCE_MB:g} MB of page, {RANKS[-1]} ranks in {BAR_LARGE_S:g} s and "
        f"{BAR_LARGE_GB:g} GB, all its charts in {BAR_VIEW_S:g} s.", "",
        f"    {report['command']}", "",
        "| of | seconds | CPU, s | peaks, GB | page, MB | first view, s | all charts, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    lines += [
        f"| {name} | {one['seconds']} | {one['cpu_s']} | {one['peak_gb']} | {one['page_mb']} "
        f"| {one['view_s']} | {one['drawn_s']} |"
        for name, one in rows
    ]
    fit = report["line"]
    lines += [
        "",
        f"Over ranks: {fit['start_s']} s + {fit['s_per_rank']} s a rank, R^2 {fit['r_squared']}.",
        "",
        *(f"Missed: {one}." for one in report["missed"]),
    ]
    return "\n".join(lines) + "\n"


def line_through(sweeps: list[dict[str, Any]]) -> dict[str, float]:
    """Least squares of CPU seconds over ranks."""
    ranks, seconds = (np.array([one[name] for one in sweeps], float) for name in ("ranks", "cpu_s"))
    slope, start = np.polyfit(ranks, seconds, 1)
    left = seconds - (start + slope * ranks)
    explained = 1 - (left**2).sum() / ((seconds - seconds.mean()) ** 2).sum()
    return {"start_s": round(start, 2), "s_per_rank": round(slope, 3), "r_squared": round(explained, 4)}


def missed(reference: dict[str, float], sweeps: list[dict[str, Any]]) -> list[str]:
    """Which bars are missed."""
    largest = sweeps[-1]
    bars = [
        ("the reference's tables, seconds", reference["seconds"], BAR_REFERENCE_S),
        ("the reference's page, MB", reference["page_mb"], BAR_REFERENCE_MB),
        (f"{largest['ranks']} ranks, seconds", largest["seconds"], BAR_LARGE_S),
        (f"{largest['ranks']} ranks, GB", largest["peak_gb"], BAR_LARGE_GB),
        (f"{largest['ranks']} ranks, seconds until all charts stand", largest["drawn_s"], BAR_VIEW_S),
    ]
    return [f"{name}: {value} (at most {bar:g})" for name, value, bar in bars if value > bar]


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_speed", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DIR", help="the folder of the reference's tables")
    given = parser.parse_args()
    where = machine(("duckdb", "numpy", "pandas", "plotly", "pyarrow"))
    if hasattr(os, "sched_setaffinity"):  # the commands inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taken = [reported(given.data, folder / "report.html") for _ in range(VIEWS)]
        reference = sorted(taken, key=lambda one: one["seconds"])[VIEWS // 2]
        sweeps = []
        for ranks in RANKS:
            sweeps.append(of_sweep(ranks, folder))
            print(f"{ranks} ranks: {sweeps[-1]['seconds']} s", file=sys.stderr)
    report = {
        "command": "python -m benchmarks.report_speed DIR", "machine": where, "reference": reference,
        "sweeps": sweeps, "line": line_through(sweeps), "missed": missed(reference, sweeps),
    }  # fmt: skip
    write("report_speed", report, as_markdown(report))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    run_command(main)
