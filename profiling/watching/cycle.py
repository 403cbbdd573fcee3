"""Which of a program's optimizers ends its steps? From who stepped when; pure."""

from array import array
from collections import Counter

from profiling.watching.segments import UNKNOWN

# An optimizer that comes after so many steps of the one that ends the steps does not end them instead.
LATE = 10


class Cycle:
    """Which updates end a step: of optimizers that step by turns, those of the one that comes last.

    An optimizer that steps for the first time ends the steps from then on, unless another has ended
    :data:`LATE` of them. Where the one that ends them stays away for longer than ever, the program is in a
    new phase, with other optimizers: it begins with the first update after the last of that one.

    Attributes:
        ends: the places among all updates of those that end a step.
        phases: how many phases there were.
        late: the optimizers that came too late in a phase to end its steps; all of them once ``finished``.
        updates: how many updates there were.

    Args:
        per_step: updates of the optimizer that ends the steps which make one step, counted in each phase.
    """

    def __init__(self, per_step: int = 1) -> None:
        self.ends = array("q")
        self.phases = 1
        self.late: set[int] = set()
        self.updates = 0
        self._per_step = per_step
        self._begin()

    def _begin(self) -> None:
        self._ending = UNKNOWN
        self._counts: Counter[int] = Counter()  # of this phase, as all that follows
        self._too_late: set[int] = set()
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
        self._note_late()

    def _note_late(self) -> None:
        """Of those that came too late in this phase, those that stepped before its last step are of it."""
        of_next = Counter(who for who, _ in self._others)
        self.late.update(who for who in self._too_late if self._counts[who] > of_next[who])

    def _go_on(self) -> None:
        """The phase has ended with its last step."""
        self._note_late()
        others = self._others
        self._begin()
        self.phases += 1
        for who, place in others:
            self._add(who, place)

    def _add(self, who: int, place: int) -> bool:
        if who not in self._counts:
            if self._counts[self._ending] < LATE:
                del self.ends[self._before :]
                self._ending, self._others, self._most = who, [], self._counts.total()
            else:
                self._too_late.add(who)
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
