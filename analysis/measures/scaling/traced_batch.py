"""What is assumed of the batch of traces of several numbers of ranks, and what speaks for it or against it?

Traces do not say how many samples a batch has, so that one thing has to be assumed: that the batch of a GPU
was the same (weak scaling), or that of the job (strong). What the model's kernels take a batch speaks for one
or the other, and is said.
"""

import math
from collections.abc import Mapping
from typing import Any

from analysis.display.metrics import Rows
from analysis.measures.scaling.point import Scaling
from analysis.measures.scaling.same_program import ALIKE, in_common, launches_of
from analysis.results.source import Source
from analysis.results.study import Study

_SAME = math.log(1.2)  # computing by so much more or less than the assumption says is worth a line
MISFIT = "This does not fit the assumption: is it the same job?"


def suggested(rows: Rows) -> Scaling:
    """Strong, if the model's kernels take less a batch on more ranks, by half of that or more."""
    base, most = rows[0], rows[-1]
    if most["world_size"] == base["world_size"] or not most["compute_ms"] or not base["compute_ms"]:
        return "weak"
    shrank = math.log(base["compute_ms"] / most["compute_ms"])
    return "strong" if shrank > math.log(most["world_size"] / base["world_size"]) / 2 else "weak"


def _ratio(base: dict[str, Any], row: dict[str, Any]) -> float:
    """What the model's kernels take a batch, relative to the baseline's; NaN: unknown."""
    return float(row["compute_ms"] / base["compute_ms"]) if base["compute_ms"] else math.nan


def _away(base: dict[str, Any], row: dict[str, Any], kind: Scaling) -> float:
    """How far that is from what a kind of scaling expects (logarithm of the ratio); NaN: unknown."""
    ratio = _ratio(base, row) * (1.0 if kind == "weak" else row["world_size"] / base["world_size"])
    return abs(math.log(ratio)) if ratio > 0 else math.nan if math.isnan(ratio) else math.inf


def other_programs(study: Study, group: Rows, sources: Mapping[str, Source]) -> dict[str, str]:
    """Jobs named as the program of the first that are another: other kernels, which take other times.

    Either alone may be one program's: a library's kernels change with the batch, their time with the clocks.

    Returns:
        Job -> why it has no efficiency, a line.
    """
    base, *others = group
    lines = {}
    for row in others:
        if row["world_size"] == base["world_size"] or not _away(base, row, suggested([base, row])) >= _SAME:
            continue
        common = in_common(*(launches_of(study, sources[one["run"]]) for one in (base, row)))
        if common < ALIKE:
            lines[row["run"]] = (
                f"No scaling efficiency: {base['run']} and {row['run']} look like different jobs "
                f"({100 * common:.0f} % of their launches are the same, and the kernels of a step take "
                f"{_ratio(base, row):.2f} times as long on {row['world_size']} ranks as on "
                f"{base['world_size']}). For one program, add --scaling weak or --scaling strong."
            )
    return lines


def assumption(rows: Rows, kind: Scaling, asked: bool, per: str) -> str:
    """What is assumed of the batch, and what speaks for it or against it.

    Args:
        per: whose batch size weak scaling fixes: ``per-GPU``, or ``per-rank`` without GPUs.
    """
    base, most = rows[0], rows[-1]
    other = "strong" if kind == "weak" else "weak"
    constant = {"weak": f"{per} batch size", "strong": "global batch size"}[kind]
    text = (
        f"Traces hold no batch size. Assumed: fixed {constant} ({kind} scaling; --scaling {other} assumes "
        "the other)."
    )
    ratio, away = _ratio(base, most), _away(base, most, kind)
    if math.isnan(ratio):
        return text
    fits = "This fits the assumption." if away < _SAME else MISFIT
    took = (
        f"On {most['world_size']} ranks the model's kernels take {ratio:.2f} times as long per step as on "
        f"{base['world_size']}"
    )
    return f"{text}\n{took}. {fits}" if not asked or away >= _SAME else text
