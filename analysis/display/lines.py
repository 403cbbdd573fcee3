"""How do the points of a sweep become lines? Each line is a level of the factors that the chart shows.

A line of several configurations is their mean, with a band from the lowest to the highest. It keeps them in
``meta`` as ``members``, from which the page forms it again when a filter leaves out some of them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.canvas import (
    PALETTE,
    SYMBOLS,
    Figure,
    axis_end,
    axis_of_counts,
    error_bars,
    escaped,
    layout,
    plain_numbers,
)
from analysis.display.colours import GREY
from analysis.display.encoding import Encoding, levels
from analysis.display.panels import Grid

DASHES = ("solid", "dash", "dot")
_KEY_COLOUR = GREY  # of a legend's entry that shows a dash
_MOST_LABELS = 4  # lines that are named at their end instead of in a legend
_LONGEST_LABEL = 22  # characters
_LETTER = 7  # pixels
_LEAST_APART = 0.06  # of the chart's height, between labels
_MOST_IDEAL = 6  # lines that have an ideal line each

Name = Callable[[str, Any], str]
"""What a level of a factor is called."""


@dataclass(frozen=True)
class Axes:
    """What is drawn against what.

    Attributes:
        x, x_title: a column of counts, and what is counted.
        y, unit: a column (with ``_low``, ``_high``, where an interval is known), and its unit.
        title: the chart's.
    """

    x: str
    x_title: str
    y: str
    unit: str
    title: str


AGAINST_RANKS = ("world_size", "ranks")
THROUGHPUT = Axes(*AGAINST_RANKS, "images_per_s", "images/s", "Throughput")
EFFICIENCY = Axes(*AGAINST_RANKS, "scaling_efficiency_pct", "% of ideal", "Scaling efficiency")


def lines(points: pd.DataFrame, encoding: Encoding, axes: Axes, name: Name) -> Figure:
    """A line for each combination of the levels that the chart shows.

    Args:
        points: the columns of ``axes``; ``facts``, the level of each factor, and ``sizes``, what else differs
            along a line, which the filters look at; and ``label``, which tells configurations apart.
        name: of a level of a factor.
    """
    facts = points["facts"].tolist()
    grid = Grid(levels(facts, encoding.columns), levels(facts, encoding.rows))
    colours, dashes = levels(facts, encoding.colour), levels(facts, encoding.dash)
    looks = list(itertools.product(enumerate(colours), enumerate(dashes)))
    traces: list[dict[str, Any]] = []
    for panel in grid.panels():
        for (hue, colour), (dash, dashed) in looks:
            wanted = {
                encoding.colour: colour,
                encoding.dash: dashed,
                encoding.columns: panel.column,
                encoding.rows: panel.row,
            }
            wanted.pop("", None)
            here = points[[all(one.get(key) == level for key, level in wanted.items()) for one in facts]]
            if here.empty:
                continue
            words = [name(factor, wanted[factor]) for factor in encoding.shown]
            look = {
                "marker": {"symbol": SYMBOLS[hue], "size": 8, "color": PALETTE[hue]},
                "line": {"color": PALETTE[hue], "width": 2, "dash": DASHES[dash]},
                **panel.axes,
            }
            traces += _line(here, axes, escaped(", ".join(words) or axes.title), look)
    _name_lines(traces, encoding, (colours, dashes), name, grid)
    whole = grid.layout(
        layout(axes.title), axis_of_counts(points[axes.x], axes.x_title), axes.unit, encoding, name
    )
    labels = [len(trace["name"]) for trace in traces if "text" in trace]
    whole["margin"] = {**whole["margin"], "r": whole["margin"]["r"] + _LETTER * max(labels, default=0)}
    ideal = _ideal(traces, axes, grid)
    if top := _cut_at(points, axes, ideal):
        for axis in (whole[name] for name in whole if name.startswith("yaxis")):
            axis["range"] = [0, top]
    return {"data": [*traces, *ideal], "layout": whole}


def has_open_intervals(points: Iterable[Mapping[str, Any]], axes: Axes) -> bool:
    """Whether a point's interval has no end above, so that it has no error bar."""
    return any(point.get(f"{axes.y}_high") == math.inf for point in points)


def _cut_at(points: pd.DataFrame, axes: Axes, ideal: Sequence[Mapping[str, Any]]) -> float | None:
    """Where the vertical axis ends if error bars would make the points a line at zero; None: they do not."""
    if f"{axes.y}_high" not in points:
        return None
    highest = max([points[axes.y].max(), *(y for trace in ideal for y in trace["y"])])
    return axis_end(highest, points[f"{axes.y}_high"])


def _line(points: pd.DataFrame, axes: Axes, name: str, look: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line; of several configurations their mean, below it the band of their spread.

    Args:
        name: as plotly reads it (:func:`escaped`).
    """
    members = [_member(of, axes) for _, of in points.sort_values(axes.x).groupby("label", sort=False)]
    said = f"{name}<br>%{{x}} {axes.x_title}: %{{y:.4g}} {axes.unit}<extra></extra>"
    trace: dict[str, Any] = {
        "name": name, "mode": "lines+markers", "showlegend": False, "hovertemplate": said, **look,
    }  # fmt: skip
    if len(members) == 1:
        (member,) = members
        own = {name: value for name, value in member.items() if name != "facts"}
        return [trace | own | {"meta": member["facts"]}]
    x, mean, low, high = spread(members)
    band = {
        "name": name, "mode": "none", "fill": "toself", "fillcolor": _pale(look["line"]["color"]),
        "hoverinfo": "skip", "showlegend": False, "x": [*x, *reversed(x)], "y": [*high, *reversed(low)],
        "meta": {"members": members, "band": True}, **{key: look[key] for key in ("xaxis", "yaxis")},
    }  # fmt: skip
    return [band, trace | {"x": x, "y": mean, "meta": {"members": members}}]


def _pale(colour: str) -> str:
    """A colour ``#RRGGBB`` through which lines are seen."""
    return f"rgba({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))}, 0.15)"


def _member(points: pd.DataFrame, axes: Axes) -> dict[str, Any]:
    """A configuration's points, with its intervals as far as they are known."""
    x, y = plain_numbers(points[axes.x]), plain_numbers(points[axes.y])
    member = {"facts": points["facts"].iloc[0], "x": x, "y": y}
    if any(points["sizes"]):
        member["customdata"] = points["sizes"].tolist()
    low = points.get(f"{axes.y}_low")
    if low is None or not np.isfinite(low.astype(float)).any():
        return member
    return {**member, "error_y": error_bars(points[axes.y], low, points[f"{axes.y}_high"])}


def spread(members: Sequence[Mapping[str, Any]]) -> tuple[list, list, list, list]:
    """(x, mean, lowest, highest) of the values of several configurations, where each has one."""
    at: dict[float, list[float]] = {}
    for member in members:
        for x, y in zip(member["x"], member["y"], strict=True):
            if y is not None:
                at.setdefault(x, []).append(y)
    ordered = sorted(at)
    values = [at[x] for x in ordered]
    means = [sum(one) / len(one) for one in values]
    return ordered, means, [min(one) for one in values], [max(one) for one in values]


# --- which line is which --------------------------------------------------------------------------------


def _name_lines(
    traces: list[dict[str, Any]],
    encoding: Encoding,
    looks: tuple[Sequence[Any], Sequence[Any]],
    name: Name,
    grid: Grid,
) -> None:
    """Name the lines: at their ends, where few and apart; else in a legend of each factor's levels."""
    drawn = [trace for trace in traces if not trace["meta"].get("band")]
    if not encoding.colour:
        return
    if not encoding.dash and grid.single and named_at_ends(drawn):
        for trace in drawn:
            trace |= {"mode": "lines+markers+text", "textposition": "middle right", "cliponaxis": False}
            trace |= {"text": [*[""] * (len(trace["x"]) - 1), trace["name"]]}
        return
    if not encoding.dash and grid.single:
        for trace in drawn:
            trace["showlegend"] = True
        return
    colours, dashes = looks
    for hue, level in enumerate(colours):
        look: dict[str, Any] = {"mode": "lines+markers", "line": {"color": PALETTE[hue], "width": 2}}
        look["marker"] = {"symbol": SYMBOLS[hue], "size": 8, "color": PALETTE[hue]}
        traces.append(_entry(name, encoding.colour, level, "legend", look))
    for dash, level in enumerate(dashes if encoding.dash else []):
        look = {"mode": "lines", "line": {"color": _KEY_COLOUR, "width": 2, "dash": DASHES[dash]}}
        traces.append(_entry(name, encoding.dash, level, "legend2", look))


def named_at_ends(traces: Sequence[Mapping[str, Any]]) -> bool:
    """Whether lines are few, with short names, and end so far apart that names stand there."""
    if len(traces) > _MOST_LABELS or any(len(trace["name"]) > _LONGEST_LABEL for trace in traces):
        return False
    highest = max((y for trace in traces for y in trace["y"] if y is not None), default=0.0)
    ends = sorted(trace["y"][-1] for trace in traces if trace["y"] and trace["y"][-1] is not None)
    gaps = [b - a for a, b in itertools.pairwise(ends)]
    return len(ends) == len(traces) and all(gap >= _LEAST_APART * highest for gap in gaps)


def _entry(name: Name, factor: str, level: Any, legend: str, look: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a legend, which no point belongs to."""
    place = {"x": [None], "y": [None], "legend": legend, "hoverinfo": "skip"}
    return {**place, "name": escaped(name(factor, level)), "meta": {factor: level}, **look}


# --- axes, and what would be ideal ----------------------------------------------------------------------


def _ideal(traces: Sequence[dict[str, Any]], axes: Axes, grid: Grid) -> list[dict[str, Any]]:
    """What ideal scaling from the first point of each line would give."""
    if axes is EFFICIENCY:
        xs = sorted({x for trace in traces for x in trace["x"] if x is not None})
        look: dict[str, Any] = {"line": {"dash": "dash", "color": _KEY_COLOUR, "width": 1.5}}
        look |= {"mode": "lines", "name": "ideal", "hoverinfo": "skip", "showlegend": False}
        return [{"x": xs, "y": [100] * len(xs), **look, **panel.axes} for panel in grid.panels()]
    drawn = [
        trace for trace in traces if len(trace["x"]) > 1 and not {"band", "members"} & set(trace["meta"])
    ]
    if axes is not THROUGHPUT or len(drawn) > _MOST_IDEAL * len(grid.panels()):
        return []
    return [
        {
            "x": trace["x"],
            "y": [trace["y"][0] * x / trace["x"][0] for x in trace["x"]],
            "name": f"{trace['name']}, ideal", "mode": "lines", "showlegend": False, "hoverinfo": "skip",
            "line": {"dash": "dot", "color": trace["line"]["color"], "width": 1},
            "xaxis": trace["xaxis"], "yaxis": trace["yaxis"], "meta": trace["meta"],
        }
        for trace in drawn
        if trace["y"][0] is not None
    ]  # fmt: skip
