"""Which of the first steps of a recording are slower than the others by far, and no step to measure?"""

import numpy as np

SLOW = 2.0  # times the median of those behind, from which on a step is slow by far
_FEWEST = 2  # steps behind one, of which the median says how long the others take
_FEWEST_SLOW = 3  # slow steps at equal distances: fewer are often so by chance


def slow_head(lasted_ns: np.ndarray) -> int:
    """How many of the first steps take more than :data:`SLOW` times the median of all behind them.

    None, if steps as slow recur (:func:`recurs`).
    """
    slow = 0
    while len(behind := lasted_ns[slow + 1 :]) >= _FEWEST and lasted_ns[slow] > SLOW * np.median(behind):
        slow += 1
    return slow if slow and not recurs(lasted_ns, lasted_ns > SLOW * np.median(lasted_ns[slow:])) else 0


def recurs(lasted_ns: np.ndarray, slow: np.ndarray) -> bool:
    """Whether the first of the slow steps is one of many that come every so many steps, to the end.

    Then it is slow as they are (every n-th step evaluates, saves or logs), and not since it is the first.
    """
    places = np.flatnonzero(slow)
    if len(places) < _FEWEST_SLOW or places[0]:
        return False
    every = int(places[1])
    regular = every > 1 and np.array_equal(places, np.arange(0, len(slow), every))
    return regular and bool(lasted_ns[0] < SLOW * np.median(lasted_ns[places[1:]]))
