"""Draw a table as a plotly figure: plain ``data`` and ``layout``, with colours for the light and dark scheme.

Hues are those of Okabe and Ito, and Tol's wine and indigo: colour-blind readers can tell them apart, and they
survive printing. Lines contrast with their background by 3:1 or more (WCAG 2.2, 1.4.11) and also differ in
symbol and dash; bars may be paler, since they have outlines. A concept has the same colour everywhere
(:data:`CONCEPTS`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.numbers import distinct

BLUE, GREEN, VERMILLION, ORANGE, YELLOW = "#0072B2", "#009E73", "#D55E00", "#E69F00", "#F0E442"
PINK, SKY, WINE, INDIGO, BROWN, BLACK = "#CC79A7", "#2F93CC", "#882255", "#332288", "#8A5A00", "#000000"
DARK_GREY, GREY, MID_GREY, PALE_GREY, WHITE = "#636363", "#7F7F7F", "#767676", "#BBBBBB", "#F2F2F2"
# Colour on white -> on a dark screen, where it is another one.
ON_DARK = {
    SKY: "#56B4E9", WINE: "#C2557F", INDIGO: "#8F7FE8", BROWN: "#B98A3C", BLACK: "#E6EDF3",
    DARK_GREY: "#8C8C8C", MID_GREY: "#AAAAAA", PALE_GREY: "#CCCCCC", WHITE: "#3A3F47",
}  # fmt: skip
PALETTE = (BLUE, VERMILLION, GREEN, WINE, SKY, PINK, BLACK, GREY)  # of lines
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
# What a step consists of, and kernels by class. What is not seen together may share a colour.
CONCEPTS = {
    "computation": BLUE, "transfer": VERMILLION, "wait": ORANGE, "communication": WINE, "data": GREEN,
    "copies": PINK, "own code": BROWN, "idle": MID_GREY, "idle, host": DARK_GREY, "idle, other": PALE_GREY,
    "forward": SKY, "backward": INDIGO, "update": YELLOW, "hidden": WHITE, "unattributed": BLACK,
}  # fmt: skip
STAGE_COLOURS = {
    "load": CONCEPTS["data"], "forward": CONCEPTS["forward"], "backward": CONCEPTS["backward"],
    "update": CONCEPTS["update"], "other": CONCEPTS["own code"],
}  # fmt: skip
PART_COLOURS = {  # all communication, and all idle time, are of runs in which these are not split
    "compute": CONCEPTS["computation"], "exposed_transfer": CONCEPTS["transfer"],
    "exposed_wait": CONCEPTS["wait"], "exposed_communication": CONCEPTS["communication"],
    "exposed_loader": CONCEPTS["data"], "exposed_copies": CONCEPTS["copies"],
    "idle_host_bound": CONCEPTS["idle, host"], "idle_other": CONCEPTS["idle, other"],
    "idle": CONCEPTS["idle"],
}  # fmt: skip
CLASS_COLOURS = {
    "gemm": BLUE, "convolution": INDIGO, "attention": SKY, "normalization": ORANGE, "pointwise": VERMILLION,
    "reduction": BROWN, "pooling": DARK_GREY, "embedding": PALE_GREY, "loss": BLACK,
    "optimizer": CONCEPTS["update"], "communication": CONCEPTS["communication"], "loader": CONCEPTS["data"],
    "memcpy": CONCEPTS["copies"], "memset": CONCEPTS["copies"], "other": WHITE,
}  # fmt: skip
_LAYOUT: dict[str, Any] = {
    "margin": {"l": 64, "r": 16, "t": 96, "b": 56},
    # Where it lies and how high it is depends on the chart's width: page/charts.js.
    "legend": {"orientation": "h", "x": 0, "y": 1.04, "yanchor": "bottom"},
    "height": 360, "hovermode": "closest",
}  # fmt: skip

Figure = dict[str, Any]


def layout(title: str) -> dict[str, Any]:
    """What all charts have: margins, the legend above the plot, the title on the left."""
    place = {"x": 0.01, "xanchor": "left", "y": 0.98, "yanchor": "top"}
    return {**_LAYOUT, "title": {"text": title, "font": {"size": 15}, **place}}


def beside_ticks(text: str) -> dict[str, Any]:
    """An axis's title near its ticks: by default it lies on the chart's frame."""
    return {"text": text, "standoff": 8}


def escaped(text: str) -> str:
    """Text that plotly shows as it is: it reads a few HTML tags in labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plain_numbers(values: Iterable) -> list:
    """Numbers as JSON can hold them: NaN and infinity become null."""
    numbers = pd.to_numeric(pd.Series(list(values))).tolist()
    return [value if np.isfinite(value) else None for value in numbers]


def is_drawn(values: Iterable[float | None]) -> bool:
    """Whether a bar of some length is drawn, so that a legend has to name it."""
    return any(plain_numbers(values))


def error_bars(values: Iterable, low: Iterable, high: Iterable) -> dict[str, Any]:
    """Error bars from ``low`` to ``high``, none to an end that is NaN or infinite."""
    middle, lowest, highest = np.array([values, low, high], float)
    ends = {"array": plain_numbers(highest - middle), "arrayminus": plain_numbers(middle - lowest)}
    return {"type": "data", "symmetric": False, "thickness": 1.5, "width": 5, **ends}


# An axis; whole numbers, where plotly shows single digits, and room between those near a power of ten.
LOG = {"type": "log", "tickformat": ",.10~g", "nticks": 3}


def axis_of_counts(counts: pd.Series, what: str) -> dict[str, Any]:
    """The axis of counts: they double, so it is logarithmic; its ticks are what was measured."""
    measured = plain_numbers(sorted(counts.unique()))
    axis = {"title": beside_ticks(what), "tickvals": measured}
    if len(measured) > 1:
        axis |= {"type": "log", "ticktext": [f"{value:g}" for value in measured]}
    return axis


def bars(
    frame: pd.DataFrame, colours: Mapping[str, str], title: str, unit: str, hover: str,
    names: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """Horizontal bars, the first label on top, a series for each colour; what is below 0 goes to the left.

    ``frame``: a row a bar: ``label`` (long ones are shortened), ``series`` (``names``, if they are not called
    so), ``value`` (with ``low`` and ``high``, where an interval is known), and ``facts``, which the filters
    look at, if they do. ``hover``: plotly's template of what a bar says under the mouse, below its label.
    """
    traces = []
    for series, colour in colours.items():
        here = frame[frame["series"] == series]
        if here.empty:
            continue
        trace: dict[str, Any] = {
            "type": "bar", "orientation": "h",
            "name": escaped((names or {}).get(series, series.replace("_", " "))),
            "y": [escaped(label) for label in here["label"]], "x": plain_numbers(here["value"]),
            "marker": outlined(colour),
            "hovertemplate": f"%{{y}}<br>%{{fullData.name}}: {hover}<extra></extra>",
        }  # fmt: skip
        if "low" in here and here["low"].notna().any():
            trace["error_x"] = error_bars(here["value"], here["low"], here["high"])
        traces.append(trace | ({"customdata": here["facts"].tolist()} if "facts" in here else {}))
    shorter = distinct(frame["label"], 48)
    labels = frame["label"].unique()
    order = [escaped(label) for label in labels]
    whole = {
        **layout(title), "height": 152 + 26 * max(len(order), 3),
        "margin": {"l": 16, "r": 16, "t": 80, "b": 56},
        "legend": _LAYOUT["legend"] | {"traceorder": "normal"}, "showlegend": True,  # of a single series, too
        "barmode": "relative", "xaxis": {"title": beside_ticks(unit), "rangemode": "tozero"},
        "yaxis": {
            "automargin": True, "autorange": "reversed", "categoryorder": "array", "categoryarray": order,
            "tickvals": order, "ticktext": [escaped(shorter[label]) for label in labels],
        },
    }  # fmt: skip
    return {"data": traces, "layout": whole}


def outlined(colour: str) -> dict[str, Any]:
    """The marker of bars: pale ones stand out from the paper by their outline."""
    return {"color": colour, "line": {"color": BLACK, "width": 0.5}}


def parts(
    points: pd.DataFrame, colours: Mapping[str, str], title: str, unit: str = "ms", of: str = "ms per step",
    names: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """What each part of a step takes, a bar a configuration; ``of``: what the axis says.

    ``points``: columns ``<part>_<unit>`` for the keys of ``colours`` (those that are absent, or 0 everywhere,
    are left out), ``label, facts``; ``names``: of parts, if they are not called so.
    """
    named = {f"{part}_{unit}": part for part in colours if f"{part}_{unit}" in points}
    named = {column: part for column, part in named.items() if is_drawn(points[column])}
    ids = ["label", "facts"]
    long = points[[*ids, *named]].rename(columns=named).melt(ids, var_name="series")
    return bars(long, colours, title, of, f"%{{x:.1f}} {of}", names)
