"""Predictions by simulation: the traced step of DDP, replayed on more ranks.

DDP fills buckets with gradients as they become ready, closes a bucket when it holds ``bucket_mb`` or more,
and reduces it while the backward pass goes on (Li et al., *PyTorch Distributed*, VLDB 2020). An allreduce
begins when its bucket is ready and the one before has ended. The step ends with the update, after the
backward pass and the last allreduce, and is delayed by the latest rank. The number of stragglers is the same
on any number of ranks. The others are late independently by chance, so the median lateness of the latest of P
ranks is the quantile 0.5^(1/P) of one rank's lateness.

The step is that of the largest traced point; the cost of an allreduce is fitted to the traces of all points.
The difference between the simulated and the measured step of the largest point is kept. Backtests predict
each point from those with fewer ranks; by how much they miss, ranges beyond are wider for every doubling.

Under strong scaling the computation of a rank (without loading and waiting for gradients) on b images takes f
+ w b with f, w >= 0, fitted by least squares of relative errors to the traced points and the one-rank point.
The size of gradients does not depend on the batch.

What-ifs, each next to the plain prediction, or several with "+" (``fp16-gradients+network=2x``):

    fp16-gradients    gradients are sent in 16 bits (grad: fp16); the conversion costs nothing
    network=2x        links of twice the bandwidth beta, within nodes and between them; alpha stays
    bucket-mb=50      buckets close at 50 MiB (bucket_mb)
    no-stragglers     no rank is later than the median rank
    no-loader         nothing waits for the next batch
"""

import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.output import parse_list
from analysis.prediction import allreduce, configurations
from analysis.prediction.allreduce import RESAMPLES, Cost, Layout, nonnegative
from analysis.prediction.configurations import Configuration
from analysis.prediction.traced_step import WIRE_BYTES, Step, Traced
from profiling.errors import UserError, did_you_mean
from profiling.findings import Finding

SIMULATION = "simulation"
# Where simulated and recorded exposed transfer differ by more than this share of the step, changes of the
# exchange are not simulated: on a CPU it takes cores from the computation, too.
_MOST_UNLIKE_SHARE = 0.05
MIB = 1 << 20
_HELD_BYTES = 4  # an element in a bucket, in the precision of the parameters, whatever is sent

NO_STRAGGLERS = "no-stragglers"
_DEFAULTS = {"fp16-gradients": "", "network": "2x", "bucket-mb": "50", NO_STRAGGLERS: "", "no-loader": ""}
_OF_EXCHANGE = ("fp16-gradients", "network", "bucket-mb")
_NUMBERS = {name: re.compile(r"\d+(\.\d+)?" + "x" * (name == "network")) for name in _DEFAULTS}
DEFAULT_WHAT_IFS = tuple(f"{name}={value}" if value else name for name, value in _DEFAULTS.items())


@dataclass(frozen=True)
class Model:
    """A step, the cost of its exchange, and its settings."""

    step: Step
    cost: Cost
    bytes_per_element: int
    bucket_mb: float
    stragglers: bool = True
    loader: bool = True
    scatter: float = 0.0  # between runs (relative standard deviation)
    # Computation relative to that of ``step``, for another batch size; with resamples.
    shorter: np.ndarray = field(default_factory=lambda: np.ones(1))
    late_shorter: bool = True  # whether lateness changes by the same factor


@dataclass(frozen=True)
class Simulated:
    """Arrays: the estimate, then resamples; ns."""

    step_ns: np.ndarray
    exposed_ns: np.ndarray  # from the end of the backward pass to that of the last collective
    buckets: int


def buckets(step: Step, bucket_mb: float) -> tuple[np.ndarray, np.ndarray]:
    """(when each bucket is ready, ns from the start of the backward pass; its elements), in order.

    All have one limit: DDP's smaller first bucket is only where no limit is set.
    """
    if step.whole_buckets or not len(step.elements):
        return step.ready_ns, step.elements
    limit = bucket_mb * MIB
    ready, sizes, held = [], [], 0
    for place, elements in enumerate(step.elements, 1):
        held += int(elements)
        if held * _HELD_BYTES >= limit or (held and place == len(step.elements)):
            ready.append(step.ready_ns[place - 1])
            sizes.append(held)
            held = 0
    return np.array(ready, float), np.array(sizes)


def simulate(model: Model, layout: Layout, seed: int = 0) -> Simulated:
    """The step of a job of so many ranks."""
    step, ranks = model.step, layout.ranks
    ready, sizes = buckets(step, model.bucket_mb) if ranks > 1 else (np.array([]), np.array([]))
    drawn = np.random.default_rng(seed).standard_normal(RESAMPLES)
    pace = np.concatenate([[1.0], np.exp(model.scatter * drawn)]) * model.shorter
    done = np.zeros(1)
    for instant, elements in zip(ready, sizes, strict=True):
        lasts = model.cost.allreduce_ns(float(elements) * model.bytes_per_element, layout)
        done = np.maximum(done, instant * pace) + lasts
    exposed = np.maximum(done - step.backward_ns * pace, 0)
    spared = 0 if model.loader else step.waits_share
    local = step.forward_ns + step.backward_ns + step.tail_ns + step.load_ns * (1 - spared)
    late = _late_ns(step, ranks if model.stragglers else 0, spared)
    late = late * (model.shorter if model.late_shorter else 1)
    return Simulated(local * pace + late + exposed, exposed, len(ready))


@lru_cache(maxsize=128)
def _late_ns(step: Step, ranks: int, spared: float) -> np.ndarray:
    """Lateness of the latest rank, with resamples, ns; of 0 ranks, of an ordinary one."""
    late = step.late_ns[:ranks] - spared * step.late_load_ns[:ranks]
    return latest(step.own_ns - spared * step.own_load_ns, late, max(ranks, 1))


def latest(own: np.ndarray, late: np.ndarray, ranks: int) -> np.ndarray:
    """The median lateness of the latest of so many ranks, then resamples, ns.

    ``own``: durations of the steps of ordinary ranks; ``late``: (stragglers, steps), by how much each is
    later than these; at most ``ranks``.
    """
    others = ranks - len(late)
    middle = np.median(own)
    if not len(late):

        def of_others(values: np.ndarray) -> np.ndarray:
            return np.quantile(values, 0.5 ** (1 / others), axis=-1)

        resampled = estimates.block_resamples(own, of_others, RESAMPLES)
        return np.concatenate([[of_others(own)], resampled]) - middle
    generator = np.random.default_rng(estimates.SEED)
    order = np.argsort(own, kind="stable")
    times, place = own[order] - middle, np.argsort(order)
    medians = [_median_of_all(times, np.arange(1, len(own) + 1), late, others)]
    for _ in range(RESAMPLES):
        drawn = place[generator.integers(0, len(own), len(own))]
        come = np.cumsum(np.bincount(drawn, minlength=len(own)))
        resampled = generator.choice(late, late.shape[1], axis=1)
        medians.append(_median_of_all(times, come, resampled, others))
    return np.array(medians)


def _median_of_all(times: np.ndarray, come: np.ndarray, late: np.ndarray, others: int) -> float:
    """The least time by which all ranks have come in half of the steps.

    ``times, come``: sorted times of ordinary ranks, and how many of their steps are done by each.
    """
    of_late = np.sort(late, axis=1)

    def all_come(time: float) -> bool:
        own = np.searchsorted(times, time, side="right")
        share = (come[own - 1] / come[-1] if own else 0.0) ** others
        for one in of_late:
            share *= np.searchsorted(one, time, side="right") / len(one)
        return bool(share >= 0.5)

    # It is one of the times of a rank; as ever more have come, bisection finds it.
    candidates = [times, *of_late]
    return min(float(one[bisect_left(one, True, key=all_come)]) for one in candidates if all_come(one[-1]))


# --- what if ------------------------------------------------------------------------------------------


def changed(model: Model, what_if: str, layout: Layout) -> Model:
    """A model with one or several ("+") of the changes of this file's docstring, for a job of so many ranks.

    UserError: no such change, or a wrong value; ValueError: it changes nothing, or what it would is unknown.
    """
    for name, value in _changes(what_if):
        if name in ("fp16-gradients", "network") and not model.cost.has_bandwidth(layout):
            raise ValueError("link bandwidth not known")
        if name == "fp16-gradients":
            if model.bytes_per_element == 2:
                raise ValueError("16 bits already")
            model = replace(model, bytes_per_element=2)
        elif name == "network":
            model = replace(model, cost=model.cost.with_bandwidth(value))
        elif name == "bucket-mb":
            now = buckets(model.step, model.bucket_mb)[1]
            alone = len(now) == 1 and int(model.step.elements.sum()) * _HELD_BYTES <= value * MIB
            if not alone and model.step.whole_buckets:
                raise ValueError("gradients' order not known")
            if alone or np.array_equal(now, buckets(model.step, value)[1]):
                raise ValueError("same buckets")
            model = replace(model, bucket_mb=value)
        elif name == NO_STRAGGLERS:
            model = replace(model, stragglers=False)
        else:
            model = replace(model, loader=False)
    return model


def parse_what_ifs(text: str) -> list[str]:
    """``"fp16-gradients,network=2x"`` as a list; UserError if one is no change, or has a wrong value."""
    return [name for name in parse_list(text) if _changes(name)]


def _changes(what_if: str) -> list[tuple[str, float]]:
    """The changes of a what-if with their values; 0: they take none."""
    changes = []
    for one in what_if.split("+"):
        name, equals, value = (part.strip() for part in one.partition("="))
        if name not in _DEFAULTS:
            raise UserError(f"--what-if: unknown change {name!r}{did_you_mean(name, _DEFAULTS)}")
        if not _DEFAULTS[name] and equals:
            raise UserError(f"--what-if: {name} takes no value, got {value!r}")
        number = float(value.removesuffix("x")) if _NUMBERS[name].fullmatch(value) else 0.0
        if _DEFAULTS[name] and number <= 0:
            raise UserError(f"--what-if: {one.strip()!r} needs a number, e.g. {name}={_DEFAULTS[name]}")
        changes.append((name, number))
    return changes


# --- what predicts a configuration --------------------------------------------------------------------

# f and w of this file's docstring: (2, 1 + resamples), ns.
Computing = np.ndarray


@dataclass(frozen=True)
class Basis:
    """What a configuration is predicted from."""

    configuration: Configuration
    models: tuple[Model, ...]  # one for each form of the exchange that fits the allreduces; the best first
    points: tuple[pd.Series, ...]  # the measured points; the last one is the largest
    traced: pd.Series  # the point among them whose step is replayed
    links: int  # the most nodes of a traced point; 1: links between nodes were not traced
    computing: tuple[Computing, ...]  # f and w, in strong scaling; all that are possible, the best first
    exposed_share: float  # of the traced step
    missed: float = 0.0  # by how much (logarithm) measured points were outside their range, a doubling

    @property
    def late(self) -> int:
        """Number of stragglers."""
        return len(self.models[0].step.late_ns)

    def has_links(self, layout: Layout) -> bool:
        """Whether the links that a job needs were traced."""
        return layout.nodes == 1 or self.links > 1


def simulations(
    configuration: Configuration,
    steps: Sequence[Traced | str],
    targets: Sequence[int],
    what_ifs: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Back-tests of a configuration, then its predictions and what-ifs; and findings on what has none.

    ``steps``: the traced step of each of its points, or what is lacking.
    """
    answer: list[dict[str, Any]] = []
    missed = 0.0

    def not_simulated(what: str, lacks: str) -> Finding:
        data = {"what": what, "lacks": lacks}
        return Finding("not_simulated", configuration=configuration.name or None, data=data)

    for place in range(1, len(configuration.points)):
        basis, point = basis_of(configuration, place, steps, missed), configuration.points[place]
        if isinstance(basis, Basis) and basis.has_links(layout_of(point)):
            row = _row(basis, layout_of(point))
            answer.append(row | {"backtest": True})
            if _late(steps[place]) == basis.late:
                # A new straggler is no cost that grows.
                missed = max(missed, _missed(row, point, basis))
    basis = basis_of(configuration, len(configuration.points), steps, missed)
    if not isinstance(basis, Basis):
        return answer, [not_simulated("step", basis)]
    for point, step in zip(basis.points[:-1], steps, strict=False):
        if not basis.late or _late(step) == basis.late:
            missed = max(missed, _missed(_row(basis, layout_of(point)), point, basis))
    basis = replace(basis, missed=missed)
    findings: list[Finding] = []
    at = basis.traced["step_ns"]
    seen_ns = float(_simulated(basis, basis.models[0], layout_of(basis.traced)).exposed_ns[0])
    unlike = abs(basis.exposed_share * at - seen_ns) > _MOST_UNLIKE_SHARE * at
    near, too_far = configuration.within_reach(targets)
    # Changes are simulated on the measured ranks, too: nothing is extrapolated there.
    here = layout_of(configuration.points[-1])
    for layout in (here, *map(configuration.layout, near)):
        plain = _row(basis, layout)
        lacks = "" if basis.has_links(layout) else configurations.LINKS
        if layout is not here:
            lacks = lacks or (configurations.TOO_WIDE if configurations.is_too_wide(plain) else "")
            findings += [configuration.not_predicted([layout.ranks], lacks)] if lacks else []
            answer += [] if lacks else [plain]
        for name in () if lacks else what_ifs:
            try:
                models = [changed(model, name, layout) for model in basis.models]
                if unlike and any(one in _OF_EXCHANGE for one, _ in _changes(name)):
                    raise ValueError("simulated and measured exposed transfer differ")
            except ValueError as error:
                findings.append(not_simulated(name, str(error)))
                continue
            row = _row(basis, layout, models)
            gain = 100 * (plain["step_ms"] / row["step_ms"] - 1)
            answer.append(row | {"what_if": name, "fit_error_pct": None, "gain_pct": gain})
    return answer, [*findings, *too_far]


def basis_of(
    configuration: Configuration, count: int, steps: Sequence[Traced | str], missed: float
) -> Basis | str:
    """What the smallest ``count`` points of a configuration predict from; or what they lack."""
    points = configuration.points[:count]
    usable = [(point, step) for point, step in zip(points, steps, strict=False) if isinstance(step, Traced)]
    if not usable:
        return next(step for step in reversed(steps[:count]) if isinstance(step, str))
    point, largest = usable[-1]
    scatter = configurations.scatter_of(configuration.points)
    seen = allreduce.joined([step.exchanges for _, step in usable])
    try:
        costs = allreduce.fit(seen, estimates.SEED, scatter)
    except ValueError:
        return "no allreduces of known size on all ranks"
    of = configuration.points[-1]
    model = Model(largest.step, costs[0], WIRE_BYTES[of["grad"]], of["bucket_mb"], scatter=scatter)
    own: tuple[Computing, ...] = ()
    if configuration.strong:
        traced_steps = [step.step if isinstance(step, Traced) else None for step in steps[:count]]
        # Difference between the measured and the simulated step.
        lacking = [
            0.0
            if step is None
            else point["step_ns"] - float(simulate(replace(model, step=step), layout_of(point)).step_ns[0])
            for point, step in zip(points, traced_steps, strict=True)
        ]
        fits = [computing(points, traced_steps, missing, scatter) for missing in (lacking, [0.0] * count)]
        own = tuple(each for each in fits if each is not None)
        if not own:
            return "one batch size per rank"
    # Lateness may shrink with the batch or not.
    late = (True, False) if configuration.strong else (True,)
    models = tuple(replace(model, cost=cost, late_shorter=shorter) for cost in costs for shorter in late)
    links = int(max(seen.nodes, default=1))
    return Basis(configuration, models, points, point, links, own, largest.exposed_share, missed)


def computing(
    points: Sequence[pd.Series], steps: Sequence[Step | None], lacking: Sequence[float], scatter: float
) -> Computing | None:
    """f and w of this file's docstring; None: fewer than two sizes of a rank's batch are known.

    ``lacking``: of each point, ns to add to its traced step, whose difference to the measured one may be the
    computation's, or not.
    """
    timings = []
    for point, step, more in zip(points, steps, lacking, strict=True):
        if step is not None:
            own = step.forward_ns + step.backward_ns + step.tail_ns
        elif point["world_size"] == 1:
            loads = [series.rank_stages["load"][:, series.steady].ravel() for _, series in point["timed"]]
            own = point["step_ns"] - float(np.median(np.concatenate(loads)))
        else:
            continue
        timings.append((float(point["batch"]), own + more))
    if len({batch for batch, _ in timings}) < 2:
        return None
    batches, took = (np.array(column) for column in zip(*timings, strict=True))
    drawn = np.random.default_rng(estimates.SEED).standard_normal((RESAMPLES, len(took)))
    factors = np.concatenate([np.ones((1, len(took))), np.exp(scatter * drawn)])
    design = np.stack([np.ones(len(took)), batches]) / took
    return nonnegative(design, np.ones_like(factors), factors, {})


def layout_of(point: pd.Series) -> Layout:
    return Layout(point["world_size"], point["nodes"])


def _late(step: Traced | str) -> int:
    return len(step.step.late_ns) if isinstance(step, Traced) else 0


def _row(basis: Basis, layout: Layout, models: Sequence[Model] = ()) -> dict[str, Any]:
    """The prediction for a layout; ``models``: changed by a what-if."""
    configuration, point, ranks = basis.configuration, basis.points[-1], layout.ranks
    drawn = np.random.default_rng(point["draw_seed"]).standard_normal(RESAMPLES)
    scattered = np.exp(np.concatenate([[0.0], configurations.error_of(point, configuration.points) * drawn]))
    measured, batches = point["step_ns"] * scattered, []
    pairs = zip(basis.models, models or basis.models, strict=True)
    for (plain, changed), own in itertools.product(pairs, basis.computing or (None,)):
        before = _simulated(basis, plain, layout_of(point), own).step_ns
        after = _simulated(basis, changed, layout, own)
        ratio, more = after.step_ns / before, after.step_ns - before
        grown = measured * ratio if configuration.strong else measured + more
        batches.append((np.maximum(grown, 0.01 * measured), after))
    (best, step), *_ = batches
    intervals = [estimates.interval(batch[1:]) for batch, _ in batches]
    wider = float(np.exp(basis.missed * configurations.doublings(point["world_size"], ranks)))
    low, high = min(low for low, _ in intervals) / wider, max(high for _, high in intervals) * wider
    # The rate is of the mean step, the prediction of the median: by their ratio on the largest point.
    times = 1 if configuration.strong else ranks / point["world_size"]
    images = point["images_per_s"] * point["step_ns"] / 1e9 * times
    cost = (models or basis.models)[0].cost
    alpha, per_byte = cost.slowest(layout)
    inside, inside_per_byte = cost.slowest(Layout(ranks))
    levels = len(cost.form.messages) > 1 and layout.nodes > 1
    seen = _simulated(basis, basis.models[0], layout_of(basis.traced))
    return configurations.prediction(
        SIMULATION, ranks, images, (float(best[0]) / 1e9, low / 1e9, high / 1e9),
        [point["world_size"] for point in basis.points],
        traced_ranks=basis.traced["world_size"],
        fit_error_pct=100 * (float(seen.step_ns[0]) / basis.traced["step_ns"] - 1),
        exchange=cost.form.name,
        exchanges_tried=" or ".join(dict.fromkeys(model.cost.form.name for model in basis.models)),
        # The rounding errors of a perfect fit, 1e-13, differ between machines.
        allreduce_error_pct=round(100 * cost.error, 9) if np.isfinite(cost.error) else None,
        late_ranks=basis.late,
        buckets=step.buckets,
        exposed_ms=float(step.exposed_ns[0]) / 1e6,
        alpha_us=alpha / 1e3 if cost.latency_known else None,
        beta_gb_per_s=1 / per_byte if per_byte else None,
        alpha_in_node_us=inside / 1e3 if levels else None,
        beta_in_node_gb_per_s=1 / inside_per_byte if levels and inside_per_byte else None,
    )  # fmt: skip


def _simulated(basis: Basis, model: Model, layout: Layout, own: Computing | None = None) -> Simulated:
    """A step of a layout; ``own``: of the computation, by default the best fit."""
    if basis.computing:
        terms = basis.computing[0] if own is None else own
        batch = basis.configuration.images(layout.ranks) / layout.ranks
        now, then = (np.array([1.0, of]) @ terms for of in (batch, float(basis.traced["batch"])))
        model = replace(model, shorter=now / then)
    return simulate(model, layout, estimates.SEED)


def _missed(row: dict[str, Any], point: pd.Series, basis: Basis) -> float:
    """By how much (logarithm) a measured step is outside its predicted range, a doubling."""
    noise = configurations.error_of(point, basis.configuration.points)
    off = configurations.outside(point["step_ns"] / 1e9, row, noise)
    return off / max(1.0, configurations.doublings(point["world_size"], basis.points[-1]["world_size"]))
