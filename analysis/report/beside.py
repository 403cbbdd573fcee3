"""How do two reports become one page? Their sections in pairs, A beside B."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.report.base import Context
from analysis.report.build import filters_of, page_of, said_of
from analysis.report.filtered import Said
from analysis.report.render import SIDES, Page, Section

_NOT_THERE = "This report has no such section."


def names_of(a: Path, b: Path) -> tuple[str, str]:
    """What the two are called on their page: ``A: before``, ``B: after``."""
    of_a, of_b = a.resolve().name, b.resolve().name
    if of_a == of_b:
        of_a, of_b = str(a), str(b)
    return f"A: {of_a}", f"B: {of_b}"


def page(contexts: tuple[Context, Context], names: tuple[str, str], first: Sequence[Section]) -> Page:
    """The sections that say what changed, then those of both reports."""
    pages = [page_of(context) for context in contexts]
    methods = " ".join(dict.fromkeys(page.methods for page in pages))  # as a rule the same
    return Page(
        title=f"{names[1].removeprefix('B: ')} compared with {names[0].removeprefix('A: ')}",
        subtitle=" ".join(f"{name}: {page.subtitle}." for name, page in zip(names, pages, strict=True)),
        summary=[],
        sections=[*first, *_in_pairs(pages, names)],
        methods=f"Verdicts: Mann-Whitney tests over runs, corrected by Holm (analysis.compare). {methods}",
        provenance=[
            (f"{key} of {side}", value) for side, page in zip("AB", pages, strict=True)
            for key, value in page.provenance
        ],
        filters=filters_of(*contexts),
    )  # fmt: skip


def _in_pairs(pages: Sequence[Page], names: tuple[str, str]) -> list[Section]:
    """The sections of both reports in pairs."""
    a, b = ({section.id: section for section in page.sections} for page in pages)
    answers = [Section("", "", "", notes=[one.alone for one in page.summary], notes_id=f"answers-{side}")
               for side, page in zip(SIDES, pages, strict=True)]  # fmt: skip
    said = Section(
        "both-answers", "What does each report say?", "What each report says first, on its own.",
        beside=list(zip(names, answers, strict=True)),
    )  # fmt: skip
    return [said, *(_pair(a.get(id), b.get(id), names) for id in dict.fromkeys([*b, *a]))]


def _pair(a: Section | None, b: Section | None, names: tuple[str, str]) -> Section:
    some = b or a
    assert some is not None  # its id is that of one of them
    sides = [(name, _apart(section, side)) for name, section, side in zip(names, (a, b), SIDES, strict=True)]
    finding = _of_both([section.finding if section else "" for section in (a, b)])
    return Section(some.id, some.heading, "", finding=finding, follows=some.follows, beside=sides)


def _of_both(findings: Sequence[str]) -> str:
    """``A: this. B: that.``"""
    return " ".join(f"{side.upper()}: {text}" for side, text in zip(SIDES, findings, strict=True) if text)


def _apart(section: Section | None, side: str) -> Section:
    """A section whose charts and tables have ids of its side."""
    if section is None:
        return Section("", "", _NOT_THERE)
    charts = [replace(chart, id=f"{side}-{chart.id}") for chart in section.charts]
    tables = [replace(table, id=f"{side}-{table.id}") for table in section.tables]
    return replace(section, charts=charts, tables=tables)


# --- what is said of some configurations --------------------------------------------------------------------


def said(contexts: tuple[Context, Context], follow: Sequence[Section]) -> Said:
    """What either report says of the configurations that filters leave.

    Args:
        follow: the sections whose findings are wanted.
    """
    pairs = [section for section in follow if section.beside]
    alone = [
        _said_alone(context, [pair.id for pair in pairs if pair.beside[place][1].id])
        for place, context in enumerate(contexts)
    ]
    return Said(
        {pair.id: _of_both([said.findings.get(pair.id, "") for said in alone]) for pair in pairs},
        lists={f"answers-{side}": said.summary or [] for side, said in zip(SIDES, alone, strict=True)},
    )


def _said_alone(context: Context, ids: Sequence[str]) -> Said:
    return said_of(context, ids) if context.configurations else Said({})
