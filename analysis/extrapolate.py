"""What do measured rates say of more ranks? Series of a configuration, and the curves fitted to them.

A row is a configuration and a number of ranks, as analysis.predict describes it. The rates are those of a
sweep's points, or of a CSV table.

A point that was measured outside of the range that smaller ones gave says that something grows which is in no
shape: from there on ranges are wider by as much for every doubling.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis import batches, curve, statistics
from analysis.allreduce import Layout
from analysis.scaling import NOT_ALIKE, POINT_FIELDS, UNPROFILED, Point, Scaling, points_of
from analysis.study import Source, Study
from analysis.terminal import Rows
from profiling.errors import UserError

KINDS: tuple[Scaling, ...] = ("weak", "strong")  # in the order in which they are looked for
CURVE = "curve"  # the method of these rows
NOTHING = "no configuration was measured on two numbers of ranks: there is nothing to go on from"
# A range whose ends are further apart than this factor tells nothing.
WIDEST = 3.0
# A node holds so many GPUs as a rule; what was measured on one node says nothing of more.
GPUS_OF_A_NODE = 8
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
    nodes: "Nodes | None" = None

    def images(self, ranks: int) -> float:
        """Of a batch of the job."""
        return self.batch * (1 if self.strong else ranks)

    def time_s(self) -> list[float]:
        """Seconds a batch."""
        return [self.images(ranks) / rate for ranks, rate in zip(self.ranks, self.images_per_s, strict=True)]

    def first(self, count: int) -> "Series":
        """Of the smallest points only."""
        return replace(
            self, ranks=self.ranks[:count], images_per_s=self.images_per_s[:count], errors=self.errors[:count]
        )


@dataclass(frozen=True)
class Nodes:
    """How ranks are laid out.

    Attributes:
        gpus: that a node holds.
        most: nodes of the largest measured point.
    """

    gpus: int
    most: int

    def of(self, ranks: int) -> Layout:
        """Where so many ranks run."""
        return Layout(ranks, -(-ranks // self.gpus))

    def unseen(self, ranks: int) -> str:
        """Why nothing is known of so many ranks, if so."""
        if self.most > 1 or self.of(ranks).nodes == 1:
            return ""
        return (
            f"{ranks} ranks are several nodes of {self.gpus}, and all points are of one node: the links "
            "between nodes were never seen; measure a point of two nodes (--gpus-per-node: how many a node "
            "holds)"
        )


def rows(series: Sequence[Series], wanted: Sequence[int]) -> tuple[Rows, list[str]]:
    """Back-tests of each series, then its predictions, and why others have none; see this file's docstring.

    Raises:
        UserError: no series was measured on two numbers of ranks.
    """
    usable = [one for one in series if len(one.ranks) > 1]
    if not usable:
        raise UserError(NOTHING)
    made: Rows = []
    reasons: list[str] = []
    for one in usable:
        missed = 0.0
        for place in range(2, len(one.ranks)):
            row = _row(one.first(place), one.ranks[place], missed)
            measured = one.images_per_s[place]
            error = 100 * (row["images_per_s"] / measured - 1)
            made.append(row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error})
            noise = one.errors[place] if one.errors else curve.ASSUMED_SCATTER
            ends = row["images_per_s_low"], row["images_per_s_high"]
            missed = max(
                missed, outside(measured, *ends, noise) / doublings(*one.ranks[place - 1 : place + 1])
            )
        for ranks in (count for count in wanted if count > one.ranks[-1]):
            why = one.nodes.unseen(ranks) if one.nodes else ""
            row = _row(one, ranks, missed)
            if not why and row["images_per_s_high"] > WIDEST * row["images_per_s_low"]:
                low, high = row["images_per_s_low"], row["images_per_s_high"]
                why = (
                    f"rates on {row['measured_on']} ranks do not tell those on {ranks}: what fits them gives "
                    f"{low:.3g} to {high:.3g} images/s; measure more points, or trace a run"
                )
            if why:
                reasons.append(why)
            else:
                made.append(row)
    return made, list(dict.fromkeys(reasons))


def doublings(known: int, wanted: int) -> float:
    """How far a prediction reaches."""
    return abs(float(np.log2(wanted / known)))


def outside(measured: float, low: float, high: float, noise: float) -> float:
    """By how much (of the logarithm) a measured figure is outside a range, beyond its own error.

    Args:
        noise: standard error of the measured figure, relative.
    """
    over, under = np.log(measured / high), np.log(low / measured)
    return max(0.0, float(max(over, under)) - 1.96 * noise)


def _row(one: Series, ranks: int, missed: float) -> dict[str, Any]:
    found = curve.predict(one.ranks, one.time_s(), ranks, one.errors or None, one.strong)
    images = one.images(ranks)
    wider = float(np.exp(missed * doublings(one.ranks[-1], ranks)))
    low, high = found.low / wider, found.high * wider
    base = one.images_per_s[0] / one.ranks[0]
    return {
        **one.fields,
        "ranks": ranks,
        "method": CURVE,
        "what_if": "",
        "backtest": False,
        "scaling": "strong" if one.strong else "weak",
        "images_per_s": images / found.time,
        "images_per_s_low": images / high,
        "images_per_s_high": images / low,
        "batch_ms": 1e3 * found.time,
        "batch_ms_low": 1e3 * low,
        "batch_ms_high": 1e3 * high,
        "scaling_efficiency_pct": 100 * images / found.time / ranks / base,
        "measured_on": " ".join(str(count) for count in one.ranks),
        "shapes": " ".join(found.shapes),
    }


# --- what was measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Configuration:
    """The points of one configuration, in rising order of ranks, no two of one world size.

    Attributes:
        fields: those of :data:`CONFIGURATION`; ``batch`` of the largest point.
        strong: the batch of the job is constant, not that of a rank.
    """

    fields: Mapping[str, Any]
    points: tuple[Point, ...]
    strong: bool = False
    gpus_per_node: int | None = None

    @property
    def nodes(self) -> Nodes:
        """How ranks are laid out: as on the measured nodes; of one alone, as on the usual ones."""
        most = max(point.fields["nodes"] for point in self.points)
        largest = max(point.fields["gpus_per_node"] for point in self.points)
        usual = largest if most > 1 else max(largest, GPUS_OF_A_NODE)
        return Nodes(self.gpus_per_node or usual, most)

    def batch(self, ranks: int) -> float:
        """Images of a rank's batch."""
        batch = float(self.fields["batch"])
        return batch * self.points[-1].world_size / ranks if self.strong else batch


def chosen(study: Study, scaling: Scaling | None = None) -> Scaling:
    """The kind of scaling to predict: as the report does, strong where only that has points with a base."""
    if scaling is not None:
        return scaling
    return next((kind for kind in KINDS if _scales(points_of(study, kind))), KINDS[0])


def _scales(points: Iterable[Point]) -> bool:
    return any(point.base is not None and point.base.world_size < point.world_size for point in points)


def configurations(
    study: Study, scaling: Scaling | None = None, gpus_per_node: int | None = None
) -> list[Configuration]:
    """A sweep's configurations; one rank sends no gradients, so its point may be of another precision."""
    kind = chosen(study, scaling)
    found: dict[tuple, list[Point]] = {}
    for point in points_of(study, kind):
        own = {name: point.fields[name] for name in CONFIGURATION}
        if kind == "strong":
            own["batch"] *= point.world_size
        members = found.setdefault(tuple(str(value) for value in own.values()), [])
        base = point.base
        if base is not None and base.world_size < point.world_size and base not in members:
            members.append(base)
        if point not in members:
            members.append(point)
    made = []
    for members in found.values():
        alone = _one_a_size(study, _merged(study, members))
        fields = {name: alone[-1].fields[name] for name in CONFIGURATION}
        made.append(Configuration(fields, tuple(alone), kind == "strong", gpus_per_node))
    return made


def _merged(study: Study, members: Sequence[Point]) -> list[Point]:
    """Points that differ in ``batches`` only (a profiled run may be shorter) as one."""
    alike: dict[tuple, list[Point]] = {}
    for point in members:
        alike.setdefault((point.fields["nodes"], point.fields["gpus_per_node"]), []).append(point)
    made = []
    for same in alike.values():
        timed = [one for one in same if one.timed_by == UNPROFILED] or same
        first = max(timed, key=lambda one: (len(one.timed), one.fields["batches"]))
        if len(same) > 1:
            lengths = " and ".join(str(one.fields["batches"]) for one in same)
            study.find(
                f"points of {first.label} that differ in their number of batches only ({lengths}) are taken "
                f"together: timed by the runs of {first.fields['batches']}"
            )
            first = _with_profiled(first, [run for one in same for run in one.profiled])
        made.append(first)
    return made


def _with_profiled(point: Point, runs: list[tuple[Source, batches.Series]]) -> Point:
    """A point with other profiled runs; what was measured of it stays."""
    found = copy(point)
    found.profiled = runs
    return found


def _one_a_size(study: Study, members: Sequence[Point]) -> list[Point]:
    """Of points of one world size the one on the fewest nodes, in rising order of ranks."""
    ordered = sorted(members, key=lambda point: (point.world_size, point.fields["nodes"]))
    made: dict[int, Point] = {}
    for point in ordered:
        other = made.setdefault(point.world_size, point)
        if other is not point:
            study.find(
                f"{point.fields['model']}: several node counts give {point.world_size} ranks; what is "
                f"predicted goes by {other.label}"
            )
    return list(made.values())


def scatter_of(point: Point) -> float:
    """By how much runs of a point differ: a standard deviation (relative) as of a normal distribution.

    The fewer runs say it, the larger it is, so that twice of it holds 95 % as Student's t does. Where no
    point was repeated, it is :data:`analysis.curve.ASSUMED_SCATTER`.
    """
    from scipy.special import stdtrit

    freedom = point.scatter.freedom
    if freedom < 1 or not np.isfinite(point.scatter.sigma):
        return curve.ASSUMED_SCATTER
    return float(point.scatter.sigma * stdtrit(freedom, (1 + statistics.LEVEL) / 2) / 1.96)


def error_of(point: Point) -> float:
    """Standard error of a point's duration, likewise; of one with one run no less than what is assumed."""
    return scatter_of(point) / float(np.sqrt(len(point.timed)))


def series_of(found: Sequence[Configuration]) -> list[Series]:
    """The rates of a sweep's configurations."""
    return [
        Series(
            one.fields,
            tuple(point.world_size for point in one.points),
            tuple(point.rate.value for point in one.points),
            one.batch(one.points[-1].world_size) * (one.points[-1].world_size if one.strong else 1),
            tuple(error_of(point) for point in one.points),
            one.strong,
            one.nodes,
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
