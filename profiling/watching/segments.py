"""Record what a program does, from when to when: segments, each of one kind, none within another.

Where one begins within another (Lightning runs forward and backward inside the optimizer's step) the outer
one is interrupted: it is cut into pieces, of which the last is the whole one's end.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.markers import Markers
from profiling.step_clock import Clock

# The kinds of segments. EVALUATION: a forward pass without gradients; STEP: what an explicit marker encloses,
# of which only the rest is left; PAUSE: what a profiler takes to start.
LOAD, FORWARD, BACKWARD, UPDATE, EVALUATION, STEP, PAUSE = KINDS = range(7)
UNKNOWN = -1
_RANGES = (FORWARD, BACKWARD, UPDATE)  # what collectors are told of
_ENDING = (UPDATE, STEP)  # with these a step may end, whatever the program is
# What began is noted as one number: who, and in its last bits which kind.
_KIND_BITS = 3
_KIND = (1 << _KIND_BITS) - 1


@dataclass(frozen=True)
class Segments:
    """What was recorded, in order; arrays of shape (segments,)."""

    kind: np.ndarray  # one of the kinds above
    who: np.ndarray  # the number of the data loader, module or optimizer
    begin_ns: np.ndarray  # since the epoch; of the device, if the program computes on one
    end_ns: np.ndarray
    whole: np.ndarray  # False of a piece after which the same goes on, and of a load that brought nothing
    samples: np.ndarray  # of a load; :data:`UNKNOWN` where it does not say how many


class Recorder:
    """Records segments as they begin and end, on one clock, and tells the collectors of the stages.

    While the program runs, each begin and each end is a tick of the clock and a number in a log, and no more:
    what the segments were is worked out from these afterwards.

    Attributes:
        begins: is called before each segment, with its kind; None: not any more.
        open: of each kind, how many segments are under way, interrupted or not.
        heard: whether the collectors are told.

    Args:
        ended: is called after each update and explicit step, and, while there is ``begins``, each backward
            pass, if it ended whole, with its kind and who it was of.
    """

    def __init__(
        self, clock: Clock, markers: Markers, begins: Callable[[int], None], ended: Callable[[int, int], None]
    ) -> None:
        self.begins: Callable[[int], None] | None = begins
        self.open = [0] * len(KINDS)
        self.heard = True
        self._clock, self._tick, self._ended = clock, clock.tick, ended
        ranges = {FORWARD: markers.forward, BACKWARD: markers.backward, UPDATE: markers.update}
        self._ranges = [ranges.get(kind) for kind in KINDS]
        self._log = array("q")  # of each tick what began (not negative), or how the last one ended
        self._note = self._log.append
        self._stack: list[int] = []  # what began and is under way

    def enter(self, kind: int, who: int = 0) -> None:
        """A segment begins; what is under way is interrupted."""
        if self.begins is not None:
            self.begins(kind)
        stack, code = self._stack, who << _KIND_BITS | kind
        if stack and self.heard and (outer := self._ranges[stack[-1] & _KIND]) is not None:
            outer.__exit__(None, None, None)
        self._tick()
        self._note(code)
        stack.append(code)
        self.open[kind] += 1
        if self.heard and (own := self._ranges[kind]) is not None:
            own.__enter__()

    def leave(self, samples: int = UNKNOWN, whole: bool = True) -> None:
        """The segment that began last ends; what it interrupted goes on."""
        stack = self._stack
        code = stack.pop()
        kind = code & _KIND
        if self.heard and (own := self._ranges[kind]) is not None:
            own.__exit__(None, None, None)
        self._tick()
        self._note(~(samples - UNKNOWN << 1 | whole))
        self.open[kind] -= 1
        if stack and self.heard and (outer := self._ranges[stack[-1] & _KIND]) is not None:
            outer.__enter__()
        if whole and (kind in _ENDING or (kind == BACKWARD and self.begins is not None)):
            self._ended(kind, code >> _KIND_BITS)

    def hear(self, heard: bool) -> None:
        """From the next segment on tell the collectors, or do not; not while a range is open."""
        if not any(self.open[kind] for kind in _RANGES):
            self.heard = heard

    def segments(self) -> Segments:
        """All of them; the clock is read for the last time."""
        return _pieces(np.asarray(self._log, dtype=np.int64), self._clock.instants_ns())


def _pieces(log: np.ndarray, instants_ns: np.ndarray) -> Segments:
    """The segments of a log.

    Args:
        log: of each tick, as :meth:`Recorder.enter` and :meth:`Recorder.leave` note it.
        instants_ns: of the same ticks.
    """
    begins = log >= 0
    depth = np.cumsum(np.where(begins, 1, -1))  # segments that are under way after each tick
    place, of = np.arange(len(log)), np.zeros(len(log), dtype=np.int64)
    for level in range(1, int(depth.max(initial=0)) + 1):
        began = np.maximum.accumulate(np.where(begins & (depth == level), place, UNKNOWN))
        of = np.where(depth == level, began, of)
    # From each tick to the next lies a piece of the innermost segment; the last tick has no next one.
    pieces = np.flatnonzero(depth[:-1] > 0)
    code, until = log[of[pieces]], log[pieces + 1]
    ended = ~until  # where it is not negative
    return Segments(
        kind=(code & _KIND).astype(np.int8),
        who=(code >> _KIND_BITS).astype(np.int32),
        begin_ns=instants_ns[pieces],
        end_ns=instants_ns[pieces + 1],
        whole=(until < 0) & (ended & 1 > 0),
        samples=np.where(until < 0, (ended >> 1) + UNKNOWN, UNKNOWN).astype(np.int32),
    )
