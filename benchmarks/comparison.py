"""python -m benchmarks.comparison: how often does analysis.compare err, with the noise of real runs?

First the noise: one point, run so many times over by the suite, in two settings. `alone` is one rank of this
machine, whose step is arithmetic: it shows whatever else the machine does. `links` is two nodes of a virtual
cluster whose links carry 100 Mbit/s, so that a step is mostly an allreduce, as on many nodes.

Then the comparisons, each by analysis.compare itself (the verdict of its rows). Twice 10 of a setting's runs
are drawn at random, none twice: nothing differs, so that every difference found is a false alarm. Or the
second 10 are made slower, and the share in which that is found is the power. Noise differs from machine to
machine, so the power is also given for this noise made larger or smaller (the logarithms' distances from
their median scaled): up to which scatter between runs would 2 % be found? Last, what becomes of the false
alarms if the first 10 were run before the second 10, not in random order with them.

    python -m benchmarks.comparison                              (25 minutes; as root, with Slurm)
    python -m benchmarks.comparison --settings alone
    python -m benchmarks.comparison --of mine=results/SWEEP      with the noise of your sweep of one point
    python -m benchmarks.comparison --simulate                   again, of the runs that are recorded

A setting's result replaces its last one and leaves the others as they are.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimates import SIGNIFICANCE
from analysis.frames.load import load
from analysis.frames.steps import all_series
from analysis.frames.study import Study
from analysis.measures.compare import differences
from benchmarks.child import RESULTS, ROOT, facts, machine, write
from benchmarks.virtual import virtual_cluster
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

NAME = "comparison"
RUNS, REPETITIONS = 30, 10
SLOWDOWNS_PCT = (1, 2, 3, 5, 10, 20, 50)
SCATTERS_PCT = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0)
PLANTED_PCT = 2
POWER = 0.80  # found in 4 of 5 cases
FALSE_ALARMS, POWERED = 4000, 400  # simulations of a cell
SEED = 20200520
RATE = "100mbit"
POINT = "threads: 1, loader: synthetic, batch: 2, image_size: 32, model: squeezenet1_1, device: cpu"
SETTINGS = {"alone": f"nodes: 1, batches: 150, {POINT}", "links": f"nodes: 2, batches: 40, {POINT}"}
KEPT = (
    "nodes",
    "gpus_per_node",
    "model",
    "workers",
    "batch",
    "image_size",
    "loader",
    "threads",
    "batches",
    "compute",
)
LIMIT_S = 1800.0


# --- the noise ----------------------------------------------------------------------------------------


def measure(setting: str, runs: int, folder: Path) -> dict[str, Any]:
    """Run a setting's point so many times; the load of the machine, and what :func:`recorded` gives."""
    file = folder / f"{setting}.yaml"
    file.write_text(f"repetitions: {runs}\ntime_limit_s: 300\nrun: {{{SETTINGS[setting]}}}\n")
    load_before = round(os.getloadavg()[0], 1)
    if setting == "links":
        with virtual_cluster(2) as (cluster, _):
            cluster.control("shape", RATE)
            cluster.sweep(2, file, folder)
    else:
        command = [sys.executable, "-m", "jobs.sweep", str(file), "--out", str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        if done.returncode:
            raise UserError(f"the sweep failed: {done.stderr.strip()[-300:]}")
    load_after = round(os.getloadavg()[0], 1)
    return {"load_before": load_before, "load_after": load_after, **recorded(folder / setting)}


def recorded(directory: Path) -> dict[str, Any]:
    """The point of a sweep and the median of each of its runs.

    Raises:
        UserError: it has several points, or too few runs.
    """
    study = load(directory)
    fields = [{name: run.fields[name] for name in KEPT} for run in study.of_kind("run")]
    if any(each != fields[0] for each in fields):
        raise UserError(f"{directory} holds runs of several points; the noise is that of one, repeated")
    if len(fields) < 2 * REPETITIONS:
        raise UserError(
            f"{directory}: {len(fields)} runs do not make two sets of {REPETITIONS}; run it more often"
        )
    return {"point": fields[0], "step_ms": run_medians_ms(study)}


def run_medians_ms(study: Study) -> list[float]:
    """Median of the steady batches of each run of a sweep, in ms, in the order of their starts."""
    series = all_series(study)
    started = {source.id: source.manifest.started for source in study.of_kind("run") if source.manifest}
    return [
        float(np.median(series[name].steady_ns)) / 1e6 for name in sorted(series, key=started.__getitem__)
    ]


def noise(step_ms: Sequence[float]) -> dict[str, float]:
    """Scatter between runs, %: of all, robustly, and of neighbours in time (which a slow drift spares)."""
    logs = np.log(step_ms)
    centred = logs - logs.mean()
    return {
        "median_ms": float(np.median(step_ms)),
        "scatter_pct": 100 * float(logs.std(ddof=1)),
        "robust_scatter_pct": 100 * 1.4826 * float(np.median(np.abs(logs - np.median(logs)))),
        "scatter_of_neighbours_pct": 100 * float(np.sqrt(np.mean(np.diff(logs) ** 2) / 2)),
        "correlation_of_neighbours": float((centred[1:] * centred[:-1]).sum() / (centred**2).sum()),
    }


# --- the comparisons ----------------------------------------------------------------------------------


def verdict(a: np.ndarray, b: np.ndarray) -> str:
    """What analysis.compare says of one configuration's runs."""
    pair = {"kind": "step", "quantity": "step_ms", "runs_a": a, "runs_b": b, "calls_a": None, "calls_b": None}
    return str(differences(pd.DataFrame([pair]))["verdict"][0])


def share(
    step_ms: Sequence[float], slowdown_pct: float, simulations: int, seed: int, found: Sequence[str]
) -> float:
    """The share of simulated comparisons with one of the verdicts ``found``."""
    generator = np.random.default_rng(seed)
    hits = 0
    for _ in range(simulations):
        drawn = generator.permutation(step_ms)[: 2 * REPETITIONS]
        a, b = drawn[:REPETITIONS], drawn[REPETITIONS:] * (1 + slowdown_pct / 100)
        hits += verdict(a, b) in found
    return hits / simulations


def rescaled(step_ms: Sequence[float], scatter_pct: float) -> np.ndarray:
    """The same runs with another scatter: distances of the logarithms from their median, scaled."""
    logs = np.log(step_ms)
    centre = np.median(logs)
    return np.exp(centre + (logs - centre) * scatter_pct / 100 / logs.std(ddof=1))


def in_sequence(step_ms: Sequence[float]) -> float:
    """The share of false alarms if 10 runs in a row are set beside the next 10."""
    values = np.asarray(step_ms)
    starts = range(len(values) - 2 * REPETITIONS + 1)
    middle = [(start, start + REPETITIONS, start + 2 * REPETITIONS) for start in starts]
    return float(np.mean([verdict(values[i:j], values[j:k]) in ("slower", "faster") for i, j, k in middle]))


def simulate(step_ms: Sequence[float]) -> dict[str, Any]:
    """False alarms and power of one setting's noise."""
    different, slower = ("slower", "faster"), ("slower",)
    return {
        "noise": noise(step_ms),
        "false_alarms": share(step_ms, 0, FALSE_ALARMS, SEED, different),
        "false_alarms_in_sequence": in_sequence(step_ms),
        "power": {pct: share(step_ms, pct, POWERED, SEED + pct, slower) for pct in SLOWDOWNS_PCT},
        "power_at_scatter": {
            pct: share(rescaled(step_ms, pct).tolist(), PLANTED_PCT, POWERED, SEED, slower)
            for pct in SCATTERS_PCT
        },
    }


def allowed_false_alarms() -> float:
    """5 %, and what so many simulations may be off by chance (3 standard errors)."""
    return SIGNIFICANCE + 3 * math.sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / FALSE_ALARMS)


def scatter_that_allows(power_at_scatter: Mapping[Any, float]) -> float:
    """The largest scatter, %, up to which the planted slowdown is found often enough; 0 if at none."""
    largest = 0.0
    for pct, power in power_at_scatter.items():
        if power < POWER:
            break
        largest = float(pct)
    return largest


# --- the result ---------------------------------------------------------------------------------------


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as tables for people."""
    lines = ["# How often analysis.compare errs", ""]
    for name, setting in report["settings"].items():
        runs, found, of = setting["runs"], setting["found"], setting["found"]["noise"]
        loads = [
            f"load {when} {runs[f'load_{when}']}" for when in ("before", "after") if f"load_{when}" in runs
        ]
        note = f" {runs['note']}." if runs.get("note") else ""
        lines += [
            f"## {name}", "", f"{', '.join([facts(setting['machine']), *loads])}.", "",
            f"    {setting['command']}", "",
            f"{len(runs['step_ms'])} runs: {facts(runs['point'])}.{note}", "",
            f"A step takes {of['median_ms']:.1f} ms. Between runs it scatters by {of['scatter_pct']:.1f} % "
            f"(robustly {of['robust_scatter_pct']:.1f} %), between neighbours in time by "
            f"{of['scatter_of_neighbours_pct']:.1f} %; neighbours correlate by "
            f"{of['correlation_of_neighbours']:.2f}.", "",
            f"False alarms, {REPETITIONS} runs against {REPETITIONS}: "
            f"{100 * found['false_alarms']:.1f} % of {FALSE_ALARMS} "
            f"(if one ten is run before the other: {100 * found['false_alarms_in_sequence']:.0f} %).", "",
            *_row("slowdown, %", found["power"].keys()),
            *_row("found, %", _whole_pct(found["power"]), head=False), "",
            f"A slowdown of {PLANTED_PCT} %, if this noise were of another size:", "",
            *_row("scatter between runs, %", found["power_at_scatter"].keys()),
            *_row("found, %", _whole_pct(found["power_at_scatter"]), head=False), "",
            _sentence(found), "",
        ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _whole_pct(shares: Mapping[Any, float]) -> list[str]:
    return [f"{100 * each:.0f}" for each in shares.values()]


def _row(name: str, cells: Any, head: bool = True) -> list[str]:
    cells = list(cells)
    line = f"| {name} | {' | '.join(str(cell) for cell in cells)} |"
    return [line, f"| --- | {' | '.join('---:' for _ in cells)} |"] if head else [line]


def _sentence(found: Mapping[str, Any]) -> str:
    power = {int(pct): value for pct, value in found["power"].items()}
    largest = scatter_that_allows(found["power_at_scatter"])
    verb = "is" if power[PLANTED_PCT] >= POWER else "is not"
    enough = [pct for pct, value in power.items() if value >= POWER]
    return (
        f"At this noise {PLANTED_PCT} % {verb} found in {100 * POWER:.0f} % of comparisons"
        + (f" ({min(enough)} % is)" if enough and verb == "is not" else "")
        + f"; it would be up to a scatter of {largest:g} % between runs."
    )


def main() -> int:
    """The command; exit code 1 if false alarms are too many, or 2 % is not found often enough."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each setting [{RUNS}]")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="[alone,links]")
    parser.add_argument(
        "--of", metavar="NAME=DIR", help="of runs that are there instead: a sweep of one point"
    )
    parser.add_argument("--note", default="", help="what is to be known of the runs, for the result")
    parser.add_argument("--simulate", action="store_true", help="of the runs that are recorded")
    given = parser.parse_args()
    made: dict[str, Any] = {}
    if given.of:
        name, _, directory = given.of.partition("=")
        flags = f"--of {name}=results/{Path(directory).name}" + (
            f' --note "{given.note}"' if given.note else ""
        )
        _add(made, name, flags, {**recorded(Path(directory)), "note": given.note})
    elif not given.simulate:
        for name in _settings(given.settings):
            with tempfile.TemporaryDirectory() as scratch:
                _add(
                    made,
                    name,
                    f"--settings {name} --runs {given.runs}",
                    measure(name, given.runs, Path(scratch)),
                )
    report = _last()
    report["settings"] |= made
    for setting in report["settings"].values():
        setting["found"] = simulate(setting["runs"]["step_ms"])
    write(NAME, report, as_markdown(report))
    found = [setting["found"] for setting in report["settings"].values()]
    good = all(
        each["false_alarms"] <= allowed_false_alarms() and each["power"][PLANTED_PCT] >= POWER
        for each in found
    )
    return EXIT_DONE if good else EXIT_FAILED


def _settings(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SETTINGS:
            raise UserError(f"--settings: no {name!r}; {' or '.join(SETTINGS)}")
    return names


def _last() -> dict[str, Any]:
    file = RESULTS / f"{NAME}.json"
    return json.loads(file.read_text()) if file.exists() else {"settings": {}}


def _add(made: dict[str, Any], name: str, flags: str, runs: Mapping[str, Any]) -> None:
    about = machine(["torch", "numpy", "scipy"])
    del about["load_before"]  # it is of now; that of the runs stands with them, where it was read
    made[name] = {"command": f"python -m benchmarks.comparison {flags}", "machine": about, "runs": runs}


if __name__ == "__main__":
    run_command(main)
