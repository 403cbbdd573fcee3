"""The report's charts as files for a paper: an image and a caption of each."""

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from markupsafe import escape

from analysis.report.render import Chart, Page, Section
from jobs.store import write_text
from profiling.errors import UserError

# A paper of two columns (IEEE, ACM): 3.5 in and 7.16 in, of 96 CSS pixels each.
_COLUMN, _TWO_COLUMNS = 336, 687
_LONG_NAME = 22  # characters beside a bar, for which one column is too narrow
_PNG_SCALE = 300 / 96  # 300 pixels per inch


@dataclass(frozen=True)
class Figure:
    """A chart of the report as a figure of a paper.

    Attributes:
        name: of its files: the section's and the chart's.
        caption: what is shown, of how many runs, how to read it, and where it is from.
    """

    name: str
    chart: Chart
    caption: str

    @property
    def width(self) -> int:
        """In CSS pixels: one column of a paper, or both where panels or names need them."""
        bars = (trace for trace in self.chart.figure["data"] if trace.get("orientation") == "h")
        long = any(len(str(name)) > _LONG_NAME for trace in bars for name in trace["y"])
        return _TWO_COLUMNS if long or "xaxis2" in self.chart.figure["layout"] else _COLUMN


def figures_of(page: Page) -> list[Figure]:
    """The charts of a page, in its order."""
    return [
        Figure(_name(section.id, chart.id), chart, _caption(chart, section, page))
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


def _caption(chart: Chart, section: Section, page: Page) -> str:
    axes = []
    for letter in "xy":  # the panels of a chart share their titles
        of = [axis for name, axis in chart.figure["layout"].items() if name.startswith(f"{letter}axis")]
        titles = [unescape(axis["title"]["text"]) for axis in of if axis.get("title")]
        axes += [f"{letter} axis: {title}." for title in titles[:1] if title]
    shown = " ".join(filter(None, [f"{chart.title}.", chart.caption, *axes]))
    source = f"Source: {page.title} ({page.subtitle.rstrip('.')})."
    return "\n".join(filter(None, [shown, section.text, source]))


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
    """For each chart its caption (text) and its image, drawn by kaleido.

    Args:
        image_format: ``svg`` or ``png``.

    Returns:
        The images.

    Raises:
        UserError: the page has no charts, the folder cannot be written, or there is no Chromium or Chrome;
            captions are written nevertheless.
    """
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    figures = figures_of(page)
    if not figures:
        raise UserError("--figures: this report has no charts")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            write_text(folder / f"{figure.name}.txt", figure.caption + "\n")
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
        raise UserError(f"no Chromium or Chrome: only captions in {folder}") from None
    except (RuntimeError, ValueError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"no images, only captions in {folder}: {why}") from None
    if image_format == "svg":
        for figure, path in zip(figures, images, strict=True):
            write_text(path, described(path.read_text(), figure.chart.title, figure.caption))
    return images


def described(svg: str, title: str, text: str) -> str:
    """An SVG with the title and the description that screen readers read."""
    words = f"<title>{escape(title)}</title><desc>{escape(text)}</desc>"
    return re.sub(r"<svg\b[^>]*>", lambda opening: opening[0] + words, svg, count=1)
