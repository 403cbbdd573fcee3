"""How do two results become one page? What changed comes first, then both reports side by side."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from analysis.display.metrics import Rows
from analysis.measures.kernels import rows as kernels_of_run
from analysis.measures.scaling import compare_rows
from analysis.measures.scaling.compared import align_watched, compared
from analysis.report import beside, changed_configurations, changes, compared_traces, small
from analysis.report.base import Context
from analysis.report.choices import Key
from analysis.report.filtered import Said, filtered
from analysis.report.render import Page, Section
from analysis.report.sentences import CHANGED, Sentence, with_ends
from analysis.report.sides import Sides, by_key, fields_of
from analysis.results.study import Study
from profiling.errors import UserError

_MOST_BARS = 5
_NONE_LEFT = "Not compared: none of the chosen configurations has unprofiled runs in both results."


def build(a: Study, b: Study, across: Sequence[str] = ()) -> Page:
    """The page of two results, before and after.

    Args:
        across: fields in which the two may differ.

    Raises:
        UserError: they have nothing in common, or one of them cannot be reported.
    """
    names = beside.names_of(a.path, b.path)
    with ExitStack() as stack:
        for study in (a, b):
            stack.enter_context(kernels_of_run.reading_ahead(study))
        if all(study.of_kind("trace") and not study.of_kind("run") for study in (a, b)):
            return compared_traces.build(a, b, names)
        a, b = align_watched(a, b, across)
        found = compared(a, b, across)
        if compare_rows.same_runs(found.a, found.b):
            raise UserError("A and B are the same runs, so nothing can differ; compare two separate results")
        sides = Sides(Context(a, b, across), Context(b, a, across), names, found)
        page = beside.page((sides.a, sides.b), names, changes.sections(sides))
        known = {section.id: section.finding for section in page.sections}
        follow = [section for section in page.sections if section.follows]

        def say(left: frozenset[Key]) -> Said:
            return _said(sides.only(left), known, follow)

        drawing = _drawing(sides)
        return replace(
            page,
            summary=_summary(sides, known),
            drawings={CHANGED: drawing} if drawing else {},
            filtered=filtered(page.filters, sides.coverage, say),
        )


def _said(sides: Sides, known: Mapping[str, str], follow: Sequence[Section]) -> Said:
    """What is said of the configurations that filters leave.

    Args:
        known: what is said of all configurations, by section.
        follow: the sections whose findings are wanted.
    """
    changed = changes.findings(sides, [section.id for section in follow])
    drawing = _drawing(sides)
    alone = beside.said((sides.a, sides.b), follow)
    return replace(
        alone,
        findings={**alone.findings, **changed},
        summary=_summary(sides, {**known, **changed}),
        drawings={CHANGED: drawing} if drawing else {},
    )


def _summary(sides: Sides, findings: Mapping[str, str]) -> list[Sentence]:
    """Better or worse, and by how much; then what grew and shrank."""
    tested = _tested(sides)
    sentences = [Sentence(verdict(tested, sides), "change"), *_corrected_for_all(tested, sides)]
    sentences += [
        Sentence(findings[id], id)
        for id in ("change", "changed-scaling", "changed-parts", "changed-stages", "changed-kernels")
        if findings[id] and not findings[id].startswith("Not available")
    ]
    if any(sides.compared.alone):
        sentences.append(Sentence(findings["not-compared"], "not-compared", of_all=True))
    return sentences


def _corrected_for_all(tested: Rows, sides: Sides) -> list[Sentence]:
    """That the verdict on a single configuration is not that of a comparison of this one alone."""
    every = len(sides.compared.by_configuration("step"))
    if sides.whole is None or len(tested) != 1 or every < 2:
        return []
    return [Sentence(f"This verdict is corrected for all {every} configurations compared (Holm).", "change")]


def _tested(sides: Sides) -> Rows:
    """The steps of the configurations that filters leave, as tested, and all of these together."""
    rows = sides.rows_of(_steps)
    if sides.whole is None:
        return [*rows, *(row for row in sides.compared.rows if row["kind"] == "combined")]
    if len(rows) < 2:
        return rows
    found = sides.compared
    return [*rows, compare_rows.combined(found.a, found.b, [row["key"] for row in rows])]


def _steps(sides: Sides) -> Rows:
    """A row for each configuration that both have unprofiled runs of, with its fields and its ``key``."""
    sources = by_key([source.fields for source in sides.b.study.sources], sides.compared.across)
    return [
        {**fields_of(sources[key]), **row, "key": key} for key, row in sides.compared.by_configuration("step")
    ]


def verdict(rows: Rows, sides: Sides) -> str:
    """Whether B is better than A: of all configurations together, or of the one that there is."""
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return _NONE_LEFT
    whole = next((row for row in rows if row["kind"] == "combined"), steps[0])
    a, b = (f"{side} ({name})" for side, _, name in (one.partition(": ") for one in sides.names))
    of_all = f", over all {len(steps)} configurations" if len(steps) > 1 else ""
    ends = min(steps, key=_effect), max(steps, key=_effect)
    if {"faster", "slower"} <= {row["verdict"] for row in steps}:
        low, high = (with_ends(row, "effect_pct", 1, " %") for row in ends)
        return f"Mixed: from {a} to {b} the step changes by {low} to {high}, by configuration."
    if whole.get("least_effect_pct") is not None:  # a mean of what differs would be that of no configuration
        effects = compare_rows.change(whole)
        change = {"faster": "Better", "slower": "Worse"}.get(whole["verdict"], "Mixed")
        return f"{change}: from {a} to {b} the step changes by {effects}, by configuration."
    # Changes of opposite sign are no change of a mean.
    apart = f"from {ends[0]['effect_pct']:+.1f} % to {ends[1]['effect_pct']:+.1f} % by configuration"
    opposite = _effect(ends[0]) < 0 < _effect(ends[1])
    if whole["verdict"] in ("faster", "slower") and opposite:
        of_all += f" ({apart})"
    if whole["verdict"] == "faster":
        return f"Better: a step of {b} takes {_shorter(whole)} less time than one of {a}{of_all}."
    change = with_ends(whole, "effect_pct", 1, " %")
    if whole["verdict"] == "slower":
        return f"Worse: a step of {b} takes {change} more time than one of {a}{of_all}."
    if whole["verdict"] == "no difference":
        possible = compare_rows.change(whole)
        measured = f" (measured: {apart})" if opposite else ""
        return (
            f"No difference shown: from {a} to {b} the step may have changed by {possible}{of_all}{measured}."
        )
    changes_by = f"changes {apart}" if opposite else f"changes by {change}{of_all}"
    return (
        f"Too few runs to say whether {b} is better or worse than {a}: the step {changes_by}, "
        "which may be chance."
    )


def _effect(row: dict[str, Any]) -> float:
    return float(row["effect_pct"])


def _shorter(row: dict[str, Any]) -> str:
    """By how much less time a step takes, with the interval."""
    low, high = -row["effect_pct_high"], -row["effect_pct_low"]
    return with_ends({"by": -row["effect_pct"], "by_low": low, "by_high": high}, "by", 1, " %")


def _drawing(sides: Sides) -> small.Drawing | None:
    """The configurations whose step changed most."""
    every = changed_configurations.configurations(sides)
    rows = sorted(every, key=lambda row: -abs(row["effect_pct"]))[:_MOST_BARS]
    if not rows:
        return None
    rows.sort(key=lambda row: row["effect_pct"])
    label = "Change of the step, B relative to A, of the configurations that changed most"
    return small.differences([(row["configuration"], row["effect_pct"]) for row in rows], "%", label)
