"""Simulated designs of several settings: how often do the intervals of analysis.factors hold the truth?

Parts of :mod:`benchmarks.interval_coverage`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.measures.factors import analysis_of_variance, effects, omega_squared_interval

Rows = list[dict[str, Any]]

MAIN_AND_PAIR = [("a",), ("b",), ("a", "b")]
# (levels of a, b, c; mean of a cell; terms; cells that are missing)
DESIGNS: dict[str, tuple[tuple[int, ...], Callable[..., Any], list[tuple[str, ...]], tuple]] = {
    "one factor": ((3,), lambda a: 1.5 * a, [("a",)], ()),
    "two, no effect": ((2, 2), lambda a, b: 0.0 * a, MAIN_AND_PAIR, ()),
    "two, small": ((2, 2), lambda a, b: 1.0 * a, MAIN_AND_PAIR, ()),
    "two, large": ((2, 3), lambda a, b: 8.0 * a + 2 * b + 1.5 * a * b, MAIN_AND_PAIR, ()),
    "three, large": (
        (2, 2, 3),
        lambda a, b, c: 10.0 * a + b + 0.7 * a * c,
        [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")],
        (),
    ),
    "three, 2 of 12 cells missing": (
        (2, 3, 2),
        lambda a, b, c: 3.0 * a + b,
        [("a",), ("b",), ("c",)],
        ((0, 0, 0), (1, 2, 1)),
    ),
}
REPETITIONS: dict[str, tuple[int, ...]] = {"2": (2,), "3": (3,), "5": (5,), "2 to 5": (2, 5, 3)}


def design(name: str, repetitions: Sequence[int]) -> tuple[dict[str, list[int]], np.ndarray]:
    """The columns of a design, and the true mean of each observation (the error's variance is 1)."""
    levels, mean, _, missing = DESIGNS[name]
    cells = [cell for cell in itertools.product(*map(range, levels)) if cell not in missing]
    counts = [repetitions[place % len(repetitions)] for place in range(len(cells))]
    observed = np.repeat(np.array(cells), counts, axis=0).T
    return {"abc"[place]: list(column) for place, column in enumerate(observed)}, mean(*observed) + 0.0


def of_factors(samples: int) -> Rows:
    """Coverage of omega squared's interval, of every term."""
    made = []
    spreads = dict.fromkeys(REPETITIONS, 1.0) | {"3, scatter of 1 or 3": 3.0}
    for name, (which, spread) in itertools.product(DESIGNS, spreads.items()):
        columns, means = design(name, REPETITIONS.get(which, (3,)))
        terms = DESIGNS[name][2]
        generator = np.random.default_rng(1)
        # Half of the configurations scatter more, where that is asked for.
        cells = list(zip(*columns.values(), strict=True))
        order = list(dict.fromkeys(cells))
        sigma = np.array([spread if order.index(cell) % 2 else 1.0 for cell in cells])
        sigma /= np.sqrt(np.mean(sigma**2))
        truth = true_shares(columns, means, terms)
        ends: dict[tuple[str, ...], list] = {term: [] for term in terms}
        for _ in range(samples):
            values = means + sigma * generator.standard_normal(len(means))
            for term, effect in analysis_of_variance(columns, values, terms).items():
                low, high = omega_squared_interval(effect)
                ends[term].append((low, high, truth[term]))
        for term in terms:
            low, high, true = np.array(ends[term]).T
            held = (low <= true + 1e-12) & (true <= high + 1e-12)
            made.append({
                "design": name,
                "repetitions": which,
                "term": " x ".join(term),
                "true share": round(truth[term], 3),
                "held, %": 100 * float(held.mean()),
                "width": float(np.median(high - low)),
            })  # fmt: skip
    return made


def true_shares(
    columns: Mapping[str, Sequence[int]], means: np.ndarray, terms: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], float]:
    """Omega squared of the population: a term's sum of squares over that of all and the error's, 1 a run."""
    found = analysis_of_variance(columns, means, terms)
    return {
        term: max(0.0, float(effect.sum_of_squares))
        / (float(effect.sum_of_squares + effect.rest_sum_of_squares) + len(means))
        for term, effect in found.items()
    }


# --- the effect of a setting --------------------------------------------------------------------------

LEVELS: dict[str, tuple[float, ...]] = {
    "2 levels, alike": (0.0, 0.0),
    "2 levels, 2 % apart": (0.0, 2.0),
    "4 levels, alike": (0.0,) * 4,
    "4 levels, 1 % apart each": (0.0, 1.0, 2.0, 3.0),
}


def of_levels(samples: int) -> Rows:
    """Coverage of the effect's interval: of the best level over the worst, as these samples have them.

    Two settings; the levels of the first are a few percent apart, and where that is asked for each level
    scatters twice as much as the one before, up to four times.
    """
    made = []
    spreads = {"alike": 1.0, "more, level by level": 2.0}
    for (name, means), spread, which in itertools.product(LEVELS.items(), spreads, REPETITIONS):
        generator = np.random.default_rng(1)
        held, widths, counts = 0, [], REPETITIONS[which]
        places = list(enumerate(itertools.product(range(len(means)), range(2))))
        for _ in range(samples):
            cells = []
            for place, (level, other) in places:
                noise = generator.standard_normal(counts[place % len(counts)])
                scatter = min(spreads[spread] ** level, 4.0)
                response = 100 + means[level] + scatter * noise
                cells.append(pd.DataFrame({"workers": level, "batch": other, "response": response}))
            row = effects(pd.concat(cells, ignore_index=True)).set_index("factor").loc["workers"]
            best, worst = _ends(cells)
            true = 100 * (means[best] - means[worst]) / (100 + np.mean(means))
            held += row["effect_pct_low"] <= true <= row["effect_pct_high"]
            widths.append(row["effect_pct_high"] - row["effect_pct_low"])
        made.append({
            "first setting": name,
            "runs scatter": spread,
            "repetitions": which,
            "effect, held %": 100 * held / samples,
            "effect, width": float(np.median(widths)),
        })  # fmt: skip
    return made


def _ends(cells: Sequence[pd.DataFrame]) -> tuple[int, int]:
    """The best and the worst level of a full design, by the means of the means of its configurations."""
    means = pd.concat(cells).groupby(["workers", "batch"])["response"].mean().groupby("workers").mean()
    return int(np.argmax(means)), int(np.argmin(means))
