"""What was before an activity of a rank? The one that ended last, in its chain or among some."""

from typing import Literal

import numpy as np

from analysis.measures.critical_path.activities import Activities


def last_ended(end_ns: np.ndarray, at_ns: np.ndarray, earlier: bool = False) -> np.ndarray:
    """Of those that had ended at each of these times the one that ended last; -1: none had.

    Args:
        earlier: one that ends in that nanosecond does not count.
    """
    order = np.append(np.argsort(end_ns, kind="stable"), -1)
    side: Literal["left", "right"] = "left" if earlier else "right"
    return order[np.searchsorted(end_ns[order[:-1]], at_ns, side=side) - 1]


def previous(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Of each of these, in order of the start, the one that ended last before it started; -1: none did.

    One that ends in the nanosecond in which the next starts is before it.
    """
    last = last_ended(end_ns, start_ns, earlier=True)
    neighbour = np.arange(len(start_ns)) - 1
    touches = (neighbour >= 0) & (end_ns[neighbour] <= start_ns)
    return np.where(touches & ((last < 0) | (end_ns[neighbour] >= end_ns[last])), neighbour, last)


def in_chains(activities: Activities) -> np.ndarray:
    """Of each activity that which was before it in its chain; -1: none."""
    before = np.full(len(activities), -1)
    order = np.argsort(activities.chain, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(activities.chain[order])) + 1):
        place = previous(activities.start_ns[mine], activities.end_ns[mine])
        before[mine] = np.where(place >= 0, mine[place], -1)
    return before


def at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The times of activities; long ago where the index is below 0."""
    return np.where(index >= 0, times[index], np.iinfo(np.int64).min // 2)
