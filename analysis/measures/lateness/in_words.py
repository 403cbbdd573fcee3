"""What is said of who is slow: which of several runs' ranks is shown, and in which words?"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.lateness.lateness import (
    BY_COLLECTIVES,
    BY_STAGES,
    CHANCE,
    CLOCK,
    LATE_SHARE,
    STRAGGLER,
    TOO_FEW,
)
from jobs.run_fields import fields_of, own_names
from profiling.wording import how_many

_NONE = "No stragglers."
# What two runs' rows of one rank, in one configuration on as many ranks, agree in.
_OF_A_RANK = ("rank", *fields_of("workload", "size"))


def foremost(rows: Rows) -> dict[str, Any] | None:
    """Of several runs' ranks the one to show: a straggler, else the latest; None: nobody is late.

    Of a rank's runs in one configuration that whose collectives tell the whole lateness: stages give a lower
    bound of it, which in a long run may be the larger number.
    """
    named = [row for row in rows if row["verdict"] == STRAGGLER]
    late = named or [row for row in rows if row["verdict"] in (CHANCE, TOO_FEW) and is_late(row)]
    latest = max(late, key=_share, default=None)
    if latest is None:
        return None
    ever = [row for row in rows if row["verdict"] in (STRAGGLER, CHANCE, TOO_FEW) and is_late(row)]
    its = [
        row
        for row in ever
        if all(row.get(name) == latest.get(name) for name in (*_OF_A_RANK, *own_names(row, latest)))
    ]
    return max([row for row in its if row.get("told_by") == BY_COLLECTIVES] or [latest], key=_share)


def is_late(row: Mapping[str, Any]) -> bool:
    """Whether the others waited for a rank for long enough, in the mean over the steps."""
    return bool(row["mean_lateness_ms"] >= LATE_SHARE * row["step_ms"])


def _share(row: dict[str, Any]) -> float:
    return float(row["mean_lateness_ms"] / row["step_ms"])


def sentences(rows: Rows, name: Callable[[dict[str, Any]], str] = itemgetter("run")) -> list[str]:
    """The named ranks in words, a line each; one line if there is none, and what speaks against late ones.

    Args:
        name: what a row's run is called.
    """
    named = [row for row in rows if row["verdict"] == STRAGGLER]
    if not named:
        most = foremost(rows)
        return [_nobody_late(rows) if most is None else _nobody_named(rows, most, name(most))]
    return [
        f"{name(row)}: {_rank_in_words(row)} is a straggler{_in_how_many(row, rows)}: on average "
        f"{'at least ' if row['told_by'] == BY_STAGES else ''}{digits(row['mean_lateness_ms'], 3)} ms late "
        f"per step, late in {row['late_pct']:.0f} % of the steps. Likely cause: {row['cause']}: "
        f"{row['evidence']}."
        for row in named
    ]


def _in_how_many(row: Mapping[str, Any], rows: Rows) -> str:
    """In how many repetitions the rank is named, of those that tell; empty: in all of them."""
    alike = (*_OF_A_RANK, "profile", *own_names(row))
    its = [
        one
        for one in rows
        if one["verdict"] not in (TOO_FEW, CLOCK) and all(one.get(name) == row.get(name) for name in alike)
    ]
    named = sum(one["verdict"] == STRAGGLER for one in its)
    return f" (in {named} of {how_many(len(its), 'repetition')})" if named < len(its) else ""


def _nobody_named(rows: Rows, most: Mapping[str, Any], run: str) -> str:
    """What is said where ranks are late, this one most, and none is a straggler."""
    ranks = sum(one["run"] == most["run"] for one in rows)
    steps = most["steady_steps"]
    over = f"per step, mean of {steps} steps" if steps > 1 else "in its only step"
    late = (
        f"Largest lateness of {how_many(ranks, 'rank')}: {_rank_in_words(most)}, "
        f"{digits(most['mean_lateness_ms'], 3)} ms {over} ({run})"
    )
    why = ", which may be chance" if most["verdict"] == CHANCE else ""
    few, runs = _with_too_few(rows)
    if len(few) == runs:
        return f"{_cannot_tell(few)} {late}{why}."
    if most["run"] in few:
        why = why or ", in too few steps"
    return f"{_in_those_that_tell(rows)} {late}{why}."


def _nobody_late(rows: Rows) -> str:
    """What is said where no rank is late: nothing can repeat in a few steps."""
    steps, runs = _with_too_few(rows)
    if len(steps) == runs:
        return _cannot_tell(steps)
    found = _in_those_that_tell(rows)
    return f"{found[:-1]}: no rank repeatedly delayed the others." if found == _NONE else found


def _in_those_that_tell(rows: Rows) -> str:
    """That no rank is a straggler, in how many runs; of the others, what keeps them from telling."""
    few, runs = _with_too_few(rows)
    clock = {row["run"] for row in rows if row["verdict"] == CLOCK} - set(few)
    if not few and not clock:
        return _NONE
    counts = {"too few steps": len(few), "clocks": len(clock)}
    why = ", ".join(f"{reason}: {count}" for reason, count in counts.items() if count)
    untold = len(few) + len(clock)
    return (
        f"No stragglers found in {runs - untold} of {how_many(runs, 'run')}; cannot tell in {untold} ({why})."
    )


def _cannot_tell(few: Mapping[str, int]) -> str:
    """What is said of runs that all have too few steps, by how many each has."""
    return f"Too few steps ({max(few.values())}) to tell whether a rank is a straggler."


def _with_too_few(rows: Rows) -> tuple[dict[str, int], int]:
    """The runs in which a rank has too few steps, with these; and how many runs there are."""
    few = {row["run"]: row["steady_steps"] for row in rows if row["verdict"] == TOO_FEW}
    return few, len({row["run"] for row in rows})


def _rank_in_words(row: Mapping[str, Any]) -> str:
    """``rank 3 (node0)``, and ``rank 3`` where its host is not known."""
    return f"rank {row['rank']} ({row['node']})" if row["node"] else f"rank {row['rank']}"
