"""Simulate a step of DDP on more ranks: the backward pass and the allreduces of its buckets.

DDP fills buckets with gradients in the order in which they become ready, closes a bucket when it holds
``bucket_mb`` or more, and reduces it while the backward pass goes on (Li et al., *PyTorch Distributed*, VLDB
2020). Allreduces run one after the other: one begins when its bucket is ready and the one before has ended.
The step ends with the update, after the backward pass and the last allreduce, and is delayed by the latest
rank. The number of stragglers stays the same on any number of ranks. The other ranks are late independently
by chance, so the median lateness of the latest of P ranks is the quantile 0.5^(1/P) of one rank's lateness.

What-ifs, each next to the plain prediction, or several with "+" (``fp16-gradients+network=2x``):

    fp16-gradients    gradients are sent in 16 bits (grad: fp16); the conversion costs nothing
    network=2x        links of twice the bandwidth beta, within nodes and between them; alpha stays
    bucket-mb=50      buckets close at 50 MiB (bucket_mb)
    no-stragglers     no rank is later than the median rank
    no-loader         nothing waits for the next batch
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from analysis.prediction.allreduce import RESAMPLES, Cost, Layout
from analysis.statistics import estimates
from profiling.errors import UserError, did_you_mean

MIB = 1 << 20
_HELD_BYTES = 4  # an element in a bucket, in the precision of the parameters, whatever is sent

NO_STRAGGLERS = "no-stragglers"
_DEFAULTS = {"fp16-gradients": "", "network": "2x", "bucket-mb": "50", NO_STRAGGLERS: "", "no-loader": ""}
_OF_EXCHANGE = ("fp16-gradients", "network", "bucket-mb")
_NUMBERS = {name: re.compile(r"\d+(\.\d+)?" + "x" * (name == "network")) for name in _DEFAULTS}
DEFAULT_WHAT_IFS = tuple(f"{name}={value}" if value else name for name, value in _DEFAULTS.items())


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a rank without the exchange of gradients; medians, ns.

    Attributes:
        tail_ns: after the backward pass and the exchange: the update, and what follows it.
        ready_ns: when each gradient is ready, from the start of the backward pass; rising.
        elements: of each gradient.
        whole_buckets: ``elements`` are of buckets as they were sent, not of single gradients.
        own_ns: of each step and rank without stragglers, the stages in which no rank waits for another.
        own_load_ns: the loading in it.
        late_ns: (stragglers, steps), by how much they are later than the others.
        late_load_ns: the loading in it.
        waits_share: of the loading, the part in which the device waits for it.
    """

    load_ns: float
    forward_ns: float
    backward_ns: float
    tail_ns: float
    ready_ns: np.ndarray
    elements: np.ndarray
    whole_buckets: bool
    own_ns: np.ndarray
    own_load_ns: np.ndarray
    late_ns: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)))
    late_load_ns: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)))
    waits_share: float = 1.0


@dataclass(frozen=True)
class Model:
    """A step, the cost of its exchange, and its settings.

    Attributes:
        scatter: between runs (relative standard deviation).
        shorter: computation relative to that of ``step``, for another batch size; with resamples.
        late_shorter: whether lateness changes by the same factor.
    """

    step: Step
    cost: Cost
    bytes_per_element: int
    bucket_mb: float
    stragglers: bool = True
    loader: bool = True
    scatter: float = 0.0
    shorter: np.ndarray = field(default_factory=lambda: np.ones(1))
    late_shorter: bool = True


@dataclass(frozen=True)
class Simulated:
    """Arrays: the estimate, then resamples; ns."""

    step_ns: np.ndarray
    exposed_ns: np.ndarray  # from the end of the backward pass to that of the last collective
    hidden_ns: np.ndarray  # the rest of the collectives' time
    buckets: int


# --- the exchange -------------------------------------------------------------------------------------


def buckets(step: Step, bucket_mb: float) -> tuple[np.ndarray, np.ndarray]:
    """(when each bucket is ready, ns from the start of the backward pass; its elements), in order.

    All buckets have one limit: DDP's smaller first bucket is only where no limit is set.
    """
    if step.whole_buckets or not len(step.elements):
        return step.ready_ns, step.elements
    limit = bucket_mb * MIB
    ready, sizes, held = [], [], 0
    for instant, elements in zip(step.ready_ns, step.elements, strict=True):
        held += int(elements)
        if held * _HELD_BYTES >= limit:
            ready.append(instant)
            sizes.append(held)
            held = 0
    if held:
        ready.append(step.ready_ns[-1])
        sizes.append(held)
    return np.array(ready, float), np.array(sizes)


# --- the step -----------------------------------------------------------------------------------------


def simulate(model: Model, layout: Layout, seed: int = 0) -> Simulated:
    """The step of a job of so many ranks."""
    step, ranks = model.step, layout.ranks
    ready, sizes = buckets(step, model.bucket_mb) if ranks > 1 else (np.array([]), np.array([]))
    drawn = np.random.default_rng(seed).standard_normal(RESAMPLES)
    pace = np.concatenate([[1.0], np.exp(model.scatter * drawn)]) * model.shorter
    done, talk = np.zeros(1), np.zeros(1)
    for instant, elements in zip(ready, sizes, strict=True):
        lasts = model.cost.allreduce_ns(float(elements) * model.bytes_per_element, layout)
        done = np.maximum(done, instant * pace) + lasts
        talk = talk + lasts
    exposed = np.maximum(done - step.backward_ns * pace, 0)
    spared = 0 if model.loader else step.waits_share
    local = step.forward_ns + step.backward_ns + step.tail_ns + step.load_ns * (1 - spared)
    late = _late_ns(step, ranks if model.stragglers else 0, spared)
    late = late * (model.shorter if model.late_shorter else 1)
    return Simulated(local * pace + late + exposed, exposed, np.maximum(talk - exposed, 0), len(ready))


@lru_cache(maxsize=128)
def _late_ns(step: Step, ranks: int, spared: float) -> np.ndarray:
    """Lateness of the latest rank, with resamples, ns; of 0 ranks, of an ordinary one."""
    late = step.late_ns[:ranks] - spared * step.late_load_ns[:ranks]
    return latest(step.own_ns - spared * step.own_load_ns, late, max(ranks, 1))


# --- the latest rank ------------------------------------------------------------------------------------


def latest(own: np.ndarray, late: np.ndarray, ranks: int) -> np.ndarray:
    """The median lateness of the latest rank, then resamples, ns.

    Args:
        own: durations of the steps of ordinary ranks, ns.
        late: (stragglers, steps), by how much each is later than the ordinary ranks, ns; at most ``ranks``.
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

    Args:
        times, come: sorted times of ordinary ranks, and how many of their steps are done by each.
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

    Raises:
        UserError: there is no such change, or its value is wrong.
        ValueError: it changes nothing, or what it would change is not known; the message says which.
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


def changes_exchange(what_if: str) -> bool:
    return any(name in _OF_EXCHANGE for name, _ in _changes(what_if))


def parse_what_ifs(text: str) -> list[str]:
    """``"fp16-gradients,network=2x"`` as a list; UserError if one is no change, or has a wrong value."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        _changes(name)
    return names


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
