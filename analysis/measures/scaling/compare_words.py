"""What is to be said of two sets of runs that were compared (:mod:`.compare_rows`)?

"No difference" alone is never said: a test that finds none leaves every effect of its interval possible.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import Column, Rows, columns
from analysis.display.numbers import signed
from analysis.measures.scaling.compare_rows import METRICS, Values, fields_of, regressed, same_runs
from analysis.statistics.two_samples import MOST_RUNS, runs_needed
from profiling.wording import how_many, verb

NO_STEPS = (
    "Step durations are not compared: neither side has unprofiled runs. Kernels do not decide the result."
)
SHOWN = {"no difference": "no difference shown"}  # a verdict as a text has it
_KIND = {"step": "steps", "stages": "stages", "kernels": "kernels"}
FOUND = ("slower", "faster")  # verdicts on a step that is shown to differ
# Measured with planted slowdowns: 80 to 83 % where runs are normal, 74 to 86 % with heavy tails.
_FOUND = "3 of 4 cases or more"


def sentence(a: Values, b: Values, rows: Rows, threshold_pct: float) -> str:
    """What the rows of steps come to, in a few sentences."""
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return NO_STEPS
    if same_runs(a, b):
        return "A and B are the same runs, so nothing can differ. Compare two separate results."
    worse = [row for row in regressed(rows, threshold_pct) if row["kind"] == "step"]
    few = [row for row in steps if row["verdict"] == "too few runs"]
    if worse:
        most = max(worse, key=lambda row: row["effect_pct"])
        said = (
            f"{len(worse)} of {how_many(len(steps), 'configuration')} {verb(len(worse), 'are')} "
            f"slower{_by_more_than(threshold_pct)}, the worst by {_effect(most)}."
        )
    elif few:
        said = _of_few(few, len(steps))
    else:
        said = f"{_none_slower(steps, threshold_pct)} {_detectable(steps)}"
    return " ".join([said, *(_together(row, steps) for row in rows if row["kind"] == "combined")])


def unlike(row: Mapping[str, Any]) -> str:
    """``-88.9 to +7.3 %``, the effects of configurations that differ from each other; empty: they do not."""
    least, most = row.get("least_effect_pct"), row.get("most_effect_pct")
    return "" if least is None or most is None else _from_to(least, most)


def may_have_changed(rows: Sequence[Mapping[str, Any]]) -> str:
    """``-89.1 to +36.9 %``: the effects that the intervals of these rows hold."""
    return _from_to(min(row["effect_pct_low"] for row in rows), max(row["effect_pct_high"] for row in rows))


def _from_to(low: float, high: float) -> str:
    return f"{signed(1)(low)} to {signed(1)(high)} %"


def _by_more_than(threshold_pct: float) -> str:
    return f" by more than {threshold_pct:g} %" if threshold_pct else ""


def _effect(row: Mapping[str, Any]) -> str:
    low, high = row["effect_pct_low"], row["effect_pct_high"]
    ends = f" [{low:.1f}, {high:.1f}]" if np.isfinite([low, high]).all() else ""
    return f"{row['effect_pct']:.1f} %{ends}"


def _none_slower(steps: Rows, threshold_pct: float) -> str:
    """Of configurations of which none is slower than is accepted, and none has too few runs."""
    open_still = [row for row in steps if row["verdict"] == "no difference"]
    if len(steps) == len(open_still) == 1:
        return f"No difference shown: the step may have changed by {may_have_changed(open_still)}."
    faster = sum(row["verdict"] == "faster" for row in steps)
    text = (
        f"No configuration is shown to be slower{_by_more_than(threshold_pct)}; {faster} of {len(steps)} "
        f"{verb(faster, 'are')} faster."
    )
    if open_still:
        text += f" Where no difference is shown, the step may have changed by {may_have_changed(open_still)}."
    return text


def _of_few(few: Rows, configurations: int) -> str:
    """How many runs would be enough."""
    alone = " one by one" if configurations > 1 else ""
    of_all = f"{len(few)} of {how_many(configurations, 'configuration')}"
    text = f"{of_all} {verb(len(few), 'have')} too few runs to show any difference{alone}. "
    largest = max(few, key=lambda row: row["effect_pct"])
    if largest["effect_pct"] <= 0 or not _scatter_known(largest):
        return f"{text}Repeat them."
    runs = f"{largest['runs_enough']}" if largest["runs_enough"] else f"more than {MOST_RUNS}"
    return (
        f"{text}Repeat them: {runs} runs per side would find the largest slowdown here, "
        f"{largest['effect_pct']:.1f} %, in {_FOUND}."
    )


def _detectable(steps: Rows) -> str:
    detectable = [row["detectable_pct"] for row in steps]
    if len(detectable) == 1:
        slowdown = f"{detectable[0]:.1f} %"
    else:
        ends = f"{min(detectable):.1f} to {max(detectable):.1f}"
        slowdown = f"one configuration by {ends} % (for each: detectable_pct of the CSV)"
    return f"A slowdown of {slowdown} would have been found in {_FOUND}."


def _together(row: Mapping[str, Any], steps: Rows) -> str:
    """What the steps of all configurations say together."""
    found = row["verdict"] in FOUND
    if effects := unlike(row):
        differ = f"The effects of configurations differ from each other: {effects}."
        if found:
            return f"{differ} Together they are {row['verdict']}."
        if _one_found(steps):
            return differ
        return f"Measured effects of configurations range from {effects}: too unlike to be judged together."
    if row["verdict"] == "too few runs":
        return "All configurations combined have too few runs as well."
    if found:
        return f"All configurations combined are {row['verdict']}: by {_effect(row)}."
    text = (
        "All configurations combined: no difference shown; the step may have changed by "
        f"{may_have_changed([row])}."
    )
    if not np.isfinite(row["detectable_pct"]):
        return text
    return f"{text} A slowdown of all by {row['detectable_pct']:.1f} % would have been found in {_FOUND}."


def shown(rows: Rows) -> list[Column]:
    """The terminal's columns."""
    by_name = {metric.name: metric for metric in METRICS}
    runs = by_name["runs_a"].column("runs", lambda row: f"{row['runs_a']}, {row['runs_b']}")
    figures = columns(by_name[name] for name in ("quantity", "a", "b"))
    effect, p_value = by_name["effect_pct"], by_name["p_value"]
    changed = effect.column(printed=lambda row: unlike(row).removesuffix(" %") or effect.printed(row))
    tests = Counter(row["kind"] for row in rows)
    found = _one_found([row for row in rows if row["kind"] == "step"])
    verdict = by_name["verdict"].column(printed=lambda row: verdict_of(row, tests[row["kind"]], found))
    return [*columns(fields_of(rows)), *figures, changed, p_value.column(), runs, verdict]


def _one_found(steps: Rows) -> bool:
    """Whether any configuration alone is shown to differ."""
    return any(row["verdict"] in FOUND for row in steps)


def verdict_of(row: Mapping[str, Any], tests: int, one_found: bool = True) -> str:
    """The verdict of a row of a kind of ``tests``, in words.

    Where runs are too few, how many it takes for an effect as large as the row's, if that is more than it
    takes for any (:func:`least_runs`).

    Args:
        one_found: whether any configuration alone is shown to differ; if none is, nothing shows of which
            ones the effects differ.
    """
    verdict = str(row["verdict"])
    if unlike(row):
        differ = "configurations differ"
        if verdict in FOUND:
            return f"{verdict}, {differ}"
        return differ if one_found else "effects too unlike"
    more = _more_runs(row, tests) if verdict == "too few runs" else ""
    return f"{verdict}: {more} per side at this scatter" if more else SHOWN.get(verdict, verdict)


def _more_runs(row: Mapping[str, Any], tests: int) -> str:
    """How many runs an effect as large as the row's takes, where that is more than any effect does."""
    if not _scatter_known(row) or (row["runs_enough"] or MOST_RUNS + 1) <= runs_needed(tests):
        return ""
    return str(row["runs_enough"] or f"more than {MOST_RUNS}")


def _scatter_known(row: Mapping[str, Any]) -> bool:
    """Whether the runs of a configuration tell how much runs of it differ."""
    return row["kind"] != "combined" and max(row["runs_a"], row["runs_b"]) > 1


def least_runs(rows: Rows) -> str:
    """How many runs a verdict takes at least, of each kind that has too few; empty: none has."""
    tests = Counter(row["kind"] for row in rows)
    few = [row for row in rows if row["verdict"] == "too few runs" and row["kind"] != "combined"]
    needed = {row["kind"]: runs_needed(tests[row["kind"]]) for row in few}
    if not needed:
        return ""
    each = ", ".join(f"{runs} for {_KIND[kind]}" for kind, runs in needed.items())
    text = f"Verdicts on one configuration take at least this many runs per side: {each}."
    if any(_more_runs(row, tests[row["kind"]]) for row in few):
        text += (
            " Where a row names more, its runs scatter so much that fewer would seldom show an effect of "
            "this size."
        )
    return text
