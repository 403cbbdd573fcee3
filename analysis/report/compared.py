"""How do two results become one page? What changed comes first, then both reports side by side."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.measures.kernels import of_run as kernels_of_run
from analysis.measures.scaling import compare_rows, traced_difference
from analysis.measures.scaling.compared import compared
from analysis.report import changed_configurations, changed_steps, changes, small
from analysis.report.base import Context
from analysis.report.build import METHODS, filters_of, page_of
from analysis.report.render import SIDES, Chart, Page, Section
from analysis.report.sentences import CHANGED, GREW, Sentence, with_ends
from analysis.report.sides import Sides
from analysis.report.views import as_view
from analysis.results.study import Study
from profiling.errors import UserError

_MOST_BARS = 5
_OF_TRACES = {
    traced_difference.SLOWER: "Worse", traced_difference.FASTER: "Better",
    traced_difference.NOT_SHOWN: "No difference could be shown",
}  # fmt: skip
_NOT_THERE = "This report has no such section."


def build(a: Study, b: Study, across: Sequence[str] = ()) -> Page:
    """The page of two results, before and after.

    Args:
        across: fields in which the two may differ.

    Raises:
        UserError: they have nothing in common, or one of them cannot be reported.
    """
    names = names_of(a.path, b.path)
    with ExitStack() as stack:
        for study in (a, b):
            stack.enter_context(kernels_of_run.reading_ahead(study))
        if all(study.of_kind("trace") and not study.of_kind("run") for study in (a, b)):
            return _of_traces(a, b, names)
        found = compared(a, b, across)
        if compare_rows.same_runs(found.a, found.b):
            raise UserError("A and B are the same runs, so nothing can differ; compare two separate results")
        sides = Sides(Context(a, b, across), Context(b, a, across), names, found)
        first = changes.sections(sides)
        findings = {section.id: section.finding for section in first}
        page = _page((sides.a, sides.b), names, first)
        drawing = _drawing(sides)
        return replace(
            page,
            summary=_summary(sides, findings),
            drawings={CHANGED: drawing} if drawing else {},
        )


def names_of(a: Path, b: Path) -> tuple[str, str]:
    """What the two are called on their page: ``A: before``, ``B: after``."""
    of_a, of_b = a.resolve().name, b.resolve().name
    if of_a == of_b:
        of_a, of_b = str(a), str(b)
    return f"A: {of_a}", f"B: {of_b}"


def _page(contexts: tuple[Context, Context], names: tuple[str, str], first: Sequence[Section]) -> Page:
    """The sections that say what changed, then those of both reports."""
    pages = [page_of(context) for context in contexts]
    return Page(
        title=f"{names[1].removeprefix('B: ')} compared with {names[0].removeprefix('A: ')}",
        subtitle=" ".join(f"{name}: {page.subtitle}." for name, page in zip(names, pages, strict=True)),
        summary=[],
        sections=[*first, *_beside(pages, names)],
        methods=f"Verdicts: Mann-Whitney tests over runs, corrected by Holm (analysis.compare). {METHODS}",
        provenance=[
            (f"{key} of {side}", value) for side, page in zip("AB", pages, strict=True)
            for key, value in page.provenance
        ],
        filters=filters_of(*contexts),
    )  # fmt: skip


def _beside(pages: Sequence[Page], names: tuple[str, str]) -> list[Section]:
    """The sections of both reports in pairs."""
    a, b = ({section.id: section for section in page.sections} for page in pages)
    said = Section(
        "both-answers", "What does each report say?", "Of all its configurations, whatever is chosen above.",
        beside=[(name, Section("", "", "", notes=[sentence.alone for sentence in page.summary]))
                for name, page in zip(names, pages, strict=True)],
    )  # fmt: skip
    return [said, *(_pair(a.get(id), b.get(id), names) for id in dict.fromkeys([*b, *a]))]


def _pair(a: Section | None, b: Section | None, names: tuple[str, str]) -> Section:
    some = b or a
    assert some is not None  # its id is that of one of them
    sides = [(name, _apart(section, side)) for name, section, side in zip(names, (a, b), SIDES, strict=True)]
    findings = [f"{side.upper()}: {section.finding}" for section, side in zip((a, b), SIDES, strict=True)
                if section and section.finding]  # fmt: skip
    return Section(some.id, some.heading, "", finding=" ".join(findings), beside=sides)


def _apart(section: Section | None, side: str) -> Section:
    """A section whose charts and tables have ids of its side."""
    if section is None:
        return Section("", "", _NOT_THERE)
    charts = [replace(chart, id=f"{side}-{chart.id}") for chart in section.charts]
    tables = [replace(table, id=f"{side}-{table.id}") for table in section.tables]
    return replace(section, charts=charts, tables=tables)


# --- the opening of two sets of runs ----------------------------------------------------------------------


def _summary(sides: Sides, findings: dict[str, str]) -> list[Sentence]:
    """Better or worse, and by how much; then what grew and shrank."""
    rows = sides.compared.rows
    sentences = [Sentence(verdict(rows, sides), "change")]
    sentences += [
        Sentence(findings[id], id)
        for id in ("change", "changed-scaling", "changed-parts", "changed-stages", "changed-kernels")
        if findings[id] and not findings[id].startswith("Not available")
    ]
    if any(sides.compared.alone):
        sentences.append(Sentence(findings["not-compared"], "not-compared"))
    return sentences


def verdict(rows: Rows, sides: Sides) -> str:
    """Whether B is better than A: of all configurations together, or of the one that there is."""
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return compare_rows.sentence(sides.compared.a, sides.compared.b, rows, 0.0)
    whole = next((row for row in rows if row["kind"] == "combined"), steps[0])
    a, b = (f"{side} ({name})" for side, _, name in (one.partition(": ") for one in sides.names))
    of_all = f", over all {len(steps)} configurations" if len(steps) > 1 else ""
    ends = min(steps, key=_effect), max(steps, key=_effect)
    if {"faster", "slower"} <= {row["verdict"] for row in steps}:
        low, high = (with_ends(row, "effect_pct", 1, " %") for row in ends)
        return f"Mixed: from {a} to {b} the step changes by {low} to {high}, by configuration."
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
    changes_by = f"changes {apart}" if opposite else f"changes by {change}{of_all}"
    if whole["verdict"] == "no difference":
        return f"No difference could be shown: from {a} to {b} the step {changes_by}."
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


# --- traces -----------------------------------------------------------------------------------------------


def _of_traces(a: Study, b: Study, names: tuple[str, str]) -> Page:
    """Two jobs' traces, as analysis.compare has them."""
    rows = traced_difference.rows(a, b)
    if traced_difference.same_traces(rows):
        raise UserError("A and B are the same traces, so nothing can differ; compare two separate results")
    said = _in_words(rows)
    contexts = Context(a, b), Context(b, a)
    view = as_view(traced_difference.part(rows, ""), "change-table", ())
    text = f"{traced_difference.CAPTION} What other runs would differ by is not known from one of each."
    changed = Section("change", "What changed?", text, _parts_charts(rows), [view], finding=said[0])
    page = _page(contexts, names, [changed])
    return replace(page, summary=[*(Sentence(line, "change") for line in said), *_grown(rows)])


def _in_words(rows: Rows) -> list[str]:
    """Better or worse, a sentence for each pair of jobs; one that was not tested says so itself."""
    said = traced_difference.sentence(rows).splitlines()
    verdicts = [_OF_TRACES.get(row["verdict"]) for row in traced_difference.steps(rows)]
    if not verdicts:
        return said
    return [f"{verdict}: {line}" if verdict else line for verdict, line in zip(verdicts, said, strict=True)]


def _parts_charts(rows: Rows) -> list[Chart]:
    """The growth of each part; none where the traces of a side hold no kernel."""
    known = [row for row in rows if row["kind"] == "parts" and row["difference_ms"] == row["difference_ms"]]
    if not known:
        return []
    part = pd.DataFrame([
        {"quantity": row["quantity"], "difference_ms": row["difference_ms"], "facts": {}}
        for row in sorted(known, key=lambda row: -abs(row["difference_ms"]))[: changed_steps.TOP_KERNELS]
    ])  # fmt: skip
    figure = plots.growth(part, "Parts of a step that changed most")
    return [Chart("change", figure, "Growth of each part of a step from A to B, in milliseconds")]


def _grown(rows: Rows) -> list[Sentence]:
    """The class of kernels that changed most."""
    kernels = [row for row in rows if row["kind"] == "kernels"]
    if not kernels:
        return []
    most = max(kernels, key=lambda row: abs(row["difference_ms"]))
    changed = f"{most['quantity']} {most['difference_ms']:+.3g} ms per step"
    text = f"Largest change of a class of kernels: {changed}."
    return [Sentence(text, "change", answers=GREW)]
