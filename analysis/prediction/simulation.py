"""Predictions by simulation: the traced step, replayed on more ranks.

The step is that of the largest traced point; the cost of an allreduce is fitted to all traces of several
ranks. What the step misses of the largest measured batch stays as it is. A point is predicted back from those
of fewer ranks only; one that was measured outside of its range says that the simulation misses something that
grows, and ranges are wider by as much for every doubling of the ranks.

Where the batch of the job is constant, more ranks have fewer images each. What a rank computes by itself
(without loading, and without waiting for gradients) is taken to be f + w b for b images of a rank, neither
below 0: least squares of relative errors over the measured points that say it. Those are traced points, and
the point of one rank, which waits for nobody. Gradients have one size whatever the batch, so that what an
allreduce moves stays.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from analysis.measures.points import Point
from analysis.prediction import allreduce, simulate
from analysis.prediction.allreduce import RESAMPLES, Layout, nonnegative
from analysis.prediction.configurations import (
    LINKS,
    TOO_WIDE,
    Configuration,
    doublings,
    error_of,
    is_too_wide,
    not_predicted,
    outside,
    prediction,
    scatter_of,
    within_reach,
)
from analysis.prediction.simulate import Model, Simulated, Step
from analysis.prediction.traced_step import WIRE_BYTES, Traced
from analysis.statistics import estimates
from profiling.findings import Finding

Rows = list[dict[str, Any]]
SIMULATION = "simulation"
# Where simulated and recorded exposed transfer differ by more than this share of the step, what the exchange
# costs is not what is simulated: on a CPU it takes cores from the computation, too.
_MOST_UNLIKE_SHARE = 0.05


# f and w of this file's docstring: (2, 1 + resamples), ns.
Computing = np.ndarray


class Network(NamedTuple):
    """What the user knows of the network; None: it is fitted."""

    alpha_us: float | None = None
    beta_gb_per_s: float | None = None


UNKNOWN = Network()


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

    @property
    def late(self) -> int:
        """How many ranks are late again and again."""
        return len(self.models[0].step.late_ns)


def simulations(
    one: Configuration,
    steps: Sequence[Traced | str],
    targets: Sequence[int],
    what_ifs: Sequence[str] = (),
    network: Network = UNKNOWN,
) -> tuple[Rows, list[Finding]]:
    """Back-tests of a configuration, then its predictions and what-ifs; and findings on what has none.

    Args:
        steps: the traced step of each of its points, or what is lacking.
    """
    answer: Rows = []
    missed = 0.0
    for place in range(1, len(one.points)):
        basis, point = basis_of(one, place, steps, network, missed), one.points[place]
        if isinstance(basis, Basis) and _has_links(basis, network, layout_of(point)):
            row = _row(basis, layout_of(point))
            answer.append(row | {"backtest": True})
            if _late(steps[place]) == basis.late:
                # A rank that is late on these ranks and was not there before is nothing that grows.
                missed = max(missed, _missed(row, point, basis))
    basis = basis_of(one, len(one.points), steps, network, missed)
    if not isinstance(basis, Basis):
        return answer, [_not_simulated(one.name, "step", basis)]
    for point, step in zip(basis.points[:-1], steps, strict=False):
        # Of measured points that the basis is made from, as its step says them.
        if not basis.late or _late(step) == basis.late:
            missed = max(missed, _missed(_row(basis, layout_of(point)), point, basis))
    basis = replace(basis, missed=missed)
    assert one.nodes is not None  # a sweep's
    findings: list[Finding] = []
    near, too_far = within_reach(one.name, one.points[-1].world_size, targets)
    # What a change gives is surest on the ranks that were measured: nothing is extrapolated there.
    here = layout_of(one.points[-1])
    for layout in (here, *map(one.nodes.of, near)):
        lacks = "" if _has_links(basis, network, layout) else LINKS
        plain = _row(basis, layout)
        if layout is not here and not lacks:
            lacks = TOO_WIDE if is_too_wide(plain) else ""
            answer += [plain] if not lacks else []
        if lacks:
            findings += [not_predicted(one.name, [layout.ranks], lacks)] if layout is not here else []
            continue
        for name in what_ifs:
            try:
                models = [simulate.changed(model, name, layout) for model in basis.models]
                if simulate.changes_exchange(name) and _is_unlike(basis):
                    raise ValueError("simulated and measured exposed transfer differ")
            except ValueError as error:  # it changes nothing, or nobody knows what
                findings.append(_not_simulated(one.name, name, str(error)))
                continue
            row = _row(basis, layout, models)
            gain = 100 * (plain["step_ms"] / row["step_ms"] - 1)
            answer.append(row | {"what_if": name, "fit_error_pct": None, "gain_pct": gain})
    return answer, [*findings, *too_far]


def _not_simulated(name: str, what: str, lacks: str) -> Finding:
    return Finding("not_simulated", configuration=name or None, data={"what": what, "lacks": lacks})


# --- what predicts a configuration ----------------------------------------------------------------------


def basis_of(
    one: Configuration, count: int, steps: Sequence[Traced | str], network: Network, missed: float
) -> Basis | str:
    """What predicts a configuration from its smallest points; or what is lacking."""
    points = one.points[:count]
    usable = [(point, step) for point, step in zip(points, steps, strict=False) if isinstance(step, Traced)]
    if not usable:
        return next(step for step in reversed(steps[:count]) if isinstance(step, str))
    point, largest = usable[-1]
    scatter = scatter_of(one.points)
    alpha_ns = None if network.alpha_us is None else 1e3 * network.alpha_us
    ns_per_byte = None if network.beta_gb_per_s is None else 1 / network.beta_gb_per_s
    try:
        seen = allreduce.joined([step.exchanges for _, step in usable])
        costs = allreduce.fit(seen, alpha_ns, ns_per_byte, estimates.SEED, scatter)
    except ValueError:
        return "no allreduces of known size on all ranks"
    of = one.points[-1].fields
    model = Model(largest.step, costs[0], WIRE_BYTES[of["grad"]], of["bucket_mb"], scatter=scatter)
    own: tuple[Computing, ...] = ()
    if one.strong:
        traced_steps = [step.step if isinstance(step, Traced) else None for step in steps[:count]]
        # What a traced step does not tell of the measured batch.
        lacking = [
            0.0
            if step is None
            else point.batch.value
            - float(simulate.simulate(replace(model, step=step), layout_of(point)).step_ns[0])
            for point, step in zip(points, traced_steps, strict=True)
        ]
        fits = [computing(points, traced_steps, missing, scatter) for missing in (lacking, [0.0] * count)]
        own = tuple(each for each in fits if each is not None)
        if not own:
            return "one batch size per rank"
    # Where batches shrink, what makes a rank late may shrink with them or not.
    late = (True, False) if one.strong else (True,)
    models = tuple(replace(model, cost=cost, late_shorter=shorter) for cost in costs for shorter in late)
    links = int(max(seen.nodes, default=1))
    return Basis(one, models, points, point, links, own, largest.exposed_share, missed)


def computing(
    points: Sequence[Point], steps: Sequence[Step | None], lacking: Sequence[float], scatter: float
) -> Computing | None:
    """f and w of this file's docstring; None where fewer than two batches of a rank tell.

    The point of one rank tells all that a batch takes, a traced step only what its kernels and stages show.
    What that lacks of the measured batch may be the rank's own, as it is in the point of one rank, or not:
    both are to be tried.

    Args:
        steps: of each point, where it was traced.
        lacking: of each point, what its traced step is to be longer, ns.
        scatter: by how much runs differ, relative.
    """
    timings = []
    for point, step, more in zip(points, steps, lacking, strict=True):
        if step is not None:
            own = step.forward_ns + step.backward_ns + step.tail_ns
        elif point.world_size == 1:
            loads = [series.rank_stages["load"][:, series.steady].ravel() for _, series in point.timed]
            own = point.batch.value - float(np.median(np.concatenate(loads)))
        else:
            continue
        timings.append((float(point.fields["batch"]), own + more))
    if len({batch for batch, _ in timings}) < 2:
        return None
    batches, took = (np.array(column) for column in zip(*timings, strict=True))
    drawn = np.random.default_rng(estimates.SEED).standard_normal((RESAMPLES, len(took)))
    factors = np.concatenate([np.ones((1, len(took))), np.exp(scatter * drawn)])
    design = np.stack([np.ones(len(took)), batches]) / took
    return nonnegative(design, np.ones_like(factors), factors, {})


def layout_of(point: Point) -> Layout:
    return Layout(point.world_size, point.fields["nodes"])


def _late(step: Traced | str) -> int:
    """How many ranks are late again and again."""
    return len(step.step.late_ns) if isinstance(step, Traced) else 0


def _has_links(basis: Basis, network: Network, layout: Layout) -> bool:
    """Whether something is known of the links that a job needs."""
    return None not in network or layout.nodes == 1 or basis.links > 1


# --- a row ----------------------------------------------------------------------------------------------


def _row(basis: Basis, layout: Layout, models: Sequence[Model] = ()) -> dict[str, Any]:
    """A batch on so many ranks.

    Args:
        models: changed ones, where the plain ones stand for the largest measured batch only.
    """
    one, point, ranks = basis.one, basis.anchor, layout.ranks
    drawn = np.random.default_rng(point.seed).standard_normal(RESAMPLES)
    scattered = np.exp(np.concatenate([[0.0], error_of(point, one.points) * drawn]))
    measured, batches = point.batch.value * scattered, []
    pairs = zip(basis.models, models or basis.models, strict=True)
    for (plain, changed), own in itertools.product(pairs, basis.computing or (None,)):
        before = _simulated(basis, plain, layout_of(point), own).step_ns
        after = _simulated(basis, changed, layout, own)
        grown = measured * after.step_ns / before if one.strong else measured + after.step_ns - before
        batches.append((np.maximum(grown, 0.01 * measured), after))
    (best, step), *_ = batches
    intervals = [estimates.interval(batch[1:]) for batch, _ in batches]
    wider = float(np.exp(basis.missed * doublings(point.world_size, ranks)))
    low, high = min(low for low, _ in intervals) / wider, max(high for _, high in intervals) * wider
    # A rate is of the mean batch, the step the median one: by their ratio on the largest measured point.
    images = point.rate.value * point.batch.value / 1e9 * (1 if one.strong else ranks / point.world_size)
    cost = (models or basis.models)[0].cost
    alpha, per_byte = cost.slowest(layout)
    inside, inside_per_byte = cost.slowest(Layout(ranks))
    levels = len(cost.form.messages) > 1 and layout.nodes > 1
    seen = _simulated(basis, basis.models[0], layout_of(basis.traced))
    return prediction(
        SIMULATION, ranks, images, (float(best[0]) / 1e9, low / 1e9, high / 1e9),
        [one.world_size for one in basis.points],
        traced_ranks=basis.traced.world_size,
        fit_error_pct=100 * (float(seen.step_ns[0]) / basis.traced.batch.value - 1),
        exchange=cost.form.name,
        exchanges_tried=" or ".join(dict.fromkeys(one.cost.form.name for one in basis.models)),
        allreduce_error_pct=100 * cost.error if np.isfinite(cost.error) else None,
        late_ranks=basis.late,
        buckets=step.buckets,
        exposed_ms=float(step.exposed_ns[0]) / 1e6,
        overlapped_ms=float(step.hidden_ns[0]) / 1e6,
        measured_overlapped_ms=float(seen.hidden_ns[0]) / 1e6,
        alpha_us=alpha / 1e3 if cost.latency_known else None,
        beta_gb_per_s=1 / per_byte if per_byte else None,
        alpha_in_node_us=inside / 1e3 if levels else None,
        beta_in_node_gb_per_s=1 / inside_per_byte if levels and inside_per_byte else None,
    )  # fmt: skip


def _simulated(basis: Basis, model: Model, layout: Layout, own: Computing | None = None) -> Simulated:
    """A step on so many ranks; by default the best of how long batches of other sizes compute."""
    if basis.computing:
        terms = basis.computing[0] if own is None else own
        batch, of = basis.one.images(layout.ranks) / layout.ranks, float(basis.traced.fields["batch"])
        model = replace(model, shorter=np.array([1.0, batch]) @ terms / (np.array([1.0, of]) @ terms))
    return simulate.simulate(model, layout, estimates.SEED)


def _is_unlike(basis: Basis) -> bool:
    """Whether the simulated exchange is not the recorded one: another share of the step is exposed."""
    step = basis.traced.batch.value
    exposed = float(_simulated(basis, basis.models[0], layout_of(basis.traced)).exposed_ns[0])
    return bool(abs(basis.exposed_share * step - exposed) > _MOST_UNLIKE_SHARE * step)


def _missed(row: dict[str, Any], point: Point, basis: Basis) -> float:
    """By how much (of the logarithm) a measured batch is outside of what was predicted, a doubling."""
    off = outside(point.batch.value / 1e9, row, error_of(point, basis.one.points))
    return off / max(1.0, doublings(point.world_size, basis.anchor.world_size))
