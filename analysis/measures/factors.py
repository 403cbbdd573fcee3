"""Effect of each factor on throughput: analysis of variance over configurations.

The data are unprofiled runs, or the reference study's TAU tables. Every function takes a frame of
observations: one row per repetition, with the fields of its configuration and its ``response``.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.display.numbers import probability
from analysis.display.terminal import Answer
from analysis.frames.measure import measure
from analysis.frames.steps import all_series
from analysis.frames.study import Study
from analysis.measures import tau
from analysis.measures.points import NO_SAMPLES, OWN_RUNS, POINT_FIELDS
from analysis.statistics.variance import (
    Effect,
    adjusted_means,
    analysis_of_variance,
    holm,
    omega_squared_interval,
    range_quantile,
)
from jobs.run_fields import FACTOR, ID_FIELDS
from profiling.errors import UserError

METRICS = (
    Metric("factor", "field of a run, or two together (loader x grad)", text=True),
    Metric("levels", "its values", text=True, table=False),
    Metric("best_level", "level with the highest adjusted mean, if the effect is significant", text=True),
    Metric("effect_pct", "adjusted mean of the best level minus the worst's, relative to the mean",
           "effect, %", CONFIDENCE, places=2),
    Metric("signal_to_noise_db", "range over its levels of Taguchi's signal-to-noise ratio",
           "signal to\nnoise, dB", priority=0),
    Metric("rank_by_signal", "rank by signal_to_noise_db", table=False),
    Metric("omega_squared", "share of the variance that it explains (analysis of variance, type II)",
           "omega squared", CONFIDENCE, places=3),
    Metric("f_value", "F statistic", table=False),
    Metric("p_value", "F test, corrected for the number of tests (Holm 1979)", "p", show=probability,
           priority=2),
)  # fmt: skip
COLUMNS = {"Columns:": METRICS}
# Corrected p up to which an effect is one.
SIGNIFICANCE = 0.05
# Of the studentised range: where levels scatter unlike, as larger jobs do, its quantile of 95 % holds the
# truth in 91 % of cases (python -m benchmarks.interval_coverage --only levels).
_WITHIN = 0.99
_FEW_RUNS = 3
Levels = dict[str, list[str]]  # factor -> its level in each observation


@measure(COLUMNS)
def factors(study: Study, factors: Sequence[str] = ()) -> Answer:
    """A row a factor, then a row a pair of them.

    Args:
        factors: the fields that may vary; none: any.

    Raises:
        UserError: there is nothing to compare, nothing varies, or a field varies that is not in ``factors``.
    """
    what, observations = responses(study)
    rows = effects(observations, factors)
    note_design(study, observations, rows)
    return Answer(rows, METRICS, title=f"Effect of each factor on {what}")


# --- what is compared -------------------------------------------------------------------------------------


def responses(study: Study) -> tuple[str, pd.DataFrame]:
    """What the response is, and the observations.

    Raises:
        UserError: the study holds no repeated runs, nor TAU tables, or not the samples of their steps.
    """
    if study.tau_intervals:
        return "published scaling efficiency, %", _of_tau(study)
    series = all_series(study)
    rates = [
        {"run": source.id, "response": series[source.id].images_per_s / (source.world_size or 1)}
        for source in study.of_kind("run")
        if source.fields["profile"] == "none"
    ]
    if not rates and study.only_traces:
        raise UserError(f"{study.path} holds only traces: {OWN_RUNS}")
    if not rates:
        raise UserError(f"{study.path} holds no unprofiled run and no TAU table: there is nothing to compare")
    frame = study.with_fields(pd.DataFrame(rates))
    if frame["response"].isna().any():
        raise UserError(f"{study.path}: {NO_SAMPLES}")
    return "images/s per rank", frame[[*POINT_FIELDS, *study.own_factors, "response"]]


def _of_tau(study: Study) -> pd.DataFrame:
    timed = tau.applications(study)
    timed = timed[timed["batches"] == tau.BATCHES]
    runs = tau.tau_rows(study).merge(timed, on=list(ID_FIELDS))
    epoch_s = runs["seconds"].astype(float) * tau.EPOCH_IMAGES / (50 * runs["batch"] * runs["world_size"])
    # The efficiency of the row is of the median epoch; each repetition's is that over its own.
    runs["response"] = runs["scaling_efficiency_pct"] * runs["epoch_duration_s"] / epoch_s
    return runs[[*ID_FIELDS, "response"]]


def levels_of(observations: pd.DataFrame) -> pd.DataFrame:
    """The fields that vary, as text: what is not known is a level, too."""
    fields = observations.drop(columns="response").astype(object)
    levels = fields.where(fields.notna(), None).map(str)
    return levels.loc[:, levels.nunique() > 1]


def signal_to_noise_db(values: np.ndarray) -> float:
    """Taguchi's larger-is-better signal-to-noise ratio: -10 log10(mean of 1/y^2)."""
    return float(-10 * np.log10(np.mean(1 / np.square(values))))


# --- effects ----------------------------------------------------------------------------------------------


def effects(observations: pd.DataFrame, factors: Sequence[str] = ()) -> pd.DataFrame:
    """A row a factor, then a row a pair of them, the largest share first; with :data:`METRICS`.

    Raises:
        UserError: nothing varies, or ``factors`` leaves out one that does.
    """
    levels, values = levels_of(observations), observations["response"].to_numpy(float)
    varying = [str(name) for name in levels]
    left_out = [name for name in varying if factors and name not in factors]
    if left_out:
        raise UserError(f"--factors omits {', '.join(left_out)}, which also vary; add them, or select runs")
    if not varying:
        raise UserError("nothing varies between these runs: there is no factor to compare")
    cells = _cells(levels, values)
    repeated = bool((cells["runs"] > 1).all())
    terms: list[tuple[str, ...]] = [(name,) for name in varying]
    if repeated:
        terms += [
            (one, other)
            for one, other in itertools.combinations(varying, 2)
            if len(cells[[one, other]].drop_duplicates()) == cells[one].nunique() * cells[other].nunique()
        ]
    columns = {name: levels[name].tolist() for name in varying}
    found = analysis_of_variance(columns, values, terms)
    corrected = holm([float(found[term].p_value) for term in terms])
    rows = pd.DataFrame([
        _row(cells, term, found[term], repeated) | _effect(cells, columns, values, term, terms)
        for term in terms
    ], columns=names_of(METRICS)).assign(p_value=corrected)  # fmt: skip
    rows["rank_by_signal"] = rows["signal_to_noise_db"].rank(ascending=False, method="first").astype("Int64")
    # Of levels that do not differ none is best; without repetitions p may be NaN.
    rows["best_level"] = rows["best_level"].where(rows["p_value"] <= SIGNIFICANCE, None)
    rows = rows.assign(is_pair=[len(term) > 1 for term in terms])
    rows = rows.sort_values(["is_pair", "omega_squared"], ascending=[True, False], kind="stable")
    return rows.drop(columns="is_pair").reset_index(drop=True)


def _cells(levels: pd.DataFrame, values: np.ndarray) -> pd.DataFrame:
    """A row a configuration: its levels, how many ``runs`` it has, their ``mean`` and ``signal_db``."""
    response = pd.Series(values, levels.index).groupby([levels[name] for name in levels], sort=False)
    return response.agg(runs="size", mean="mean", signal_db=signal_to_noise_db).reset_index()


def _row(cells: pd.DataFrame, term: tuple[str, ...], effect: Effect, repeated: bool) -> dict[str, Any]:
    signals = cells.groupby(list(term))["signal_db"].mean()
    low, high = omega_squared_interval(effect) if repeated else (None, None)
    return {
        "factor": " x ".join(name.removeprefix(FACTOR) for name in term),
        "levels": ", ".join(" ".join([key] if len(term) == 1 else key) for key in signals.index),
        "signal_to_noise_db": signals.max() - signals.min() if len(term) == 1 else None,
        "omega_squared": float(effect.omega_squared),
        "omega_squared_low": low,
        "omega_squared_high": high,
        "f_value": float(effect.f_value),
    }


def _effect(
    cells: pd.DataFrame,
    columns: Levels,
    values: np.ndarray,
    term: tuple[str, ...],
    terms: Sequence[tuple[str, ...]],
) -> dict[str, Any]:
    """The best level; of a factor its effect, too, with its interval (Tukey and Kramer).

    Best and worst are chosen by the same runs that are compared, which alone sets them apart: the studentised
    range of as many levels allows for that.
    """
    means = adjusted_means(columns, values, terms, term)
    if means is None:
        return {}
    best, worst = max(means.means, key=means.means.__getitem__), min(means.means, key=means.means.__getitem__)
    row: dict[str, Any] = {"best_level": " ".join(best)}
    if len(term) > 1:
        return row
    share, gap = 100 / cells["mean"].mean(), means.means[best] - means.means[worst]
    row["effect_pct"] = share * gap
    if (cells["runs"] > 1).any() and means.freedom and (best, worst) in means.spread:
        error = math.sqrt(means.mean_square) * means.spread[best, worst]
        half = range_quantile(len(means.means), means.freedom, _WITHIN) * error / math.sqrt(2)
        row |= {"effect_pct_low": share * (gap - half), "effect_pct_high": share * (gap + half)}
    return row


def note_design(study: Study, observations: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Findings on designs that cannot separate all effects, or their noise."""
    levels = levels_of(observations)
    cells = _cells(levels, observations["response"].to_numpy(float))
    full = math.prod(levels.nunique())
    if len(cells) < full:
        # Their levels changed only together with those of others.
        unknown = rows["effect_pct"].isna() & ~rows["factor"].str.contains(" x ", regex=False)
        factors = list(rows["factor"][unknown]) or ["none"]
        study.note("unbalanced_design", n=len(cells), of=full, factors=factors)
    if few := int((cells["runs"] < _FEW_RUNS).sum()):
        study.note("few_runs", n=few, of=len(cells), least=_FEW_RUNS)
