"""python -m benchmarks.watch: what does profiling.watch cost a step, beside TraceML and beside nothing?

The same loop (benchmarks/watch_loop.py) runs unwatched, under profiling.watch, and, changed as its
documentation asks, under TraceML (`pip install traceml-ai`), in processes of their own by turns. What is
compared is the processor time of the thread that trains, which neighbours of a shared machine change least:
the difference of the medians over steps, the median over rounds. Of the step that does next to nothing that
is the cost itself; of the residual network, with its noise, it is a share of the step. Beside that, with
--instructions: the instructions of a step, counted by valgrind, with few and with many steps so that what
starting takes cancels.

    python -m benchmarks.watch --cell next-to-nothing    (3 minutes; a busy machine does little harm)
    python -m benchmarks.watch --instructions            (20 minutes)
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, facts, machine, write
from jobs.flags import make_parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.presence import is_importable

BAR_US, BAR_SHARE = 50.0, 0.01
LOOP = ROOT / "benchmarks" / "watch_loop.py"
STEPS = {"next-to-nothing": 1500, "residual": 60}
FEW, MANY = 5, 45  # steps of which instructions are counted
COUNTED, SMALL = "residual", "next-to-nothing"
# Its command, which gives its aggregator 15 s to start: too few on a busy machine.
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


def run(how: str, words: Sequence[str], wrapper: Sequence[str] = ()) -> str:
    """Run the loop to its end; what it printed.

    Raises:
        UserError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [*wrapper, *command(how, Path(folder) / "out", words)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    if ended.returncode:
        raise UserError(f"the {how} loop failed: {(ended.stderr or ended.stdout)[-400:]}")
    return ended.stdout + ended.stderr


def timed(how: str, cell: str) -> dict[str, float]:
    """Medians over the steps of one process, in us, by clock."""
    printed = run(how, [cell, str(STEPS[cell])])
    found = re.search(r"RESULT(\{.*?\})", printed)
    if found is None:
        raise UserError(f"the {how} loop printed no result: {printed[-300:]}")
    return {clock: statistics.median(steps) / 1e3 for clock, steps in json.loads(found[1]).items()}


def instructions(how: str, steps: int) -> int:
    """Instructions of a process that trains so many steps."""
    counter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    counted = re.search(r"Collected : (\d+)", run(how, [COUNTED, str(steps)], counter))
    if counted is None:
        raise UserError("valgrind did not count")
    return int(counted[1])


def count_instructions() -> dict[str, float]:
    """Instructions of a step, unwatched and watched."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            (how, n): pool.submit(instructions, how, n) for how in ("bare", "watched") for n in (FEW, MANY)
        }
    return {
        how: (jobs[how, MANY].result() - jobs[how, FEW].result()) / (MANY - FEW)
        for how in ("bare", "watched")
    }


def measure(rounds: int, ways: Sequence[str], steps: Sequence[str]) -> dict[str, Any]:
    """Of each cell and way the step's processor time, and what it is more than the bare one's, in us."""
    cells: dict[str, Any] = {}
    for cell in steps:
        every: dict[str, list[dict[str, float]]] = {how: [] for how in ways}
        for number in range(rounds):
            for how in ways[:: 1 if number % 2 == 0 else -1]:
                every[how].append(timed(how, cell))
        cells[cell] = {how: _summary(every[how], every["bare"]) for how in ways}
    return cells


def _summary(rounds: Sequence[dict[str, float]], bare: Sequence[dict[str, float]]) -> dict[str, float]:
    more = [one["thread"] - other["thread"] for one, other in zip(rounds, bare, strict=True)]
    names = {"thread": "step_us", "process": "process_step_us", "wall": "wall_step_us"}
    medians = {name: statistics.median(one[clock] for one in rounds) for clock, name in names.items()}
    return {**medians, "more_us": statistics.median(more)}


def as_markdown(report: dict[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# What watching a program costs a step", "",
        f"{facts(report['machine'])}; median of {report['rounds']} rounds. Bar: {BAR_US:g} us, and "
        f"{100 * BAR_SHARE:g} % of the residual network's instructions.", "",
        f"    {report['command']}", "",
        "| step | loop | its thread's processor time, us | more than bare, us | of the process, us | "
        "elapsed, us |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for cell, ways in report["cells"].items():
        for how, one in ways.items():
            figures = (one["step_us"], one["more_us"], one["process_step_us"], one["wall_step_us"])
            lines.append(f"| {cell} | {how} | " + " | ".join(f"{figure:,.1f}" for figure in figures) + " |")
    if counted := report["instructions"]:
        more = counted["watched"] / counted["bare"] - 1
        lines += [
            "", f"Instructions of a step of the residual network, from {MANY - FEW} steps: bare "
            f"{counted['bare']:,.0f}, watched {counted['watched']:,.0f}: {100 * more:.2f} % more.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = make_parser("python -m benchmarks.watch", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each loop [5]")
    parser.add_argument("--cell", choices=list(STEPS), help="this step only")
    parser.add_argument("--instructions", action="store_true", help="count instructions, too")
    given = parser.parse_args()
    ways = ["bare", "watched", *(["TraceML"] if is_importable("traceml_ai") else [])]
    libraries = ["torch", *(["traceml-ai"] if "TraceML" in ways else [])]
    report: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.watch", *sys.argv[1:]]),
        "machine": machine(libraries),
        "rounds": given.rounds,
        "cells": measure(given.rounds, ways, [given.cell] if given.cell else list(STEPS)),
        "instructions": count_instructions() if given.instructions else None,
    }
    write("watch", report, as_markdown(report))
    small = report["cells"].get(SMALL)
    missed = bool(small) and small["watched"]["more_us"] > BAR_US
    counted = report["instructions"]
    missed |= bool(counted) and counted["watched"] > (1 + BAR_SHARE) * counted["bare"]
    return EXIT_FAILED if missed else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
