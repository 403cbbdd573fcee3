"""python -m benchmarks.interval_coverage: how often do intervals hold the truth?

Simulated runs of known truth go through the analyses' own code: the step and the scaling efficiency of
analysis.scaled, the effect and the false alarms of analysis.compare, the effects of
analysis.factors, the median step of analysis.batches. Each of a kind that clusters produce: points that
scatter alike or not, normal or heavy-tailed runs, a drift of the machine.

    python -m benchmarks.interval_coverage                      (12 minutes of a core)
    python -m benchmarks.interval_coverage --only effects       that part again; the others stay
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.estimates import difference
from analysis.frames.steps import STAGES, Series
from analysis.frames.study import Source
from analysis.measures.compare import differences, pairs_of, regressed
from analysis.measures.efficiency import perturbation
from analysis.measures.points import points_of_runs, samples
from analysis.measures.scaled import against_base
from benchmarks.child import RESULTS, facts, machine, write
from benchmarks.coverage_inside_run import of_differences, of_means, of_medians
from benchmarks.coverage_of_factors import of_levels
from benchmarks.coverage_of_loss import of_loss
from jobs.run import Run
from profiling.errors import EXIT_DONE, UserError, run_command

NAME = "interval_coverage"
RUNS = (2, 3, 5, 10)
BATCHES = 12  # of a simulated run; they differ by 0.05 %, runs by more
TRUE_MS = {1: 100.0, 2: 110.0, 4: 125.0, 8: 150.0}
Rows = list[dict[str, Any]]


# --- analysis.scaled ----------------------------------------------------------------------------------

# Scatter between runs on 1, 2, 4 and 8 ranks, %.
ALIKE, ONE_MORE, GROWING = (1.0, 1.0, 1.0, 1.0), (0.5, 0.5, 0.5, 6.0), (0.5, 1.0, 2.0, 4.0)
SLOW_SHARE, SLOW_BY = 0.1, 5.0
DRIFT_SIGMAS = 4.0


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal; as all noises here its median is 0."""
    return generator.standard_normal(shape)


def heavy(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom."""
    return generator.standard_t(3, shape)


def slow_runs(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One run in ten is slower by 5 standard deviations of the others."""
    median = 0.1397  # of 0.9 N(0, 1) + 0.1 N(5, 1)
    slow = generator.random(shape) < SLOW_SHARE
    return generator.standard_normal(shape) + SLOW_BY * slow - median


def drift(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The machine slows down over the sweep, whose runs are in random order."""
    places = generator.permutation(int(np.prod(shape))).reshape(shape) / (np.prod(shape) - 1) - 0.5
    return DRIFT_SIGMAS * places + generator.standard_normal(shape)


Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
KINDS: dict[str, tuple[tuple[float, ...], Noise]] = {
    "points scatter alike, by 1 %": (ALIKE, normal),
    "0.5 % on 1, 2, 4 ranks, 6 % on 8": (ONE_MORE, normal),
    "0.5, 1, 2, 4 % on 1, 2, 4, 8 ranks": (GROWING, normal),
    "heavy tails (Student's t, 3)": (ALIKE, heavy),
    "one run in ten is slow": (ALIKE, slow_runs),
    "drift of 4 %": (ALIKE, drift),
}


_FIELDS = Run.model_validate({"gpus_per_node": 1, "batches": BATCHES}).model_dump()


def sweep(generator: np.random.Generator, kind: str, runs: int, sweeps: int = 1) -> pd.DataFrame:
    """The points on 1 and 8 ranks, measured, of simulated sweeps on 1, 2, 4 and 8.

    A sweep's number is that of its ``workers``: so many at once are computed as fast as a few.
    """
    scatter_pct, noise = KINDS[kind]
    made = []
    for which in range(sweeps):
        shifts = np.array(scatter_pct)[:, None] / 100 * noise(generator, (len(TRUE_MS), runs))
        for ranks, of_point in zip(TRUE_MS, shifts, strict=True):
            if ranks not in (1, 8):
                continue
            fields = _FIELDS | {"gpus_per_node": ranks, "workers": which}
            for number, shift in enumerate(of_point):
                inside = np.exp(shift + 0.0005 * generator.standard_normal((1, BATCHES)))
                took = np.rint(1e6 * TRUE_MS[ranks] * inside).astype(np.int64)
                stages = dict.fromkeys(STAGES, np.zeros_like(took))
                none = np.zeros(BATCHES, bool)
                series = Series(took, np.full(BATCHES, 32 * ranks), stages, none, 0)
                made.append((Source(str(number), "run", fields, Path(), number), series))
    return points_of_runs(made)


def figures(
    generator: np.random.Generator, kind: str, runs: int, sweeps: int, ranks: int = 8
) -> pd.DataFrame:
    """The step and the efficiency of simulated sweeps on so many ranks, with their intervals; a row each."""
    points = sweep(generator, kind, runs, sweeps)
    figures = against_base(points, points.index.to_series())
    steps = estimates.columns_of("step_ms", samples(points["step"]).to_numpy() / 1e6)
    return figures.assign(**steps)[points["world_size"] == ranks]


def of_scaled(sweeps: int) -> Rows:
    """Coverage on 8 ranks, and of the efficiency from 1 to 8 ranks."""
    truths = {"batch": ("step_ms", TRUE_MS[8]),
              "efficiency": ("scaling_efficiency_pct", 100 * TRUE_MS[1] / TRUE_MS[8])}  # fmt: skip
    made = []
    for kind, runs in itertools.product(KINDS, RUNS):
        rows = figures(np.random.default_rng(runs), kind, runs, sweeps)
        row: dict[str, Any] = {"kind": kind, "runs": runs, "sweeps": sweeps}
        for name, (column, true) in truths.items():
            row |= _share(name, rows[[f"{column}_low", f"{column}_high"]].assign(true=true).to_numpy())
        made.append(row)
    return made


def _share(name: str, ends: Sequence[tuple[float, float, float]] | np.ndarray) -> dict[str, float]:
    """How many of (low, high, truth) hold it, %, and the median width, % of the truth."""
    low, high, truth = np.array(ends).T
    held = (low <= truth) & (truth <= high)
    width = np.median((high - low) / np.abs(truth))
    return {f"{name}, held %": 100 * float(held.mean()), f"{name}, width %": 100 * float(width)}


# --- analysis.compare ---------------------------------------------------------------------------------

SIDES = {"A and B scatter by 1 %": (1.0, 1.0), "A by 1 %, B by 4 %": (1.0, 4.0)}
EFFECT_PCT = 3.0


def _medians(generator: np.random.Generator, noise: Noise, scatter_pct: float, runs: int) -> np.ndarray:
    return 100 * np.exp(scatter_pct / 100 * noise(generator, (runs,)))


def of_effects(comparisons: int) -> Rows:
    """Coverage of the effect's interval."""
    made = []
    for (kind, sides), noise, runs in itertools.product(SIDES.items(), (normal, heavy), (2, 3, 4, 5, 10)):
        generator = np.random.default_rng(runs)
        ends = []
        for _ in range(comparisons):
            a, b = (_medians(generator, noise, each, runs) for each in sides)
            found = difference([(a, b * (1 + EFFECT_PCT / 100))])
            # The width in points of effect is that in percent of the step.
            ends.append((100 + found.low, 100 + found.high, 100 + EFFECT_PCT))
        name = f"{kind}, {'normal' if noise is normal else 'heavy tails'}"
        shared = _share("effect", ends)
        none = not np.isfinite(shared["effect, width %"])
        made.append({"kind": name, "runs a side": runs} | (dict.fromkeys(shared) if none else shared))
    return made


def _pairs(
    generator: np.random.Generator, noise: Noise, scatters_pct: Sequence[float], runs: int
) -> pd.DataFrame:
    """Two results of as many configurations, alike."""
    sides = [
        pd.DataFrame({"workers": str(number), "side": side, "value": _medians(generator, noise, each, runs)})
        for number, each in enumerate(scatters_pct)
        for side in "AB"
    ]
    every = pd.concat(sides, ignore_index=True)
    return pairs_of(every.assign(kind="step", quantity="step_ms", calls=np.nan))


def of_alarms(comparisons: int) -> Rows:
    """How often something is said to differ where nothing does, and the exit code is 1; six slower by 3 %."""
    made = []
    scatters = {"all by 1 %": [1.0] * 6, "four by 0.3 %, two by 6 %": [0.3] * 4 + [6.0] * 2}
    for (kind, scatters_pct), runs in itertools.product(scatters.items(), (2, 3, 4, 5, 10)):
        generator = np.random.default_rng(runs)
        combined = exits = found = 0
        for _ in range(comparisons):
            pairs = _pairs(generator, normal, scatters_pct, runs)
            alike = differences(pairs)
            combined += bool(alike["verdict"][alike["kind"] == "combined"].isin(["slower", "faster"]).any())
            exits += len(regressed(alike)) > 0
            slower = pairs["runs_b"].map(lambda values: [value * (1 + EFFECT_PCT / 100) for value in values])
            found += len(regressed(differences(pairs.assign(runs_b=slower)))) > 0
        made.append({
            "six configurations scatter": kind,
            "runs a side": runs,
            "all together called different, %": 100 * combined / comparisons,
            "exit code 1, %": 100 * exits / comparisons,
            "exit code 1 if all are 3 % slower, %": 100 * found / comparisons,
        })  # fmt: skip
    return made


# --- the profiler's perturbation ----------------------------------------------------------------------

PERTURBATION = 1.25


def of_perturbation(sweeps: int, noises: Sequence[Noise] = (normal, heavy)) -> Rows:
    """Coverage of a profiled step over an unprofiled one, by how many runs there are of either."""
    made = []
    profiled_scatter = {"both scatter by 1 %": 1.0, "unprofiled by 1 %, profiled by 3 %": 3.0}
    for kind, noise, runs, profiled in itertools.product(profiled_scatter, noises, (2, 3, 5), (1, 2, 3)):
        generator = np.random.default_rng(runs)
        of_sweeps = []
        for which in range(sweeps):
            timed, recorded = noise(generator, (runs,)) / 100, noise(generator, (profiled,))
            recorded = np.log(PERTURBATION) + profiled_scatter[kind] / 100 * recorded
            of_sweeps += [_run(generator, which, number, shift) for number, shift in enumerate(timed)]
            of_sweeps += [
                _run(generator, which, number, shift, True) for number, shift in enumerate(recorded)
            ]
        points = points_of_runs(of_sweeps).groupby("workers")
        rows = pd.DataFrame([perturbation(of_sweep) for _, of_sweep in points])
        ends = rows[["perturbation_low", "perturbation_high"]].assign(true=PERTURBATION).astype(float)
        found = _share("perturbation", ends.to_numpy())
        known = np.isfinite(found["perturbation, width %"])
        made.append({
            "kind": f"{kind}, {'normal' if noise is normal else 'heavy tails'}",
            "unprofiled runs": runs,
            "profiled runs": profiled,
        } | (found if known else dict.fromkeys(found)))  # fmt: skip
    return made


def _run(
    generator: np.random.Generator, sweep: int, number: int, shift: float, profiled: bool = False
) -> tuple[Source, Series]:
    took = np.rint(1e8 * np.exp(shift + 0.0005 * generator.standard_normal((1, BATCHES)))).astype(np.int64)
    stages = dict.fromkeys(STAGES, np.zeros_like(took))
    series = Series(took, np.full(BATCHES, 32), stages, np.full(BATCHES, profiled), 0)
    fields = _FIELDS | {"workers": sweep, "profile": "torch" if profiled else "none"}
    return Source(f"{sweep} {number} {profiled}", "run", fields, Path(), number), series


# --- the result ---------------------------------------------------------------------------------------

PARTS: dict[str, tuple[str, Callable[[int], Rows], int]] = {
    "scaled": ("analysis.scaled: a step on 8 ranks, and the efficiency from 1 to 8", of_scaled, 400),
    "effects": ("analysis.compare: interval of a slowdown of 3 %", of_effects, 4000),
    "alarms": ("analysis.compare: six configurations, of which none differs", of_alarms, 600),
    "levels": ("analysis.factors: interval of a setting's effect", of_levels, 200),
    "perturbation": ("analysis.scaled: a profiled step over an unprofiled one", of_perturbation, 400),
    "batches": ("analysis.batches: interval of a median step inside a run", of_medians, 1000),
    "means": ("analysis.tau_batches: interval of a mean step inside a run", of_means, 1000),
    "loss": ("analysis.scaled: parts of the loss inside a run, and their sum", of_loss, 1000),
    "differences": ("analysis.tau_batches: a step by what 50 take longer than one", of_differences, 2000),
}


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# Do intervals hold the truth?", "",
        f"`python -m benchmarks.{NAME}`: % of simulated cases whose interval holds the truth, and the",
        f"median width of the intervals. {facts(report['machine'])}.", "",
    ]  # fmt: skip
    for name, (title, _, cases) in PARTS.items():
        if found := report["parts"].get(name):
            head = list(found[0])
            lines += [f"## {title}", "", f"{cases} simulated cases a row.", ""]
            lines += ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
            lines += ["| " + " | ".join(_cell(row[key]) for key in head) + " |" for row in found] + [""]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "none" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)} [all]")
    only = parser.parse_args().only
    parts = only.split(",") if only else list(PARTS)
    if unknown := [name for name in parts if name not in PARTS]:
        raise UserError(f"--only: no part {unknown[0]!r}; {', '.join(PARTS)}")
    file = RESULTS / f"{NAME}.json"
    made = {name: PARTS[name][1](PARTS[name][2]) for name in parts}
    last = json.loads(file.read_text())["parts"] if file.exists() else {}
    report = {"machine": machine(["numpy", "scipy"]), "parts": last | made}
    write(NAME, report, as_markdown(report))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
