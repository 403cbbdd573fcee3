"""What is said of the runs that do not count: how many in which state, and why."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from jobs.states import LEFT_OUT, NOT_ENDED
from profiling.wording import how_many


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


def counted(failures: Sequence[LeftOut]) -> str:
    """How many runs are in which state: ``1 failed, 3 not started``."""
    counts = Counter(failure.kind for failure in failures)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def in_counts(failures: Sequence[LeftOut], what: str = "run") -> str:
    """The same with a noun: ``1 run failed, 3 not started``."""
    first, rest = counted(failures).split(" ", 1)
    return f"{how_many(int(first), what)} {rest}"


def not_done(failed: Sequence[LeftOut]) -> list[str]:
    """Runs that do not count, a line each; of several that have not ended for one reason, their number."""
    alike: dict[tuple[str, str], list[LeftOut]] = {}
    for failure in not_ended(failed):
        alike.setdefault((failure.kind, failure.reason), []).append(failure)
    lines = [
        f"{failure.kind}: {failure.point}: {failure.reason}"
        for failure in failed
        if len(alike.get((failure.kind, failure.reason), [])) < 2
    ]
    more = {key: len(of_them) for key, of_them in alike.items() if len(of_them) > 1}
    return lines + [f"{kind}: {how_many(count, 'run')}: {why}" for (kind, why), count in more.items()]


def how_many_not_in_sweep(failed: Sequence[LeftOut]) -> str:
    """How many combinations the sweep leaves out, in words; empty: none."""
    count = len(failed) - len(missing(failed))
    return f"{how_many(count, 'run')} {LEFT_OUT}" if count else ""


def not_in_sweep(failed: Sequence[LeftOut]) -> list[str]:
    """The combinations that the sweep leaves out, a line for each reason."""
    reasons = Counter(failure.reason for failure in failed if failure.kind == "excluded")
    return [f"{LEFT_OUT}: {how_many(count, 'run')}: {reason}" for reason, count in reasons.items()]
