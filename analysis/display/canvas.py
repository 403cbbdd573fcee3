"""What are all charts drawn on and of? Layout, axes, bars and labels, as plotly reads them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.colours import BLUE, BROWN, GREEN, GREY, OLIVE, PINK, SKY, VERMILLION

PALETTE = (BLUE, BROWN, GREEN, PINK, SKY, VERMILLION, OLIVE, GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
_LAYOUT: dict[str, Any] = {
    "margin": {"l": 64, "r": 16, "t": 96, "b": 56},
    # Where it lies and how high it is depends on the chart's width: page/charts.js.
    "legend": {"orientation": "h", "x": 0, "y": 1.04, "yanchor": "bottom"},
    "legend2": {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom"},
    "height": 400,
    "hovermode": "closest",
}

_MOST_ABOVE = 2.0  # times the highest point, to which error bars stretch the axis
_ROOM = 1.1  # of the highest point, where they would stretch it further

Figure = dict[str, Any]


def figure(traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> Figure:
    """Traces and layout as one."""
    return {"data": list(traces), "layout": layout}


def of_one(figure: Figure, facts: Mapping[str, Any]) -> Figure:
    """A figure of one configuration alone, which filters leave or take as a whole."""
    return {**figure, "data": [{**trace, "meta": dict(facts)} for trace in figure["data"]]}


def bars_across(
    name: str, labels: Sequence[str], values: Sequence | pd.Series, colour: str, hover: str
) -> dict[str, Any]:
    """A series of horizontal bars.

    Args:
        name, labels: of the series and its bars, as plotly reads them (:func:`escaped`).
        hover: plotly's template of what a bar says under the mouse.
    """
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(labels),
        "x": plain_numbers(values),
        "marker": {"color": colour},
        "hovertemplate": f"{hover}<extra></extra>",
    }


def error_bars(
    values: Sequence | pd.Series, low: Sequence | pd.Series, high: Sequence | pd.Series, width: int = 5
) -> dict[str, Any]:
    """Error bars from ``low`` to ``high``, none to an end that is NaN or infinite.

    Args:
        width: of the bars' caps, pixels.
    """
    middle, lowest, highest = (np.asarray(one, float) for one in (values, low, high))
    ends = {"array": plain_numbers(highest - middle), "arrayminus": plain_numbers(middle - lowest)}
    return {"type": "data", "symmetric": False, "thickness": 1.5, "width": width, **ends}


def is_drawn(values: Iterable[float | None]) -> bool:
    """Whether a bar of some length is drawn, so that a legend has to name it."""
    return any(value for value in plain_numbers(list(values)))


def in_order(traces: Sequence[dict[str, Any]], layout: dict[str, Any], order: Sequence[str]) -> Figure:
    """A figure of bars, their labels in this order."""
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": list(order)}
    return figure(traces, layout)


def layout(title: str) -> dict[str, Any]:
    """What all charts have: margins, the legend above the plot, the title on the left."""
    place = {"x": 0.01, "xanchor": "left", "y": 0.98, "yanchor": "top"}
    return {**_LAYOUT, "title": {"text": title, "font": {"size": 15}, **place}}


def axis_end(highest: float, ends: pd.Series) -> float | None:
    """Where a vertical axis ends if error bars would make the points a line at zero; None: they do not.

    Args:
        highest: point of the chart.
        ends: of the error bars above; infinite or NaN where a point has none.
    """
    finite = ends.astype(float)
    reach = finite[np.isfinite(finite)].max()  # NaN of none
    return _ROOM * float(highest) if reach > _MOST_ABOVE * highest else None


def is_cut(figure: Figure) -> bool:
    """Whether some error bars end beyond the chart."""
    return "range" in figure["layout"]["yaxis"]


CUT = "Some error bars are cut at the upper edge; the table has their ends."


def beside_ticks(text: str) -> dict[str, Any]:
    """An axis's title near its ticks: by default it lies on the chart's frame."""
    return {"text": text, "standoff": 8}


def axis_of_counts(counts: pd.Series, what: str) -> dict[str, Any]:
    """The axis of counts: they double, so it is logarithmic; its ticks are what was measured."""
    measured = plain_numbers(sorted(counts.unique()))
    axis = {"title": beside_ticks(what), "tickvals": measured}
    if len(measured) > 1:
        axis |= {"type": "log", "ticktext": [str(value) for value in measured]}
    return axis


def bars(title: str, unit: str, count: int) -> dict[str, Any]:
    """The layout of horizontal bars, the first on top."""
    return {
        **layout(title),
        "height": 152 + 26 * max(count, 3),
        "margin": {"l": 16, "r": 16, "t": 80, "b": 56},
        "legend": _LAYOUT["legend"] | {"traceorder": "normal"},
        "barmode": "relative",
        "xaxis": {"title": beside_ticks(unit), "rangemode": "tozero"},
        "yaxis": {"automargin": True, "autorange": "reversed"},
    }


def shortened(name: str, length: int = 48) -> str:
    return escaped(name if len(name) <= length else name[: length - 1] + "…")


def escaped(text: str) -> str:
    """Text that plotly shows as it is: it reads a few HTML tags in labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plain_numbers(values: Sequence | pd.Series) -> list:
    """Numbers as JSON can hold them: NaN and infinity become null."""
    return [value if np.isfinite(value) else None for value in pd.Series(list(values)).tolist()]
