"""Sections as one HTML file: values are escaped by the template, charts travel as packed JSON."""

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from analysis.display.plots import ON_DARK
from jobs.run_fields import FACTOR

_PAGE = Path(__file__).parent / "page"
# In the order in which the page runs them.
_SCRIPTS = ("filters", "tables", "charts", "drawing", "sections", "start")
_WRAPPED = re.compile(
    r"(?P<licence>/\*.*?\*/)\s*\(\s*function\(root, factory\) \{.{1,300}?\} "
    r"\(typeof self !== \"undefined\" \? self : this, \(\) => \{(?P<library>.*)return Plotly;\s*\}\)\);\s*",
    re.DOTALL,
)


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
    facts: dict[str, Any] | None = None


@dataclass(frozen=True)
class Heading:
    """A column's header, and what it means as a tooltip."""

    header: str
    help: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class TableView:
    """A table that sorts, filters and, if ``searchable``, searches."""

    id: str
    columns: Sequence[Heading]
    rows: Sequence[Row]
    searchable: bool = False
    note: str = ""
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A plotly figure.

    Attributes:
        caption: below it: which factors its colours, lines and panels show.
        wide: it takes the page's width.
    """

    id: str
    figure: dict[str, Any]
    caption: str = ""
    wide: bool = False

    @property
    def title(self) -> str:
        """The figure's title as text, which the page sets itself: plotly breaks no lines."""
        return unescape(self.figure["layout"]["title"]["text"])


@dataclass(frozen=True)
class Section:
    """A heading, and what is below it.

    Attributes:
        finding: the opening's lines that refer to it, which stand while the section is folded.
        opened: whether its content is shown at once.
    """

    id: str
    heading: str
    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()
    finding: str = ""
    opened: bool = False


@dataclass(frozen=True)
class Line:
    """A line of the opening, and the id of the section whose figure backs it ("": none)."""

    text: str
    section: str = ""
    heading: str = ""  # above it and the lines of the same heading


@dataclass(frozen=True)
class Filter:
    """A factor by which the reader narrows charts and tables; ``called``: if not as in the sweep file."""

    name: str
    choices: Sequence[str]
    called: str = ""

    @property
    def label(self) -> str:
        """What the page calls it."""
        return self.called or self.name.removeprefix(FACTOR)


@dataclass(frozen=True)
class Page:
    """All that a report holds."""

    title: str
    subtitle: str
    summary: Sequence[Line]
    sections: Sequence[Section]
    methods: str
    provenance: Sequence[tuple[str, str]]
    filters: Sequence[Filter] = field(default=())

    @property
    def opening(self) -> dict[str, list[Line]]:
        """The lines of the first screen by heading, in their order."""
        groups: dict[str, list[Line]] = {}
        for line in self.summary:
            groups.setdefault(line.heading, []).append(line)
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
        **{name: getattr(page, name) for name in page.__dataclass_fields__},
        opening=page.opening,
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

    text = get_plotlyjs()
    # What loaders of modules want around it makes a browser parse the 5 MB once more before they run. A
    # release without it is embedded as it is.
    if wrapped := _WRAPPED.fullmatch(text):
        text = f"{wrapped['licence']}\n{wrapped['library']}"
    return _packed(text)


def _packed(text: str) -> str:
    """A text as the page unpacks it: with gzip, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
