"""Extrapolate measured rates to more ranks: the rows of analysis.predict by ``curve``.

A row is a configuration and a number of ranks, as analysis.predict describes it. The rates are those of a
sweep's points, or of a CSV table.

A point that was measured outside of the range that smaller ones gave says that something grows which is in no
shape: from there on ranges are wider by as much for every doubling.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.display.metrics import Rows, telling
from analysis.display.numbers import label_of
from analysis.prediction import curve
from analysis.prediction.configurations import FARTHEST, Configuration, Nodes, error_of
from profiling.errors import UserError
from profiling.findings import Finding

CURVE = "curve"  # the method of these rows
RANKS = ("world_size", "n_gpus", "gpus", "ranks")
RATES = ("images_per_s", "img_per_s", "img_s_global", "images_per_second", "median_img_s")
# Columns of tables that tell configurations apart.
_FIELDS = (
    "framework", "model", "platform", "gpu", "mode", "precision", "batch_per_gpu", "loader", "grad",
    "compute",
)  # fmt: skip
# A range whose ends are further apart than this factor tells nothing.
_WIDEST = 3.0
# What a prediction lacks.
ONE_SIZE = "one number of ranks measured"
LINKS = "no run on several nodes"
TOO_WIDE = f"possible images/s differ by more than {_WIDEST:g} times"
TOO_FAR = f"more than {FARTHEST} times the measured ranks"


@dataclass(frozen=True)
class Series:
    """A configuration measured on several numbers of ranks, in rising order.

    Attributes:
        batch: images of a rank; 1 where a table does not say it, so that times are relative. Where the batch
            of the job is constant (``strong``): that of the job.
        errors: standard error of each rate, relative.
        nodes: where ranks run; None: a table does not say.
    """

    fields: Mapping[str, Any]
    ranks: tuple[int, ...]
    images_per_s: tuple[float, ...]
    batch: float
    errors: tuple[float, ...] = ()
    strong: bool = False
    nodes: Nodes | None = None

    def images(self, ranks: int) -> float:
        """Of a batch of the job."""
        return self.batch * (1 if self.strong else ranks)


def names_of(series: Sequence[Series]) -> list[str]:
    """The labels of configurations; of strong scaling by the batch of all ranks."""
    rows = [
        {name: value for name, value in one.fields.items() if name != "batch"} | {"global_batch": one.batch}
        if one.strong
        else one.fields
        for one in series
    ]
    differing = telling(rows, dict.fromkeys(name for row in rows for name in row))
    return [label_of(row, differing) for row in rows]


def rows(series: Sequence[Series], wanted: Sequence[int]) -> tuple[Rows, list[Finding]]:
    """Back-tests of each series, then its predictions, and findings on what has none."""
    answer: Rows = []
    findings: list[Finding] = []
    for one, name in zip(series, names_of(series), strict=True):
        if len(one.ranks) < 2:
            ahead = [ranks for ranks in wanted if ranks > one.ranks[0]]
            findings.append(not_predicted(name, ahead, ONE_SIZE))
            continue
        tested, missed = _backtests(one)
        answer += tested
        near, too_far = within_reach(name, one.ranks[-1], wanted)
        findings += too_far
        for ranks in near:
            row = _row(one, ranks, missed)
            if one.nodes and one.nodes.unseen(ranks):
                findings.append(not_predicted(name, [ranks], LINKS))
            elif is_too_wide(row):
                findings.append(not_predicted(name, [ranks], TOO_WIDE))
            else:
                answer.append(row)
    return answer, findings


def not_predicted(name: str, ranks: Sequence[int], lacks: str) -> Finding:
    """A configuration has no row for these numbers of ranks."""
    return Finding("not_predicted", configuration=name or None, data={"ranks": ranks, "lacks": lacks})


def within_reach(name: str, measured: int, wanted: Sequence[int]) -> tuple[list[int], list[Finding]]:
    """The numbers of ranks to predict of those measured at most on ``measured``, and a finding on others."""
    near = [count for count in wanted if measured < count <= FARTHEST * measured]
    far = [count for count in wanted if count > FARTHEST * measured]
    return near, [not_predicted(name, far, TOO_FAR)] if far else []


def is_too_wide(row: Mapping[str, Any]) -> bool:
    """Whether a row's range tells nothing."""
    return bool(_highest(row) > _WIDEST * row["images_per_s_low"])


def _backtests(one: Series) -> tuple[Rows, float]:
    """A row for each point that smaller ones predict; by how much they miss it, a doubling, at most."""
    answer: Rows = []
    missed = 0.0
    for place in range(2, len(one.ranks)):
        known = {name: getattr(one, name)[:place] for name in ("ranks", "images_per_s", "errors")}
        row = backtested(_row(replace(one, **known), one.ranks[place], missed), one.images_per_s[place])
        answer.append(row)
        noise = one.errors[place] if one.errors else curve.ASSUMED_SCATTER
        off = outside(one.images_per_s[place], row["images_per_s_low"], _highest(row), noise)
        missed = max(missed, off / doublings(*one.ranks[place - 1 : place + 1]))
    return answer, missed


def backtested(row: dict[str, Any], measured: float) -> dict[str, Any]:
    """A row of a point that was measured, with its error."""
    error = 100 * (row["images_per_s"] / measured - 1)
    return row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error}


def _highest(row: Mapping[str, Any]) -> float:
    """The upper limit of a row's rate; infinite where it has none."""
    return np.inf if row["images_per_s_high"] is None else float(row["images_per_s_high"])


def doublings(measured: int, wanted: int) -> float:
    """How far a prediction reaches."""
    return abs(float(np.log2(wanted / measured)))


def outside(measured: float, low: float, high: float, noise: float) -> float:
    """By how much (of the logarithm) a measured figure is outside a range, beyond its own error.

    Args:
        high: may be infinite.
        noise: standard error of the measured figure, relative.
    """
    over, under = np.log(measured) - np.log(high), np.log(low) - np.log(measured)
    return max(0.0, float(max(over, under)) - 1.96 * noise)


def row_of(
    one: Series | Configuration,
    ranks: int,
    method: str,
    images: float,
    step_s: tuple[float, float, float],
    base_per_rank: float,
    measured: Iterable[int],
) -> dict[str, Any]:
    """What a prediction by either method says.

    Args:
        images: of a step of the job.
        step_s: the step, from the least to the most that it may take.
        base_per_rank: images/s of a rank on the fewest ranks.
        measured: on which ranks.
    """
    step, low, high = step_s
    return {
        **one.fields,
        "world_size": ranks,
        "predicted_by": method,
        "what_if": "",
        "backtest": False,
        "scaling": "strong" if one.strong else "weak",
        "images_per_s": images / step,
        "images_per_s_low": images / high,
        # A step that may take next to no time sets no upper limit.
        "images_per_s_high": images / low if low > 0 else None,
        "step_ms": 1e3 * step,
        "step_ms_low": 1e3 * low,
        "step_ms_high": 1e3 * high,
        "scaling_efficiency_pct": 100 * images / step / ranks / base_per_rank,
        "measured_on": " ".join(str(count) for count in measured),
    }


def _row(one: Series, ranks: int, missed: float) -> dict[str, Any]:
    times_s = [one.images(count) / rate for count, rate in zip(one.ranks, one.images_per_s, strict=True)]
    prediction = curve.predict(one.ranks, times_s, ranks, one.errors or None, one.strong)
    images, base = one.images(ranks), one.images_per_s[0] / one.ranks[0]
    wider = float(np.exp(missed * doublings(one.ranks[-1], ranks)))
    step_s = (prediction.time, prediction.low / wider, prediction.high * wider)
    return {
        **row_of(one, ranks, CURVE, images, step_s, base, one.ranks),
        "global_batch": round(images) if {"batch", "batch_per_gpu"} & one.fields.keys() else None,
        "shapes": " ".join(prediction.shapes),
    }


# --- what was measured --------------------------------------------------------------------------------


def series_of(configurations: Sequence[Configuration]) -> list[Series]:
    """The rates of a sweep's configurations."""
    return [
        Series(
            one.fields,
            tuple(point.world_size for point in one.points),
            tuple(point.rate.value for point in one.points),
            one.batch(one.points[-1].world_size) * (one.points[-1].world_size if one.strong else 1),
            tuple(error_of(point, one.points) for point in one.points),
            one.strong,
            one.nodes,
        )
        for one in configurations
    ]


def read_table(path: Path) -> list[Series]:
    """The configurations of a CSV table of images/s by number of ranks; repeated points are averaged.

    Raises:
        UserError: it has no such columns, or a value is no number.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV table ({error})") from None
    ranks, rate = (next((name for name in names if name in table.columns), None) for names in (RANKS, RATES))
    if ranks is None or rate is None:
        raise UserError(
            f"{path} needs a column of ranks ({', '.join(RANKS)}) and one of images per second "
            f"({', '.join(RATES)}); it has {', '.join(table.columns)}"
        )
    numbers = table[[ranks, rate]].apply(pd.to_numeric, errors="coerce")
    bad = (numbers.isna() | (numbers <= 0)).any(axis=1).to_numpy()
    if bad.any():
        line = int(np.flatnonzero(bad)[0]) + 2
        raise UserError(f"{path}, line {line}: ranks and images per second must be positive numbers")
    table[[ranks, rate]] = numbers
    fields = [name for name in _FIELDS if name in table.columns]
    series = []
    groups: Any = table.groupby(fields, dropna=False, sort=False) if fields else [((), table)]
    for key, members in groups:
        means = members.groupby(ranks)[rate].mean()
        known = {name: value for name, value in zip(fields, key, strict=True) if pd.notna(value)}
        batch = float(pd.to_numeric(pd.Series([known.get("batch_per_gpu")]), errors="coerce").iloc[0])
        counts, rates = tuple(int(count) for count in means.index), tuple(map(float, means))
        series.append(Series(known, counts, rates, batch if np.isfinite(batch) else 1.0))
    return series
