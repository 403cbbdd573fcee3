"""What would a step of DDP take on more ranks? The backward pass and the exchange of its buckets, replayed.

Gradients become ready while the backward pass goes on. DDP fills buckets with them in the order in which
they are ready, closes a bucket when it holds ``bucket_mb`` or more, and has it summed over the ranks while
the pass goes on (Li et al., *PyTorch Distributed*, VLDB 2020). Collectives go one after the other: one begins
when its bucket is ready and the one before is done. The step ends when both the pass and the last collective
have, and the update has followed. All of it is late by as much as the latest of the ranks.

An allreduce of n bytes over P ranks takes that of a ring (Thakur, Rabenseifner and Gropp, 2005):

    T(n, P) = 2 (P - 1) alpha + 2 (P - 1) / P  n / beta

alpha is the latency of a message, beta the bandwidth of a link (nccl-tests' bus bandwidth of a long message).

What may be changed, each beside the plain prediction, or several with "+" (``fp16-gradients+network=2x``):

    fp16-gradients    gradients are sent in 16 bits (grad: fp16), at no cost of the conversion
    network=2x        links of twice the bandwidth beta; alpha stays
    bucket-mb=50      buckets close at 50 MiB (bucket_mb)
    no-stragglers     no rank is later than the median rank
    no-loader         the next batch is always there: nothing waits for it
"""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import statistics
from profiling.errors import UserError, did_you_mean

RESAMPLES = 400
MIB = 1 << 20
# DDP counts a bucket's size in the parameters' own precision, whatever is sent.
_HELD_BYTES = 4
# Messages whose sizes differ by less than this factor do not tell latency from bandwidth.
_TELLS_APART = 1.5

_DEFAULTS = {
    "fp16-gradients": "",
    "network": "2x",
    "bucket-mb": "50",
    "no-stragglers": "",
    "no-loader": "",
}
_NUMBERS = {name: re.compile(r"\d+(\.\d+)?" + "x" * (name == "network")) for name in _DEFAULTS}
_WORDS = {
    "fp16-gradients": "gradients in fp16",
    "network": "links of {} the bandwidth",
    "bucket-mb": "buckets of {} MiB",
    "no-stragglers": "ranks of which none is late",
    "no-loader": "a loader that nothing waits for",
}
DEFAULT_WHAT_IFS = tuple(f"{name}={value}" if value else name for name, value in _DEFAULTS.items())


@dataclass(frozen=True)
class Exchanges:
    """Measured allreduces; arrays of one element a stretch of time in which one or more of them ran.

    Collectives that overlap share the wire: their times cannot be told apart, that of all of them can.
    """

    ranks: np.ndarray
    calls: np.ndarray
    bytes: np.ndarray
    ns: np.ndarray  # from the arrival of the last rank at the first call to the end of the last one


@dataclass(frozen=True)
class Cost:
    """Of a ring's message and byte, ns; arrays of one element, the estimate, or of more: then resamples."""

    alpha_ns: np.ndarray
    ns_per_byte: np.ndarray

    def allreduce_ns(self, size: float, ranks: int) -> np.ndarray:
        """T(n, P) of this file's docstring."""
        return 2 * (ranks - 1) * self.alpha_ns + 2 * (ranks - 1) / ranks * size * self.ns_per_byte


@dataclass(frozen=True)
class Step:
    """A batch of a rank without the exchange of gradients; medians, ns.

    Attributes:
        load_ns, forward_ns: before the backward pass begins.
        backward_ns: the pass itself.
        tail_ns: after the pass and the exchange: the update, and what follows it.
        ready_ns: when each gradient is ready, from the begin of the pass; rising.
        elements: of each gradient.
        whole_buckets: what ``elements`` counts are buckets as they were sent, not single gradients.
        own_ns: what each batch of each rank took where no rank waits for another (its loading included).
        own_load_ns: the loading in it.
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


@dataclass(frozen=True)
class Model:
    """A step, the cost of its exchange, and how it is set."""

    step: Step
    cost: Cost
    bytes_per_element: int
    bucket_mb: float
    stragglers: bool = True
    loader: bool = True
    _late: dict[tuple, np.ndarray] = field(default_factory=dict, compare=False)  # by ranks and settings


@dataclass(frozen=True)
class Simulated:
    """Arrays: the estimate, then resamples; ns."""

    step_ns: np.ndarray
    exposed_ns: np.ndarray  # from the end of the backward pass to that of the last collective
    buckets: int


# --- the exchange -------------------------------------------------------------------------------------


def fit(
    seen: Exchanges, alpha_ns: float | None = None, ns_per_byte: float | None = None, seed: int = 0
) -> Cost:
    """alpha and 1 / beta by least squares of relative errors, neither below 0; with resamples of ``seen``.

    Where all messages are about as long, alpha cannot be told from beta: it is taken to be 0.

    Args:
        alpha_ns, ns_per_byte: where they are known, and are not to be fitted.

    Raises:
        ValueError: nothing was seen, and not both are known.
    """
    if alpha_ns is not None and ns_per_byte is not None:
        return Cost(np.array([alpha_ns]), np.array([ns_per_byte]))
    if not len(seen.ns):
        raise ValueError("no collective")
    if alpha_ns is None and ns_per_byte is None and not tells_apart(seen):
        alpha_ns = 0.0
    draws = np.random.default_rng(seed).integers(0, len(seen.ns), (RESAMPLES, len(seen.ns)))
    rows = [np.arange(len(seen.ns)), *draws]
    found = np.array([_least_squares(seen, row, alpha_ns, ns_per_byte) for row in rows])
    return Cost(found[:, 0], found[:, 1])


def tells_apart(seen: Exchanges) -> bool:
    """Whether lengths of messages differ enough to tell latency from bandwidth."""
    size = seen.bytes / seen.calls / seen.ranks
    return bool(len(size)) and bool(size.max() > _TELLS_APART * size.min())


def _least_squares(
    seen: Exchanges, row: np.ndarray, alpha_ns: float | None, ns_per_byte: float | None
) -> tuple[float, float]:
    from scipy.optimize import nnls

    ranks, ns = seen.ranks[row], seen.ns[row]
    messages = 2 * (ranks - 1) * seen.calls[row] / ns
    moved = 2 * (ranks - 1) / ranks * seen.bytes[row] / ns
    rest = np.ones(len(row))
    if alpha_ns is not None:
        return alpha_ns, float(nnls(moved[:, None], rest - alpha_ns * messages)[0][0])
    if ns_per_byte is not None:
        return float(nnls(messages[:, None], rest - ns_per_byte * moved)[0][0]), ns_per_byte
    alpha, per_byte = nnls(np.stack([messages, moved], axis=1), rest)[0]
    return float(alpha), float(per_byte)


def buckets(step: Step, bucket_mb: float) -> tuple[np.ndarray, np.ndarray]:
    """(when each bucket is ready, ns from the begin of the backward pass; its elements), in order.

    All buckets have one limit: the smaller first one of DDP's default is only where nobody sets a limit.
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


def simulate(model: Model, ranks: int) -> Simulated:
    """The step of a job of so many ranks."""
    step = model.step
    ready, sizes = buckets(step, model.bucket_mb) if ranks > 1 else (np.array([]), np.array([]))
    done = np.zeros(1)
    for instant, elements in zip(ready, sizes, strict=True):
        lasts = model.cost.allreduce_ns(float(elements) * model.bytes_per_element, ranks)
        done = np.maximum(done, instant) + lasts
    exposed = np.maximum(done - step.backward_ns, 0)
    local = step.forward_ns + step.backward_ns + step.tail_ns + (step.load_ns if model.loader else 0)
    return Simulated(local + _late_ns(model, ranks) + exposed, exposed, len(ready))


def _late_ns(model: Model, ranks: int) -> np.ndarray:
    """By how much the latest rank is later than the median one, with resamples, ns.

    The median of the latest of P is the quantile 0.5^(1/P) of one, if ranks are late independently.
    """
    key = (ranks, model.stragglers, model.loader)
    if key not in model._late:
        own = model.step.own_ns - (0 if model.loader else model.step.own_load_ns)
        level = 0.5 ** (1 / ranks) if model.stragglers else 0.5

        def latest(values: np.ndarray) -> np.ndarray:
            return np.quantile(values, level, axis=-1)

        resampled = statistics.block_resamples(own, latest, RESAMPLES)
        model._late[key] = np.concatenate([[latest(own)], resampled]) - np.median(own)
    return model._late[key]


# --- what if ------------------------------------------------------------------------------------------


def changed(model: Model, what_if: str) -> Model:
    """A model with one or several ("+") of the changes of this file's docstring.

    Raises:
        UserError: there is no such change, or its value is none.
        ValueError: it changes nothing here, or what it would change is not known; the message says which.
    """
    for name, value in _taken_apart(what_if):
        model = _changed(model, name, value)
    return model


def parse_what_ifs(text: str) -> list[str]:
    """``"fp16-gradients,network=2x"`` as a list.

    Raises:
        UserError: one of them is no change, or has no right value.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        _taken_apart(name)
    return names


def in_words(what_if: str) -> str:
    """A what-if for a sentence: ``gradients in fp16 and links of 2x the bandwidth``."""
    pairs = [one.partition("=") for one in what_if.split("+")]
    return " and ".join(_WORDS[name.strip()].format(value.strip()) for name, _, value in pairs)


def _changed(model: Model, name: str, value: float) -> Model:
    if name == "fp16-gradients":
        if model.bytes_per_element == 2:
            raise ValueError("gradients are sent in 16 bits already")
        return replace(model, bytes_per_element=2)
    if name == "network":
        return replace(model, cost=Cost(model.cost.alpha_ns, model.cost.ns_per_byte / value))
    if name == "bucket-mb":
        if model.step.whole_buckets:
            raise ValueError("when single gradients are ready is not known, so other buckets are not")
        return replace(model, bucket_mb=value)
    return replace(model, stragglers=False) if name == "no-stragglers" else replace(model, loader=False)


def _taken_apart(what_if: str) -> list[tuple[str, float]]:
    """The changes that a what-if says, with their values (0: they have none)."""
    made = []
    for one in what_if.split("+"):
        name, equals, value = (part.strip() for part in one.partition("="))
        if name not in _DEFAULTS:
            raise UserError(f"--what-if: unknown change {name!r}{did_you_mean(name, _DEFAULTS)}")
        if not _DEFAULTS[name] and equals:
            raise UserError(f"--what-if: {name} takes no value, not {value!r}")
        number = float(value.removesuffix("x")) if _NUMBERS[name].fullmatch(value) else 0.0
        if _DEFAULTS[name] and number <= 0:
            raise UserError(f"--what-if: {one.strip()!r} needs a number, e.g. {name}={_DEFAULTS[name]}")
        made.append((name, number))
    return made
