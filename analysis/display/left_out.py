"""Runs that do not count, and how many of them are in which state."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from jobs.states import NOT_ENDED


class LeftOut(Protocol):
    """A run that does not count: why, and in what way."""

    @property
    def point(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def kind(self) -> str: ...


_Missing = TypeVar("_Missing", bound=LeftOut)


def missing(failed: Sequence[_Missing]) -> list[_Missing]:
    """Those that the sweep wants: a combination that it leaves out is no run that is missing."""
    return [failure for failure in failed if failure.kind != "excluded"]


def not_ended(failed: Sequence[_Missing]) -> list[_Missing]:
    """Those of runs that may still end well."""
    return [failure for failure in failed if failure.kind in NOT_ENDED]


def in_counts(failures: Sequence[LeftOut], what: str = "runs") -> str:
    """How many are in which state: ``runs: 1 failed, 3 not started``."""
    counts = Counter(failure.kind for failure in failures)
    return f"{what}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
