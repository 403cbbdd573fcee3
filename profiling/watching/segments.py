"""What did the program do, from when to when? Segments, each of one kind, none within another.

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
_MAY_END = (UPDATE, STEP, BACKWARD)  # with these a step may end


@dataclass(frozen=True)
class Segments:
    """What was recorded, in order; arrays of shape (segments,).

    Attributes:
        kind: one of the kinds above.
        who: the number of the data loader, module or optimizer.
        begin_ns, end_ns: since the epoch; of the device, if the program computes on one.
        whole: False of a piece after which the same goes on, and of a load that brought nothing.
        samples: of a load; :data:`UNKNOWN` where it does not say how many.
    """

    kind: np.ndarray
    who: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    whole: np.ndarray
    samples: np.ndarray


class Recorder:
    """Records segments as they begin and end, on one clock, and tells the collectors of the stages.

    Attributes:
        begins: is called before each segment, with its kind; None: not any more.
        open: of each kind, how many segments are under way, interrupted or not.
        heard: whether the collectors are told.

    Args:
        ended: is called after each segment that ended whole, with its kind and who it was of.
    """

    def __init__(
        self,
        clock: Clock,
        markers: Markers,
        begins: Callable[[int], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self.begins: Callable[[int], None] | None = begins
        self.open = [0] * len(KINDS)
        self.heard = True
        self._clock, self._tick, self._ended = clock, clock.tick, ended
        ranges = {FORWARD: markers.forward, BACKWARD: markers.backward, UPDATE: markers.update}
        self._ranges = [ranges.get(kind) for kind in KINDS]
        self._kind, self._whole = array("b"), array("b")
        self._who, self._samples = array("i"), array("i")
        self._begin, self._end = array("q"), array("q")
        self._stack: list[list[int]] = []  # kind, who, the tick at which its present piece began

    def __len__(self) -> int:
        return len(self._kind)

    def enter(self, kind: int, who: int = 0) -> None:
        """A segment begins; what is under way is interrupted."""
        if self.begins is not None:
            self.begins(kind)
        stack = self._stack
        if stack and self.heard and (outer := self._ranges[stack[-1][0]]) is not None:
            outer.__exit__(None, None, None)
        tick = self._tick()
        if stack:
            self._add(stack[-1], tick, False, UNKNOWN)
        stack.append([kind, who, tick])
        self.open[kind] += 1
        if self.heard and (own := self._ranges[kind]) is not None:
            own.__enter__()

    def leave(self, samples: int = UNKNOWN, whole: bool = True) -> None:
        """The segment that began last ends; what it interrupted goes on."""
        stack = self._stack
        one = stack.pop()
        kind = one[0]
        if self.heard and (own := self._ranges[kind]) is not None:
            own.__exit__(None, None, None)
        tick = self._tick()
        self.open[kind] -= 1
        self._add(one, tick, whole, samples)
        if stack:
            outer = stack[-1]
            outer[2] = tick
            if self.heard and (others := self._ranges[outer[0]]) is not None:
                others.__enter__()
        if whole and kind in _MAY_END:
            self._ended(kind, one[1])

    def hear(self, heard: bool) -> None:
        """From the next segment on tell the collectors, or do not; not while a range is open."""
        if not any(self.open[kind] for kind in _RANGES):
            self.heard = heard

    def _add(self, one: list[int], tick: int, whole: bool, samples: int) -> None:
        self._kind.append(one[0])
        self._who.append(one[1])
        self._begin.append(one[2])
        self._end.append(tick)
        self._whole.append(whole)
        self._samples.append(samples)

    def segments(self) -> Segments:
        """All of them; the clock is read for the last time."""
        instants_ns = self._clock.instants_ns()
        return Segments(
            kind=np.asarray(self._kind, dtype=np.int8),
            who=np.asarray(self._who, dtype=np.int32),
            begin_ns=instants_ns[np.asarray(self._begin, dtype=np.int64)],
            end_ns=instants_ns[np.asarray(self._end, dtype=np.int64)],
            whole=np.asarray(self._whole, dtype=bool),
            samples=np.asarray(self._samples, dtype=np.int32),
        )
