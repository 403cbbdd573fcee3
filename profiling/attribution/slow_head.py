"""Which of the first steps of a recording are slower than the others by far, and no step to measure?"""

import numpy as np

SLOW = 2.0  # times the median of those behind, from which on a step is slow by far
_FEWEST = 2  # steps behind one, of which the median says how long the others take


def slow_head(lasted_ns: np.ndarray) -> int:
    """How many of the first steps take more than :data:`SLOW` times the median of all behind them."""
    slow = 0
    while len(behind := lasted_ns[slow + 1 :]) >= _FEWEST and lasted_ns[slow] > SLOW * np.median(behind):
        slow += 1
    return slow
