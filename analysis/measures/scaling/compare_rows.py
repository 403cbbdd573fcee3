"""Figures of two sets of runs, tested for a difference: a row a configuration and quantity."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import NOMINAL, Column, Metric, Rows, columns, fields
from analysis.display.numbers import probability, signed
from analysis.measures.kernels.difference import OTHER_CALLS, effects
from analysis.statistics.two_samples import (
    SIGNIFICANCE,
    Stratum,
    difference,
    least_p_value,
    runs_enough,
    runs_needed,
    unlike_effects,
)
from analysis.statistics.variance import holm
from jobs.run import Run
from jobs.run_fields import own_names
from profiling.findings import Finding

Key = tuple[tuple[str, str], ...]  # (field, value) of a configuration
Values = dict[tuple[Key, str, str], list[float]]  # (configuration, kind, quantity) -> a value a run

METRICS = (
    Metric("kind", "step, combined (the steps of all configurations), stages, or kernels", text=True),
    Metric("quantity", "quantity compared", text=True),
    Metric("a", "median over the runs of A"),
    Metric("b", "median over the runs of B"),
    Metric(
        "effect_pct",
        "b divided by a, minus 1; interval: the effects that the test does not reject",
        "effect, %",
        NOMINAL,
        places=2,
        priority=2,
    ),
    Metric(
        "p_value",
        "exact Mann-Whitney test, corrected by Holm over all rows of its kind",
        "p",
        show=probability,
    ),
    Metric(
        "verdict",
        "by p (at most 0.05) and, of kernels, by their calls; or too few runs",
        text=True,
        priority=2,
    ),
    Metric("detectable_pct", "slowdown that such runs would show in at least 3 of 4 cases"),
    Metric("runs_a", "number of runs of A", priority=0),
    Metric("runs_b", "number of runs of B"),
    Metric(
        "runs_enough",
        "runs per side that would show such an effect in 3 of 4 cases",
        "runs\nneeded",
    ),
    Metric("least_effect_pct", "of combined, where effects differ (F test, 1 %): the lowest"),
    Metric("most_effect_pct", "the same: the highest effect of a configuration"),
)
COLUMNS = {"Columns: the kind, the fields in which configurations differ, then": METRICS}
KINDS = ("step", "combined", "stages", "kernels")
STEP = ("step", "step_ms")  # kind and quantity of the duration of a step
CALLS = "calls"  # of kernels, per step: not tested, they tell why a kernel's time differs
SHOWN = {"no difference": "no difference shown"}  # a verdict as tables have it: its effect may be any
FOUND = ("slower", "faster")  # verdicts on a step that is shown to differ
WORSE, BETTER, ACCEPTED, TOO_FEW = "worse", "better", "slower within --threshold", "too few runs"
_OF_ALL = "step_ms of all"
SAME = {"verdict": "same runs", "change": "0 %", "slower": 0, "faster": 0, "of": 0}
_DECIDING = ("step", "combined")


def rows(a: Values, b: Values) -> Rows:
    """A row a figure that both have, and one of all steps together; with :data:`METRICS`."""
    common = [key for key in a if key in b and key[1] != CALLS]
    apart = telling([key for key, _, _ in common])
    answer: Rows = []
    for kind in dict.fromkeys(kind for _, kind, _ in common):
        members = [each for each in common if each[1] == kind]
        strata = [(np.array(a[each]), np.array(b[each])) for each in members]
        of_kind = [
            {
                "kind": kind,
                **{name: value for name, value in key if name in apart},
                "quantity": figure,
                "a": float(np.median(of_a)),
                "b": float(np.median(of_b)),
                **_tested([(of_a, of_b)], len(members)),
            }
            for (key, _, figure), (of_a, of_b) in zip(members, strata, strict=True)
        ]
        _judge(of_kind)
        if kind == "kernels":
            for row, (key, _, figure) in zip(of_kind, members, strict=True):
                calls = (float(np.median(side.get((key, CALLS, figure), [np.nan]))) for side in (a, b))
                row["verdict"] = _of_kernel(row, *calls)
        answer += of_kind
        if kind == "step" and len(members) > 1:
            answer.append(_combined(strata))
    for row in answer:
        del row["least_p"]
    return sorted(answer, key=lambda row: KINDS.index(row["kind"]))


def _combined(strata: Sequence[Stratum]) -> dict[str, Any]:
    """The row of the steps of all configurations together."""
    row = {"kind": "combined", "quantity": _OF_ALL, "a": None, "b": None, **_tested(strata, 1)}
    _judge([row])
    return row


def telling(keys: Sequence[Key]) -> list[str]:
    """The fields that tell configurations apart."""
    names = [*Run.model_fields, *own_names(*map(dict, keys))]
    return [name for name in names if len({dict(key).get(name) for key in keys}) > 1]


def _tested(strata: Sequence[Stratum], tests: int) -> dict[str, Any]:
    effect = difference(strata, tests)
    alone = len(strata) == 1
    least, most = unlike_effects(strata) or (None, None)
    return {
        "effect_pct": effect.effect_pct,
        "effect_pct_low": effect.low,
        "effect_pct_high": effect.high,
        "p_value": effect.p_value,
        "detectable_pct": effect.detectable_pct,
        "runs_a": sum(len(of_a) for of_a, _ in strata),
        "runs_b": sum(len(of_b) for _, of_b in strata),
        "runs_enough": runs_enough(strata[0], effect.effect_pct, tests) if alone else None,
        "least_effect_pct": least,
        "most_effect_pct": most,
        "least_p": tests * least_p_value([(len(of_a), len(of_b)) for of_a, of_b in strata]),
    }


def _judge(of_kind: Rows) -> None:
    """Correct the p of the rows of a kind, and give each its verdict."""
    corrected = holm([float(row["p_value"]) for row in of_kind])
    for row, p_value in zip(of_kind, corrected, strict=True):
        row["p_value"] = p_value
        if row["least_p"] > SIGNIFICANCE:
            row["verdict"] = TOO_FEW
        elif p_value > SIGNIFICANCE:
            row["verdict"] = "no difference"
        else:
            row["verdict"] = "slower" if row["effect_pct"] > 0 else "faster"


def _of_kernel(row: Mapping[str, Any], calls_a: float, calls_b: float) -> str:
    """The verdict of a kernel's time per step, in which a kernel that is called more often is not slower."""
    verdict = str(row["verdict"])
    if verdict not in ("slower", "faster"):
        return verdict
    by_calls, by_duration = effects(
        {"ms_per_step": row["a"], "calls_per_step": calls_a},
        {"ms_per_step": row["b"], "calls_per_step": calls_b},
    )
    if by_calls is None or by_duration is None:
        return OTHER_CALLS
    if abs(by_calls) > abs(by_duration):
        return "more calls" if verdict == "slower" else "fewer calls"
    return verdict


def regressed(rows: Rows, threshold_pct: float) -> Rows:
    """The rows that decide the exit code: batches that are slower by more than is accepted."""
    return [
        row
        for row in rows
        if row["kind"] in _DECIDING and row["verdict"] == "slower" and row["effect_pct"] > threshold_pct
    ]


def same_runs(a: Values, b: Values) -> bool:
    """Whether both sides have the same figures, which two measurements never have."""
    return all(a[key] == b[key] for key in a if key in b)


def verdict(a: Values, b: Values, rows: Rows, threshold_pct: float) -> Finding:
    """Whether steps of B take longer than those of A: of the code ``compared``.

    Worse wherever a row regresses (:func:`regressed`), whatever else became faster.
    """
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return Finding("not_compared", data={"what": "steps"})
    if same_runs(a, b):
        return Finding("compared", data=SAME)
    row = next((row for row in rows if row["kind"] == "combined"), steps[0])
    counts = Counter(row["verdict"] for row in steps)
    deciding = [one for one in (row, *steps) if one["verdict"] in FOUND]
    if worse := regressed(rows, threshold_pct):
        said, row = WORSE, row if row in worse else max(worse, key=lambda one: one["effect_pct"])
    elif any(one["verdict"] == "slower" for one in deciding):
        said = ACCEPTED
    elif deciding:
        said, row = BETTER, deciding[0]
    else:
        said = SHOWN.get(row["verdict"], str(row["verdict"]))
    figures = ("effect_pct", "effect_pct_low", "effect_pct_high", "detectable_pct")
    data = {name: row[name] for name in figures if np.isfinite(row[name])}
    data |= {name: counts[name] for name in FOUND}
    return Finding("compared", data={"verdict": said, "change": change(row), **data, "of": len(steps)})


def change(row: Mapping[str, Any]) -> str:
    """``+3.1 % [2.9, 3.3]``; of effects that differ from each other ``-88.9 to +7.3 %``."""
    if row.get("least_effect_pct") is not None:
        return f"{signed(1)(row['least_effect_pct'])} to {signed(1)(row['most_effect_pct'])} %"
    low, high = row["effect_pct_low"], row["effect_pct_high"]
    ends = f" [{low:.1f}, {high:.1f}]" if np.isfinite([low, high]).all() else ""
    return f"{row['effect_pct']:+.1f} %{ends}"


def least_runs(rows: Rows, kind: str = "step") -> list[Finding]:
    """How many runs a verdict on one row of a kind takes at least, if some have fewer."""
    verdicts = [row["verdict"] for row in rows if row["kind"] == kind]
    if TOO_FEW not in verdicts:
        return []
    data = {"n": verdicts.count(TOO_FEW), "of": len(verdicts), "least": runs_needed(len(verdicts))}
    return [Finding("few_runs", data=data)]


def shown(rows: Rows) -> list[Column]:
    """The terminal's columns."""
    by_name = {metric.name: metric for metric in METRICS}
    effect = by_name["effect_pct"]
    return [
        *columns([*fields_of(rows), *(by_name[name] for name in ("quantity", "a", "b"))]),
        effect.column(
            printed=lambda row: (
                effect.printed(row) if row.get("least_effect_pct") is None else change(row).removesuffix(" %")
            )
        ),
        by_name["p_value"].column(),
        by_name["runs_a"].column("runs", lambda row: f"{row['runs_a']}, {row['runs_b']}"),
        by_name["verdict"].column(printed=lambda row: SHOWN.get(row["verdict"], row["verdict"])),
    ]


def columns_of(rows: Rows) -> list[Metric]:
    """The columns of :func:`rows`."""
    kind, *figures = METRICS
    return [kind, *fields_of(rows), *figures]


def fields_of(rows: Rows) -> list[Metric]:
    """The columns of the fields that configurations are told apart by."""
    names = [*Run.model_fields, *own_names(*rows)]
    return fields(name for name in names if any(name in row for row in rows))
