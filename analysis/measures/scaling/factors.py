"""Which factor matters?"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Column, Metric, Rows, columns, picked
from analysis.display.naming import of_node
from analysis.display.numbers import probability
from analysis.measures.scaling.factor_cells import Cell, varying_of
from analysis.measures.scaling.unbalanced import not_measured, overlap, unbalanced
from analysis.statistics.effect_size import omega_squared_interval
from analysis.statistics.variance import (
    Adjusted,
    Effect,
    adjusted_means,
    analysis_of_variance,
    holm,
    range_quantile,
)
from jobs.run_fields import FACTOR
from profiling.errors import UserError
from profiling.wording import how_many

METRICS = (
    Metric("factor", "field of a run, or two together (loader x grad)", text=True),
    Metric("levels", "its values", text=True),
    Metric(
        "best_level",
        "level with the highest adjusted mean; empty: the effect is not significant (p_value above 0.05, "
        "or not available)",
        text=True,
    ),
    Metric(
        "effect_pct",
        "difference between the adjusted mean responses of its best and its worst level, relative to the "
        "mean of all (interval: Tukey-Kramer, which allows for choosing these two). Adjusted: of the "
        "fitted model, with equal weight for all levels of the other factors. Empty: the runs cannot "
        "separate it from another factor",
        "effect, %",
        CONFIDENCE,
        places=2,
    ),
    Metric(
        "signal_to_noise_db",
        "Taguchi, larger is better (as in the reference): range over its levels of the mean "
        "signal-to-noise ratio, -10 log10(mean 1/y^2) over repetitions, with plain means",
        "signal to\nnoise, dB",
        priority=0,
    ),
    Metric("rank_by_signal", "rank by signal_to_noise_db"),
    Metric(
        "omega_squared",
        "share of the variance of the response that it explains (analysis of variance, type II; Hays 1963; "
        "negative estimates are set to 0; interval: of the noncentrality)",
        "omega squared",
        CONFIDENCE,
        places=3,
    ),
    Metric("f_value", "F statistic"),
    Metric(
        "p_value",
        "p value of the F test, corrected for the number of tests (Holm 1979)",
        "p",
        show=probability,
        priority=2,
    ),
)
COLUMNS = {"Columns:": METRICS}
# Corrected p up to which an effect is one.
SIGNIFICANCE = 0.05
# Of the studentised range: where levels scatter unlike, as larger jobs do, its quantile of 95 % holds the
# truth in 91 % of cases (python -m benchmarks.interval_coverage --only levels).
_WITHIN = 0.99


def signal_to_noise_db(values: np.ndarray) -> float:
    """Taguchi's larger-is-better signal-to-noise ratio: -10 log10(mean of 1/y^2)."""
    return float(-10 * np.log10(np.mean(1 / np.square(values))))


def _levels(cells: Sequence[Cell], names: Sequence[str]) -> list[tuple]:
    return [tuple(cell.fields.get(name) for name in names) for cell in cells]


def _means_by_level(levels: Sequence[tuple], values: Sequence[float]) -> dict[tuple, float]:
    by_level: dict[tuple, list[float]] = {}
    for level, value in zip(levels, values, strict=True):
        by_level.setdefault(level, []).append(value)
    return {level: float(np.mean(of_level)) for level, of_level in by_level.items()}


def rows(cells: Sequence[Cell], factors: Sequence[str] = ()) -> Rows:
    """A row a factor, then a row a pair of them; the columns: analysis/factors.py.

    Raises:
        UserError: nothing varies, or ``factors`` leaves out one that does.
    """
    varying = varying_of(cells)
    left_out = [name for name in varying if factors and name not in factors]
    if left_out:
        raise UserError(f"--factors omits {', '.join(left_out)}, which also vary; add them, or select runs")
    if not varying:
        raise UserError("nothing varies between these runs: there is no factor to compare")
    repeated = all(len(cell.responses) > 1 for cell in cells)
    terms: list[tuple[str, ...]] = [(name,) for name in varying]
    if repeated:
        terms += [pair for pair in itertools.combinations(varying, 2) if _crossed(cells, pair)]
    values = np.concatenate([cell.responses for cell in cells])
    effects = analysis_of_variance(_columns(cells, varying), values, terms)
    ends = {term: omega_squared_interval(effect) for term, effect in effects.items()} if repeated else {}
    corrected = holm([float(effects[term].p_value) for term in terms])
    answer = [
        {**_row(cells, term, effects[term], p_value, ends.get(term)), **_effect(cells, term, terms)}
        for term, p_value in zip(terms, corrected, strict=True)
    ]
    _rank(answer)
    for row in answer:
        # Of levels that do not differ none is best; without repetitions p may be NaN: nobody knows.
        if not row["p_value"] <= SIGNIFICANCE:
            row["best_level"] = None
    return sorted(answer, key=_order)


def _order(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Factors before pairs; the largest share first, those that are not known last."""
    share = row["omega_squared"]
    return " x " in row["factor"], math.inf if math.isnan(share) else -share


def not_told(rows: Rows) -> list[str]:
    """The factors whose levels changed only together with those of others: their effect is not known."""
    return [row["factor"] for row in rows if " x " not in row["factor"] and row["effect_pct"] is None]


def _crossed(cells: Sequence[Cell], pair: tuple[str, ...]) -> bool:
    """Whether every level of one factor occurs with every level of the other."""
    both = set(_levels(cells, pair))
    return len(both) == len({a for a, _ in both}) * len({b for _, b in both})


def without_interactions(cells: Sequence[Cell]) -> str:
    """Why there is no interaction of two factors, in words."""
    once = sum(len(cell.responses) == 1 for cell in cells)
    if once:
        return f"{'configurations' if once == len(cells) else 'some configurations'} ran only once"
    return not_measured([cell.fields for cell in cells], varying_of(cells))


def _columns(cells: Sequence[Cell], varying: Sequence[str]) -> dict[str, list[str]]:
    """Factor -> its level in each repetition of each configuration."""
    return {name: [str(cell.fields.get(name)) for cell in cells for _ in cell.responses] for name in varying}


def _row(
    cells: Sequence[Cell],
    term: tuple[str, ...],
    effect: Effect,
    p_value: float,
    ends: tuple[float, float] | None,
) -> dict[str, Any]:
    levels = _levels(cells, term)
    signals = _means_by_level(levels, [signal_to_noise_db(cell.responses) for cell in cells])
    main = len(term) == 1
    return {
        "factor": " x ".join(name.removeprefix(FACTOR) for name in term),
        "levels": ", ".join(dict.fromkeys(" ".join(map(str, level)) for level in sorted(signals, key=str))),
        "signal_to_noise_db": max(signals.values()) - min(signals.values()) if main else None,
        "omega_squared": float(effect.omega_squared),
        "omega_squared_low": ends[0] if ends else None,
        "omega_squared_high": ends[1] if ends else None,
        "f_value": float(effect.f_value),
        "p_value": p_value,
    }


def _effect(cells: Sequence[Cell], term: tuple[str, ...], terms: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """The best level; of a factor its effect, too, with its interval (Tukey and Kramer).

    Best and worst are chosen by the same runs that are compared, which alone sets them apart: the studentised
    range of as many levels allows for that.
    """
    row: dict[str, Any] = dict.fromkeys(("best_level", "effect_pct", "effect_pct_low", "effect_pct_high"))
    columns = _columns(cells, sorted({name for one in terms for name in one}))
    values = np.concatenate([cell.responses for cell in cells])
    means = adjusted_means(columns, values, terms, term)
    if means is None:
        return row
    best, worst = max(means.means, key=means.means.__getitem__), min(means.means, key=means.means.__getitem__)
    row["best_level"] = " ".join(best)
    if len(term) > 1:
        return row
    share = 100 / float(np.mean([cell.responses.mean() for cell in cells]))
    apart = means.means[best] - means.means[worst]
    row["effect_pct"] = share * apart
    half = _half_width(cells, means, (best, worst))
    if half is not None:
        row["effect_pct_low"], row["effect_pct_high"] = share * (apart - half), share * (apart + half)
    return row


def _half_width(cells: Sequence[Cell], means: Adjusted, ends: tuple[tuple, tuple]) -> float | None:
    """Of the interval of the difference of two levels' means; None without repetitions."""
    repeated = any(len(cell.responses) > 1 for cell in cells)
    if not repeated or not means.freedom or ends not in means.spread:
        return None
    error = math.sqrt(means.mean_square) * means.spread[ends]
    return range_quantile(len(means.means), means.freedom, _WITHIN) * error / math.sqrt(2)


def _rank(rows: Rows) -> None:
    main = [row for row in rows if row["signal_to_noise_db"] is not None]
    order = sorted(main, key=lambda row: -row["signal_to_noise_db"])
    for number, row in enumerate(order, 1):
        row["rank_by_signal"] = number


def caption(cells: Sequence[Cell], rows: Rows) -> str:
    """What is said below the table."""
    counts = sorted({len(cell.responses) for cell in cells})
    span = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    text = f"{how_many(len(cells), 'configuration')}, repetitions of each: {span}. "
    text += (
        "Effect: best level minus the worst, in % of the mean of all configurations. Omega squared: share of "
        "the variance that the factor explains. Signal to noise: difference between its levels in Taguchi's "
        "signal-to-noise ratio, dB (larger: the factor matters more). p: probability of such a difference "
        "by chance, corrected for the number of tests (Holm)."
    )
    if any(row["effect_pct_low"] is not None for row in rows):
        text += (
            "\nThe intervals allow for configurations whose runs scatter three to four times as much as "
            "others. p does not, so it may be small where an interval holds 0."
        )
    if counts[0] == 1:
        once = "Some configurations ran once" if counts[-1] > 1 else "One repetition"
        no = "omega squared has no interval" if counts[-1] > 1 else "no interval"
        text += f"\n{once}: {no}, and interactions cannot be separated from noise."
    compared = [row for row in rows if row["effect_pct"] is not None]
    if any(row["best_level"] is None for row in compared):
        text += f"\nNo best level is given where the effect is not significant (p above {SIGNIFICANCE:g})."
    unknown = not_told(rows)
    if uneven := unbalanced([cell.fields for cell in cells], varying_of(cells), unknown):
        text += f"\n{uneven}"
    if more := overlap([row["omega_squared"] for row in rows]):
        text += f"\nOmega squared: {more}."
    if unknown:
        text += (
            f"\nEffect not available: {', '.join(unknown)}: its levels changed only together with those of "
            "another factor. Add configurations that separate them."
        )
    return text


def shown(on_cpus: bool) -> list[Column]:
    """The tables' columns."""
    factor, *others = picked(
        METRICS, "factor", "best_level", "effect_pct", "signal_to_noise_db", "omega_squared", "p_value"
    )
    return [factor.column(printed=lambda row: of_node(row["factor"], on_cpus)), *columns(others)]
