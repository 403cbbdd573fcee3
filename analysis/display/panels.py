"""How do the panels of a chart lie? As a grid, whose rows and columns share their axes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.display.canvas import beside_ticks, escaped
from analysis.display.encoding import Encoding

_GAP = 0.03  # between panels, of the chart's width
_GAP_BELOW = 0.06  # of its height
_ROW_TITLE = 20  # pixels
_ROW = 220  # pixels that each further row of panels adds


@dataclass(frozen=True)
class Panel:
    """A panel of a chart: its levels, and which axes are its.

    Attributes:
        number: of its axes, from 1.
        place: (column, row), from the top left.
    """

    column: Any
    row: Any
    number: int
    place: tuple[int, int]

    @property
    def axes(self) -> dict[str, str]:
        """What a trace of this panel says."""
        end = "" if self.number == 1 else str(self.number)
        return {"xaxis": f"x{end}", "yaxis": f"y{end}"}


@dataclass(frozen=True)
class Grid:
    """The panels of a chart: a column for each level of one factor, a row for each of another."""

    columns: Sequence[Any]
    rows: Sequence[Any]

    @property
    def single(self) -> bool:
        """Whether there is but one panel."""
        return len(self.columns) == len(self.rows) == 1

    def panels(self) -> list[Panel]:
        """The panels, row by row."""
        places = itertools.product(enumerate(self.rows), enumerate(self.columns))
        return [
            Panel(column, row, number, (across, down))
            for number, ((down, row), (across, column)) in enumerate(places, 1)
        ]

    def layout(
        self,
        layout: Mapping[str, Any],
        xaxis: Mapping[str, Any],
        unit: str,
        encoding: Encoding,
        name: Callable[[str, Any], str],
    ) -> dict[str, Any]:
        """A layout with the axes of all panels, and above and beside them what they show.

        Args:
            layout: what all charts have.
            xaxis: of each panel.
            unit: of the axis on the left.
        """
        whole = {**layout, "height": layout["height"] + _ROW * (len(self.rows) - 1)}
        if encoding.rows:
            whole["margin"] = {**layout["margin"], "r": layout["margin"]["r"] + _ROW_TITLE}
        whole["annotations"] = titles = []
        for panel in self.panels():
            across, down = panel.place
            x, y = _share(across, len(self.columns), _GAP), _share(down, len(self.rows), _GAP_BELOW)
            bottom, left = down == len(self.rows) - 1, across == 0
            end = panel.axes["xaxis"][1:]
            whole[f"xaxis{end}"] = {
                **xaxis, "domain": x, "anchor": panel.axes["yaxis"], "showticklabels": bottom,
                **({} if bottom else {"title": None}), **({"matches": "x"} if end else {}),
            }  # fmt: skip
            whole[f"yaxis{end}"] = {
                "domain": [1 - y[1], 1 - y[0]], "anchor": panel.axes["xaxis"], "rangemode": "tozero",
                "showticklabels": left, **({"title": beside_ticks(unit)} if left else {}),
                **({"matches": "y"} if end else {}),
            }  # fmt: skip
            if encoding.columns and down == 0:
                place = {"x": sum(x) / 2, "y": 1, "xanchor": "center", "yanchor": "bottom"}
                titles.append(_title(name(encoding.columns, panel.column), place))
            if encoding.rows and across == len(self.columns) - 1:
                place = {"x": 1, "y": 1 - sum(y) / 2, "xanchor": "left", "yanchor": "middle", "textangle": 90}
                titles.append(_title(name(encoding.rows, panel.row), place))
        return whole


def _share(place: int, count: int, gap: float) -> list[float]:
    """From where to where the ``place``-th of ``count`` lies, of 1."""
    size = (1 - gap * (count - 1)) / count
    return [place * (size + gap), min(1.0, place * (size + gap) + size)]


def _title(text: str, place: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": escaped(text), "showarrow": False, "xref": "paper", "yref": "paper", **place}
