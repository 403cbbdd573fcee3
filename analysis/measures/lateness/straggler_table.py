"""How does the answer about late ranks look? Its columns, and what stands below its table."""

from collections import Counter

import numpy as np

from analysis.display.metrics import (
    IN_RUN,
    NODE,
    OF_A_RUN,
    RANK,
    STEP,
    TELLING,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    telling,
)
from analysis.display.numbers import digits, span
from analysis.measures.lateness.in_words import is_late
from analysis.measures.lateness.lateness import (
    BY_STAGES,
    CLOCK,
    LATE_SHARE,
    PARTS,
    SHORT_WAIT,
    STRAGGLER,
    TOO_FEW,
)

METRICS = (
    RANK,
    NODE,
    Metric(
        "told_by",
        "source of the lateness: collectives (the whole lateness), or stages of the steps (a lower bound, "
        "which may be below 0 for all ranks: they do not show a slow backward pass)",
        "measured\nfrom",
        text=True,
        priority=0,
    ),
    Metric(
        "steady_steps",
        "steps whose lateness is known: without warmup, and measured from stages also without the very first "
        "step, before which ranks did not wait for each other",
        "steps",
        priority=0,
    ),
    Metric(
        "step_ms",
        "median step duration of the job without warmup, in analysis.batches: step_ms; where lateness is "
        "measured from the collectives of a profiled run, of its profiled steps (there: attributed_ms)",
        priority=0,
    ),
    Metric(
        "lateness_ms",
        "how long the other ranks waited for this one: median over steps, with an interval within the "
        "run; negative: this rank waited",
        "lateness, ms\nmedian",
        IN_RUN,
    ),
    Metric(
        "mean_lateness_ms",
        "mean lateness: a rank that is late only at times has a median near 0",
        "mean\nms",
        significant=3,
        priority=2,
    ),
    Metric("late_pct", "share of steps in which it was late", places=0),
    Metric("last_pct", "share of steps in which it came last", places=0, priority=0),
    Metric(
        "held_up_ms",
        "time per step in which all other ranks waited for this one only",
        "all wait,\nms",
        significant=3,
    ),
    Metric(
        "p_value",
        "probability that some rank of equally fast ranks is late as often (empty: it is not "
        "late on average, its clock is in doubt, or steps are too few)",
        "p",
        significant=2,
    ),
    Metric(
        "verdict",
        "straggler; may be chance: equally fast ranks are late as often; too few steps: to tell whether it "
        "repeats; short wait: it was behind by 2 % of a step or more, but the others waited for less than "
        "that on average; clock: its clock says that it is late, but the others waited for less than half "
        "of that, or clocks agree too badly; no: on average it was behind by less than 2 % of a step",
        text=True,
        priority=2,
    ),
    Metric(
        "cause",
        "of a straggler: loader, GPU (on a CPU, processor), node (all its ranks are late), host (the same "
        "kernels take as long, but are launched late), or the candidates that cannot be separated",
        text=True,
        priority=2,
    ),
    Metric("evidence", "measurements behind the cause", text=True),
)
STEP_METRICS = (
    RANK,
    NODE,
    STEP,
    Metric("lateness_ms", "how long the other ranks waited for this one", "lateness", significant=3),
    Metric("behind_ms", "how far it was behind them, whether they waited or not", "behind", significant=3),
    Metric(
        "late",
        "whether the others waited for 2 % of a step or more",
        show=lambda late: "late" if late else "",
        text=True,
    ),
    *(
        Metric(
            f"{name}_longer_ms",
            f"how much longer its {name} stage took than on the other ranks",
            f"{name}\nlonger",
            significant=3,
        )
        for name in PARTS
    ),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then": METRICS,
    "With --by step:": STEP_METRICS,
}

_SHARE = f"{100 * LATE_SHARE:g} %"
_CAPTION = (
    "Lateness: how long the others (their median) waited for this rank; negative: it waited. Late: the "
    f"others waited for {_SHARE} of a step or more."
)
_OF_RANKS = (
    "Late % and last %: share of steps in which it was late, and in which it came last. All wait: time per "
    "step in which all other ranks waited for this one. Verdict: from means over steps, not from how many "
    f"were late; no: behind by less than {_SHARE} of a step."
)
_TOLD_BY = (
    "Based on collectives where a profiler recorded them, otherwise on the stages of the steps (which do not "
    "show a slow backward pass)."
)
_P = (
    "p: probability that equally fast ranks are late as often by chance; none where the rank is not late on "
    "average, its clock is in doubt, or steps are too few."
)
_NO_INTERVAL = "Medians without an interval: few steps, or strongly correlated ones."
_BY_STAGES = (
    "Measured from stages, lateness is a lower bound: it can be negative on all ranks, even on one that was "
    "behind, so a negative value does not show that the rank waited, and verdict no may miss a late rank."
)
_EXPLAINED = {
    CLOCK: "Verdict clock: timestamps show the rank late, but the wait in the others' collectives is under "
    "half of that, or the clocks are not aligned well enough to tell.",
    SHORT_WAIT: f"Verdict short wait: the rank was behind by {_SHARE} of a step or more, but the others "
    "waited for less than that on average.",
    TOO_FEW: "Verdict too few steps: they cannot tell whether lateness repeats. Verdict no needs no such "
    "test.",
}


def caption(rows: Rows) -> str:
    """What the words of a table of :func:`analysis.measures.lateness.stragglers.rows` mean."""
    verdicts = {row["verdict"] for row in rows if "verdict" in row}  # rows by step have none
    explained = [text for verdict, text in _EXPLAINED.items() if verdict in verdicts]
    said = {
        _CAPTION: True,
        _OF_RANKS: bool(verdicts),
        _P: any(row.get("p_value") is not None for row in rows),
        _NO_INTERVAL: any(not np.isfinite(row.get("lateness_ms_low", 0.0)) for row in rows),
        _TOLD_BY: True,
        _BY_STAGES: any(row.get("told_by") == BY_STAGES for row in rows),
    }
    return " ".join([*(text for text, applies in said.items() if applies), *explained])


def columns_of(by_step: bool = False) -> list[Metric]:
    """The columns of :func:`analysis.measures.lateness.stragglers.rows`."""
    return [*OF_A_RUN, *(STEP_METRICS if by_step else METRICS)]


def shown(rows: Rows, by_step: bool = False) -> list[Column]:
    """The tables' columns: nobody has a cause or a p where no rank is late."""
    names = telling(rows)
    if by_step:
        # Whether it was late stands last.
        wanted = sorted(STEP_METRICS, key=lambda metric: metric.name == "late")
    else:
        wanted = [metric for metric in METRICS if metric.name != "evidence"]
    return filled(columns([*fields(names), *wanted]), rows)


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
