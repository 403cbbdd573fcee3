"""python -m benchmarks.perturbation: how much slower is a step while each profiler records it?

A real training on this machine, as a sweep would start it: for each tool a run under it and the same run
without a profiler (its twin), by turns, so many times over. A run's step time is the median over the steps
that are recorded (the later half) of its slowest rank; a pair's ratio is the profiled run's over its twin's,
and the figure is the median over pairs with its 95 % bootstrap interval (of six pairs or more). Beside it the
same of each run's fastest tenth of steps, on which the neighbours of a shared machine tell least. Horovod's
timeline is of two ranks under Horovod, its twin too. Tools that are not here are listed with what
python -m jobs.doctor says of them.

    python -m benchmarks.perturbation --pairs 9          (10 minutes on two quiet cores)
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.estimates import interval
from benchmarks.child import RESULTS, facts, write
from benchmarks.training import machine
from jobs import ROOT
from jobs.doctor import examine
from jobs.launchers.base import Local
from jobs.machine import this_machine
from jobs.processes import Limits, run_processes
from jobs.run import Run, has_horovod, make_run
from jobs.run_fields import to_flags
from profiling import tables
from profiling.errors import EXIT_DONE, UserError, run_command
from profiling.tools import TOOLS, Presence, tool
from profiling.wrap import wrapped

POINT = {
    "model": "resnet18",
    "loader": "synthetic",
    "image_size": 64,
    "batch": 8,
    "batches": 60,
    "threads": 1,
}
HOROVOD = {"gpus_per_node": 2, "backend": "horovod"}
# What the doctor calls the tools whose names are others.
_PROGRAMS = {"tau": "tau_exec", "horovod": "horovod"}
LIMIT_S = 600.0
_LOGGED = 4000  # characters of a log
SEED, RESAMPLES = 0, 10_000
# Fewer pairs bound no median with 95 %: even their whole range misses it with a chance of 2 / 2^pairs.
LEAST_PAIRS = 6
MEASURES = {"median": 50, "fastest_tenth": 10}  # percentiles of a run's steps


class OutOfTime(UserError):
    """A run took longer than it may."""


def tools_here(findings: Sequence[Presence], has_gpu: bool) -> tuple[list[str], dict[str, str]]:
    """The tools that can record on this machine, and why each other one cannot."""
    known = {finding.name: finding for finding in findings if finding.group in ("profilers", "libraries")}
    here, absent = [], {}
    for name in TOOLS:
        finding = known.get("torch" if name == "torch" else _PROGRAMS.get(name, name))
        if finding is None:  # none; and PyProf, whose tables are only read
            continue
        if not finding.present:
            absent[name] = f"{finding.detail}; {finding.remedy}"
        elif not has_gpu and tool(name).gpu_only:
            absent[name] = "records GPU activity only"
        else:
            here.append(name)
    return here, absent


def fields_of(name: str, profiled: bool) -> dict[str, Any]:
    """The run under a tool, or its twin."""
    more = HOROVOD if name == "horovod" else {}
    return {**POINT, **more, "profile": name if profiled else "none"}


def steps_ms(run: Run, out: Path, limit_s: float = LIMIT_S) -> dict[str, float]:
    """Train, for ``limit_s`` at most, and give :data:`MEASURES` of the recorded steps in ms.

    Raises:
        OutOfTime: it took longer.
        UserError: the run failed; the message has its last line, a note the end of its log.
    """
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "train", *to_flags(run), f"--out={out}"]
    command = wrapped(run.profile, command, out, run.device, run.first_attributed, False)
    log = out / "log.txt"
    ended = run_processes(Local(this_machine()).processes(run, command, out), log, Limits(limit_s), ROOT)
    if ended.kind == "time limit":
        raise OutOfTime(f"a run under {run.profile} took more than {limit_s:.0f} s")
    if ended.exit_code:
        said = log.read_text(errors="replace").strip() or "it said nothing"
        error = UserError(f"a run under {run.profile} failed: {said.splitlines()[-1]}")
        error.add_note(said[-_LOGGED:])
        raise error
    steps = steps_of(out, run.world_size, run.first_attributed)
    return {name: float(np.percentile(steps, percent)) for name, percent in MEASURES.items()}


def steps_of(out: Path, ranks: int, first: int) -> np.ndarray:
    """The slowest rank's duration of each step from ``first`` on, in ms, shape (batches,)."""
    columns = ["batch_index", "start_ns", "end_ns"]
    durations = []
    for rank in range(ranks):
        batches = tables.read(tables.rank_directory(out, rank), "batches", columns)
        index, start, end = (batches[name].to_numpy() for name in columns)
        durations.append((end - start)[index >= first])
    return np.max(durations, axis=0) / 1e6


def pair(name: str, number: int, folder: Path) -> dict[str, dict[str, float]]:
    """The steps of a run under a tool and of its twin; every second time the twin comes first."""
    found = {}
    for profiled in (True, False) if number % 2 else (False, True):
        out = folder / f"{name}-{number}-{profiled}"
        found["with" if profiled else "without"] = steps_ms(make_run(fields_of(name, profiled)), out)
    return found


def summary(pairs: Sequence[Mapping[str, Mapping[str, float]]], measure: str) -> dict[str, float | None]:
    """Medians over pairs of a measure in ms, and of its ratio with the 95 % interval (None: too few)."""
    both = {which: np.array([one[which][measure] for one in pairs]) for which in ("without", "with")}
    ratios = both["with"] / both["without"]
    medians = {f"{which}_ms": float(np.median(values)) for which, values in both.items()}
    low = high = None
    if len(ratios) >= LEAST_PAIRS:
        drawn = np.random.default_rng(SEED).choice(ratios, (RESAMPLES, len(ratios)))
        low, high = interval(np.median(drawn, axis=1))
    return {**medians, "ratio": float(np.median(ratios)), "low": low, "high": high}


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as tables for people."""
    point = ", ".join(f"{name} {value}" for name, value in report["point"].items())
    pairs = len(next(iter(report["tools"].values()))["pairs"])
    lines = [
        "# How much slower a step is while a profiler records it", "",
        f"{facts(report['machine'])}. {point}; {pairs} pairs of a run and its twin without a profiler, by "
        "turns.", "",
        f"    {report['command']}", "",
        "| profile | ranks | step without, ms | with, ms | with / without (95 %) | fastest tenths (95 %) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, one in report["tools"].items():
        ratios = [_ratio(one[measure]) for measure in MEASURES]
        step = one["median"]
        cells = [name, one["ranks"], f"{step['without_ms']:.1f}", f"{step['with_ms']:.1f}", *ratios]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if report["absent"]:
        lines += ["", "Not here:", "", *(f"- {name}: {why}" for name, why in report["absent"].items())]
    return "\n".join(lines) + "\n"


def _ratio(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return f"{found['ratio']:.3f}"
    return f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perturbation", description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    here = this_machine()
    names, absent = tools_here(examine(here), bool(here.gpus))
    if "horovod" in names and not has_horovod():
        raise UserError("Horovod is installed and cannot be imported; build it again (make horovod)")
    where = machine()
    pairs: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.pairs):
            for name in names:
                pairs[name].append(pair(name, number, Path(folder)))
                print(number, name, json.dumps(pairs[name][-1]), file=sys.stderr)
    where["load_after"] = round(os.getloadavg()[0], 1)
    measured = {
        name: {
            "ranks": make_run(fields_of(name, True)).world_size,
            **{measure: summary(some, measure) for measure in MEASURES},
            "pairs": some,
        }
        for name, some in pairs.items()
    }
    command = f"python -m benchmarks.perturbation --pairs {given.pairs}"
    report = {"command": command, "machine": where, "point": POINT, "tools": measured, "absent": absent}
    write("perturbation", report, as_markdown(report), given.out)
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
