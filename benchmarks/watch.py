"""python -m benchmarks.watch: what does profiling.watch cost a step, beside TraceML and beside nothing?

The same loop (benchmarks/watch_loop.py) runs unwatched, under profiling.watch, and, changed as its
documentation asks, under TraceML (`pip install traceml-ai`), in processes of their own by turns. What is
compared is the processor time of the thread that trains. On a shared machine that changes by half from one
minute to the next, and so does that of a fixed piece of work after each step: each step is divided by it, and
the quotients' differences, the median over rounds, are given in microseconds at the speed of the fastest
tenth of that work. Of the step that does next to nothing that is the cost itself. The residual network's
step varies by more than that from one process to the next: what watching adds to it is shown by
--instructions, which are counted by valgrind instead, from the end of one step to that of the next, on a
machine however busy.

    python -m benchmarks.watch                    (5 minutes)
    python -m benchmarks.watch --instructions     (15 minutes)
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ROOT, facts, machine, write
from benchmarks.counted import between_marks
from jobs.run_fields import make_parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.tools import is_importable

BAR_US, BAR_SHARE = 50.0, 0.01
LOOP = ROOT / "benchmarks" / "watch_loop.py"
STEPS = {"next-to-nothing": 1500, "residual": 60}
SMALL, LARGE = "next-to-nothing", "residual"
COUNTED = {SMALL: 200, LARGE: 4}  # steps after those of the loop's warm-up
BLOCK = 20  # neighbouring steps of which the machine's speed is one
# Its command, which gives its aggregator 15 s to start (launcher/process.py): too few on a busy machine, and
# without it nothing runs.
PATIENT_TRACEML = """
from traceml_ai.launcher import cli, commands
commands.DEFAULT_TCP_READY_TIMEOUT_SEC = 300
cli.main()
"""


def command(how: str, out: Path, words: Sequence[str]) -> list[str]:
    """What runs the loop so."""
    if how == "watched":
        return [sys.executable, "-m", "profiling.watch", "--out", str(out), str(LOOP), *words]
    if how == "TraceML":
        run = ["run", str(LOOP), "--logs-dir", str(out), "--run-name", "run", "--args", *words, "--traceml"]
        return [sys.executable, "-c", PATIENT_TRACEML, *run]
    return [sys.executable, str(LOOP), *words]


def run(how: str, cell: str, steps: int) -> dict[str, list[int]]:
    """Run the loop to its end: its figures.

    Raises:
        UserError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        ended = subprocess.run(
            command(how, Path(folder) / "out", [cell, str(steps), str(figures)]),
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        if ended.returncode or not figures.exists():
            raise UserError(f"the {how} loop failed: {(ended.stderr or ended.stdout)[-400:]}")
        spent: dict[str, list[int]] = json.loads(figures.read_text())
        return spent


def timed(how: str, cell: str) -> dict[str, float]:
    """Of the steps of one process the median per clock, as a multiple of the fixed work; and that, in us."""
    figures = {name: np.asarray(spent) for name, spent in run(how, cell, STEPS[cell]).items()}
    work = figures.pop("work")
    blocks = [slice(first, first + BLOCK) for first in range(0, len(work) - BLOCK + 1, BLOCK)]
    ratios = {
        clock: float(np.median([np.median(spent[one]) / np.median(work[one]) for one in blocks]))
        for clock, spent in figures.items()
    }
    return {**ratios, "work_us": float(np.quantile(work, 0.1)) / 1e3}


def instructions(how: str, cell: str) -> float:
    """Of a step, on average: what is done every so many steps counts too."""
    with tempfile.TemporaryDirectory() as folder:
        words = [cell, str(COUNTED[cell]), str(Path(folder) / "figures.json")]
        counted = between_marks(command(how, Path(folder) / "out", words))
    # Steps and the fixed work by turns, from the work of the first step to that of the last; then its end.
    return statistics.fmean(counted[1:-1:2][-COUNTED[cell] :])


def count_instructions(steps: Sequence[str]) -> dict[str, dict[str, float]]:
    """Instructions of a step of each cell, unwatched and watched."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            cell: {how: pool.submit(instructions, how, cell) for how in ("bare", "watched")} for cell in steps
        }
    return {cell: {how: job.result() for how, job in ways.items()} for cell, ways in jobs.items()}


def measure(rounds: int, ways: Sequence[str], steps: Sequence[str]) -> dict[str, Any]:
    """Of each cell and way the step's processor time, and what it is more than the bare one's, in us."""
    cells: dict[str, Any] = {}
    for cell in steps:
        every: dict[str, list[dict[str, float]]] = {how: [] for how in ways}
        for number in range(rounds):
            for how in ways[:: 1 if number % 2 == 0 else -1]:
                every[how].append(timed(how, cell))
        work_us = min(one["work_us"] for of_way in every.values() for one in of_way)
        cells[cell] = {how: _summary(every[how], every["bare"], work_us) for how in ways}
    return cells


def _summary(
    rounds: Sequence[dict[str, float]], bare: Sequence[dict[str, float]], work_us: float
) -> dict[str, Any]:
    more = [work_us * (one["thread"] - other["thread"]) for one, other in zip(rounds, bare, strict=True)]
    names = {"thread": "step_us", "process": "process_step_us", "wall": "wall_step_us"}
    medians = {
        name: work_us * statistics.median(one[clock] for one in rounds) for clock, name in names.items()
    }
    return {**medians, "more_us": statistics.median(more), "more_us_of_rounds": more}


def share(cells: dict[str, Any], how: str) -> float:
    """What watching costs the small step, as a part of the residual network's: it is the same of both."""
    return float(cells[SMALL][how]["more_us"] / cells[LARGE]["bare"]["step_us"])


def as_markdown(report: dict[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# What watching a program costs a step", "",
        f"{facts(report['machine'])}; median of {report['rounds']} rounds. Bar: {BAR_US:g} us, and "
        f"{100 * BAR_SHARE:g} % of the residual network's step.", "",
        f"    {report['command']}", "",
        "| step | loop | its thread's processor time, us | more than bare, us | in each round, us | of the "
        "process, us | elapsed, us |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for cell, ways in report["cells"].items():
        for how, one in ways.items():
            rounds = one["more_us_of_rounds"]
            lines.append(
                f"| {cell} | {how} | {one['step_us']:,.1f} | {one['more_us']:,.1f} | {min(rounds):,.1f} to "
                f"{max(rounds):,.1f} | {one['process_step_us']:,.1f} | {one['wall_step_us']:,.1f} |"
            )
    if len(report["cells"]) == len(STEPS):
        of = {how: share(report["cells"], how) for how in report["cells"][SMALL] if how != "bare"}
        parts = ", ".join(f"{how} {100 * part:.2f} %" for how, part in of.items())
        lines += ["", f"What it costs the small step, as a part of the residual network's: {parts}."]
    return "\n".join(lines) + "\n"


def counts_as_markdown(report: dict[str, Any]) -> str:
    """The report of instructions as a table for people."""
    lines = [
        "# Instructions that watching a program costs a step", "",
        f"{facts(report['machine'])}; counted by valgrind. Bar: {100 * BAR_SHARE:g} % of the residual "
        "network's step.", "",
        f"    {report['command']}", "",
        "| step | steps | bare | watched | more than bare | % |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for cell, counted in report["instructions"].items():
        more = counted["watched"] - counted["bare"]
        lines.append(
            f"| {cell} | {COUNTED[cell]} | {counted['bare']:,.0f} | {counted['watched']:,.0f} | "
            f"{more:,.0f} | {100 * more / counted['bare']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = make_parser("python -m benchmarks.watch", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each loop [5]")
    parser.add_argument("--cell", choices=list(STEPS), help="this step only")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of timing")
    given = parser.parse_args()
    steps = [given.cell] if given.cell else list(STEPS)
    report: dict[str, Any] = {"command": " ".join(["python -m benchmarks.watch", *sys.argv[1:]])}
    if given.instructions:
        report |= {"machine": machine(["torch"]), "instructions": count_instructions(steps)}
        write("watch_instructions", report, counts_as_markdown(report))
        large = report["instructions"].get(LARGE)
        missed = large is not None and large["watched"] > (1 + BAR_SHARE) * large["bare"]
    else:
        ways = ["bare", "watched", *(["TraceML"] if is_importable("traceml_ai") else [])]
        libraries = ["torch", *(["traceml-ai"] if "TraceML" in ways else [])]
        cells = measure(given.rounds, ways, steps)
        report |= {"machine": machine(libraries), "rounds": given.rounds, "cells": cells}
        write("watch", report, as_markdown(report))
        missed = SMALL in cells and cells[SMALL]["watched"]["more_us"] > BAR_US
        missed |= len(cells) == len(STEPS) and share(cells, "watched") > BAR_SHARE
    return EXIT_FAILED if missed else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
