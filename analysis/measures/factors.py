"""Effect of each factor on throughput: analysis of variance over configurations.

The data are unprofiled runs, or the reference study's TAU tables: frames of observations, one row per
repetition, with the fields of its configuration and its ``response``.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.display.numbers import probability
from analysis.display.output import Answer
from analysis.estimates import holm
from analysis.frames.measure import measure
from analysis.frames.steps import all_series
from analysis.frames.study import Study
from analysis.measures import tau
from analysis.measures.points import NO_SAMPLES, OWN_RUNS, POINT_FIELDS
from jobs.run_fields import FACTOR, ID_FIELDS
from profiling.errors import UserError

METRICS = (
    Metric("factor", "field of a run, or two together (loader x grad)", text=True),
    Metric("levels", "its values", text=True, table=False),
    Metric("best_level", "level with the highest adjusted mean, if the effect is significant", text=True),
    Metric("effect_pct", "adjusted mean of the best level minus the worst's, relative to the mean",
           "effect, %", CONFIDENCE, places=2),
    Metric("signal_to_noise_db", "range of Taguchi's signal-to-noise ratio over the levels",
           "signal to\nnoise, dB", priority=0),
    Metric("rank_by_signal", "rank by signal_to_noise_db", table=False),
    Metric("omega_squared", "share of the variance (type II analysis)", "omega squared", places=3),
    Metric("p_value", "F test, corrected by Holm (1979)", "p", show=probability, priority=2),
)  # fmt: skip
COLUMNS = {"Columns:": METRICS}
# Corrected p up to which an effect is one.
SIGNIFICANCE = 0.05
# Where configurations scatter unlike, as larger jobs do, quantiles of 95 % hold an effect in 91 % of cases
# (python -m benchmarks.interval_coverage --only levels).
_WITHIN = 0.99
_FEW_RUNS = 3


@measure(COLUMNS)
def factors(study: Study) -> Answer:
    """A row a factor, then a row a pair of them."""
    what, observations = responses(study)
    rows = effects(observations)
    note_design(study, observations, rows)
    return Answer(rows, METRICS, title=f"Effect of each factor on {what}")


def responses(study: Study) -> tuple[str, pd.DataFrame]:
    """What the response is, and the observations."""
    if study.of_kind("tau_intervals"):
        timed = tau.applications(study)
        timed = timed[timed["batches"] == tau.BATCHES]
        runs = tau.tau_rows(study).merge(timed, on=list(ID_FIELDS))
        images = (tau.BATCHES * runs["batch"] * runs["world_size"]).astype(float)
        epoch_s = runs["seconds"].astype(float) * tau.EPOCH_IMAGES / images
        # The efficiency of the row is of the median epoch; each repetition's is that over its own.
        runs["response"] = runs["scaling_efficiency_pct"] * runs["epoch_duration_s"] / epoch_s
        return "published scaling efficiency, %", runs[[*ID_FIELDS, "response"]]
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


def levels_of(observations: pd.DataFrame) -> pd.DataFrame:
    """The fields that vary, as text: what is not known is a level, too."""
    fields = observations.drop(columns="response").astype(object)
    levels = fields.where(fields.notna(), None).map(str)
    return levels.loc[:, levels.nunique() > 1]


def signal_to_noise_db(values: np.ndarray) -> float:
    """Taguchi's larger-is-better signal-to-noise ratio: -10 log10(mean of 1/y^2)."""
    return float(-10 * np.log10(np.mean(1 / np.square(values))))


class Effect(NamedTuple):
    """One term of an analysis of variance; figures have the shape of the values without its last axis."""

    freedom: int
    error_freedom: int
    f_value: np.ndarray
    p_value: np.ndarray
    omega_squared: np.ndarray


def analysis_of_variance(
    columns: Mapping[str, Sequence[Any]], values: np.ndarray, terms: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], Effect]:
    """Type II analysis of variance by categorical factors: each term beside all that do not contain it.

    ``columns``: factor -> level of each observation; ``values``: (..., observations), many sets of one
    design; ``terms``: main effects ``("loader",)`` and interactions ``("loader", "grad")``.
    """
    from scipy import special  # scipy.stats would take longer to import than all of this takes

    blocks = _blocks(columns, terms)
    total, _ = _residual([blocks[()]], values)
    left, rank = _residual(list(blocks.values()), values)
    error_freedom, unknown = values.shape[-1] - rank, np.full_like(left, np.nan)
    mean_square = left / error_freedom if error_freedom > 0 else unknown
    effects = {}
    for term in terms:
        beside = [blocks[other] for other in blocks if not set(term) <= set(other)]
        without, rank_without = _residual(beside, values)
        with_it, rank_with = _residual([*beside, blocks[term]], values)
        explained, freedom = without - with_it, rank_with - rank_without
        with np.errstate(divide="ignore", invalid="ignore"):
            f_value = explained / freedom / mean_square if freedom else unknown
            # A share is not below 0, though its estimate may be; of what has no freedom nothing is known.
            own = np.maximum(explained - freedom * mean_square, 0)
            omega_squared = own / (total + mean_square) if freedom else unknown
        # What explains nothing may come out a rounding error below 0.
        p_value = np.asarray(special.fdtrc(freedom, error_freedom, np.maximum(f_value, 0)))
        effects[term] = Effect(freedom, error_freedom, f_value, p_value, omega_squared)
    return effects


def _blocks(
    columns: Mapping[str, Sequence[Any]], terms: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], np.ndarray]:
    """The columns of a design of each term, and of none, ``()``, the mean: (observations, columns).

    Coding is sum-to-zero: interactions then do not hold main effects.
    """
    coded = {}
    for name, levels in columns.items():
        codes, names = pd.factorize(np.asarray(levels))
        coded[name] = np.vstack([np.eye(len(names) - 1), np.full((1, len(names) - 1), -1.0)])[codes]
    blocks: dict[tuple[str, ...], np.ndarray] = {(): np.ones((len(next(iter(columns.values()))), 1))}
    for term in terms:
        product = blocks[()]
        for name in term:
            product = (product[:, :, None] * coded[name][:, None, :]).reshape(len(product), -1)
        blocks[term] = product
    return blocks


def _residual(blocks: Sequence[np.ndarray], values: np.ndarray) -> tuple[np.ndarray, int]:
    """(sums of squares that a linear model leaves, its rank)."""
    # Faster than a singular value decomposition; designs of coded levels are well conditioned, or singular.
    design = np.hstack(blocks)
    sizes, directions = np.linalg.eigh(design.T @ design)
    nonzero = sizes > sizes[-1] * 1e-12
    basis = design @ (directions[:, nonzero] / np.sqrt(sizes[nonzero]))
    return np.square(values - values @ basis @ basis.T).sum(axis=-1), basis.shape[1]


@cache
def _range_quantile(levels: int, freedom: int) -> float:
    """The studentised range of as many standard normal means that :data:`_WITHIN` of all stay below."""
    # Half a second of imports, for reports with such a factor alone.
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(_WITHIN, levels, freedom))


def effects(observations: pd.DataFrame) -> pd.DataFrame:
    """A row a factor, then a row a pair of them, the largest share first; with :data:`METRICS`."""
    levels, values = levels_of(observations), observations["response"].to_numpy(float)
    varying = [str(name) for name in levels]
    if not varying:
        raise UserError("nothing varies between these runs: there is no factor to compare")
    cells = _cells(levels, values)
    terms: list[tuple[str, ...]] = [(name,) for name in varying]
    if (cells["runs"] > 1).all():
        terms += [
            (one, other)
            for one, other in itertools.combinations(varying, 2)
            if len(cells[[one, other]].drop_duplicates()) == cells[one].nunique() * cells[other].nunique()
        ]
    columns = {name: levels[name].tolist() for name in varying}
    found = analysis_of_variance(columns, values, terms)
    corrected = holm([float(found[term].p_value) for term in terms])
    rows = pd.DataFrame([
        _row(cells, term, found[term]) | _effect(cells, columns, values, term, terms)
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


def _row(cells: pd.DataFrame, term: tuple[str, ...], effect: Effect) -> dict[str, Any]:
    signals = cells.groupby(list(term))["signal_db"].mean()
    return {
        "factor": " x ".join(name.removeprefix(FACTOR) for name in term),
        "levels": ", ".join(" ".join([key] if len(term) == 1 else key) for key in signals.index),
        "signal_to_noise_db": signals.max() - signals.min() if len(term) == 1 else None,
        "omega_squared": float(effect.omega_squared),
    }


def _effect(
    cells: pd.DataFrame, columns: Mapping[str, list[str]], values: np.ndarray, term: tuple[str, ...],
    terms: Sequence[tuple[str, ...]],
) -> dict[str, Any]:  # fmt: skip
    """The best level by least-squares means (Searle, Speed, Milliken 1980, *The American Statistician* 34).

    They are the means of the fitted model if all levels of the other factors weighed alike; none where the
    observations do not separate the levels from other factors. Of a factor also the effect, with its interval
    (Tukey and Kramer): the studentised range allows for best and worst being chosen by the same runs.
    """
    blocks = _blocks(columns, terms)
    design = np.hstack(list(blocks.values()))
    inverse = np.linalg.pinv(design.T @ design, rcond=1e-12, hermitian=True)
    # Sum-to-zero columns of the other terms are 0 on average over a whole design.
    within = np.hstack([block if set(of) <= set(term) else 0 * block for of, block in blocks.items()])
    places: dict[tuple[str, ...], int] = {}
    for place, level in enumerate(zip(*(columns[name] for name in term), strict=True)):
        places.setdefault(level, place)
    rows = within[list(places.values())]
    contrasts = rows - rows[0]
    if not np.allclose(contrasts @ inverse @ design.T @ design, contrasts, atol=1e-8):
        return {}
    means = rows @ (inverse @ design.T @ values)
    best, worst = int(means.argmax()), int(means.argmin())
    row: dict[str, Any] = {"best_level": " ".join(list(places)[best])}
    if len(term) > 1:
        return row
    share, gap = 100 / cells["mean"].mean(), means[best] - means[worst]
    left, rank = _residual([design], values)
    freedom = len(values) - rank
    if (cells["runs"] > 1).any() and freedom and best != worst:
        contrast = rows[best] - rows[worst]
        error = math.sqrt(float(left) / freedom * max(float(contrast @ inverse @ contrast), 0.0))
        half = _range_quantile(len(rows), freedom) * error / math.sqrt(2)
        row |= {"effect_pct_low": share * (gap - half), "effect_pct_high": share * (gap + half)}
    return row | {"effect_pct": share * gap}


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
