"""What do measured rates say of more ranks? Series of a configuration, and the curves fitted to them.

A row is a configuration and a number of ranks, as analysis.predict describes it. The rates are those of a
sweep's points, or of a CSV table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import curve
from analysis.scaling import NOT_ALIKE, POINT_FIELDS, Point, points_of
from analysis.study import Study
from analysis.terminal import Rows
from profiling.errors import UserError

CURVE = "curve"  # the method of these rows
# What the points of a configuration have in common.
CONFIGURATION = tuple(name for name in POINT_FIELDS if name not in NOT_ALIKE)
RANKS = ("world_size", "n_gpus", "gpus", "ranks")
RATES = ("images_per_s", "img_per_s", "img_s_global", "images_per_second", "median_img_s")
# Columns of tables that tell configurations apart.
_FIELDS = (
    "framework", "model", "platform", "gpu", "mode", "precision", "batch_per_gpu", "loader", "grad",
    "compute",
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A configuration measured on several numbers of ranks, in rising order."""

    fields: Mapping[str, Any]
    ranks: tuple[int, ...]
    images_per_s: tuple[float, ...]
    batch: float  # images a rank; 1 where a table does not say it, so that times are relative

    def time_s(self) -> list[float]:
        """Seconds a batch of a rank."""
        return [self.batch * ranks / rate for ranks, rate in zip(self.ranks, self.images_per_s, strict=True)]


def rows(series: Sequence[Series], wanted: Sequence[int]) -> Rows:
    """Back-tests of each series, then its predictions; see this file's docstring.

    Raises:
        UserError: no series was measured on two numbers of ranks.
    """
    usable = [one for one in series if len(one.ranks) > 1]
    if not usable:
        raise UserError(
            "no configuration was measured on two numbers of ranks: there is nothing to go on from"
        )
    made: Rows = []
    for one in usable:
        for place in range(2, len(one.ranks)):
            known = Series(one.fields, one.ranks[:place], one.images_per_s[:place], one.batch)
            row = _row(known, one.ranks[place])
            measured = one.images_per_s[place]
            error = 100 * (row["images_per_s"] / measured - 1)
            made.append(row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error})
        made += [_row(one, ranks) for ranks in wanted if ranks > one.ranks[-1]]
    return made


def _row(one: Series, ranks: int) -> dict[str, Any]:
    found = curve.predict(one.ranks, one.time_s(), ranks)
    images = one.batch * ranks

    def rate(time_s: float) -> float:
        return images / time_s if time_s > 0 else float("nan")

    base = one.images_per_s[0] / one.ranks[0]
    return {
        **one.fields,
        "ranks": ranks,
        "method": CURVE,
        "what_if": "",
        "backtest": False,
        "images_per_s": rate(found.time),
        "images_per_s_low": rate(found.high),
        "images_per_s_high": rate(found.low),
        "batch_ms": 1e3 * found.time,
        "batch_ms_low": 1e3 * found.low,
        "batch_ms_high": 1e3 * found.high,
        "scaling_efficiency_pct": 100 * rate(found.time) / ranks / base,
        "measured_on": " ".join(str(count) for count in one.ranks),
        "shapes": " ".join(found.shapes),
    }


# --- what was measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Configuration:
    """The points of one configuration, in rising order of ranks, no two of one world size.

    Attributes:
        fields: those of :data:`CONFIGURATION`.
    """

    fields: Mapping[str, Any]
    points: tuple[Point, ...]


def configurations(study: Study) -> list[Configuration]:
    """A sweep's configurations; one rank sends no gradients, so its point may be of another precision."""
    found: dict[tuple, list[Point]] = {}
    points = points_of(study)
    for point in points:
        key = tuple(str(point.fields[name]) for name in CONFIGURATION)
        members = found.setdefault(key, [])
        base = point.base
        if base is not None and base.world_size < point.world_size and base not in members:
            members.append(base)
        if point not in members:
            members.append(point)
    made = []
    for members in found.values():
        members.sort(key=lambda point: point.world_size)
        ranks = tuple(point.world_size for point in members)
        if len(set(ranks)) < len(ranks):
            study.find(
                f"{members[-1].fields['model']}: several node counts give one world size; the first counts"
            )
            members = [one for place, one in enumerate(members) if ranks.index(one.world_size) == place]
        fields = {name: members[-1].fields[name] for name in CONFIGURATION}
        made.append(Configuration(fields, tuple(members)))
    return made


def series_of(found: Sequence[Configuration]) -> list[Series]:
    """The rates of a sweep's configurations."""
    return [
        Series(
            one.fields,
            tuple(point.world_size for point in one.points),
            tuple(point.rate.value for point in one.points),
            float(one.points[-1].fields["batch"]),
        )
        for one in found
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
        raise UserError(f"{path} is no CSV table ({error})") from None
    ranks, rate = (next((name for name in names if name in table.columns), None) for names in (RANKS, RATES))
    if ranks is None or rate is None:
        raise UserError(
            f"{path} needs a column of ranks ({', '.join(RANKS)}) and one of images a second "
            f"({', '.join(RATES)}); it has {', '.join(table.columns)}"
        )
    numbers = table[[ranks, rate]].apply(pd.to_numeric, errors="coerce")
    if numbers.isna().to_numpy().any() or (numbers <= 0).to_numpy().any():
        line = int(np.flatnonzero((numbers.isna() | (numbers <= 0)).any(axis=1))[0]) + 2
        raise UserError(f"{path}, line {line}: ranks and images a second must be positive numbers")
    table[[ranks, rate]] = numbers
    fields = [name for name in _FIELDS if name in table.columns]
    made = []
    groups: Any = table.groupby(fields, dropna=False, sort=False) if fields else [((), table)]
    for key, members in groups:
        means = members.groupby(ranks)[rate].mean()
        batch = (
            pd.to_numeric(members["batch_per_gpu"], errors="coerce").iloc[0]
            if "batch_per_gpu" in fields
            else None
        )
        known = {name: value for name, value in zip(fields, key, strict=True) if pd.notna(value)}
        made.append(Series(
            known,
            tuple(int(count) for count in means.index),
            tuple(float(value) for value in means),
            float(batch) if batch is not None and np.isfinite(batch) else 1.0,
        ))  # fmt: skip
    return made
