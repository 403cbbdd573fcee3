"""The longest path through a graph without circles, and what it would be if some of its edges took no time.

Nodes are moments, numbered so that every edge leads from a lower number to a higher one; node 0 is the
beginning, the last node the end. A node's moment is the latest of what its edges say: the moment of their
tail plus their length (the critical path method of Kelley and Walker, 1959).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

NEVER = -(1 << 60)  # ns: the length of an edge that is not there


@dataclass(frozen=True)
class Graph:
    """Edges in order of their heads, one element each.

    Attributes:
        nodes: how many there are.
        tail, head: numbers of nodes, ``tail < head``.
        ns: how much later than its tail the head can be at the earliest.
    """

    nodes: int
    tail: np.ndarray
    head: np.ndarray
    ns: np.ndarray

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Tail and head of each edge."""
        return list(zip(self.tail.tolist(), self.head.tolist(), strict=True))


def moments(graph: Graph, ns: np.ndarray | None = None) -> np.ndarray:
    """When each node is, in ns since the beginning, shape (nodes,); a node without edges is there at once.

    Args:
        ns: lengths of the edges, instead of the graph's.
    """
    at = [0] * graph.nodes
    lengths = graph.ns if ns is None else ns
    for (tail, head), length in zip(graph.ends, lengths.tolist(), strict=True):
        reached = at[tail] + length
        if reached > at[head]:
            at[head] = reached
    return np.array(at, np.int64)


def critical(graph: Graph) -> np.ndarray:
    """The edges of a longest path from the beginning to the end, in its order; their lengths sum to it.

    Of edges that are equally late the first in the graph's order is taken.
    """
    at = moments(graph)
    binding = np.flatnonzero((at[graph.tail] + graph.ns == at[graph.head]) & (graph.ns > NEVER // 2))
    edge_of = np.full(graph.nodes, -1)
    edge_of[graph.head[binding[::-1]]] = binding[::-1]  # of several the first is written last
    path = []
    node = graph.nodes - 1
    while (edge := int(edge_of[node])) >= 0:
        path.append(edge)
        node = int(graph.tail[edge])
    return np.array(path[::-1], np.int64)
