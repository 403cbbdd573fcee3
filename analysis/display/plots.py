"""Draw a table as a plotly figure: plain ``data`` and ``layout``, with colours for the light and dark scheme.

Hues are those of Okabe and Ito, and Tol's wine and indigo: colour-blind readers can tell them apart, and they
survive printing. Lines contrast with their background by 3:1 or more (WCAG 2.2, 1.4.11) and also differ in
symbol and dash; bars may be paler, since they have outlines. A concept has the same colour everywhere
(:data:`CONCEPTS`).

Points of a sweep are lines, by the factors that matter most. The factor of the largest effect is the colour,
the next the dash. Others are averaged: a line of several configurations is their mean, with a band from the
lowest to the highest. The configurations are kept in ``meta`` as ``members``, so that the page can recompute
the mean when a filter removes some of them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import called
from analysis.display.numbers import distinct
from jobs.run_fields import FACTOR

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


CUT = "Error bars are cut at the upper edge."
DASHES = ("solid", "dash", "dashdot")  # dotted is ideal scaling

Facts = Mapping[str, Any]  # the level of each factor


@dataclass(frozen=True)
class Encoding:
    """The factor that each channel of a chart shows; empty: none."""

    colour: str = ""
    dash: str = ""
    averaged: tuple[str, ...] = ()  # factors that vary and have no channel: lines are means over their levels

    @property
    def shown(self) -> list[str]:
        """The factors that have a channel, the best channel first."""
        return [name for name in (self.colour, self.dash) if name]


def encode(points: Sequence[Facts], factors: Iterable[str]) -> Encoding:
    """The channels of the factors that vary among points; ``factors``: the most important first."""
    free = {"colour": 8, "dash": len(DASHES)}  # as many as readers tell apart, the colour-blind too
    channels: dict[str, str] = {}
    counts = {factor: len(levels(points, factor)) for factor in factors}
    counts = {factor: count for factor, count in counts.items() if count > 1}
    for factor, count in counts.items():
        if channel := next((channel for channel, most in free.items() if count <= most), ""):
            channels[channel] = factor
            del free[channel]
    return Encoding(**channels, averaged=tuple(one for one in counts if one not in channels.values()))


def levels(points: Iterable[Facts], factor: str) -> list[Any]:
    """The levels of a factor among points: unknown, numbers by size, then words; [None] without a factor."""
    if not factor:
        return [None]

    def order(level: Any) -> tuple:
        number = isinstance(level, int | float)
        return level is not None, not number, level if number else str(level)

    return sorted({point.get(factor) for point in points}, key=order)


def caption(encoding: Encoding) -> str:
    """``Colour: loader. Line: grad. Mean of batch (band: lowest and highest).``"""
    channels = {"Colour": encoding.colour, "Line": encoding.dash}
    texts = [f"{name}: {factor.removeprefix(FACTOR)}." for name, factor in channels.items() if factor]
    if encoding.averaged:
        averaged = ", ".join(factor.removeprefix(FACTOR) for factor in encoding.averaged)
        texts.append(f"Mean over {averaged} (band: lowest and highest).")
    return " ".join(texts)


@dataclass(frozen=True)
class Axes:
    """What is drawn against what."""

    x: str  # a column of counts
    x_title: str  # what is counted
    y: str  # a column (with _low, _high, where an interval is known)
    unit: str  # its unit
    title: str
    log: bool = False  # whether y has a logarithmic axis, as counts have, so that ideal scaling is straight
    ideal: bool = False  # whether ideal scaling is drawn: from the first point of each line, or at 100 %


AGAINST_RANKS = ("world_size", "ranks")
THROUGHPUT = Axes(*AGAINST_RANKS, "images_per_s", "images/s", "Throughput", log=True, ideal=True)
EFFICIENCY = Axes(*AGAINST_RANKS, "scaling_efficiency_pct", "% of ideal", "Scaling efficiency", ideal=True)


def lines(points: pd.DataFrame, encoding: Encoding, axes: Axes) -> Figure:
    """A line for each combination of the levels that the chart shows.

    ``points``: the columns of ``axes``; ``facts``, the level of each factor, and, if known, ``sizes``, what
    else differs along a line, which the filters look at; and ``label`` of the configuration.
    """
    facts = points["facts"].tolist()
    colours, dashes = levels(facts, encoding.colour), levels(facts, encoding.dash)
    traces: list[dict[str, Any]] = []
    for (hue, colour), (dash, dashed) in itertools.product(enumerate(colours), enumerate(dashes)):
        shown = {encoding.colour: colour, encoding.dash: dashed}  # None of the factor "": no channel has it
        here = points[[all(one.get(factor) == level for factor, level in shown.items()) for one in facts]]
        if len(here):
            label = escaped(", ".join(called(shown, [factor]) for factor in encoding.shown))
            ink, symbol = PALETTE[hue % len(PALETTE)], SYMBOLS[hue % len(SYMBOLS)]
            look = {
                "marker": {"symbol": symbol, "size": 8, "color": ink},
                "line": {"color": ink, "width": 2, "dash": DASHES[dash]},
                "legendgroup": label, "showlegend": bool(label),
            }  # fmt: skip
            traces += _line(here, axes, label or escaped(axes.title), look)
    ideal = _ideal(traces, axes)
    whole = layout(axes.title)
    highest = max([points[axes.y].max(), *(y for trace in ideal for y in trace["y"])])
    of_y: dict[str, Any] = {"title": beside_ticks(axes.unit), "rangemode": "tozero"}
    if axes.log and points[axes.x].nunique() > 1:
        of_y |= LOG
    elif axes.ideal and not axes.log:
        # Ticks at 0, 50 and 100 %. Error bars may not make the points a line at zero.
        reach = points.get(f"{axes.y}_high", pd.Series(dtype=float)).astype(float)
        most = max(highest, reach[np.isfinite(reach)].max() if len(reach) else 0.0)
        of_y |= {"tick0": 0, "dtick": 50, "range": [0, 1.1 * min(most, 2 * highest)]}
        whole["meta"] = {"cut": bool(most > 2 * highest)}
    whole |= {"xaxis": axis_of_counts(points[axes.x], axes.x_title), "yaxis": of_y}
    return {"data": [*traces, *ideal], "layout": whole}


def _line(points: pd.DataFrame, axes: Axes, name: str, look: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The traces of a line: of one configuration with its intervals, of several their mean over its band."""
    members = [_member(of, axes) for _, of in points.sort_values(axes.x).groupby("label", sort=False)]
    hover = f"{name}<br>%{{x}} {axes.x_title}: %{{y:.4g}} {axes.unit}<extra></extra>"
    trace: dict[str, Any] = {
        "name": look["legendgroup"] or name, "mode": "lines+markers", "hovertemplate": hover, **look,
    }  # fmt: skip
    if len(members) == 1:
        (member,) = members
        trace["meta"] = member.pop("facts")
        return [trace | member]
    x, mean, low, high = spread(members)
    colour = look["line"]["color"]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    band = {
        "name": trace["name"], "mode": "none", "fill": "toself",
        "fillcolor": f"rgba({red}, {green}, {blue}, 0.15)",
        "hoverinfo": "skip", "showlegend": False, "x": [*x, *reversed(x)], "y": [*high, *reversed(low)],
        "meta": {"members": members, "band": True}, "legendgroup": look["legendgroup"],
    }  # fmt: skip
    return [band, trace | {"x": x, "y": mean, "meta": {"members": members}}]


def _member(points: pd.DataFrame, axes: Axes) -> dict[str, Any]:
    """A configuration's points, with its intervals as far as they are known."""
    x, y = plain_numbers(points[axes.x]), plain_numbers(points[axes.y])
    member = {"facts": points["facts"].iloc[0], "x": x, "y": y}
    if "sizes" in points and any(points["sizes"]):
        member["customdata"] = points["sizes"].tolist()
    low = points.get(f"{axes.y}_low")
    if low is None or not np.isfinite(low.astype(float)).any():
        return member
    return {**member, "error_y": error_bars(points[axes.y], low, points[f"{axes.y}_high"])}


def spread(members: Sequence[Mapping[str, Any]]) -> tuple[list, list, list, list]:
    """(x, mean, lowest, highest) of the values of several configurations, where each has one."""
    pairs = [pair for member in members for pair in zip(member["x"], member["y"], strict=True)]
    values = pd.DataFrame(pairs, columns=["x", "y"]).dropna().astype({"y": float}).groupby("x")["y"]
    of_x = values.agg(["mean", "min", "max"])
    return of_x.index.tolist(), *(of_x[name].tolist() for name in of_x)  # type: ignore[return-value]


def _ideal(traces: Sequence[dict[str, Any]], axes: Axes) -> list[dict[str, Any]]:
    """What ideal scaling from the first point of each line would give."""
    look: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    if axes.ideal and not axes.log:
        xs = sorted({x for trace in traces for x in trace["x"]})
        look |= {"name": "ideal", "line": {"dash": "dot", "color": GREY, "width": 1.5}}
        return [{"x": xs, "y": [100] * len(xs), **look}]
    drawn = [
        trace for trace in traces
        if len(trace["x"]) > 1 and not {"band", "members"} & set(trace["meta"]) and trace["y"][0] is not None
    ]  # fmt: skip
    if not axes.ideal or len(drawn) > 6:
        return []
    return [
        {
            "x": trace["x"], "y": [trace["y"][0] * x / trace["x"][0] for x in trace["x"]],
            "name": f"{trace['name']}, ideal",
            "line": {"dash": "dot", "color": trace["line"]["color"], "width": 1.5},
            **look, **{key: trace[key] for key in ("meta", "legendgroup")},
        }
        for trace in drawn
    ]  # fmt: skip
