"""The report's charts as files for a paper: an image, its caption and its data for each."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from markupsafe import escape

from analysis.display.lines import spread
from analysis.report.render import Chart, Page, Section
from jobs.run_fields import FACTOR
from jobs.store import write_text
from profiling.errors import UserError

# A paper of two columns (IEEE, ACM): 3.5 in and 7.16 in, of 96 CSS pixels each.
_COLUMN, _TWO_COLUMNS = 336, 687
_LONG_NAME = 22  # characters beside a bar, for which one column is too narrow
_PNG_SCALE = 300 / 96  # 300 pixels per inch

Point = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A chart of the report as a figure; its files are called by the section and the chart."""

    name: str
    section: Section
    chart: Chart

    @property
    def width(self) -> int:
        """In CSS pixels: one column of a paper, or both where panels or names need them."""
        names = [
            str(name)
            for trace in self.chart.figure["data"]
            if trace.get("orientation") == "h"
            for name in trace["y"]
        ]
        wide = self.chart.wide or any(len(name) > _LONG_NAME for name in names)
        return _TWO_COLUMNS if wide else _COLUMN


def figures_of(page: Page) -> list[Figure]:
    """The charts of a page, in its order."""
    return [
        Figure(_name(section.id, chart.id), section, chart)
        for section in page.sections
        for chart in section.charts
    ]


def _name(section: str, chart: str) -> str:
    """``scaling-throughput``; what both begin with, or one of them says of the other, stands once."""
    if chart in section:
        return section
    if chart.startswith(section):
        return chart
    return f"{section}-{chart.removeprefix(section.split('-')[0] + '-')}"


def check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds files.

    Raises:
        UserError: it does, and ``overwrite`` does not allow to replace them; or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--figures {folder} is a file; name a folder")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--figures {folder} already holds files; choose another folder, or add --overwrite")


def write_figures(page: Page, folder: Path, image_format: str) -> list[Path]:
    """For each chart its data (CSV), its caption (text) and its image, drawn by kaleido.

    Args:
        image_format: ``svg`` or ``png``.

    Returns:
        the files.

    Raises:
        UserError: the page has no charts, the folder cannot be written, or there is no Chromium or Chrome;
            captions and data are written nevertheless.
    """
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    figures = figures_of(page)
    if not figures:
        raise UserError("--figures: this report has no charts")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for figure in figures for path in _write_words(figure, page, folder)]
    except OSError as error:
        raise UserError(f"cannot write figures to {folder}: {error.strerror}") from None
    images = [folder / f"{figure.name}.{image_format}" for figure in figures]
    # The caption has the title; beside the legend there is no place for it in a column.
    specs = [
        {
            "fig": {**of, "layout": {**of["layout"], "title": None}},
            "path": path,
            "opts": {"format": image_format, "scale": _PNG_SCALE if image_format == "png" else 1,
                     "width": figure.width, "height": of["layout"]["height"]},
        }
        for figure, path in zip(figures, images, strict=True)
        for of in [figure.chart.figure]
    ]  # fmt: skip
    try:
        # Plotly's write_images does the same, but fetches MathJax from the network.
        kaleido.write_fig_from_object_sync(specs, kopts={"mathjax": False})
    except ChromeNotFoundError:
        raise UserError(f"no Chromium or Chrome: only captions and data in {folder}") from None
    except (RuntimeError, ValueError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"no images, only captions and data in {folder}: {why}") from None
    if image_format == "svg":
        for figure, path in zip(figures, images, strict=True):
            write_text(path, described(path.read_text(), figure.chart.title, caption(figure, page)))
    return sorted([*files, *images])


def _write_words(figure: Figure, page: Page, folder: Path) -> Iterator[Path]:
    for ending, text in (("csv", as_csv(figure.chart.figure)), ("txt", caption(figure, page) + "\n")):
        path = folder / f"{figure.name}.{ending}"
        write_text(path, text)
        yield path


def described(svg: str, title: str, text: str) -> str:
    """An SVG with the title and the description that screen readers read."""
    words = f"<title>{escape(title)}</title><desc>{escape(text)}</desc>"
    return re.sub(r"<svg\b[^>]*>", lambda opening: opening[0] + words, svg, count=1)


# --- what stands below it -------------------------------------------------------------------------------


def caption(figure: Figure, page: Page) -> str:
    """What is shown, of how many runs, how to read it, and where it is from."""
    chart = figure.chart
    axes = [
        f"{axis} axis: {title}." for axis, title in zip("xy", axis_titles(chart.figure), strict=True) if title
    ]
    shown = [f"{chart.title}.", chart.caption, *axes]
    source = f"Source: {page.title} ({page.subtitle.rstrip('.')})."
    return "\n".join(filter(None, [" ".join(filter(None, shown)), figure.section.text, source]))


def axis_titles(figure: Mapping[str, Any]) -> tuple[str, str]:
    """What x and y are, with their units; empty: names. The panels of a chart share them."""

    def title(letter: str) -> str:
        axes = (axis for name, axis in figure["layout"].items() if re.fullmatch(rf"{letter}axis\d*", name))
        titles = [axis["title"]["text"] for axis in axes if axis.get("title")]
        return unescape(titles[0]) if titles else ""

    return title("x"), title("y")


# --- its data -------------------------------------------------------------------------------------------


def as_csv(figure: Mapping[str, Any]) -> str:
    """The points that a chart draws: a row each, with what tells it apart, its values and its interval."""
    rows = list(points(figure))
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def points(figure: Mapping[str, Any]) -> Iterator[Point]:
    """The points of a chart, in the order of its lines.

    A point of several configurations is their mean: its interval is from the lowest to the highest, and
    ``configurations`` says how many they are. What they differ in has no value.
    """
    x, y = axis_titles(figure)
    names = (x or "name", y or "name")
    for trace in figure["data"]:
        meta = trace.get("meta") or {}
        # A band is that of its mean line; an entry of a legend has no point.
        if meta.get("band") or trace.get("x") == [None]:
            continue
        if trace.get("type") == "heatmap":
            yield from _cells(trace, names)
        elif "members" in meta:
            yield from _means(trace, meta["members"], names)
        else:
            yield from _single(trace, meta, names)


def _single(trace: Mapping[str, Any], meta: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Point]:
    facts = trace.get("customdata") or [{}] * len(trace["x"])
    details = trace.get("hovertext") or [None] * len(trace["x"])
    (counted, at), (measured, values) = (names[0], trace["x"]), (names[1], trace["y"])
    if trace.get("orientation") == "h":
        (counted, at), (measured, values) = (measured, values), (counted, at)
    errors = trace.get("error_x") or trace.get("error_y") or {}
    for place, value in enumerate(values):
        point = {
            **_factors({**meta, **facts[place]}),
            counted: _text(at[place]),
            **_series(trace),
            measured: value,
        }
        if errors and value is not None:
            above, below = errors["array"][place], errors["arrayminus"][place]
            point |= _interval(measured, _sum(value, below, -1), _sum(value, above, 1))
        if (said := _text(details[place])) and said != point[counted]:
            point["details"] = said
        yield point


def _means(
    trace: Mapping[str, Any], members: Sequence[Mapping[str, Any]], names: tuple[str, str]
) -> Iterator[Point]:
    for x, mean, low, high in zip(*spread(members), strict=True):
        here = [
            member["facts"]
            for member in members
            if any(at == x and y is not None for at, y in zip(member["x"], member["y"], strict=True))
        ]
        point = {**_factors(_common(here)), **_series(trace), names[0]: x, names[1]: mean}
        # Of stacked bars only the total has a spread that is drawn.
        ends = {} if trace.get("type") == "bar" else _interval(names[1], low, high)
        yield {**point, **ends, "configurations": len(here)}


def _cells(trace: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Point]:
    unit = trace["colorbar"]["title"]["text"]
    for y, row in zip(trace["y"], trace["z"], strict=True):
        for x, z in zip(trace["x"], row, strict=True):
            yield {names[1]: _text(y), names[0]: x, unit: z}


def _series(trace: Mapping[str, Any]) -> Point:
    return {"series": _text(trace["name"])} if trace.get("name") else {}


def _factors(facts: Mapping[str, Any]) -> Point:
    return {name.removeprefix(FACTOR): value for name, value in facts.items()}


def _common(facts: Iterable[Mapping[str, Any]]) -> Point:
    """The levels that all have; a factor in which they differ has None."""
    first, *others = facts
    return {
        name: level if all(one.get(name) == level for one in others) else None
        for name, level in first.items()
    }


def _interval(name: str, low: float | None, high: float | None) -> Point:
    return {f"{name}, low": low, f"{name}, high": high}


def _sum(value: float, length: float | None, sign: int) -> float | None:
    return None if length is None else value + sign * length


def _text(value: Any) -> Any:
    return unescape(value) if isinstance(value, str) else value
