"""Of many ranks, which does a table show?"""

from collections import Counter

from analysis.display.metrics import Rows
from analysis.display.numbers import digits, span
from analysis.measures.lateness.verdicts import CHANCE, STRAGGLER, TOO_FEW

_MOST_RANKS = 24  # of a run, all of which a table shows
_LATEST, _EARLIEST = 8, 3  # of more ranks
_MOST_STEPS = 200  # rows by rank and step, all of which a table shows
_MOST_LATE = 50  # of more rows


def notable_ranks(rows: Rows, all_by: str = "--wide or --format csv") -> tuple[Rows, str]:
    """The ranks that a reader looks for, of runs of many: late ones, and those that waited longest.

    Args:
        all_by: what shows all ranks.

    Returns:
        (their rows in order, what the others are in a line; empty: there are no others).
    """
    kept: Rows = []
    by_run: dict[str, Rows] = {}
    for row in rows:
        by_run.setdefault(row["run"], []).append(row)
    for of_run in by_run.values():
        order = sorted(of_run, key=lambda row: -row["mean_lateness_ms"])
        named = [row for row in order if row["verdict"] == STRAGGLER]
        late = [row for row in order if row["verdict"] in (CHANCE, TOO_FEW)]
        some = {id(row) for row in (*named, *late[:_LATEST], *order[:_LATEST], *order[-_EARLIEST:])}
        kept += [row for row in of_run if len(of_run) <= _MOST_RANKS or id(row) in some]
    there = {id(row) for row in kept}
    rest = [row for row in rows if id(row) not in there]
    if not rest:
        return kept, ""
    lateness = [row["mean_lateness_ms"] for row in rest]
    counts = Counter(row["verdict"] for row in rest)
    verdicts = ", ".join(f"{verdict} ({count})" for verdict, count in counts.most_common())
    return kept, (
        f"{len(rest):,} of {len(rows):,} rows not shown ({all_by} shows all): mean "
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
