"""Of many ranks, which does a table show?"""

from collections import Counter

from analysis.display.metrics import TELLING, Rows, telling
from analysis.display.numbers import digits, span
from analysis.measures.lateness.in_words import is_late
from analysis.measures.lateness.verdicts import STRAGGLER

_MOST_RANKS = 24  # of all runs, all of which a table shows
_LATEST, _EARLIEST = 8, 3  # of more ranks
_MOST_STEPS = 200  # rows by rank and step, all of which a table shows
_MOST_LATE = 50  # of more rows


def notable_ranks(rows: Rows, all_by: str = "--wide or --format csv") -> tuple[Rows, str]:
    """Of many ranks those that a reader looks for: late ones, and the latest of each configuration.

    Of a single run also those that were nearly late, and those that waited longest.

    Args:
        all_by: what shows all ranks.

    Returns:
        (their rows in order, what the others are in a line; empty: there are no others).
    """
    if len(rows) <= _MOST_RANKS:
        return rows, ""
    by_run = _groups(rows, ["run"])
    some = [row for of_run in by_run for row in _late(of_run)]
    if len(by_run) == 1:
        order = _latest_first(rows)
        some += [*order[:_LATEST], *order[-_EARLIEST:]]
    some += [_latest_first(alike)[0] for alike in _groups(rows, telling(rows, TELLING))]
    there = {id(row) for row in some}
    kept = [row for row in rows if id(row) in there]
    rest = [row for row in rows if id(row) not in there]
    shown = "" if len(by_run) == 1 else "Shown: late ranks, and the latest rank of each configuration. "
    return (kept, f"{shown}{_others(rest, len(rows), all_by)}") if rest else (kept, "")


def _groups(rows: Rows, names: list[str]) -> list[Rows]:
    """The rows that have the same values in these columns, in order."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(name)) for name in names), []).append(row)
    return list(groups.values())


def _latest_first(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: -row["mean_lateness_ms"])


def _late(of_run: Rows) -> Rows:
    """The stragglers of a run, and the latest of the other ranks that were late on average."""
    named = [row for row in of_run if row["verdict"] == STRAGGLER]
    others = [row for row in of_run if row["verdict"] != STRAGGLER and is_late(row)]
    return [*named, *_latest_first(others)[:_LATEST]]


def _others(rest: Rows, every: int, all_by: str) -> str:
    """What the rows are that a table of so many does not show."""
    lateness = [row["mean_lateness_ms"] for row in rest]
    counts = Counter(row["verdict"] for row in rest)
    verdicts = ", ".join(f"{verdict} ({count})" for verdict, count in counts.most_common())
    return (
        f"{len(rest):,} of {every:,} rows not shown ({all_by} shows all): mean "
        f"lateness {span(digits(min(lateness), 3), digits(max(lateness), 3))} ms; verdict: {verdicts}."
    )


def latest_steps(rows: Rows) -> tuple[Rows, str]:
    """Of many rows by rank and step, those in which a rank was latest; what the others are."""
    if len(rows) <= _MOST_STEPS:
        return rows, ""
    late = sorted((row for row in rows if row["late"]), key=lambda row: -row["lateness_ms"])[:_MOST_LATE]
    there = {id(row) for row in late}
    return [row for row in rows if id(row) in there], (
        f"The latest. {len(rows) - len(late):,} of {len(rows):,} rows not shown (--wide or --format csv "
        "shows all)."
    )
