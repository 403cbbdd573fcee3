"""Draw the points of a sweep as lines or stacked bars, in panels, by the factors that matter most.

Factors are encoded in the order of their effect: the largest as colour, the next as dash, then as columns and
rows of panels. Factors beyond these are averaged: a line or bar of several configurations is their mean, with
a band or error bars from the lowest to the highest. The configurations are kept in ``meta`` as ``members``,
so that the page can recompute the mean when a filter removes some of them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from jobs.run_fields import FACTOR

CUT = "Error bars are cut at the upper edge."
MOST_COLOURS = 8  # as many as readers tell apart, the colour-blind and in print too
DASHES = ("solid", "dash", "dashdot")  # dotted is ideal scaling
MOST_PANELS = 4  # beside each other, or below each other
_MOST_IDEAL = 6  # lines that have an ideal line each
_GAP, _GAP_BELOW = 0.03, 0.06  # between panels, of the chart's width and height
_ROW_TITLE = 20  # pixels
_ROW = 220  # pixels that each further row of panels adds

Facts = Mapping[str, Any]
"""The level of each factor."""
Name = Callable[[str, Any], str]
"""What a level of a factor is called."""


# --- channels -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoding:
    """The factor that each channel of a chart shows; empty: none."""

    colour: str = ""
    dash: str = ""
    columns: str = ""
    rows: str = ""
    averaged: tuple[str, ...] = ()  # factors that vary and have no channel: lines are means over their levels

    @property
    def shown(self) -> list[str]:
        """The factors that have a channel, the best channel first."""
        return [name for name in (self.colour, self.dash, self.columns, self.rows) if name]


def encode(points: Sequence[Facts], factors: Iterable[str], are_bars: bool = False) -> Encoding:
    """The channels of the factors that vary among points.

    Args:
        factors: the most important first.
        are_bars: the colours of stacked bars are their parts.
    """
    free = {} if are_bars else {"colour": MOST_COLOURS, "dash": len(DASHES)}
    free |= {"columns": MOST_PANELS, "rows": MOST_PANELS}
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


def caption(encoding: Encoding, spread: str = "band") -> str:
    """``Colour: loader. Line: grad. Mean of batch (band: lowest and highest).``"""
    channels = {"Colour": encoding.colour, "Line": encoding.dash, "Columns": encoding.columns,
                "Rows": encoding.rows}  # fmt: skip
    texts = [f"{name}: {factor.removeprefix(FACTOR)}." for name, factor in channels.items() if factor]
    if encoding.averaged:
        averaged = ", ".join(factor.removeprefix(FACTOR) for factor in encoding.averaged)
        texts.append(f"Mean over {averaged} ({spread}: lowest and highest).")
    return " ".join(texts)


# --- panels ---------------------------------------------------------------------------------------------


def _panels(facts: Sequence[Facts], encoding: Encoding) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Of each panel, row by row, the levels that it shows, and the axes that its traces name."""
    places = itertools.product(levels(facts, encoding.rows), levels(facts, encoding.columns))
    for number, (row, column) in enumerate(places, 1):
        end = "" if number == 1 else str(number)
        yield {encoding.columns: column, encoding.rows: row}, {"xaxis": f"x{end}", "yaxis": f"y{end}"}


def _in(facts: Sequence[Facts], shown: Facts) -> list[bool]:
    """Which points are on these levels; those of the factor "", of a channel that shows none, are None."""
    return [all(one.get(factor) == level for factor, level in shown.items()) for one in facts]


def _layout(
    title: str, xaxis: Mapping[str, Any], unit: str, facts: Sequence[Facts], encoding: Encoding, name: Name
) -> dict[str, Any]:
    """The axes of all panels, and above and beside them what they show.

    Args:
        xaxis: of each panel.
        unit: of the axis on the left.
    """
    from plotly.subplots import make_subplots

    columns, rows = levels(facts, encoding.columns), levels(facts, encoding.rows)
    above, beside = (
        [plots.escaped(name(factor, level)) for level in some] if factor else None
        for factor, some in ((encoding.columns, columns), (encoding.rows, rows))
    )
    grid = make_subplots(
        len(rows), len(columns), shared_xaxes="all", shared_yaxes="all", column_titles=above,
        row_titles=beside, horizontal_spacing=_GAP, vertical_spacing=_GAP_BELOW,
    ).layout.to_plotly_json()  # fmt: skip
    whole = plots.layout(title)
    whole["height"] += _ROW * (len(rows) - 1)
    whole["margin"] = {**whole["margin"], "r": whole["margin"]["r"] + _ROW_TITLE * bool(encoding.rows)}
    whole["annotations"] = [{**one, "font": {"size": 12}} for one in grid.get("annotations", ())]
    yaxis = {"title": plots.beside_ticks(unit), "rangemode": "tozero"}
    for key, axis in grid.items():
        if "axis" in key:
            common = dict(xaxis if key.startswith("x") else yaxis)
            # Panels inside have no ticks.
            whole[key] = {**common, **axis} | ({} if axis.get("showticklabels", True) else {"title": None})
    return whole


# --- lines ----------------------------------------------------------------------------------------------


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


def lines(points: pd.DataFrame, encoding: Encoding, axes: Axes, name: Name) -> plots.Figure:
    """A line for each combination of the levels that the chart shows.

    Args:
        points: the columns of ``axes``; ``facts``, the level of each factor, and ``sizes``, what else differs
            along a line, which the filters look at; and ``label``, which tells configurations apart.
        name: of a level of a factor.
    """
    facts = points["facts"].tolist()
    colours, dashes = levels(facts, encoding.colour), levels(facts, encoding.dash)
    panels = list(_panels(facts, encoding))
    traces: list[dict[str, Any]] = []
    for panel, on in panels:
        for (hue, colour), (dash, dashed) in itertools.product(enumerate(colours), enumerate(dashes)):
            shown = {encoding.colour: colour, encoding.dash: dashed} | panel
            here = points[_in(facts, shown)]
            if len(here):
                words = [name(factor, shown[factor]) for factor in encoding.shown]
                # In the legend, which all panels share, what these show is not named.
                label = plots.escaped(", ".join(words[: bool(encoding.colour) + bool(encoding.dash)]))
                is_new = all(trace["legendgroup"] != label for trace in traces)
                look = {**_look(hue), "legendgroup": label, "showlegend": bool(label) and is_new, **on}
                look["line"] = {**look["line"], "dash": DASHES[dash]}
                traces += _line(here, axes, plots.escaped(", ".join(words) or axes.title), look)
    ideal = _ideal(traces, axes, [on for _, on in panels])
    counts = plots.axis_of_counts(points[axes.x], axes.x_title)
    whole = _layout(axes.title, counts, axes.unit, facts, encoding, name)
    highest = max([points[axes.y].max(), *(y for trace in ideal for y in trace["y"])])
    of_y: dict[str, Any] = {}
    if axes.log and points[axes.x].nunique() > 1:
        of_y = plots.LOG
    elif axes.ideal and not axes.log:
        # Ticks at 0, 50 and 100 %. Error bars may not make the points a line at zero.
        reach = points.get(f"{axes.y}_high", pd.Series(dtype=float)).astype(float)
        most = max(highest, reach[np.isfinite(reach)].max() if len(reach) else 0.0)
        of_y = {"tick0": 0, "dtick": 50, "range": [0, 1.1 * min(most, 2 * highest)]}
        whole["meta"] = {"cut": bool(most > 2 * highest)}
    for key in (one for one in whole if one.startswith("yaxis")):
        whole[key] |= of_y
    return {"data": [*traces, *ideal], "layout": whole}


def _look(hue: int) -> dict[str, Any]:
    colour = plots.PALETTE[hue % len(plots.PALETTE)]
    marker = {"symbol": plots.SYMBOLS[hue % len(plots.SYMBOLS)], "size": 8, "color": colour}
    return {"marker": marker, "line": {"color": colour, "width": 2}}


def _line(points: pd.DataFrame, axes: Axes, name: str, look: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The traces of a line: of one configuration with its intervals, of several their mean over its band.

    Args:
        name: below the pointer, as plotly reads it (:func:`escaped`).
    """
    members = [_member(of, axes) for _, of in points.sort_values(axes.x).groupby("label", sort=False)]
    hover = f"{name}<br>%{{x}} {axes.x_title}: %{{y:.4g}} {axes.unit}<extra></extra>"
    trace: dict[str, Any] = {
        "name": look["legendgroup"] or name, "mode": "lines+markers", "hovertemplate": hover, **look,
    }  # fmt: skip
    if len(members) == 1:
        (member,) = members
        own = {name: value for name, value in member.items() if name != "facts"}
        return [trace | own | {"meta": member["facts"]}]
    x, mean, low, high = spread(members)
    colour = look["line"]["color"]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    band = {
        "name": trace["name"], "mode": "none", "fill": "toself",
        "fillcolor": f"rgba({red}, {green}, {blue}, 0.15)",
        "hoverinfo": "skip", "showlegend": False, "x": [*x, *reversed(x)], "y": [*high, *reversed(low)],
        "meta": {"members": members, "band": True},
        **{key: look[key] for key in ("xaxis", "yaxis", "legendgroup")},
    }  # fmt: skip
    return [band, trace | {"x": x, "y": mean, "meta": {"members": members}}]


def _member(points: pd.DataFrame, axes: Axes) -> dict[str, Any]:
    """A configuration's points, with its intervals as far as they are known."""
    x, y = plots.plain_numbers(points[axes.x]), plots.plain_numbers(points[axes.y])
    member = {"facts": points["facts"].iloc[0], "x": x, "y": y}
    if any(points["sizes"]):
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


def _ideal(
    traces: Sequence[dict[str, Any]], axes: Axes, panels: Sequence[dict[str, str]]
) -> list[dict[str, Any]]:
    """What ideal scaling from the first point of each line would give."""
    look: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    if axes.ideal and not axes.log:
        xs = sorted({x for trace in traces for x in trace["x"]})
        look |= {"name": "ideal", "line": {"dash": "dot", "color": plots.GREY, "width": 1.5}}
        return [{"x": xs, "y": [100] * len(xs), **look, **on} for on in panels]
    drawn = [
        trace for trace in traces
        if len(trace["x"]) > 1 and not {"band", "members"} & set(trace["meta"]) and trace["y"][0] is not None
    ]  # fmt: skip
    if not axes.ideal or len(drawn) > _MOST_IDEAL * len(panels):
        return []
    return [
        {
            "x": trace["x"],
            "y": [trace["y"][0] * x / trace["x"][0] for x in trace["x"]],
            "name": f"{trace['name']}, ideal",
            "line": {"dash": "dot", "color": trace["line"]["color"], "width": 1.5},
            **look, **{key: trace[key] for key in ("xaxis", "yaxis", "meta", "legendgroup")},
        }
        for trace in drawn
    ]  # fmt: skip


# --- stacked bars ---------------------------------------------------------------------------------------


def stacked(
    points: pd.DataFrame,
    encoding: Encoding,
    colours: Mapping[str, str],
    title: str,
    of: str,
    name: Name,
    names: Mapping[str, str] | None = None,
) -> plots.Figure:
    """What each part takes, by number of ranks; parts below 0 go down.

    Args:
        points: columns ``ranks``; the keys of ``colours``, each a part (absent ones are left out); and
            ``facts``, the level of each factor, which the filters look at.
        of: what the axis says.
        name: of a level of a factor.
        names: of parts, if they are not called so.
    """
    facts = points["facts"].tolist()
    traces: list[dict[str, Any]] = []
    totals: list[dict[str, Any]] = []
    for shown, on in _panels(facts, encoding):
        here = points[_in(facts, shown)]
        parts = [part for part in colours if part in here and plots.is_drawn(here[part])]
        # What one configuration has as a whole, another has in its parts: all count in each mean, so that
        # the means of the parts add up to that of the totals.
        here = here.dropna(subset=parts, how="all").fillna(dict.fromkeys(parts, 0.0))
        for part in parts:
            words = (names or {}).get(part, part.replace("_", " "))
            trace, _ = _mean(here, here[part], words, of)
            new = all(one["name"] != words for one in traces)
            bar: dict[str, Any] = {
                "type": "bar",
                "marker": plots.outlined(colours[part]),
                "showlegend": new,
                "legendgroup": words,
            }
            traces.append(trace | bar | on)
        if here["ranks"].duplicated().any():
            trace, (lowest, highest) = _mean(here, here[parts].sum(axis=1), "total", of)
            ends = {**plots.error_bars(trace["y"], lowest, highest), "color": plots.GREY}
            look: dict[str, Any] = {
                "mode": "markers",
                "marker": {"symbol": "diamond", "size": 7, "color": plots.GREY},
            }
            look |= {"name": "total, lowest to highest", "error_y": ends, "showlegend": not totals}
            totals.append(trace | look | on)
    order = {"categoryorder": "array", "categoryarray": plots.plain_numbers(sorted(points["ranks"].unique()))}
    axis = {"title": plots.beside_ticks("ranks"), "type": "category", **order}
    whole = _layout(title, axis, of, facts, encoding, name)
    return {"data": [*traces, *totals], "layout": {**whole, "barmode": "relative"}}


def _mean(points: pd.DataFrame, values: pd.Series, name: str, of: str) -> tuple[dict[str, Any], tuple]:
    """For each number of ranks the mean of the configurations; and the lowest and highest of them."""
    ranks = plots.plain_numbers(points["ranks"])
    members = [
        {"facts": facts, "x": [count], "y": [value]}
        for facts, count, value in zip(points["facts"], ranks, plots.plain_numbers(values), strict=True)
    ]
    x, mean, lowest, highest = spread(members)
    hover = f"%{{x}} ranks<br>{name}: %{{y:.2f}} {of}<extra></extra>"
    trace = {"name": name, "x": x, "y": mean, "meta": {"members": members}, "hovertemplate": hover}
    return trace, (lowest, highest)
