"""Simulated designs of several settings: how often do the intervals of analysis.factors hold the truth?

Parts of :mod:`benchmarks.interval_coverage`.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.measures.factors import effects

Rows = list[dict[str, Any]]

REPETITIONS: dict[str, tuple[int, ...]] = {"2": (2,), "3": (3,), "5": (5,), "2 to 5": (2, 5, 3)}


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
