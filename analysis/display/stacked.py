"""How do the parts of many configurations become bars? By number of ranks, in panels of the factors shown.

A bar of several configurations is their mean, with the least and the greatest of their totals as error bars.
It keeps them in ``meta`` as ``members``, as lines do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display.canvas import Figure, beside_ticks, error_bars, is_drawn, layout, plain_numbers
from analysis.display.colours import GREY
from analysis.display.encoding import Encoding, levels
from analysis.display.lines import Name, spread
from analysis.display.panels import Grid, Panel

_MARK = GREY  # of the totals


def stacked(
    points: pd.DataFrame, encoding: Encoding, colours: Mapping[str, str], title: str, of: str, name: Name
) -> Figure:
    """What each part takes, by number of ranks; parts below 0 go down.

    Args:
        points: columns ``ranks``; the keys of ``colours``, each a part (absent ones are left out); and
            ``facts``, the level of each factor, which the filters look at.
        of: what the axis says.
        name: of a level of a factor.
    """
    facts = points["facts"].tolist()
    grid = Grid(levels(facts, encoding.columns), levels(facts, encoding.rows))
    shown: set[str] = set()
    traces: list[dict[str, Any]] = []
    totals: list[dict[str, Any]] = []
    for panel in grid.panels():
        here = points[[_in_panel(one, encoding, panel) for one in facts]]
        parts = [part for part in colours if part in here and is_drawn(here[part])]
        # What one configuration has as a whole, another has in its parts: all count in each mean, so that
        # the means of the parts add up to that of the totals.
        here = here.dropna(subset=parts, how="all").fillna(dict.fromkeys(parts, 0.0))
        for part in parts:
            traces.append(_bars(here, part, colours[part], of) | panel.axes)
            traces[-1]["showlegend"] = part not in shown
            shown.add(part)
        if here["ranks"].duplicated().any():
            totals.append(_totals(here, parts, of) | panel.axes | {"showlegend": not totals})
    sizes = plain_numbers(sorted(points["ranks"].unique()))
    axis = {
        "title": beside_ticks("ranks"),
        "type": "category",
        "categoryorder": "array",
        "categoryarray": sizes,
    }
    whole = grid.layout(layout(title), axis, of, encoding, name)
    return {"data": [*traces, *totals], "layout": {**whole, "barmode": "relative"}}


def _in_panel(facts: Mapping[str, Any], encoding: Encoding, panel: Panel) -> bool:
    wanted = {encoding.columns: panel.column, encoding.rows: panel.row}
    return all(facts.get(factor) == level for factor, level in wanted.items() if factor)


def _bars(points: pd.DataFrame, part: str, colour: str, of: str) -> dict[str, Any]:
    """A part's bars: for each number of ranks the mean of the configurations."""
    members = _members(points, points[part])
    x, mean, _, _ = spread(members)
    words = part.replace("_", " ")
    return {
        "type": "bar",
        "name": words,
        "x": x,
        "y": mean,
        "meta": {"members": members},
        "marker": {"color": colour},
        "hovertemplate": f"%{{x}} ranks<br>{words}: %{{y:.2f}} {of}<extra></extra>",
    }


def _totals(points: pd.DataFrame, parts: Sequence[str], of: str) -> dict[str, Any]:
    """The mean of the configurations' totals, from the least to the greatest of them."""
    members = _members(points, points[list(parts)].sum(axis=1))
    x, mean, lowest, highest = spread(members)
    return {
        "mode": "markers",
        "name": "total, lowest to highest",
        "x": x,
        "y": mean,
        "error_y": {**error_bars(mean, lowest, highest), "color": _MARK},
        "meta": {"members": members},
        "marker": {"symbol": "diamond", "size": 7, "color": _MARK},
        "hovertemplate": f"%{{x}} ranks<br>total: %{{y:.2f}} {of}<extra></extra>",
    }


def _members(points: pd.DataFrame, values: pd.Series) -> list[dict[str, Any]]:
    """Each configuration's value, with what the filters look at."""
    return [
        {"facts": facts, "x": [ranks], "y": [value]}
        for facts, ranks, value in zip(
            points["facts"], plain_numbers(points["ranks"]), plain_numbers(values), strict=True
        )
    ]
