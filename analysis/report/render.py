"""Sections as one HTML file: values are escaped by the template, charts travel as packed JSON."""

import base64
import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from analysis.display.numbers import cell, plain
from analysis.display.output import Part
from analysis.display.plots import ON_DARK

MOST_RANKS = 32  # of a table by rank; a longer one is a file to download
_PAGE = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Chart:
    """A plotly figure; ``caption``: which factors its colours and lines show."""

    id: str
    figure: dict[str, Any]
    caption: str = ""

    @property
    def title(self) -> str:
        """The figure's title as text, which the page sets itself: plotly breaks no lines."""
        return unescape(self.figure["layout"]["title"]["text"])


@dataclass(frozen=True)
class Chapter:
    """Sections that are folded together: its name in the contents, and its heading."""

    name: str
    heading: str


@dataclass(frozen=True)
class Section:
    """An answer: words, charts, and tables, whose ids are the section's and their number."""

    text: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Part] = ()
    notes: Sequence[str] = ()
    id: str = ""  # the anchor that findings of the opening link to
    heading: str = ""
    chapter: Chapter | None = None  # None: it is its own
    unavailable: str = ""  # why it has nothing to show; empty: it has


@dataclass(frozen=True)
class Line:
    """A line of the opening, and the id of the section whose figure backs it ("": none)."""

    text: str
    section: str = ""
    heading: str = ""  # above it and the lines of the same heading


@dataclass(frozen=True)
class Filter:
    """A factor by which the reader narrows charts and tables, and what the page calls it."""

    name: str
    choices: Sequence[str]
    label: str


@dataclass(frozen=True)
class Page:
    """All that a report holds."""

    title: str
    subtitle: str
    summary: Sequence[Line]
    sections: Sequence[Section]
    methods: str
    provenance: Sequence[tuple[str, str]]
    filters: Sequence[Filter] = ()
    factors: Sequence[str] = ()  # fields of rows that filters look at
    jobs: Part | None = None  # those that the opening does not describe one by one

    @property
    def opening(self) -> dict[str, list[Line]]:
        """The lines of the first screen by heading, in their order."""
        return _grouped(self.summary, lambda line: line.heading)

    @property
    def chapters(self) -> dict[Chapter, list[Section]]:
        """The sections that have something to show, by chapter."""
        shown = (one for one in self.sections if not one.unavailable)
        return _grouped(shown, lambda one: one.chapter or Chapter(one.heading, one.heading))

    @property
    def unavailable(self) -> dict[str, list[Section]]:
        """The other sections, by the reason."""
        return _grouped((one for one in self.sections if one.unavailable), lambda one: one.unavailable)


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def render(page: Page) -> str:
    """The page as one HTML document that needs no network."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"plain": plain, "csv": as_csv, "alone": _alone, "in_a_line": in_a_line}
    known: dict[str, int] = {}  # the same few hundred facts stand in thousands of rows, by number

    def number(row: Mapping[str, Any]) -> int | str:
        levels = facts(row, [name for name in page.factors if name in row])
        return known.setdefault(script_json(levels), len(known)) if levels else ""

    charts = [chart for section in page.sections for chart in section.charts]
    scripts = ("filters", "tables", "charts", "drawing", "sections", "start")  # as the page runs them
    return environment.get_template("report.html.j2").render(
        page=page, plotly=_plotly(),
        css=(_PAGE / "style.css").read_text(encoding="utf-8"),
        scripts=[(_PAGE / f"{name}.js").read_text(encoding="utf-8") for name in scripts],
        numbers={chart.id: number for number, chart in enumerate(charts)},
        figures=_packed("\n".join(script_json(chart.figure) for chart in charts)),
        number=number, facts=known, most_ranks=MOST_RANKS, colours_on_dark=ON_DARK,
    )  # fmt: skip


def facts(row: Mapping[str, Any], factors: Sequence[str]) -> dict[str, Any]:
    """What the filters look at: a value a factor."""
    return {name: plain(row.get(name)) for name in factors}


def in_a_line(header: str) -> str:
    """A header that is broken into lines for the terminal."""
    return header.replace("-\n", "").replace("/\n", "/").replace("\n", " ")


def _alone(text: str) -> str:
    """A text without its references to flags of commands and files of docs/, which a page does not have."""
    return re.sub(r" ?\([^()]*(?:docs/|--[a-z])[^()]*\)", "", text)


def as_csv(part: Part) -> str:
    """A table's figures with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(in_a_line(one.heading) for one in part.columns)
    writer.writerows(
        [cell(one.printed(row) if one.text else plain(row.get(one.name))) for one in part.columns]
        for row in part.rows
    )
    return text.getvalue()


def script_json(value: Any) -> str:
    """JSON that may stand inside a <script>: nothing in it can close the element or open a comment."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """The same with null, which a chart leaves out, for what is no number; no more digits than one sees."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


@cache
def _plotly() -> str:
    """The chart library, compressed: 2 MB of the file instead of 5."""
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())


def _packed(text: str) -> str:
    """A text as the page unpacks it: with gzip, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
