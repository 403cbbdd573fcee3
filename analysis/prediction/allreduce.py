"""Fit the duration of an allreduce as a function of bytes, ranks and nodes.

An allreduce of n bytes over P ranks on N nodes sends messages of latency alpha and bytes at bandwidth beta,
by one of these forms (Thakur, Rabenseifner and Gropp, 2005; NCCL's double binary tree: Sanders, Speck and
Traff, 2009):

    ring               2 (P - 1) alpha + 2 (P - 1) / P  n / beta
    halving            2 log2(P) alpha + 2 (P - 1) / P  n / beta        recursive halving and doubling
    tree               2 log2(P) alpha + 2 n / beta                     pipelined double binary tree
    binomial           2 log2(P) (alpha + n / beta)                     a tree that is not pipelined

Where nodes hold several ranks, links within nodes and between them have an alpha and a beta each:

    ring over nodes    a ring that is as slow as the links between nodes
    two-level ring     a ring within each node, and one over the nodes
    two-level tree     a ring within each node, and a tree over the nodes

Where several numbers of ranks were traced, a ring may have less bandwidth above one of them:

    shared from P0     all ranks share the links of P0 ranks: 2 (P - 1) / P  max(1, P / P0)  n / beta
    slower from P0     more than P0 ranks have links of another, constant beta

Alphas and 1 / betas are fitted by non-negative least squares of relative errors. All forms that fit about
equally well are kept. Real networks follow them only roughly, so a predicted cost is as uncertain as the
residuals of its fit, and more with every doubling beyond the traced ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

RESAMPLES = 400
_AS_GOOD = 4.0  # forms within this of the best score are kept
LEAST_ERROR = 0.005  # of a mean of equal calls, relative
_TOO_FAR_OFF = 0.25  # of residuals beyond those of the best form, relative: such forms are dropped
_TELLS_APART = 1.5  # ratio of message sizes from which on latency and bandwidth can be separated
_MOST_ALPHA_NS = 100_000.0  # otherwise latency may be up to this, as of TCP between two hosts
_FADES = 0.07  # relative standard deviation of a cost for each doubling beyond the traced ranks
_UNSURE_SEED = 7

Counts = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (ranks, nodes) -> number


@dataclass(frozen=True)
class Layout:
    """How many ranks a job has, and on how many nodes."""

    ranks: int
    nodes: int = 1


@dataclass(frozen=True)
class Form:
    """Messages, and volumes in units of n bytes, that an allreduce sends, by kind of link."""

    name: str
    messages: tuple[Counts, ...]
    volumes: tuple[Counts, ...]
    trees: bool = False  # whether NCCL calls it a tree

    def columns(self, ranks: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """(terms, calls): messages of each kind of link, then volumes."""
        return np.stack([count(ranks, nodes) * 1.0 for count in (*self.messages, *self.volumes)])


def _ring(p: np.ndarray) -> np.ndarray:
    return 2 * (p - 1.0)


def _share(p: np.ndarray) -> np.ndarray:
    return 2 * (p - 1.0) / p


def _depth(p: np.ndarray) -> np.ndarray:
    return 2 * np.log2(p)


FLAT = (
    Form("ring", (lambda p, n: _ring(p),), (lambda p, n: _share(p),)),
    Form("halving", (lambda p, n: _depth(p),), (lambda p, n: _share(p),)),
    Form("tree", (lambda p, n: _depth(p),), (lambda p, n: 2.0 * (p > 1),), trees=True),
    Form("binomial", (lambda p, n: _depth(p),), (lambda p, n: _depth(p),), trees=True),
)
RING = FLAT[0]
LEVELS = (
    Form("ring over nodes", (lambda p, n: _ring(p) * (n == 1), lambda p, n: _ring(p) * (n > 1)),
         (lambda p, n: _share(p) * (n == 1), lambda p, n: _share(p) * (n > 1))),
    Form("two-level ring", (lambda p, n: _ring(p / n), lambda p, n: _ring(n)),
         (lambda p, n: _share(p / n), lambda p, n: _share(n))),
    Form("two-level tree", (lambda p, n: _ring(p / n), lambda p, n: _depth(n)),
         (lambda p, n: _share(p / n), lambda p, n: 2.0 * (n > 1)), trees=True),
)  # fmt: skip


def shared(free: int) -> Form:
    """A ring whose links more than ``free`` ranks share."""
    return Form(f"shared from {free}", RING.messages, (lambda p, n: _share(p) * np.maximum(1, p / free),))


def slower(fast: int) -> Form:
    """A ring over other links for more than ``fast`` ranks."""
    volumes = (lambda p, n: _share(p) * (p <= fast), lambda p, n: _share(p) * (p > fast))
    return Form(f"slower from {fast}", RING.messages, volumes)


class Exchanges(NamedTuple):
    """Measured allreduces; arrays of one element an interval in which one or more (that overlap) ran.

    ``ns``: from the arrival of the last rank at the first call to the end of the last one; ``algorithms``: in
    the names of NCCL's kernels: ``ring``, ``tree``; empty: not known.
    """

    ranks: np.ndarray
    calls: np.ndarray
    bytes: np.ndarray
    ns: np.ndarray
    nodes: np.ndarray
    algorithms: frozenset[str] = frozenset()


def joined(parts: Sequence[Exchanges]) -> Exchanges:
    """The allreduces of several traces."""
    ranks, calls, sizes, ns, nodes = map(np.concatenate, zip(*(one[:-1] for one in parts), strict=True))
    algorithms = frozenset[str]().union(*(one.algorithms for one in parts))
    return Exchanges(ranks, calls, sizes, ns, nodes, algorithms)


@dataclass(frozen=True)
class Cost:
    """A fitted form."""

    form: Form
    terms: np.ndarray  # (alphas, then 1 / betas; the estimate, then resamples), ns
    error: float = float("nan")  # root mean square of the relative residuals of equal calls' means
    traced: int = 0  # the largest number of ranks of the fit; 0: not fitted
    latency_known: bool = True  # whether latency could be separated from bandwidth
    score: float = 0.0  # chi-square of equal calls' means, plus two a parameter (Akaike's criterion)

    def allreduce_ns(self, size: float, layout: Layout) -> np.ndarray:
        """The estimate, then resamples, ns."""
        costs = self._counts(size, layout) @ self.terms
        if not self.traced:
            return costs
        beyond = max(0.0, float(np.log2(layout.ranks / self.traced)))
        spread = self.error + max(self.error, _FADES) * beyond
        drawn = np.random.default_rng(_UNSURE_SEED).standard_normal(self.terms.shape[1] - 1)
        return costs * np.exp(spread * np.concatenate([[0.0], drawn]))

    def with_bandwidth(self, factor: float) -> "Cost":
        """With all bandwidths multiplied."""
        terms = self.terms.copy()
        terms[len(self.form.messages) :] /= factor
        return replace(self, terms=terms)

    def has_bandwidth(self, layout: Layout) -> bool:
        """Whether bytes cost anything."""
        return bool((self._counts(1.0, layout) * self.terms[:, 0])[len(self.form.messages) :].sum() > 0)

    def slowest(self, layout: Layout) -> tuple[float, float]:
        """alpha and 1 / beta of the slowest links: between nodes where there are several."""
        messages = len(self.form.messages)
        used = np.flatnonzero(self._counts(1.0, layout))
        alpha = max((place for place in used if place < messages), default=0)
        return float(self.terms[alpha, 0]), float(self.terms[max(used, default=messages), 0])

    def _counts(self, size: float, layout: Layout) -> np.ndarray:
        counts = self.form.columns(np.array([layout.ranks]), np.array([layout.nodes]))[:, 0]
        counts[len(self.form.messages) :] *= size
        return counts


def ring(alpha_ns: float, ns_per_byte: float) -> Cost:
    """The cost of a ring over a known network."""
    return Cost(RING, np.array([[alpha_ns], [ns_per_byte]]))


def fit(seen: Exchanges, seed: int = 0, scatter: float = 0.0) -> list[Cost]:
    """The best form, then those about as good; ``scatter``: relative, of equal calls between runs."""
    if not len(seen.ns):
        raise ValueError("no collective")
    fitted = partial(_fitted, seen, seed, scatter)
    possible = forms(seen)
    length = seen.bytes / seen.calls / seen.ranks
    if length.max() <= _TELLS_APART * length.min():
        # Messages of one length: latency is between none and as much as possible.
        most = float((seen.ns / (seen.calls * RING.messages[0](seen.ranks, seen.nodes))).min())
        return [
            replace(fitted(form, {0: alpha}), latency_known=False)
            for form in possible
            for alpha in ((0.0, min(_MOST_ALPHA_NS, most)) if form is RING else (0.0,))
            if len(form.messages) == 1
        ]
    costs = [fitted(form, {}) for form in possible]
    if len(set(seen.ranks)) == 1:
        # Calls of one number of ranks do not determine whether sizes differ by latency or by algorithm.
        costs += [fitted(form, {0: 0.0}) for form in possible if form in FLAT]
        best, *others = sorted(costs, key=lambda cost: cost.score)
        return [best, *(cost for cost in others if cost.error <= best.error + _TOO_FAR_OFF)]
    costs.sort(key=lambda cost: cost.score)
    return [cost for cost in costs if cost.score <= costs[0].score + _AS_GOOD]


def forms(seen: Exchanges) -> tuple[Form, ...]:
    """The forms that calls may have, by the names of NCCL's kernels and the layouts."""
    levels = LEVELS if ((seen.nodes > 1) & (seen.ranks > seen.nodes)).any() else ()
    sizes = [int(count) for count in np.unique(seen.ranks)]
    sharing = [shared(size) for size in sizes[:-1]] + [slower(size) for size in sizes[-2:-1]]
    possible = (*FLAT, *levels, *sharing)
    if len(seen.algorithms) == 1:
        # A kernel named after the ring may be another one's (NVLS, CollNet), but is no tree.
        return tuple(form for form in possible if form.trees == ("tree" in seen.algorithms))
    return possible


def _fitted(seen: Exchanges, seed: int, scatter: float, form: Form, fixed_terms: Mapping[int, float]) -> Cost:
    """Least squares of relative errors; resampled are calls, and the runs that they are of."""
    messages, count = len(form.messages), len(seen.ns)
    design = form.columns(seen.ranks, seen.nodes)
    design[:messages] *= seen.calls
    design[messages:] *= seen.bytes
    design /= seen.ns  # (terms, calls): what each costs of a call's time, per unit of it
    runs = np.unique(np.stack([seen.ranks, seen.nodes]), axis=1, return_inverse=True)[1].ravel()
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, count, (RESAMPLES, count))
    weights = np.stack([np.bincount(row, minlength=count) for row in draws]).astype(float)
    first = nonnegative(design, np.ones((1, count)), np.ones((1, count)), fixed_terms)
    # Logarithm of each call's fitted over its measured time, and the misfit of whole runs.
    rest = np.log(np.maximum(first[:, 0] @ design, 1e-9))
    misfit = np.sqrt(np.mean(np.square(np.bincount(runs, rest) / np.bincount(runs))))
    deviates = generator.standard_normal((RESAMPLES, runs.max() + 1))
    factors = np.exp(max(scatter, misfit) * deviates)[:, runs]
    terms = np.concatenate([first, nonnegative(design, weights, factors, fixed_terms)], axis=1)
    # The means of equal calls of a run, and how well each is known.
    key = np.stack([runs, np.round(8 * np.log2(seen.bytes)), seen.calls])
    cells, cell, calls = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    mean = np.bincount(cell.ravel(), rest) / calls
    squares = np.bincount(cell.ravel(), np.square(rest - mean[cell.ravel()]))
    weight = 1 / (squares / np.maximum(calls - 1, 1) / calls + LEAST_ERROR**2)
    # Scatter between runs is one error for all calls of a run.
    squares, sums, weights = (
        np.bincount(cells[0].astype(int), values) for values in (weight * mean**2, weight * mean, weight)
    )
    chi_square = squares - np.square(sums) * scatter**2 / (1 + scatter**2 * weights)
    return Cost(
        form, terms, float(np.sqrt(np.mean(np.square(mean)))), int(seen.ranks.max()),
        score=float(chi_square.sum() + 2 * np.count_nonzero(first)),
    )  # fmt: skip


def nonnegative(
    design: np.ndarray, weights: np.ndarray, factors: np.ndarray, fixed_terms: Mapping[int, float]
) -> np.ndarray:
    """Non-negative least squares of ``design.T @ x = factors`` for many weights, by trying all sets of terms.

    ``design``: (terms, calls); ``weights``, ``factors``: (problems, calls); the answer: (terms, problems).
    """
    terms, problems = len(design), len(weights)
    free = [place for place in range(terms) if place not in fixed_terms and design[place].any()]
    held = np.array([fixed_terms.get(place, 0.0) for place in range(terms)])
    targets = factors - held @ design
    # Columns of one length, so that the normal equations are well conditioned.
    length = np.sqrt(np.square(design).sum(axis=1))
    scaled = design / np.where(length > 0, length, 1)[:, None]
    gram = np.einsum("pc,ic,jc->pij", weights, scaled, scaled, optimize=True)
    right = np.einsum("pc,pc,ic->pi", weights, targets, scaled, optimize=True)
    coefficients = np.repeat(held[:, None], problems, axis=1)
    least = np.zeros(problems)  # of the part of the squares that depends on x: 0 where x is 0
    for size in range(1, len(free) + 1):
        for chosen in combinations(free, size):
            place = np.array(chosen)
            matrix, side = gram[:, place[:, None], place], right[:, place]
            lengths = np.diagonal(matrix, axis1=1, axis2=2)
            usable = np.abs(np.linalg.det(matrix)) > 1e-9 * np.prod(lengths, axis=1)
            solved = np.zeros((problems, size))
            if usable.any():
                solved[usable] = np.linalg.solve(matrix[usable], side[usable][..., None])[..., 0]
            squares = -np.einsum("pi,pi->p", solved, side)
            better = usable & (solved >= 0).all(axis=1) & (squares < least - 1e-12)
            least = np.where(better, squares, least)
            coefficients[:, better] = held[:, None]
            coefficients[place[:, None], better] = (solved[better] / length[place]).T
    return coefficients
