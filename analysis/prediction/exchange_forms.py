"""How many messages and bytes does an allreduce send? The forms that an exchange may have.

An allreduce of n bytes over P ranks on N nodes sends messages of latency alpha and bytes of bandwidth beta. A
form says how many of each (Thakur, Rabenseifner and Gropp, 2005; NCCL's double binary tree: Sanders, Speck
and Traff, 2009):

    ring               2 (P - 1) alpha + 2 (P - 1) / P  n / beta
    halving            2 log2(P) alpha + 2 (P - 1) / P  n / beta        recursive halving and doubling
    tree               2 log2(P) alpha + 2 n / beta                     pipelined double binary tree
    binomial           2 log2(P) (alpha + n / beta)                     a tree that is not pipelined

Where a node holds several ranks, links within it and between nodes differ, each with its own alpha and beta:

    ring over nodes    a ring; over several nodes all its messages wait for the links between nodes
    two-level ring     a ring within each node, and one over the nodes
    two-level tree     a ring within each node, and a tree over the nodes

Where points of several sizes were traced, a ring may also have less bandwidth from some size on:

    shared from P0     all ranks share what links P0 ranks had: 2 (P - 1) / P  max(1, P / P0)  n / beta
    slower from P0     more than P0 ranks have links of another, constant beta
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Counts = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (ranks, nodes) -> number


@dataclass(frozen=True)
class Layout:
    """How many ranks a job has, and on how many nodes."""

    ranks: int
    nodes: int = 1


@dataclass(frozen=True)
class Form:
    """How many messages, and times n bytes, an allreduce sends; one of each a kind of link.

    Attributes:
        trees: whether NCCL calls it a tree.
    """

    name: str
    messages: tuple[Counts, ...]
    volumes: tuple[Counts, ...]
    trees: bool = False

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
    Form(
        "ring over nodes",
        (lambda p, n: _ring(p) * (n == 1), lambda p, n: _ring(p) * (n > 1)),
        (lambda p, n: _share(p) * (n == 1), lambda p, n: _share(p) * (n > 1)),
    ),
    Form(
        "two-level ring",
        (lambda p, n: _ring(p / n), lambda p, n: _ring(n)),
        (lambda p, n: _share(p / n), lambda p, n: _share(n)),
    ),
    Form(
        "two-level tree",
        (lambda p, n: _ring(p / n), lambda p, n: _depth(n)),
        (lambda p, n: _share(p / n), lambda p, n: 2.0 * (n > 1)),
        trees=True,
    ),
)


def shared(free: int) -> Form:
    """A ring over links that more ranks than ``free`` have to share."""
    return Form(f"shared from {free}", RING.messages, (lambda p, n: _share(p) * np.maximum(1, p / free),))


def slower(fast: int) -> Form:
    """A ring that more ranks than ``fast`` have other links for."""
    return Form(
        f"slower from {fast}",
        RING.messages,
        (lambda p, n: _share(p) * (p <= fast), lambda p, n: _share(p) * (p > fast)),
    )
