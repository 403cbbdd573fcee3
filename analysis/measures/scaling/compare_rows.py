"""Which figures differ between two sets of runs? :mod:`.compare_words` says what follows from that."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import NOMINAL, Metric, Rows, fields
from analysis.display.numbers import probability
from analysis.measures.kernels.difference import OTHER_CALLS, effects
from analysis.statistics.two_samples import (
    SIGNIFICANCE,
    Stratum,
    difference,
    least_p_value,
    runs_enough,
    unlike_effects,
)
from analysis.statistics.variance import holm
from jobs.run import Run
from jobs.run_fields import own_names

Key = tuple[tuple[str, str], ...]  # (field, value) of a configuration
Values = dict[tuple[Key, str, str], list[float]]  # (configuration, kind, quantity) -> a value a run

METRICS = (
    Metric(
        "kind",
        "step, combined (the steps of all configurations together, if there are several: test stratified by "
        "configuration; the effect is the median ratio of two runs of a configuration), stages and, for "
        "profiled runs, kernels; the rows of a kind are tested together, at 5 %",
        text=True,
    ),
    Metric("quantity", "quantity compared", text=True),
    Metric("a", "median over the runs of A"),
    Metric("b", "median over the runs of B"),
    Metric(
        "effect_pct",
        "b divided by a, minus 1; the interval holds the effects that the test does not reject. There is one "
        "from 4 runs per side on (or 3 and 5, or 2 and 8); a verdict on one of many rows needs more",
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
        "slower or faster: significant at 5 %; of a kernel whose number of calls makes the larger part of "
        "the difference: more calls or fewer calls; other calls: as in analysis.kernels A B; no difference: "
        "none was shown (texts say so), the effect may be any that the interval holds; too few runs: no "
        "result could have been significant, repeat the runs",
        text=True,
        priority=2,
    ),
    Metric(
        "detectable_pct",
        "for no difference: the slowdown of this quantity alone that the corrected test would find in at "
        "least 3 of 4 cases (4 of 5 if runs are normally distributed), given the spread of these runs",
    ),
    Metric("runs_a", "number of runs of A", priority=0),
    Metric("runs_b", "number of runs of B"),
    Metric(
        "runs_enough",
        "runs per side that would find an effect as large as effect_pct in at least 3 of 4 cases (empty: "
        "more than 20, or the spread of runs is unknown)",
    ),
    Metric(
        "least_effect_pct",
        "of combined, where the effects of configurations differ from each other (F test at 1 %) by more "
        "than the effect of all: the lowest effect of a configuration; text then gives no effect of all",
    ),
    Metric("most_effect_pct", "in these cases: the highest effect of a configuration"),
)
COLUMNS = {"Columns: the kind, the fields in which configurations differ, then": METRICS}
KINDS = ("step", "combined", "stages", "kernels")
STEP = ("step", "step_ms")  # kind and quantity of the duration of a step
CALLS = "calls"  # of kernels, per step: not tested, they say why a kernel's time differs
_DECIDING = ("step", "combined")


def rows(a: Values, b: Values) -> Rows:
    """A row a figure that both have, and one of all batches together; their columns: :data:`METRICS`."""
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
    row = {"kind": "combined", "quantity": "step_ms of all", "a": None, "b": None, **_tested(strata, 1)}
    _judge([row])
    return row


def combined(a: Values, b: Values, keys: Collection[Key]) -> dict[str, Any]:
    """The row of the steps of some configurations together, as :func:`rows` has that of all."""
    row = _combined([(np.array(a[key, *STEP]), np.array(b[key, *STEP])) for key in keys])
    del row["least_p"]
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
    """Correct the p of the rows of a kind and say what follows."""
    corrected = holm([float(row["p_value"]) for row in of_kind])
    for row, p_value in zip(of_kind, corrected, strict=True):
        row["p_value"] = p_value
        if row["least_p"] > SIGNIFICANCE:
            row["verdict"] = "too few runs"
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


def columns_of(rows: Rows) -> list[Metric]:
    """The columns of :func:`rows`."""
    kind, *figures = METRICS
    return [kind, *fields_of(rows), *figures]


def fields_of(rows: Rows) -> list[Metric]:
    """The columns of the fields that configurations are told apart by."""
    names = [*Run.model_fields, *own_names(*rows)]
    return fields(name for name in names if any(name in row for row in rows))
