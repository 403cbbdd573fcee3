"""What do simulated steps say of more ranks? The rows of analysis.predict whose method is ``simulation``.

The step is that of the largest traced point, the cost of an allreduce is fitted to all traces of several
ranks. A point is predicted back from those of fewer ranks only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import simulate, statistics
from analysis.extrapolate import Configuration
from analysis.scaling import Point
from analysis.simulate import Model
from analysis.study import Study
from analysis.terminal import Rows
from analysis.traced_step import WIRE_BYTES, Traced, together, traced

SIMULATION = "simulation"
NO_COST = (
    "no allreduce of known size was recorded: trace a point of two ranks or more (profile: torch), or give "
    "--alpha-us and --beta-gb-per-s"
)


@dataclass(frozen=True)
class Network:
    """What the user knows of the network; None: it is fitted."""

    alpha_us: float | None = None
    beta_gb_per_s: float | None = None

    @property
    def ns_per_byte(self) -> float | None:
        return None if self.beta_gb_per_s is None else 1 / self.beta_gb_per_s

    @property
    def alpha_ns(self) -> float | None:
        return None if self.alpha_us is None else 1e3 * self.alpha_us


@dataclass(frozen=True)
class Basis:
    """A model of a configuration, the points that it is made from, and the traced one among them."""

    model: Model
    points: Sequence[Point]
    traced: Point


def rows(
    study: Study,
    found: Sequence[Configuration],
    wanted: Sequence[int],
    what_ifs: Sequence[str] = (),
    network: Network | None = None,
) -> tuple[Rows, list[str]]:
    """Back-tests of each configuration, then its predictions and what-ifs; and why others have none."""
    made: Rows = []
    reasons: list[str] = []
    for one in found:
        steps = [traced(study, point) for point in one.points]
        for place in range(1, len(one.points)):
            basis = _basis(one.points[:place], steps[:place], one, network or Network())
            if isinstance(basis, Basis):
                made.append(_backtest(one, basis, one.points[place]))
        basis = _basis(one.points, steps, one, network or Network())
        if not isinstance(basis, Basis):
            reasons.append(basis)
            continue
        _find(study, basis)
        for ranks in [count for count in wanted if count > one.points[-1].world_size]:
            plain = _row(one, basis, ranks)
            made += [plain, *_what_ifs(study, one, basis, plain, what_ifs)]
    return made, list(dict.fromkeys(reasons))


def _basis(
    points: Sequence[Point], steps: Sequence[Traced | str], one: Configuration, network: Network
) -> Basis | str:
    """What predicts a configuration from these points; or why nothing does."""
    usable = [(point, step) for point, step in zip(points, steps, strict=True) if isinstance(step, Traced)]
    if not usable:
        return next(step for step in reversed(steps) if isinstance(step, str))
    point, largest = usable[-1]
    try:
        seen = together([step.exchanges for _, step in usable])
        cost = simulate.fit(seen, network.alpha_ns, network.ns_per_byte, statistics.SEED)
    except ValueError:
        return NO_COST
    of = one.points[-1].fields
    return Basis(Model(largest.step, cost, WIRE_BYTES[of["grad"]], of["bucket_mb"]), points, point)


def _find(study: Study, basis: Basis) -> None:
    if not float(basis.model.cost.alpha_ns[0]) and len(basis.model.cost.alpha_ns) > 1:
        study.find(
            "simulation: the recorded allreduces do not tell the latency of a message from its bandwidth; "
            "it is taken to be 0 (--alpha-us says it)"
        )
    if basis.traced.batch_resamples is None:
        study.find("simulation: points ran once, so its intervals do not hold how much runs differ")
    if max(point.fields["nodes"] for point in basis.points) == 1:
        study.find("simulation: all points are of one node; the network between nodes is not in it")


def _what_ifs(
    study: Study, one: Configuration, basis: Basis, plain: dict[str, Any], what_ifs: Sequence[str]
) -> Rows:
    made = []
    for name in what_ifs:
        try:
            model = simulate.changed(basis.model, name)
        except ValueError as error:
            study.find(f"what if {name}: {error}")
            continue
        row = _row(one, Basis(model, basis.points, basis.traced), plain["ranks"])
        # Nothing was measured with the change.
        row |= {"what_if": name, "fit_error_pct": None}
        made.append(row | {"gain_pct": 100 * (row["images_per_s"] / plain["images_per_s"] - 1)})
    return made


def _backtest(one: Configuration, basis: Basis, point: Point) -> dict[str, Any]:
    row = _row(one, basis, point.world_size)
    measured = point.rate.value
    error = 100 * (row["images_per_s"] / measured - 1)
    return row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error}


def _row(one: Configuration, basis: Basis, ranks: int) -> dict[str, Any]:
    found = simulate.simulate(basis.model, ranks)
    low, high = _interval(found.step_ns, basis.traced)
    batch = float(found.step_ns[0])
    traced_ns = float(simulate.simulate(basis.model, basis.traced.world_size).step_ns[0])
    # A rate is of the mean batch, the step the median one: by their ratio where the step was traced.
    point = basis.traced
    images = ranks * point.rate.value * point.batch.value / point.world_size
    first = one.points[0]
    cost = basis.model.cost
    per_byte = float(cost.ns_per_byte[0])
    return {
        **one.fields,
        "ranks": ranks,
        "method": SIMULATION,
        "what_if": "",
        "backtest": False,
        "images_per_s": images / batch,
        "images_per_s_low": images / high,
        "images_per_s_high": images / low,
        "batch_ms": batch / 1e6,
        "batch_ms_low": low / 1e6,
        "batch_ms_high": high / 1e6,
        "scaling_efficiency_pct": 100 * images / batch / ranks / (first.rate.value / first.world_size),
        "measured_on": " ".join(str(point.world_size) for point in basis.points),
        "traced_ranks": point.world_size,
        "fit_error_pct": 100 * (traced_ns / point.batch.value - 1),
        "buckets": found.buckets,
        "exposed_ms": float(found.exposed_ns[0]) / 1e6,
        "alpha_us": float(cost.alpha_ns[0]) / 1e3,
        "beta_gb_per_s": 1 / per_byte if per_byte else None,
    }


def _interval(step_ns: np.ndarray, point: Point) -> tuple[float, float]:
    """95 % of the resampled steps, with how much the traced point's runs differ."""
    resampled = step_ns[1:]
    if point.batch_resamples is not None:
        resampled = resampled * point.batch_resamples[: len(resampled)] / point.batch.value
    return statistics.interval(resampled)
