"""python -m benchmarks.startup: how long until a command says its help, and its first answer?

Each command is a process of its own, from start to exit, five times; the median of its CPU seconds counts.
Answers are of a sweep of two unprofiled runs and one under Nsight Systems (``benchmarks.synthetic_sweep``),
so small that imports are most of it. Beside each stand the heaviest libraries that it loaded: what a help
text needs is loaded at the head of files, what only some answers need where it is used.

    python -m benchmarks.startup
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, facts, machine, write
from benchmarks.synthetic_sweep import write_sweep
from profiling.errors import UserError, run_command

REPEATS = 5
BAR_HELP_S, BAR_ANSWER_S, BAR_REPORT_S = 0.8, 2.0, 4.0
HEAVY = ("torch", "scipy", "pandas", "pyarrow", "duckdb", "numpy", "plotly", "rich", "jinja2")
_CODE = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    print("LOADED", *(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""


def commands(folder: Path) -> dict[str, tuple[list[str], float]]:
    """What is typed, and its budget in CPU seconds."""
    sweep, raw = str(folder / "sweep"), str(next(folder.glob("sweep/run_*_nsys_*/*.sqlite")))
    helps = ["analysis.scaled", "analysis.anatomy", "analysis.compare", "analysis.report", "jobs.sweep",
             "jobs.doctor", "profiling.convert", "train"]  # fmt: skip
    answers = {
        f"analysis.{name}": ([f"analysis.{name}", sweep], BAR_ANSWER_S)
        for name in ("scaled", "batches", "anatomy", "expense", "stragglers")
    } | {
        "jobs.sweep --dry-run": (["jobs.sweep", "configs/quick.yaml", "--dry-run"], BAR_ANSWER_S),
        "profiling.convert": (["profiling.convert", raw, "--out", str(folder / "converted")], BAR_ANSWER_S),
        "analysis.report": (["analysis.report", sweep], BAR_REPORT_S),
    }  # fmt: skip
    return {f"{name} --help": ([name, "--help"], BAR_HELP_S) for name in helps} | answers


def cpu_s(arguments: list[str]) -> float:
    """CPU seconds of a command and of what it started.

    Raises:
        UserError: it was used wrongly.
    """
    before = os.times()
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode > 1:
        raise UserError(f"{' '.join(arguments)} failed: {done.stderr.decode().strip().splitlines()[-1:]}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def loaded(arguments: list[str]) -> list[str]:
    """The heavy libraries that a command has loaded when it ends."""
    code = _CODE.format(heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, check=False
    )
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("LOADED")]
    return lines[-1].split()[1:] if lines else []


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each command its CPU seconds, its budget and what it loads."""
    found = {}
    for title, (arguments, bar) in commands(folder).items():
        taken = []
        for _ in range(REPEATS):
            shutil.rmtree(folder / "converted", ignore_errors=True)
            taken.append(cpu_s(arguments))
        shutil.rmtree(folder / "converted", ignore_errors=True)
        found[title] = {"cpu_s": round(statistics.median(taken), 2), "bar_s": bar, "loads": loaded(arguments)}
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# How long until a command answers", "",
        f"{facts(report['machine'])}; CPU seconds of a process, median of {REPEATS}. Budgets: "
        f"{BAR_HELP_S:g} s for help, {BAR_ANSWER_S:g} s for an answer on a small sweep, {BAR_REPORT_S:g} s "
        "for its report.", "",
        f"    {report['command']}", "",
        "| command | CPU, s | budget, s | loads |", "| --- | ---: | ---: | --- |",
    ]  # fmt: skip
    lines += [
        f"| `{title}` | {one['cpu_s']:.2f} | {one['bar_s']:g} | {', '.join(one['loads'])} |"
        for title, one in report["commands"].items()
    ]
    lines += ["", *(f"Missed: {one}." for one in report["missed"])]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.parse_args()
    where = machine(("duckdb", "numpy", "pandas", "pyarrow", "scipy"))
    with tempfile.TemporaryDirectory() as folder:
        write_sweep(Path(folder) / "sweep", (1, 2), (2,), 12, 60)
        cpu_s(["profiling.convert", *map(str, Path(folder).glob("sweep/run_*/*.sqlite"))])
        found = measured(Path(folder))
    missed = [title for title, one in found.items() if one["cpu_s"] > one["bar_s"]]
    report = {
        "command": "python -m benchmarks.startup", "machine": where, "commands": found, "missed": missed,
    }  # fmt: skip
    write("startup", report, as_markdown(report))
    return 1 if missed else 0


if __name__ == "__main__":
    run_command(main)
