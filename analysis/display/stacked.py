"""How do the parts of many configurations become bars? By number of ranks, in panels of the factors shown.

A bar of several configurations is their mean. It keeps them in ``meta`` as ``members``, as lines do.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.display.encoding import Encoding, levels
from analysis.display.lines import Name, spread
from analysis.display.panels import Grid, Panel
from analysis.display.plots import Figure, beside_ticks, layout, plain_numbers


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
    traces = []
    for panel in grid.panels():
        here = points[[_in_panel(one, encoding, panel) for one in facts]]
        for part, colour in colours.items():
            if part in here and here[part].notna().any():
                traces.append(_bars(here.dropna(subset=[part]), part, colour, of) | panel.axes)
                traces[-1]["showlegend"] = part not in shown
                shown.add(part)
    sizes = plain_numbers(sorted(points["ranks"].unique()))
    axis = {
        "title": beside_ticks("ranks"),
        "type": "category",
        "categoryorder": "array",
        "categoryarray": sizes,
    }
    whole = grid.layout(layout(title), axis, of, encoding, name)
    return {"data": traces, "layout": {**whole, "barmode": "relative"}}


def _in_panel(facts: Mapping[str, Any], encoding: Encoding, panel: Panel) -> bool:
    wanted = {encoding.columns: panel.column, encoding.rows: panel.row}
    return all(facts.get(factor) == level for factor, level in wanted.items() if factor)


def _bars(points: pd.DataFrame, part: str, colour: str, of: str) -> dict[str, Any]:
    """A part's bars: for each number of ranks the mean of the configurations."""
    members = [
        {"facts": facts, "x": [ranks], "y": [value]}
        for facts, ranks, value in zip(
            points["facts"], plain_numbers(points["ranks"]), plain_numbers(points[part]), strict=True
        )
    ]
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
