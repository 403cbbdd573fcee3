"""Configurations measured on several numbers of ranks: the input of both prediction methods."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import telling
from analysis.display.numbers import label_of
from analysis.frames.study import Study
from analysis.measures.points import NO_SAMPLES, NOT_ALIKE, POINT_FIELDS, UNPROFILED, Scaling, points_of
from analysis.prediction import curve
from analysis.prediction.allreduce import Layout
from jobs.run_fields import own_names
from profiling.errors import UserError
from profiling.findings import Finding

GPUS_OF_A_NODE = 8  # where only one node was measured
FARTHEST = 16  # times the measured ranks
RANKS = ("world_size", "n_gpus", "gpus", "ranks")
RATES = ("images_per_s", "img_per_s", "img_s_global", "images_per_second", "median_img_s")
_FIELDS = (
    "framework", "model", "platform", "gpu", "mode", "precision", "batch_per_gpu", "loader", "grad",
    "compute",
)  # fmt: skip
_WIDEST = 3.0  # ratio of the ends of a range that is still shown
# Why there is no prediction.
ONE_SIZE = "one number of ranks measured"
LINKS = "no run on several nodes"
TOO_WIDE = f"possible images/s differ by more than {_WIDEST:g} times"
TOO_FAR = f"more than {FARTHEST} times the measured ranks"
CONFIGURATION = tuple(name for name in POINT_FIELDS if name not in NOT_ALIKE)


@dataclass(frozen=True)
class Configuration:
    """Images/s of a configuration on several numbers of ranks, in rising order."""

    fields: Mapping[str, Any]  # those of CONFIGURATION, ``batch`` of the largest point; or those of a table
    ranks: tuple[int, ...]
    images_per_s: tuple[float, ...]
    batch: float  # images of a rank (``strong``: of the job); 1: a table does not say, times are relative
    errors: tuple[float, ...] = ()  # relative standard error of each rate
    strong: bool = False
    gpus_per_node: int = 0  # 0: a table does not say
    nodes: int = 1  # of the largest measured point
    points: tuple[pd.Series, ...] = ()  # of a sweep, one a world size
    name: str = ""  # label of the fields in which configurations differ

    def images(self, ranks: int) -> float:
        """Images of a step of the job."""
        return self.batch * (1 if self.strong else ranks)

    def layout(self, ranks: int) -> Layout:
        return Layout(ranks, -(-ranks // self.gpus_per_node) if self.gpus_per_node else 1)

    def not_predicted(self, ranks: Sequence[int], lacks: str) -> Finding:
        data = {"ranks": ranks, "lacks": lacks}
        return Finding("not_predicted", configuration=self.name or None, data=data)

    def within_reach(self, targets: Sequence[int]) -> tuple[list[int], list[Finding]]:
        """The targets beyond the measured ranks that are not too far, and a finding on those that are."""
        measured = self.ranks[-1]
        near = [count for count in targets if measured < count <= FARTHEST * measured]
        far = [count for count in targets if count > FARTHEST * measured]
        return near, [self.not_predicted(far, TOO_FAR)] if far else []

    @property
    def times_s(self) -> list[float]:
        """Duration of a step on each number of ranks."""
        return [self.images(count) / rate for count, rate in zip(self.ranks, self.images_per_s, strict=True)]


def of_points(
    points: Sequence[pd.Series], strong: bool = False, gpus_per_node: int | None = None
) -> Configuration:
    """The configuration of points in rising order of ranks.

    ``gpus_per_node``: by default as measured; where one node was, :data:`GPUS_OF_A_NODE` or more.
    """
    last = points[-1]
    most = max(point["nodes"] for point in points)
    usual = max(point["gpus_per_node"] for point in points)
    usual = usual if most > 1 else max(usual, GPUS_OF_A_NODE)
    return Configuration(
        {name: last[name] for name in (*CONFIGURATION, *own_names(last.index))},
        tuple(int(point["world_size"]) for point in points),
        tuple(point["images_per_s"] for point in points),
        float(last["batch"]) * (last["world_size"] if strong else 1),
        tuple(error_of(point, points) for point in points),
        strong,
        gpus_per_node or usual,
        most,
        tuple(points),
    )


def of_study(
    study: Study, scaling: Scaling | None = None, gpus_per_node: int | None = None
) -> list[Configuration]:
    """A sweep's configurations; the point of one rank, which sends no gradients, may have another precision.

    UserError: the samples of a step are not known of any.
    """
    points = points_of(study, scaling)
    if points.empty:
        return []
    kind = points["scaling"].iloc[0]
    known = points[points["batch"].map(bool) & points["images"].notna()]
    if known.empty:
        raise UserError(f"no prediction: {NO_SAMPLES}")
    own = known[[*CONFIGURATION, *own_names(known.columns)]]
    if kind == "strong":
        own = own.assign(batch=known["batch"] * known["world_size"])
    number = own.map(str).groupby(list(own), sort=False).ngroup()
    base = known["base"][known["base"].isin(known.index)]
    members = pd.concat([pd.Series(number[base.index].array, base), number]).sort_values(kind="stable")
    order = {"world_size": True, "nodes": True, "unprofiled": False, "runs": False, "batches": False}
    known = known.assign(unprofiled=known["timed_by"] == UNPROFILED)
    answer = []
    for _, of_one in members.groupby(members, sort=False):
        of_one = known.loc[of_one.index.unique()]
        # Points that differ in ``batches`` only (a profiled run may be shorter) are one, with the profiled
        # runs of all. Of points of one world size the one on the fewest nodes counts.
        profiled = of_one.groupby(["world_size", "nodes"])["profiled"].transform("sum")
        of_one = of_one.assign(profiled=profiled).sort_values(list(order), ascending=list(order.values()))
        points_of_one = [point for _, point in of_one.drop_duplicates("world_size").iterrows()]
        answer.append(of_points(points_of_one, kind == "strong", gpus_per_node))
    return _named(answer)


def scatter_of(points: Sequence[pd.Series]) -> float:
    """Relative standard deviation between runs of a point, pooled over the points of a configuration.

    1.96 of it hold 95 %, as Student's t does; by default :data:`analysis.prediction.curve.ASSUMED_SCATTER`.
    """
    from scipy.special import stdtrit

    every = [point["step"] for point in points]
    scatters = [one for one in every if one.freedom and np.isfinite(one.sigma)]
    freedom = sum(one.freedom for one in scatters)
    if not freedom:
        return curve.ASSUMED_SCATTER
    pooled = np.sqrt(sum(one.freedom * one.sigma**2 for one in scatters) / freedom)
    return float(pooled * stdtrit(freedom, (1 + estimates.LEVEL) / 2) / 1.96)


def error_of(point: pd.Series, points: Sequence[pd.Series]) -> float:
    """Relative standard error of a point's duration, by the scatter of all points, or its own if larger."""
    own = np.nan_to_num(point["step"].sigma)
    return float(max(scatter_of(points), own) / np.sqrt(point["runs"]))


def target_ranks(text: str, largest: Iterable[int]) -> list[int]:
    """The numbers of ranks to predict, in rising order; ``largest``: measured, by configuration.

    ``text``: of the flag ``--ranks``; empty: twice and four times the largest of each configuration.
    """
    measured = sorted(set(largest)) or [1]
    if not text:
        return sorted({times * count for count in measured for times in (2, 4)})
    values = [value.strip() for value in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", value) and int(value) > 0 for value in values):
        raise UserError(f"--ranks: invalid list {text!r}; expected e.g. 8,16,32")
    targets = sorted(set(map(int, values)))
    if targets[-1] <= measured[0]:
        raise UserError(f"--ranks: {text}: measured already; give more than {measured[-1]}")
    if targets[0] > (most := FARTHEST * measured[-1]):
        raise UserError(
            f"--ranks: {text}: over {FARTHEST} times the measured {measured[-1]}; give at most {most}"
        )
    return targets


def read_table(path: Path) -> list[Configuration]:
    """The configurations of a CSV table of images/s by number of ranks; repeated points are averaged."""
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
    table[[ranks, rate]] = table[[ranks, rate]].apply(pd.to_numeric, errors="coerce")
    bad = ~(table[[ranks, rate]] > 0).all(axis=1).to_numpy()
    if bad.any():
        line = int(np.flatnonzero(bad)[0]) + 2
        raise UserError(f"{path}, line {line}: ranks and images per second must be positive numbers")
    fields = [name for name in _FIELDS if name in table.columns]
    found = []
    groups: Any = table.groupby(fields, dropna=False, sort=False) if fields else [((), table)]
    for key, members in groups:
        means = members.groupby(ranks)[rate].mean()
        known = {name: value for name, value in zip(fields, key, strict=True) if pd.notna(value)}
        batch = float(pd.to_numeric(pd.Series([known.get("batch_per_gpu")]), errors="coerce").iloc[0])
        counts, rates = tuple(int(count) for count in means.index), tuple(map(float, means))
        found.append(Configuration(known, counts, rates, batch if np.isfinite(batch) else 1.0))
    return _named(found)


def _named(found: Sequence[Configuration]) -> list[Configuration]:
    """The same with their names, which have the global batch in strong scaling."""
    rows = [
        {name: value for name, value in one.fields.items() if name != "batch"} | {"global_batch": one.batch}
        if one.strong
        else dict(one.fields)
        for one in found
    ]
    frame = pd.DataFrame(rows, dtype=object)
    differing = telling(frame, frame.columns)
    return [replace(one, name=label_of(row, differing)) for one, row in zip(found, rows, strict=True)]


def prediction(
    method: str, ranks: int, images: float, step_s: tuple[float, float, float], measured: Sequence[int],
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A row of a prediction by either method.

    ``images``: of a step of the job; ``step_s``: estimate, low, high; ``measured``: numbers of ranks that it
    is made from; ``more``: columns of the method.
    """
    return {
        "world_size": ranks, "predicted_by": method, "what_if": "", "backtest": False, "images": images,
        **{f"step_ms{end}": 1e3 * value for end, value in zip(("", "_low", "_high"), step_s, strict=True)},
        "measured_on": " ".join(map(str, measured)), **more,
    }  # fmt: skip


def is_too_wide(row: Mapping[str, Any]) -> bool:
    """Whether the range of a prediction is too wide to be shown."""
    return bool(row["step_ms_high"] > _WIDEST * row["step_ms_low"])


def doublings(measured: int, target: int) -> float:
    return abs(float(np.log2(target / measured)))


def outside(measured_s: float, row: Mapping[str, Any], noise: float) -> float:
    """By how much (logarithm) a step is outside its predicted range, beyond its relative error ``noise``."""
    low, high = row["step_ms_low"] / 1e3, row["step_ms_high"] / 1e3
    over, under = np.log(measured_s / high), np.log(low / measured_s) if low else -np.inf
    return max(0.0, float(max(over, under)) - 1.96 * noise)
