"""python -m benchmarks.warmup: how often are steps dropped that are no warmup, and how often is warmup found?

Simulated steps of 100 ms that vary by 5 %, through the two rules of the analyses: that of runs, which are
recorded from their first step on, and that of traces. Without warmup, and with a tenth of the steps slower,
each dropped step is one too many; with a slow head it should be dropped, and no more.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis import estimates
from analysis.frames.steps import warmup_of_traces
from benchmarks.child import facts, machine, write
from profiling.errors import EXIT_DONE, run_command

STEPS = (5, 8, 10, 12, 14, 15, 30, 100)
NOISE, SPIKES = 0.05, 0.1  # of a step; of the steps
HEADS: dict[str, tuple[float, ...]] = {
    "first 3x": (3.0,), "first two 3x": (3.0, 3.0), "first 1.5x": (1.5,), "first two 1.5x": (1.5, 1.5),
}  # fmt: skip
STEADY = {"no warmup": 0.0, "10 % of steps 1.5x": 1.5, "10 % of steps 3x": 3.0}


def steps(
    generator: np.random.Generator, series: int, count: int, head: tuple[float, ...] = (), spikes: float = 0.0
) -> np.ndarray:
    """(series, count) durations in ms.

    Args:
        head: by how much the first steps are longer.
        spikes: by how much a tenth of the steps is longer; 0: none is.
    """
    took = 100 * (1 + NOISE * generator.standard_normal((series, count)))
    took[:, : len(head)] *= head
    return np.where(generator.random((series, count)) < SPIKES, took * spikes, took) if spikes else took


def of_trace(took_ms: np.ndarray) -> int:
    """The warmup of a trace of one rank whose steps were all recorded whole."""
    return warmup_of_traces(took_ms[None, :], np.ones((1, len(took_ms)), bool))


RULES: dict[str, Callable[[np.ndarray], int]] = {"run": estimates.warmup, "trace": of_trace}


def measure(of: str, series: int) -> list[dict[str, Any]]:
    """Of series without warmup: % of which something is dropped; of the others, % that is cut at its end."""
    rule, rows = RULES[of], []
    kinds: dict[str, tuple[tuple[float, ...], float]] = {
        **{name: ((), spikes) for name, spikes in STEADY.items()},
        **{name: (head, 0.0) for name, head in HEADS.items()},
    }
    for name, (head, spikes) in kinds.items():
        row: dict[str, Any] = {"of": of, "steps are": name}
        for count in STEPS:
            every = steps(np.random.default_rng(count), series, count, head, spikes)
            cut = np.array([rule(one) for one in every])
            share = np.mean(cut == len(head)) if head else np.mean(cut > 0)
            row[f"{count} steps"] = round(100 * float(share), 1)
        rows.append(row)
    return rows


def as_markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Is a warmup one?", "",
        f"`python -m benchmarks.warmup`: {report['series']} simulated series of each kind, whose steps vary",
        f"by {100 * NOISE:g} %. The machine: {facts(report['machine'])}.", "",
    ]  # fmt: skip
    for title, kinds in (
        ("Without warmup: % of series of which steps are dropped all the same", STEADY),
        ("With warmup: % of series of which exactly the slow steps are dropped", HEADS),
    ):
        rows = [row for row in report["rows"] if row["steps are"] in kinds]
        names = list(rows[0])
        lines += [
            f"{title}:", "",
            "| " + " | ".join(names) + " |",
            "| --- | --- | " + " | ".join("--:" for _ in STEPS) + " |",
            *("| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warmup", description=__doc__)
    parser.add_argument("--series", type=int, default=2000, help="of each kind [2000]")
    series = parser.parse_args().series
    rows = [row for of in RULES for row in measure(of, series)]
    report = {"machine": machine(["numpy"]), "series": series, "rows": rows}
    write("warmup", report, as_markdown(report))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
