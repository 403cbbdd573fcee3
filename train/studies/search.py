"""Where is the boundary, and where is the balance? Searches over tries that cost a process each."""

from collections.abc import Callable
from typing import TypeVar

_Tried = TypeVar("_Tried")

MOST_LAYERS = 1 << 16


def boundary(fits: Callable[[int], bool], start: int, most: int = MOST_LAYERS) -> tuple[int, int]:
    """(the largest size that fits, the next, which does not); 0 if not even 1 fits, ``most`` if all do.

    Strides from ``start`` double until the boundary is passed; then the interval is halved.

    Args:
        fits: whether a size from 1 on fits; asked once for each of at most about 2 log2(distance) sizes.
        start: the size to begin with; the nearer to the boundary, the fewer tries.
    """
    below, above = 0, most + 1
    size, stride = min(max(1, start), most), 1
    while above - below > 1:
        if fits(size):
            below, size = size, size + stride
        else:
            above, size = size, size - stride
        stride *= 2
        if not below < size < above:
            size = (below + above) // 2
    return below, above


def balance(
    attempt: Callable[[int], tuple[_Tried, float]], start: int, last: int
) -> tuple[int | None, dict[int, _Tried]]:
    """The place from 1 to ``last`` where two sides are nearest to each other, and what was tried.

    Args:
        attempt: of a place: what was seen, and how much the first side exceeds the second (which grows with
            the place); infinite where the first does not fit, minus infinite where the second does not, not a
            number where neither does.
        start: the place to begin with.
    """
    low, high, place = 1, last, min(max(1, start), last)
    tried: dict[int, _Tried] = {}
    excess: dict[int, float] = {}
    while low <= high:
        tried[place], excess[place] = attempt(place)
        if excess[place] != excess[place]:
            break
        low, high = (low, place - 1) if excess[place] > 0 else (place + 1, high)
        place = (low + high) // 2
    finite = {place: abs(value) for place, value in excess.items() if abs(value) < float("inf")}
    return (min(finite, key=lambda place: finite[place]) if finite else None), tried
