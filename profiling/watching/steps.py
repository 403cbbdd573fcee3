"""Find a watched program's steps: segments in, one row per step out.

A step ends with the optimizer's step; with several optimizers, with that of the one :class:`Cycle` finds.
Without an optimizer it ends with the last backward pass before the next load or forward pass, otherwise with
each forward pass, otherwise with each load. Time between two segments (moving the batch, the loss, clipping
gradients, logging) is the program's own code and belongs to no stage. Steps follow each other without a gap,
except for evaluations and the start of a profiler.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from profiling.clocks import Clock
from profiling.markers import Markers

# The kinds of segments. EVALUATION: a forward pass without gradients; STEP: what an explicit marker encloses,
# of which only the rest is left; PAUSE: what a profiler takes to start.
LOAD, FORWARD, BACKWARD, UPDATE, EVALUATION, STEP, PAUSE = KINDS = range(7)
UNKNOWN = -1
_RANGES = (FORWARD, BACKWARD, UPDATE)  # what is marked for collectors
_ENDING = (UPDATE, STEP)  # with these a step may end, whatever the program is
# What began is noted as one number: who, and in its last bits which kind.
_KIND_BITS = 3
_KIND = (1 << _KIND_BITS) - 1


@dataclass(frozen=True)
class Segments:
    kind: np.ndarray  # one of the kinds above
    who: np.ndarray  # the number of the data loader, module or optimizer
    begin_ns: np.ndarray  # since the epoch; of the device, if the program computes on one
    end_ns: np.ndarray
    whole: np.ndarray  # False of a piece after which the same goes on, and of a load that brought nothing
    samples: np.ndarray  # of a load; :data:`UNKNOWN` where it does not say how many


class Recorder:
    """Records segments as they begin and end, on one clock, and tells the collectors of the stages.

    While the program runs, each begin and each end is a tick of the clock and a number in a log, and no more.

    Attributes:
        begins: called before each segment, with its kind; None: not any more.
        open: of each kind, how many segments are under way, interrupted or not.
        is_marking: whether the stages are marked for the collectors.

    Args:
        ended: called with kind and number after each update and explicit step, and, while there is
            ``begins``, each backward pass, if it ended whole.
    """

    def __init__(
        self, clock: Clock, markers: Markers, begins: Callable[[int], None], ended: Callable[[int, int], None]
    ) -> None:
        self.begins: Callable[[int], None] | None = begins
        self.open = [0] * len(KINDS)
        self.is_marking = True
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
        if stack and self.is_marking and (outer := self._ranges[stack[-1] & _KIND]) is not None:
            outer.__exit__()
        self._tick()
        self._note(code)
        stack.append(code)
        self.open[kind] += 1
        if self.is_marking and (inner := self._ranges[kind]) is not None:
            inner.__enter__()

    def leave(self, samples: int = UNKNOWN, whole: bool = True) -> None:
        """The segment that began last ends; what it interrupted goes on."""
        stack = self._stack
        code = stack.pop()
        kind = code & _KIND
        if self.is_marking and (inner := self._ranges[kind]) is not None:
            inner.__exit__()
        self._tick()
        self._note(~(samples - UNKNOWN << 1 | whole))
        self.open[kind] -= 1
        if stack and self.is_marking and (outer := self._ranges[stack[-1] & _KIND]) is not None:
            outer.__enter__()
        if whole and (kind in _ENDING or (kind == BACKWARD and self.begins is not None)):
            self._ended(kind, code >> _KIND_BITS)

    def set_marking(self, is_marking: bool) -> None:
        """From the next segment on mark the stages, or do not; not while a range is open."""
        if not any(self.open[kind] for kind in _RANGES):
            self.is_marking = is_marking

    def segments(self) -> Segments:
        log, instants_ns = np.asarray(self._log, dtype=np.int64), self._clock.instants_ns()
        begins = log >= 0
        depth = np.cumsum(np.where(begins, 1, -1))  # segments that are under way after each tick
        place, innermost = np.arange(len(log)), np.zeros(len(log), dtype=np.int64)
        for level in range(1, int(depth.max(initial=0)) + 1):
            began = np.maximum.accumulate(np.where(begins & (depth == level), place, UNKNOWN))
            innermost = np.where(depth == level, began, innermost)
        # From each tick to the next lies a piece of the innermost segment; the last tick has no next one.
        pieces = np.flatnonzero(depth[:-1] > 0)
        code, until = log[innermost[pieces]], log[pieces + 1]
        ended = ~until  # where it is not negative
        return Segments(
            kind=(code & _KIND).astype(np.int8),
            who=(code >> _KIND_BITS).astype(np.int32),
            begin_ns=instants_ns[pieces],
            end_ns=instants_ns[pieces + 1],
            whole=(until < 0) & (ended & 1 > 0),
            samples=np.where(until < 0, (ended >> 1) + UNKNOWN, UNKNOWN).astype(np.int32),
        )


STAGES = (LOAD, FORWARD, BACKWARD, UPDATE)
# An optimizer that comes after so many steps of the one that ends the steps does not end them instead.
LATE = 10


# What a step ends with, for people.
BY_MARKER, BY_OPTIMIZER, BY_BACKWARD, BY_FORWARD, BY_LOAD, BY_NOTHING = (
    "explicit markers", "the optimizer's step", "the backward pass", "the forward pass", "each load", "",
)  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """The steps of a program on one rank; arrays of shape (steps,)."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    stages_ns: Mapping[int, np.ndarray]  # kind of segment (LOAD, FORWARD, BACKWARD, UPDATE) -> time in it
    samples: np.ndarray  # :data:`UNKNOWN` where no loader says it
    passes: np.ndarray  # how many backward passes it had (forward passes, where there is no backward one)
    paused: np.ndarray  # whether an evaluation before it was left out
    by: str  # what ends a step

    def __len__(self) -> int:
        return len(self.start_ns)

    def first(self, count: int) -> "Steps":
        columns = ("start_ns", "end_ns", "samples", "passes", "paused")
        stages_ns = {kind: times_ns[:count] for kind, times_ns in self.stages_ns.items()}
        return replace(self, stages_ns=stages_ns, **{one: getattr(self, one)[:count] for one in columns})


class Cycle:
    """Which updates end a step: of optimizers that step by turns, those of the one that comes last.

    An optimizer that steps for the first time ends the steps from then on, unless another has ended
    :data:`LATE` of them. Where the one that ends them stays away for longer than ever, the program is in a
    new phase, with other optimizers: it begins with the first update after the last of that one.

    Attributes:
        ends: the places among all ``updates`` of those that end a step.

    Args:
        per_step: updates of the optimizer that ends the steps which make one step, counted in each phase.
    """

    def __init__(self, per_step: int = 1) -> None:
        self.ends = array("q")
        self.updates = 0
        self._per_step = per_step
        self._begin()

    def _begin(self) -> None:
        self._ending = UNKNOWN
        self._counts: Counter[int] = Counter()  # of this phase, as all that follows
        self._before = len(self.ends)
        self._others: list[tuple[int, int]] = []  # who and place of updates since the last that ends a step
        self._most = 0  # of them, from one end of a step to the next

    @property
    def may_change(self) -> bool:
        """Whether an optimizer that steps from now on for the first time ends the steps."""
        return 0 < self._counts[self._ending] < LATE

    def updated(self, who: int) -> bool:
        """An optimizer has stepped; whether that, or what followed from it, ended a step."""
        ended = self._add(who, self.updates)
        self.updates += 1
        if len(self._others) > 2 * max(self._most, len(self._counts)) + LATE:
            before = len(self.ends)
            self._go_on()
            return len(self.ends) > before
        return ended

    def finished(self) -> None:
        """The program has ended: what was waited for does not come any more."""
        while len(self._others) > self._most:
            self._go_on()

    def _go_on(self) -> None:
        """The phase has ended with its last step."""
        others = self._others
        self._begin()
        for who, place in others:
            self._add(who, place)

    def _add(self, who: int, place: int) -> bool:
        if who not in self._counts and self._counts[self._ending] < LATE:
            del self.ends[self._before :]
            self._ending, self._others, self._most = who, [], self._counts.total()
        self._counts[who] += 1
        if who != self._ending:
            self._others.append((who, place))
            return False
        self._most = max(self._most, len(self._others))
        self._others.clear()
        if self._counts[who] % self._per_step:
            return False
        self.ends.append(place)
        return True


class Ends:
    """Tells while a program runs which segment ends a step, as :func:`ends_of` does afterwards."""

    def __init__(self, per_step: int = 1) -> None:
        self._cycle = Cycle(per_step)
        self._marked = 0
        # Before any optimizer's step:
        self.has_backward = False
        self._passes = 0  # runs of backward passes, or loads where there is no backward pass
        self._in_pass = False  # whether one of these is under way

    @property
    def steps(self) -> int:
        return self._marked or len(self._cycle.ends) or self._passes

    @property
    def may_change(self) -> bool:
        return self._cycle.may_change

    def begins(self, kind: int) -> bool:
        """A segment begins; whether a step without an optimizer has ended before it."""
        if self._marked or self._cycle.updates or kind not in (LOAD, FORWARD):
            return False
        if kind == FORWARD and not self.has_backward:
            return False
        was, self._in_pass = self._in_pass, not self.has_backward
        self._passes += was
        return was

    def ended(self, kind: int, who: int) -> bool:
        """A segment has ended whole; whether a step has, too."""
        if kind == STEP:
            self._marked += 1
            return True
        if kind == BACKWARD:
            if not self.has_backward:  # what was loaded before is of no other step
                self._passes = 0
            self.has_backward = self._in_pass = True
        if kind != UPDATE or self._marked:
            return False
        self._passes = 0
        return self._cycle.updated(who)


def ends_of(segments: Segments, per_step: int = 1) -> tuple[np.ndarray, str]:
    """The places of the segments that end a step, and what these are."""
    kind, whole = segments.kind, segments.whole
    marked = np.flatnonzero((kind == STEP) & whole)
    if len(marked):
        return marked, BY_MARKER
    updates = np.flatnonzero((kind == UPDATE) & whole)
    if len(updates):
        cycle = Cycle(per_step)
        for who in segments.who[updates].tolist():
            cycle.updated(who)
        cycle.finished()
        return updates[np.asarray(cycle.ends)], BY_OPTIMIZER
    last = np.flatnonzero(np.isin(kind, (LOAD, FORWARD, BACKWARD)))
    backward = kind[last] == BACKWARD
    if backward.any():
        before_other = backward & ~np.append(backward[1:], False)
        return last[before_other], BY_BACKWARD
    for one, by in ((FORWARD, BY_FORWARD), (LOAD, BY_LOAD)):
        if len(places := np.flatnonzero((kind == one) & whole)):
            return places, by
    return np.empty(0, dtype=np.int64), BY_NOTHING


def steps_of(segments: Segments, per_step: int = 1) -> Steps:
    ends, by = ends_of(segments, per_step)
    count = len(ends)
    of_step = np.searchsorted(ends, np.arange(len(segments.kind)))
    pauses = _pauses(segments, of_step, count)
    # What of a step comes before a pause is none of it: an evaluation loads, computes, and may log for long.
    last_pause = _last(pauses, of_step, count)
    counted = (of_step < count) & ~pauses
    counted[counted] = np.flatnonzero(counted) > last_pause[of_step[counted]]
    # A teacher's pass is a forward pass like any other.
    kind = np.where(segments.kind == EVALUATION, FORWARD, segments.kind)
    staged = np.flatnonzero(counted & np.isin(kind, STAGES))
    step, kind = of_step[staged], kind[staged]
    begin_ns, end_ns = segments.begin_ns[staged], segments.end_ns[staged]
    stages_ns = _stages(kind, step, begin_ns, end_ns, count)
    if by == BY_MARKER:
        pieces = np.flatnonzero(counted)
        start_ns = segments.begin_ns[pieces[np.searchsorted(of_step[pieces], np.arange(count))]]
        stop_ns = segments.end_ns[ends]
    else:
        start_ns = begin_ns[np.searchsorted(step, np.arange(count))]
        goes_on = np.append(last_pause[1:] == UNKNOWN, False)
        stop_ns = np.where(goes_on, np.append(start_ns[1:], 0), segments.end_ns[ends])
    whole = segments.whole[staged].astype(np.int64)
    passes = _totals(kind == BACKWARD, step, whole, count)
    return Steps(
        start_ns=start_ns,
        end_ns=stop_ns,
        stages_ns=stages_ns,
        samples=_samples(segments.samples[staged], (kind == LOAD) & (whole > 0), step, count),
        passes=passes if passes.any() else _totals(kind == FORWARD, step, whole, count),
        paused=_last(pauses & (segments.kind != PAUSE), of_step, count) != UNKNOWN,
        by=by,
    )


def _stages(
    kind: np.ndarray, step: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray, count: int
) -> dict[int, np.ndarray]:
    """The time of each stage in each step, from the segments of stages."""
    stages_ns = {one: _totals(kind == one, step, end_ns - begin_ns, count) for one in STAGES}
    # A compiled forward pass is not seen: it is what lies between load and backward.
    unseen = np.flatnonzero((kind[:-1] == LOAD) & (kind[1:] == BACKWARD) & (step[:-1] == step[1:]))
    unseen_ns = begin_ns[unseen + 1] - end_ns[unseen]
    stages_ns[FORWARD] += np.bincount(step[unseen], unseen_ns, count).astype(np.int64)
    return stages_ns


def _totals(which: np.ndarray, step: np.ndarray, of_each: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(step[which], of_each[which], count).astype(np.int64)


def _last(which: np.ndarray, of_step: np.ndarray, count: int) -> np.ndarray:
    """The place of the last of some segments in each step; :data:`UNKNOWN` where a step has none."""
    last = np.full(count, UNKNOWN)
    places = np.flatnonzero(which & (of_step < count))
    np.maximum.at(last, of_step[places], places)
    return last


def _samples(samples: np.ndarray, loads: np.ndarray, step: np.ndarray, count: int) -> np.ndarray:
    unknown = np.bincount(step[loads & (samples == UNKNOWN)], minlength=count) > 0
    total = np.bincount(step[loads], np.maximum(samples[loads], 0), count)
    return np.where(unknown | (not loads.any()), UNKNOWN, total).astype(np.int64)


def _pauses(segments: Segments, of_step: np.ndarray, count: int) -> np.ndarray:
    """Which segments are no part of a step: evaluations, their loads, and starts of a profiler.

    A forward pass without gradients is an evaluation where its module is also trained (a teacher's is not). A
    loader is an evaluation's where no forward pass of training follows its loads, and few steps have one.
    """
    kind, who = segments.kind, segments.who
    trained = np.unique(who[kind == FORWARD])
    evaluations = (kind == EVALUATION) & np.isin(who, trained)
    loads = np.flatnonzero((kind == LOAD) & segments.whole)
    of_others = np.zeros(len(kind), dtype=bool)
    if len(loads) and len(trained):
        passes = np.flatnonzero((kind == FORWARD) | (kind == EVALUATION))
        next_pass = np.searchsorted(passes, loads)
        # The last load before each forward pass of training.
        is_last = np.append(next_pass[1:] != next_pass[:-1], True) & (next_pass < len(passes))
        feeds = is_last.copy()
        feeds[is_last] = kind[passes[next_pass[is_last]]] == FORWARD
        training = set(who[loads[feeds]].tolist())
        for loader in set(who[loads].tolist()) - training:
            steps_with = len(np.unique(of_step[loads[who[loads] == loader]]))
            if 2 * steps_with <= count:
                of_others |= (kind == LOAD) & (who == loader)
    return (kind == PAUSE) | evaluations | of_others
