"""Draw the points of a sweep as lines, by the factors that matter most.

The factor of the largest effect is the colour, the next the dash. Others are averaged: a line of several
configurations is their mean, with a band from the lowest to the highest. The configurations are kept in
``meta`` as ``members``, so that the page can recompute the mean when a filter removes some of them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import called
from jobs.run_fields import FACTOR

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


def lines(points: pd.DataFrame, encoding: Encoding, axes: Axes) -> plots.Figure:
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
            label = plots.escaped(", ".join(called(shown, [factor]) for factor in encoding.shown))
            ink, symbol = plots.PALETTE[hue % len(plots.PALETTE)], plots.SYMBOLS[hue % len(plots.SYMBOLS)]
            look = {
                "marker": {"symbol": symbol, "size": 8, "color": ink},
                "line": {"color": ink, "width": 2, "dash": DASHES[dash]},
                "legendgroup": label, "showlegend": bool(label),
            }  # fmt: skip
            traces += _line(here, axes, label or plots.escaped(axes.title), look)
    ideal = _ideal(traces, axes)
    whole = plots.layout(axes.title)
    highest = max([points[axes.y].max(), *(y for trace in ideal for y in trace["y"])])
    of_y: dict[str, Any] = {"title": plots.beside_ticks(axes.unit), "rangemode": "tozero"}
    if axes.log and points[axes.x].nunique() > 1:
        of_y |= plots.LOG
    elif axes.ideal and not axes.log:
        # Ticks at 0, 50 and 100 %. Error bars may not make the points a line at zero.
        reach = points.get(f"{axes.y}_high", pd.Series(dtype=float)).astype(float)
        most = max(highest, reach[np.isfinite(reach)].max() if len(reach) else 0.0)
        of_y |= {"tick0": 0, "dtick": 50, "range": [0, 1.1 * min(most, 2 * highest)]}
        whole["meta"] = {"cut": bool(most > 2 * highest)}
    whole |= {"xaxis": plots.axis_of_counts(points[axes.x], axes.x_title), "yaxis": of_y}
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
    x, y = plots.plain_numbers(points[axes.x]), plots.plain_numbers(points[axes.y])
    member = {"facts": points["facts"].iloc[0], "x": x, "y": y}
    if "sizes" in points and any(points["sizes"]):
        member["customdata"] = points["sizes"].tolist()
    low = points.get(f"{axes.y}_low")
    if low is None or not np.isfinite(low.astype(float)).any():
        return member
    return {**member, "error_y": plots.error_bars(points[axes.y], low, points[f"{axes.y}_high"])}


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
        look |= {"name": "ideal", "line": {"dash": "dot", "color": plots.GREY, "width": 1.5}}
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
