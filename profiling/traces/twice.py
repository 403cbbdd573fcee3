"""A rank of a job has several traces: which of them is used?

The one that is named as those of the other ranks are (rank1.json beside rank0.json, not again_rank1.json), so
that the traces of all ranks are of one recording; else the one that was recorded while other ranks were (a
rank that recorded twice, beside one that did once); else one whose name says the rank; else the newest.
"""

from collections.abc import Sequence
from pathlib import Path

from profiling.readers.origin import rank_in
from profiling.traces.recorded import Recorded
from profiling.wording import how_many

_REASONS = (
    "named like the traces of other ranks", "recorded with those of other ranks", "named after the rank",
    "recorded last", "written last",
)  # fmt: skip


def used_of(same: Sequence[Recorded], members: Sequence[Recorded]) -> tuple[Recorded, str]:
    """Of the traces of one rank the one that is used, and what is to be said of it ("" of a single one).

    Args:
        members: all traces of the job.
    """
    if len(same) == 1:
        return same[0], ""
    claims = [(_claim(one, members), one) for one in same]
    claim, used = max(claims, key=lambda pair: pair[0])
    others = [one for _, one in claims if one is not used]
    best = max(other for other, one in claims if one is not used)
    why = next((f" ({why})" for why, mine, its in zip(_REASONS, claim, best, strict=True) if mine > its), "")
    names = _names([used, *others])
    left = ", ".join(names[1:])
    return used, f"{how_many(len(same), 'trace')} of rank {used.rank}: using {names[0]}{why}, not {left}"


def _claim(one: Recorded, members: Sequence[Recorded]) -> tuple[int, int, int, int, int]:
    """How good a trace is to be used, the weightiest first; see :data:`_REASONS`."""
    others = [other for other in members if other.rank != one.rank]
    alike = len({other.rank for other in others if other.stem == one.stem})
    together = len({other.rank for other in others if _at_the_same_time(one, other)})
    says_rank = rank_in(Path(one.source.name)) == one.rank
    return alike, together, says_rank, one.dated_ns, one.written_ns


def _at_the_same_time(one: Recorded, other: Recorded) -> bool:
    dated = one.dated_ns and other.dated_ns
    return bool(dated) and one.started_ns < other.ended_ns and other.started_ns < one.ended_ns


def _names(recorded: Sequence[Recorded]) -> list[str]:
    """The names of files; where some are alike, with their folders."""
    names = [one.source.name for one in recorded]
    return names if len(set(names)) == len(names) else [str(one.source) for one in recorded]
