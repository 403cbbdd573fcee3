"""Draw a table as a plotly figure: plain ``data`` and ``layout``, with colours for the light and dark scheme.

Hues are those of Okabe and Ito, and Tol's wine and indigo: colour-blind readers can tell them apart, and they
survive printing. Lines contrast with their background by 3:1 or more (WCAG 2.2, 1.4.11) and also differ in
symbol and dash; bars may be paler, since they have outlines. A concept has the same colour everywhere
(:data:`CONCEPTS`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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
PART_COLOURS = {
    "compute": CONCEPTS["computation"],
    "exposed_transfer": CONCEPTS["transfer"],
    "exposed_wait": CONCEPTS["wait"],
    "exposed_communication": CONCEPTS["communication"],  # of runs whose communication is not split
    "exposed_loader": CONCEPTS["data"],
    "exposed_copies": CONCEPTS["copies"],
    "idle_host_bound": CONCEPTS["idle, host"],
    "idle_other": CONCEPTS["idle, other"],
    "idle": CONCEPTS["idle"],  # of runs whose idle time is not split
}
CLASS_COLOURS = {
    "gemm": BLUE, "convolution": INDIGO, "attention": SKY, "normalization": ORANGE, "pointwise": VERMILLION,
    "reduction": BROWN, "pooling": DARK_GREY, "embedding": PALE_GREY, "loss": BLACK,
    "optimizer": CONCEPTS["update"], "communication": CONCEPTS["communication"], "loader": CONCEPTS["data"],
    "memcpy": CONCEPTS["copies"], "memset": CONCEPTS["copies"], "other": WHITE,
}  # fmt: skip
_OUTLINE = {"color": BLACK, "width": 0.5}
_LAYOUT: dict[str, Any] = {
    "margin": {"l": 64, "r": 16, "t": 96, "b": 56},
    # Where it lies and how high it is depends on the chart's width: page/charts.js.
    "legend": {"orientation": "h", "x": 0, "y": 1.04, "yanchor": "bottom"},
    "legend2": {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom"},
    "height": 360,
    "hovermode": "closest",
}
_MOST_ABOVE = 2.0  # times the highest point, to which error bars stretch the axis
_ROOM = 1.1  # of the highest point, where they would stretch it further
_LONGEST_NAME = 48  # characters beside a bar
CUT = "Error bars are cut at the upper edge."

Figure = dict[str, Any]
Values = Sequence | pd.Series


# --- of all charts --------------------------------------------------------------------------------------


def layout(title: str) -> dict[str, Any]:
    """What all charts have: margins, the legend above the plot, the title on the left."""
    place = {"x": 0.01, "xanchor": "left", "y": 0.98, "yanchor": "top"}
    return {**_LAYOUT, "title": {"text": title, "font": {"size": 15}, **place}}


def of_one(figure: Figure, facts: Mapping[str, Any]) -> Figure:
    """A figure of one configuration alone, which filters leave or take as a whole."""
    return {**figure, "data": [{**trace, "meta": dict(facts)} for trace in figure["data"]]}


def beside_ticks(text: str) -> dict[str, Any]:
    """An axis's title near its ticks: by default it lies on the chart's frame."""
    return {"text": text, "standoff": 8}


def escaped(text: str) -> str:
    """Text that plotly shows as it is: it reads a few HTML tags in labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plain_numbers(values: Values) -> list:
    """Numbers as JSON can hold them: NaN and infinity become null."""
    return [
        value if np.isfinite(value) else None for value in pd.to_numeric(pd.Series(list(values))).tolist()
    ]


def is_drawn(values: Iterable[float | None]) -> bool:
    """Whether a bar of some length is drawn, so that a legend has to name it."""
    return any(plain_numbers(list(values)))


def error_bars(values: Values, low: Values, high: Values, width: int = 5) -> dict[str, Any]:
    """Error bars from ``low`` to ``high``, none to an end that is NaN or infinite.

    Args:
        width: of the bars' caps, pixels.
    """
    middle, lowest, highest = (np.asarray(one, float) for one in (values, low, high))
    ends = {"array": plain_numbers(highest - middle), "arrayminus": plain_numbers(middle - lowest)}
    return {"type": "data", "symmetric": False, "thickness": 1.5, "width": width, **ends}


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


# --- lines ----------------------------------------------------------------------------------------------


_FEW_DECADES = 300.0  # from least to most; over more, powers of ten are ticks enough


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis whose ticks are whole numbers: plotly's own are single digits over few decades."""
    axis = {"title": beside_ticks(title), "type": "log"}
    if not 0 < low <= high < math.inf:
        return axis
    steps = (1, 2, 5) if high / low <= _FEW_DECADES else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    return {**axis, "tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks]}


def axis_of_counts(counts: pd.Series, what: str) -> dict[str, Any]:
    """The axis of counts: they double, so it is logarithmic; its ticks are what was measured."""
    measured = plain_numbers(sorted(counts.unique()))
    axis = {"title": beside_ticks(what), "tickvals": measured}
    if len(measured) > 1:
        axis |= {"type": "log", "ticktext": [f"{value:g}" for value in measured]}
    return axis


def predictions(points: pd.DataFrame, title: str, unit: str = "rank") -> Figure:
    """Images/s against ranks, measured and predicted, a line a label.

    Args:
        points: columns ``world_size, images_per_s`` (``_low``, ``_high``), ``label, facts``.
        unit: what is counted: ``GPU`` or ``rank``.
    """
    traces = []
    ordered = points.sort_values("world_size")
    for index, (name, series) in enumerate(ordered.groupby("label", sort=False)):
        trace = _line(
            series, str(name), index, "world_size", "images_per_s", f"%{{x}} {unit}s: %{{y:.4g}} images/s"
        )
        low, high = series["images_per_s_low"], series["images_per_s_high"]
        traces.append(trace | {"error_y": error_bars(series["images_per_s"], low, high)})
    drawn = _lines(traces, points["world_size"], f"{unit}s", escaped(title), "images/s")
    rates = points["images_per_s"]
    drawn["layout"]["yaxis"] = log_axis("images/s", rates.min(), rates.max())
    return drawn


def shares(points: pd.DataFrame, unit: str = "GPU") -> Figure:
    """Share of communication (drawn through) and of copies (dashed) against batch size, a line a label.

    Args:
        points: columns ``batch, communication_pct, copies_pct, label, facts``.
        unit: of what the batch size is: ``GPU`` or ``rank``.
    """
    traces = [
        _line(series, f"{name}: {part}", index, "batch", f"{part}_pct", "%{x}: %{y:.1f} %", dash)
        for index, (name, series) in enumerate(points.sort_values("batch").groupby("label", sort=False))
        for part, dash in (("communication", "solid"), ("copies", "dash"))
    ]
    title = "Communication and copies"
    return _lines(traces, points["batch"], f"per-{unit} batch size, images", title, "% of time")


def _lines(traces: list[dict[str, Any]], counts: pd.Series, what: str, title: str, unit: str) -> Figure:
    yaxis = {"title": beside_ticks(unit), "rangemode": "tozero"}
    axes = {"xaxis": axis_of_counts(counts, what), "yaxis": yaxis}
    return {"data": traces, "layout": {**layout(title), **axes}}


def _line(
    series: pd.DataFrame, name: str, index: int, x: str, y: str, hover: str, dash: str = "solid"
) -> dict[str, Any]:
    """A line with marks in the look of the ``index``-th."""
    colour = PALETTE[index % len(PALETTE)]
    return {
        "x": plain_numbers(series[x]),
        "y": plain_numbers(series[y]),
        "name": escaped(name),
        "mode": "lines+markers",
        "meta": series["facts"].iloc[0],
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 9, "color": colour},
        "line": {"color": colour, "width": 2, "dash": dash},
        "hovertemplate": f"{escaped(name)}<br>{hover}<extra></extra>",
    }


# --- bars -----------------------------------------------------------------------------------------------


def bars(traces: Sequence[dict[str, Any]], title: str, unit: str, order: Sequence[str]) -> Figure:
    """A figure of horizontal bars, the first label on top; long labels are shortened beside them.

    Args:
        traces: of :func:`bars_across`.
        order: of the labels.
    """
    names = [escaped(name) for name in order]
    labels = distinct(order, _LONGEST_NAME)
    short = [escaped(labels[name]) for name in order]
    yaxis = {"automargin": True, "autorange": "reversed", "tickvals": names, "ticktext": short}
    if any(trace["y"] != names for trace in traces):
        yaxis |= {"categoryorder": "array", "categoryarray": names}
    return {
        "data": list(traces),
        "layout": {
            **layout(title),
            "height": 152 + 26 * max(len(names), 3),
            "margin": {"l": 16, "r": 16, "t": 80, "b": 56},
            "legend": _LAYOUT["legend"] | {"traceorder": "normal"},
            "showlegend": True,  # of a single series, too
            "barmode": "relative",
            "xaxis": {"title": beside_ticks(unit), "rangemode": "tozero"},
            "yaxis": yaxis,
        },
    }


def outlined(colour: str) -> dict[str, Any]:
    """The marker of bars: pale ones stand out from the paper by their outline."""
    return {"color": colour, "line": _OUTLINE}


def bars_across(name: str, labels: Iterable[str], values: Values, colour: str, hover: str) -> dict[str, Any]:
    """A series of horizontal bars.

    Args:
        hover: plotly's template of what a bar says under the mouse, below its label.
    """
    return {
        "type": "bar",
        "orientation": "h",
        "name": escaped(name),
        "y": [escaped(label) for label in labels],
        "x": plain_numbers(values),
        "marker": outlined(colour),
        "hovertemplate": f"%{{y}}<br>{hover}<extra></extra>",
    }


def parts(
    points: pd.DataFrame,
    colours: Mapping[str, str],
    title: str,
    unit: str = "ms",
    of: str = "ms per step",
    names: Mapping[str, str] | None = None,
) -> Figure:
    """What each part of a batch takes, a bar a configuration; parts below 0 go to the left.

    Args:
        points: columns ``<part>_<unit>`` for the keys of ``colours`` (those that are absent, or 0 everywhere,
            are left out), ``label, facts``.
        colours: :data:`STAGE_COLOURS` or :data:`PART_COLOURS`.
        unit, of: how columns end, and what the axis says.
        names: of parts, if they are not called so.
    """
    labels, traces = points["label"].astype(str).tolist(), []
    for part, colour in colours.items():
        column, words = f"{part}_{unit}", (names or {}).get(part, part.replace("_", " "))
        if column in points and is_drawn(points[column]):
            trace = bars_across(words, labels, points[column], colour, f"{words}: %{{x:.1f}} {of}")
            traces.append(trace | {"customdata": points["facts"].tolist()})
    return bars(traces, title, of, labels)


def class_colour(name: str) -> str:
    """Of a class of kernels."""
    return CLASS_COLOURS.get(name, WHITE)


def kernels(top: pd.DataFrame, title: str) -> Figure:
    """The kernels that take most time, longest on top.

    Args:
        top: columns ``short_name, class, ms_per_step``; the parts of a name stand in one bar.
    """
    whole = top.groupby("short_name", sort=False)["ms_per_step"].sum().sort_values(ascending=False)
    traces = [
        bars_across(
            str(name), of["short_name"], of["ms_per_step"], class_colour(str(name)), "%{x:.2f} ms per step"
        )
        for name, of in top.groupby("class", sort=False)
    ]
    return bars(traces, title, "ms per step", list(whole.index))


def changes(points: pd.DataFrame, colours: Mapping[str, str], title: str, names: Mapping[str, str]) -> Figure:
    """By how much each configuration changed, a bar each with its interval, coloured by verdict.

    Args:
        points: columns ``configuration, effect_pct`` (``_low``, ``_high``), ``judged, facts``.
        colours: verdict -> colour; names: what a verdict is called, if not so.
    """
    traces = []
    for verdict, colour in colours.items():
        here = points[points["judged"] == verdict]
        if len(here):
            values, name = here["effect_pct"], names.get(verdict, verdict)
            trace = bars_across(name, here["configuration"], values, colour, "%{x:+.1f} %")
            trace["error_x"] = error_bars(values, here["effect_pct_low"], here["effect_pct_high"], width=4)
            traces.append(trace | {"customdata": here["facts"].tolist()})
    return bars(traces, title, "% of the step in A", points["configuration"].tolist())


def growth(points: pd.DataFrame, title: str) -> Figure:
    """By how much each kernel grew or shrank, largest change on top.

    Args:
        points: columns ``quantity, difference_ms, facts``.
    """
    grew = points["difference_ms"] > 0
    kinds = (("longer in B", points[grew], VERMILLION), ("shorter in B", points[~grew], GREEN))
    traces = [
        bars_across(name, here["quantity"], here["difference_ms"], colour, "%{x:+.2f} ms per step")
        | {"customdata": here["facts"].tolist()}
        for name, here, colour in kinds
        if len(here)
    ]
    return bars(traces, title, "ms per step, B minus A", points["quantity"].tolist())
