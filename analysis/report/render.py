"""Sections as one HTML file: values are escaped by the template, charts travel as packed JSON."""

import base64
import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, TypeVar

from analysis.display.numbers import cell
from analysis.display.plots import ON_DARK

MOST_RANKS = 32  # of a table by rank; a longer one is a file to download
_PAGE = Path(__file__).parent / "page"
# In the order in which the page runs them.
_SCRIPTS = ("filters", "tables", "charts", "drawing", "sections", "start")

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and for a number the value that sorting uses."""

    text: str
    value: float | str = ""
    numeric: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table, with the facts that the filters look at."""

    cells: Sequence[Cell]
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Heading:
    """A column's header, and what it means as a tooltip."""

    header: str
    help: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class TableView:
    """A table that sorts, filters and searches; one with many ranks is a file to download."""

    id: str
    columns: Sequence[Heading]
    rows: Sequence[Row]
    note: str = ""
    title: str = ""

    @property
    def as_file(self) -> bool:
        """Whether the page has it as CSV alone."""
        return len(self.rows) > MOST_RANKS and any(one.header == "rank" for one in self.columns)

    @property
    def csv(self) -> str:
        """Its figures with all their digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(one.header for one in self.columns)
        writer.writerows(
            [one.value if one.numeric else cell(one.text) for one in row.cells] for row in self.rows
        )
        return text.getvalue()


@dataclass(frozen=True)
class Chart:
    """A plotly figure; ``caption``: which factors its colours, lines and panels show."""

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
    """An answer: charts, tables and words.

    Attributes:
        chapter: None: it is its own.
        unavailable: why it has nothing to show; empty: it has.
    """

    id: str
    heading: str
    text: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()
    chapter: Chapter | None = None
    unavailable: str = ""


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
    """All that a report holds; ``jobs``: those that the opening does not describe one by one."""

    title: str
    subtitle: str
    summary: Sequence[Line]
    sections: Sequence[Section]
    methods: str
    provenance: Sequence[tuple[str, str]]
    filters: Sequence[Filter] = ()
    jobs: TableView | None = None

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


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def render(page: Page) -> str:
    """The page as one HTML document that needs no network."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    facts = Facts()
    charts = [chart for section in page.sections for chart in section.charts]
    figures = [script_json(facts.in_figure(chart.figure)) for chart in charts]
    return environment.get_template("report.html.j2").render(
        page=page,
        css=(_PAGE / "style.css").read_text(encoding="utf-8"),
        scripts=[(_PAGE / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS],
        plotly=_plotly(),
        numbers={chart.id: number for number, chart in enumerate(charts)},
        figures=_packed("\n".join(figures)),
        facts=facts,
        colours_on_dark=script_json(ON_DARK),
    )


class Facts:
    """The facts of a page by number: its rows and charts name the same few hundred again and again."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, facts: Mapping[str, Any]) -> int:
        """The place of such facts in :meth:`json`."""
        return self._numbers.setdefault(_harmless(json.dumps(facts)), len(self._numbers))

    def json(self) -> str:
        """All facts that were asked for, in the order of their numbers."""
        return f"[{','.join(self._numbers)}]"

    def in_figure(self, figure: Mapping[str, Any]) -> dict[str, Any]:
        """A plotly figure that has numbers for facts, of its traces, their members and points."""
        return {**figure, "data": [self._in_trace(trace) for trace in figure["data"]]}

    def _in_trace(self, trace: Mapping[str, Any]) -> dict[str, Any]:
        numbered = dict(trace)
        if "customdata" in trace:
            numbered["customdata"] = [self.number(facts) for facts in trace["customdata"]]
        if meta := trace.get("meta"):
            numbered["meta"] = self._in_meta(meta)
        return numbered

    def _in_meta(self, meta: Mapping[str, Any]) -> Any:
        if "members" not in meta:
            return self.number(meta)
        members = [
            self._in_trace({**member, "facts": self.number(member["facts"])}) for member in meta["members"]
        ]
        return {**meta, "members": members}


def script_json(value: Any) -> str:
    """JSON that may stand inside a <script>: nothing in it can close the element or open a comment."""
    return _harmless(json.dumps(_finite(value), allow_nan=False, separators=(",", ":")))


def _harmless(text: str) -> str:
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
