"""Where were the ranks of a run that hung? Their stacks in its log, and the few that are not with the others.

Ranks write their stacks when asked (profiling/process_facts.py). Of a thousand ranks nearly all wait in the
same place: each place stands once in the log, with the ranks that were there.
"""

import re
from pathlib import Path

from jobs import store
from profiling import tables
from profiling.wording import verb, which_ranks

_THREAD = re.compile(r"0x[0-9a-f]+")
_NOTHING, _ENDED, _NOT_STARTED = "(no stacks were written)\n", "(ended)\n", "(not started)\n"
_MOST_NAMED = 8  # ranks that are named as being elsewhere than the others


def gather_stacks(directory: Path, ranks: int) -> str:
    """Put what ranks wrote of where they were into the log of a run, each place once.

    Returns:
        Which ranks were not where the others waited, to be added to a reason: ``; rank 7 has not started``.
        "" if there is no such place, or many were elsewhere.
    """
    places = ranks_by_place(directory, ranks)
    with (directory / store.LOG).open("a", encoding="utf-8") as log:
        for place, there in sorted(places.items(), key=lambda item: len(item[1])):
            log.write(f"\n{which_ranks(there, len(there))} {verb(len(there), 'were')} here:\n{place}")
    return "".join(f"; {one}" for one in _elsewhere(places, ranks))


def ranks_by_place(directory: Path, ranks: int) -> dict[str, list[int]]:
    """The ranks of a run by what each wrote of where it was."""
    places: dict[str, list[int]] = {}
    for rank in range(ranks):
        folder = tables.rank_directory(directory, rank)
        try:
            stacks = (folder / store.STACKS).read_text(errors="replace")
            place = _THREAD.sub("0x...", stacks) or _NOTHING
        except FileNotFoundError:  # a rank that ends takes it away
            place = _ENDED if (folder / store.RANK_REPORT).exists() else _NOT_STARTED
        places.setdefault(place, []).append(rank)
    return places


def _elsewhere(places: dict[str, list[int]], ranks: int) -> list[str]:
    most = max(map(len, places.values()))
    others = {place: there for place, there in places.items() if len(there) < most}
    if 2 * most <= ranks or sum(map(len, others.values())) > _MOST_NAMED:
        return []
    absent = others.pop(_NOT_STARTED, [])
    lost = [rank for there in others.values() for rank in there]
    lines = []
    if absent:
        lines.append(f"{which_ranks(absent)} {verb(len(absent), 'have')} not started")
    if lost:
        lines.append(f"{which_ranks(lost)} {verb(len(lost), 'were')} not where the other ranks waited")
    return lines
