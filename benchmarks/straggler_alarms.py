"""python -m benchmarks.straggler_alarms: how often is a rank named where all are alike, and how often found?

Lateness of equal ranks whose batches vary by 5 % of a batch: independent (normal, and Student's t with 2
degrees of freedom, whose outliers have no bounds) or correlated with the batch before. And of ranks of which
one is late by 4 % of a batch with noise of 2 %, or by 20 % in one batch of four with noise of 1 %.
"""

import argparse
from typing import Any

import numpy as np

from analysis.measures.lateness import BY_STAGES, STRAGGLER, Lateness, judge, over_others
from benchmarks.child import facts, machine, write
from profiling.errors import EXIT_DONE, run_command

RANKS, BATCHES = (2, 8, 64), (20, 50, 200)
ALIKE = {"independent": (0.0, False), "Student's t": (0.0, True), "0.5": (0.5, False), "0.8": (0.8, False)}


def noise(generator: np.random.Generator, ranks: int, batches: int, rho: float, heavy: bool) -> np.ndarray:
    """(ranks, batches), each correlated by ``rho`` with the one before, innovations of variance 1."""
    drawn = generator.standard_t(2, (ranks, batches)) if heavy else generator.normal(size=(ranks, batches))
    drawn[:, 0] /= np.sqrt(1 - rho**2)
    for batch in range(1, batches):
        drawn[:, batch] += rho * drawn[:, batch - 1]
    return drawn


def named(took_pct: np.ndarray) -> list[int]:
    """The ranks that are named; times (ranks, batches) in percent of a batch."""
    late = over_others(took_pct)
    exact = np.zeros(len(late))
    lateness = Lateness(BY_STAGES, np.arange(late.shape[1]), late, late, {}, 100.0, exact)
    return np.flatnonzero(judge(lateness)[0] == STRAGGLER).tolist()


def measure(ranks: int, batches: int, runs: int) -> dict[str, Any]:
    """Shares of runs, in percent."""
    generator = np.random.default_rng(ranks * 1000 + batches)
    row: dict[str, Any] = {"ranks": ranks, "batches": batches, "runs": runs}
    for name, (rho, heavy) in ALIKE.items():
        alarms = sum(bool(named(5 * noise(generator, ranks, batches, rho, heavy))) for _ in range(runs))
        row[name] = 100 * alarms / runs
    late, slow = ranks // 2, {"late by 4 %": 0, "every fourth by 20 %": 0}
    for _ in range(runs):
        constant = 2 * noise(generator, ranks, batches, 0.0, False)
        constant[late] += 4
        at_times = noise(generator, ranks, batches, 0.0, False)
        at_times[late] += 20 * (generator.random(batches) < 0.25)
        slow["late by 4 %"] += named(constant) == [late]
        slow["every fourth by 20 %"] += named(at_times) == [late]
    return row | {name: 100 * count / runs for name, count in slow.items()}


def as_markdown(report: dict[str, Any]) -> str:
    names = list(report["rows"][0])
    lines = [
        "# Is a straggler one?", "",
        "`python -m benchmarks.straggler_alarms`: % of runs in which a rank is named. The machine:",
        f"{facts(report['machine'])}.", "",
        "Equal ranks (false alarms), by how batches vary; then one late rank (found, no other named).", "",
        "| " + " | ".join(names) + " |", "| " + " | ".join("--:" for _ in names) + " |",
        *("| " + " | ".join(f"{row[name]:g}" for name in names) + " |" for row in report["rows"]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.straggler_alarms", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="of each kind; a quarter at 64 ranks [400]")
    runs = parser.parse_args().runs
    cells = [(ranks, batches) for ranks in RANKS for batches in BATCHES]
    rows = [measure(ranks, batches, runs // 4 if ranks == 64 else runs) for ranks, batches in cells]
    report = {"machine": machine(["numpy"]), "rows": rows}
    write("straggler_alarms", report, as_markdown(report))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
