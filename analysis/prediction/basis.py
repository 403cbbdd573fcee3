"""What predicts a configuration? A traced step, forms of its exchange, and the largest measured point."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.measures.scaling.point import Point
from analysis.prediction import allreduce, simulate
from analysis.prediction.allreduce import RESAMPLES
from analysis.prediction.configurations import Configuration, error_of, scatter_of
from analysis.prediction.exchange_forms import Layout
from analysis.prediction.extrapolate import doublings
from analysis.prediction.rebatched import ONE_BATCH, Computing, computing
from analysis.prediction.simulate import Model, Simulated, Step
from analysis.prediction.traced_exchange import together
from analysis.prediction.traced_step import WIRE_BYTES, Traced
from analysis.statistics import estimates

NO_COST = (
    "no allreduce of known size was recorded on all ranks: profile all ranks of a configuration of two "
    "ranks or more (profile: torch), or give --alpha-us and --beta-gb-per-s"
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

    @property
    def is_given(self) -> bool:
        """Whether nothing of it is fitted."""
        return self.alpha_us is not None and self.beta_gb_per_s is not None


@dataclass(frozen=True)
class Basis:
    """What predicts a configuration.

    Attributes:
        one: the configuration.
        models: a model for each form of the exchange that the allreduces allow; the best first.
        points: that these are made from; the last one is the largest.
        traced: the point among them whose step it is.
        links: the most nodes of a traced point: of links between nodes nothing was seen where it is 1.
        computing: how long a rank's batch computes, where its size changes; what may be, the best first.
        exposed_share: of the traced step, as :class:`.traced_step.Traced` has it.
        missed: what measured points were outside of what was predicted of them, for a doubling.
    """

    one: Configuration
    models: tuple[Model, ...]
    points: tuple[Point, ...]
    traced: Point
    links: int
    computing: tuple[Computing, ...]
    exposed_share: float
    missed: float = 0.0

    @property
    def anchor(self) -> Point:
        return self.points[-1]


@dataclass(frozen=True)
class Predicted:
    """A batch, ns, and of the best model what it is made of."""

    batch: float
    low: float
    high: float
    simulated: Simulated


def basis_of(
    one: Configuration, count: int, steps: Sequence[Traced | str], network: Network, missed: float
) -> Basis | str:
    """What predicts a configuration from its smallest points; or why nothing does."""
    points = one.points[:count]
    usable = [(point, step) for point, step in zip(points, steps, strict=False) if isinstance(step, Traced)]
    if not usable:
        return next(step for step in reversed(steps[:count]) if isinstance(step, str))
    point, largest = usable[-1]
    scatter = scatter_of(one.points)
    try:
        seen = together([step.exchanges for _, step in usable])
        costs = allreduce.fit(seen, network.alpha_ns, network.ns_per_byte, estimates.SEED, scatter)
    except ValueError:
        return NO_COST
    of = one.points[-1].fields
    model = Model(largest.step, costs[0], WIRE_BYTES[of["grad"]], of["bucket_mb"], scatter=scatter)
    own: tuple[Computing, ...] = ()
    if one.strong:
        traced_steps = [step.step if isinstance(step, Traced) else None for step in steps[:count]]
        lacking = [_lacking(model, point, step) for point, step in zip(points, traced_steps, strict=True)]
        models_of_computing = [
            computing(points, traced_steps, missing, scatter) for missing in (lacking, [0.0] * count)
        ]
        own = tuple(each for each in models_of_computing if each is not None)
        if not own:
            return ONE_BATCH
    # Where batches shrink, what makes a rank late may shrink with them or not.
    late = (True, False) if one.strong else (True,)
    models = tuple(replace(model, cost=cost, late_shorter=shorter) for cost in costs for shorter in late)
    links = int(max(seen.nodes, default=1))
    return Basis(one, models, points, point, links, own, largest.exposed_share, missed)


def _lacking(model: Model, point: Point, step: Step | None) -> float:
    """What a traced step does not tell of the measured batch, ns."""
    if step is None:
        return 0.0
    return point.batch.value - float(
        simulate.simulate(replace(model, step=step), layout_of(point)).step_ns[0]
    )


def layout_of(point: Point) -> Layout:
    return Layout(point.world_size, point.fields["nodes"])


def late_of(step: Traced | str) -> int:
    """How many ranks are late again and again."""
    return len(step.step.late_ns) if isinstance(step, Traced) else 0


def unseen(basis: Basis, ranks: int, network: Network, layout: Layout) -> str:
    """Why nothing is known of the links between so many ranks, if so."""
    if network.is_given or layout.nodes == 1 or basis.links > 1:
        return ""
    return basis.one.nodes.unseen(ranks) or (
        f"{ranks} ranks or more need {layout.nodes} nodes, and no run on several nodes was profiled: the "
        "cost of links between nodes is unknown"
    )


def predicted(basis: Basis, layout: Layout, models: Sequence[Model] = ()) -> Predicted:
    """A batch on so many ranks.

    Args:
        models: changed ones, where the plain ones stand for the largest measured batch only.
    """
    batches = []
    pairs = zip(basis.models, models or basis.models, strict=True)
    for (plain, model), own in itertools.product(pairs, basis.computing or (None,)):
        before = simulated(basis, plain, layout_of(basis.anchor), own).step_ns
        after = simulated(basis, model, layout, own)
        measured = _anchor(basis.anchor, basis.one.points)
        grown = measured * after.step_ns / before if basis.one.strong else measured + after.step_ns - before
        batches.append((np.maximum(grown, 0.01 * measured), after))
    intervals = [estimates.interval(batch[1:]) for batch, _ in batches]
    wider = float(np.exp(basis.missed * doublings(basis.anchor.world_size, layout.ranks)))
    low, high = min(low for low, _ in intervals), max(high for _, high in intervals)
    return Predicted(float(batches[0][0][0]), low / wider, high * wider, batches[0][1])


def simulated(basis: Basis, model: Model, layout: Layout, own: Computing | None = None) -> Simulated:
    """A step on so many ranks; by default the best of how long batches of other sizes compute."""
    if basis.computing:
        batch, traced = basis.one.batch(layout.ranks), float(basis.traced.fields["batch"])
        model = replace(model, shorter=(own or basis.computing[0]).shorter(batch, traced))
    return simulate.simulate(model, layout, estimates.SEED)


def _anchor(point: Point, points: Sequence[Point]) -> np.ndarray:
    """The measured batch of a point, ns, then resamples by the scatter of its configuration's points."""
    drawn = np.random.default_rng(point.seed).standard_normal(RESAMPLES)
    return point.batch.value * np.exp(np.concatenate([[0.0], error_of(point, points) * drawn]))
