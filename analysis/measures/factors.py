"""Effect of each factor on throughput: analysis of variance over configurations.

Compared are unprofiled runs, or the reference's TAU tables.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Column, Metric, Rows, columns
from analysis.display.numbers import probability
from analysis.frames.steps import all_series
from analysis.frames.study import Study
from analysis.measures import tau
from analysis.measures.points import NO_SAMPLES, OWN_RUNS, point_fields
from analysis.measures.tau import EPOCH_IMAGES
from analysis.statistics.variance import (
    Adjusted,
    Effect,
    adjusted_means,
    analysis_of_variance,
    holm,
    omega_squared_interval,
    range_quantile,
)
from jobs.run import Run
from jobs.run_fields import FACTOR, ID_FIELDS, own_names
from profiling.errors import UserError

METRICS = (
    Metric("factor", "field of a run, or two together (loader x grad)", text=True),
    Metric("levels", "its values", text=True),
    Metric("best_level", "level with the highest adjusted mean, if the effect is significant", text=True),
    Metric(
        "effect_pct",
        "adjusted mean of the best level minus that of the worst, relative to the mean",
        "effect, %",
        CONFIDENCE,
        places=2,
    ),
    Metric(
        "signal_to_noise_db",
        "range over its levels of Taguchi's signal-to-noise ratio (larger is better)",
        "signal to\nnoise, dB",
        priority=0,
    ),
    Metric("rank_by_signal", "rank by signal_to_noise_db"),
    Metric(
        "omega_squared",
        "share of the variance that it explains (analysis of variance, type II)",
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


@dataclass(frozen=True)
class Cell:
    """A configuration: its fields, and the response of each repetition."""

    fields: Mapping[str, Any]
    responses: np.ndarray


def responses(study: Study) -> tuple[str, list[Cell]]:
    """What is compared, and its values by configuration.

    Raises:
        UserError: the study holds no repeated runs, nor TAU tables, or not the samples of their steps.
    """
    if study.tau_intervals:
        return "published scaling efficiency, %", _of_tau(study)
    cells: dict[tuple, tuple[dict[str, Any], list[float]]] = {}
    series = all_series(study)
    for source in study.of_kind("run"):
        if source.fields["profile"] == "none":
            fields = point_fields(source.fields)
            cell = cells.setdefault(tuple(map(str, fields.items())), (fields, []))
            cell[1].append(series[source.id].images_per_s / (source.world_size or 1))
    if not cells and study.only_traces:
        raise UserError(f"{study.path} holds only traces: {OWN_RUNS}")
    if not cells:
        raise UserError(f"{study.path} holds no unprofiled run and no TAU table: there is nothing to compare")
    if np.isnan([rate for _, rates in cells.values() for rate in rates]).any():
        raise UserError(f"{study.path}: {NO_SAMPLES}")
    return "images/s per rank", [Cell(fields, np.array(values)) for fields, values in cells.values()]


def _of_tau(study: Study) -> list[Cell]:
    timed, _ = tau.timed_and_started(study)
    cells = []
    for row in tau.tau_rows(study):
        seconds = timed[tuple(row[name] for name in ID_FIELDS)]
        epochs = seconds * EPOCH_IMAGES / (50 * row["batch"] * row["world_size"])
        # The efficiency of the row is of the median epoch; each repetition's is that over its own.
        cells.append(Cell(row, row["scaling_efficiency_pct"] * row["epoch_duration_s"] / epochs))
    return cells


def varying_of(cells: Sequence[Cell]) -> list[str]:
    """The fields of a run that are not the same in all configurations."""
    names = [*Run.model_fields, *own_names(*(cell.fields for cell in cells))]
    return [name for name in names if len({str(cell.fields.get(name)) for cell in cells}) > 1]


def signal_to_noise_db(values: np.ndarray) -> float:
    """Taguchi's larger-is-better signal-to-noise ratio: -10 log10(mean of 1/y^2)."""
    return float(-10 * np.log10(np.mean(1 / np.square(values))))


def _levels(cells: Sequence[Cell], names: Sequence[str]) -> list[tuple]:
    return [tuple(cell.fields.get(name) for name in names) for cell in cells]


def rows(cells: Sequence[Cell], factors: Sequence[str] = ()) -> Rows:
    """A row a factor, then a row a pair of them; with :data:`METRICS`.

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
        for pair in itertools.combinations(varying, 2):
            both = set(_levels(cells, pair))
            if len(both) == len({a for a, _ in both}) * len({b for _, b in both}):  # crossed
                terms.append(pair)
    values = np.concatenate([cell.responses for cell in cells])
    effects = analysis_of_variance(_columns(cells, varying), values, terms)
    ends = {term: omega_squared_interval(effect) for term, effect in effects.items()} if repeated else {}
    corrected = holm([float(effects[term].p_value) for term in terms])
    answer = [
        {**_row(cells, term, effects[term], p_value, ends.get(term)), **_effect(cells, term, terms)}
        for term, p_value in zip(terms, corrected, strict=True)
    ]
    main = [row for row in answer if row["signal_to_noise_db"] is not None]
    for number, row in enumerate(sorted(main, key=lambda row: -row["signal_to_noise_db"]), 1):
        row["rank_by_signal"] = number
    for row in answer:
        # Of levels that do not differ none is best; without repetitions p may be NaN.
        if not row["p_value"] <= SIGNIFICANCE:
            row["best_level"] = None
    # Factors before pairs; the largest share first, unknown ones last.
    return sorted(
        answer, key=lambda row: (" x " in row["factor"], -np.nan_to_num(row["omega_squared"], nan=-np.inf))
    )


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
    by_level: dict[tuple, list[float]] = {}
    for level, cell in zip(_levels(cells, term), cells, strict=True):
        by_level.setdefault(level, []).append(signal_to_noise_db(cell.responses))
    signals = {level: float(np.mean(values)) for level, values in by_level.items()}
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


def check(study: Study, cells: Sequence[Cell], rows: Rows) -> None:
    """Findings on designs that cannot separate all effects, or their noise."""
    varying = varying_of(cells)
    measured = set(_levels(cells, varying))
    whole = math.prod(len(set(_levels(cells, [name]))) for name in varying)
    if len(measured) < whole:
        # Their levels changed only together with those of others.
        confounded = [
            row["factor"] for row in rows if " x " not in row["factor"] and row["effect_pct"] is None
        ]
        study.note("unbalanced_design", n=len(measured), of=whole, factors=confounded or ["none"])
    if few := sum(len(cell.responses) < 3 for cell in cells):
        study.note("few_runs", n=few, of=len(cells), least=3)


def shown() -> list[Column]:
    """The tables' columns."""
    return columns(
        METRICS, "factor", "best_level", "effect_pct", "signal_to_noise_db", "omega_squared", "p_value"
    )
