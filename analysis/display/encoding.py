"""Which factor of a sweep does a chart show by colour, which by dash, which by panels?

The factor that matters most gets the channel that is read best. What finds no channel is averaged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.run_fields import FACTOR

MOST_COLOURS = 8  # as many as readers tell apart, the colour-blind and in print too
MOST_DASHES = 3
MOST_PANELS = 4  # beside each other, or below each other
MOST_LINES = 12  # in a panel

Facts = Mapping[str, Any]
"""The level of each factor."""


@dataclass(frozen=True)
class Encoding:
    """The factor that each channel of a chart shows; empty: none.

    Attributes:
        averaged: factors that vary and have no channel: lines are means over their levels.
    """

    colour: str = ""
    dash: str = ""
    columns: str = ""
    rows: str = ""
    averaged: tuple[str, ...] = ()

    @property
    def shown(self) -> list[str]:
        """The factors that have a channel, the best channel first."""
        return [name for name in (self.colour, self.dash, self.columns, self.rows) if name]


def encode_lines(points: Sequence[Facts], factors: Iterable[str]) -> Encoding:
    """The channels of lines: colour, then dash, then columns and rows of panels.

    Args:
        points: of the chart.
        factors: that vary among them, the most important first.
    """
    limits = {"colour": MOST_COLOURS, "dash": MOST_DASHES, "columns": MOST_PANELS, "rows": MOST_PANELS}
    return _encode(points, factors, limits)


def encode_bars(points: Sequence[Facts], factors: Iterable[str]) -> Encoding:
    """The channels of stacked bars, whose colours are their parts: columns and rows of panels."""
    return _encode(points, factors, {"columns": MOST_PANELS, "rows": MOST_PANELS})


def _encode(points: Sequence[Facts], factors: Iterable[str], limits: Mapping[str, int]) -> Encoding:
    channels: dict[str, str] = {}
    averaged = []
    lines = 1
    for factor in factors:
        count = len(levels(points, factor))
        if count < 2:
            continue
        for channel, most in limits.items():
            in_panel = channel in ("colour", "dash")
            if channel not in channels and count <= most and not (in_panel and lines * count > MOST_LINES):
                channels[channel] = factor
                lines *= count if in_panel else 1
                break
        else:
            averaged.append(factor)
    return Encoding(**channels, averaged=tuple(averaged))


def levels(points: Iterable[Facts], factor: str) -> list[Any]:
    """The levels of a factor among points, in the order in which one reads them; [None] without a factor."""
    if not factor:
        return [None]
    return sorted({point.get(factor) for point in points}, key=_order)


def _order(level: Any) -> tuple[int, float, str]:
    """Unknown first, then numbers by size, then words."""
    if level is None:
        return (0, 0.0, "")
    if isinstance(level, int | float):
        return (1, float(level), "")
    return (2, 0.0, str(level))


def in_words(encoding: Encoding, spread: str = "band") -> str:
    """The caption: ``Colour: loader. Line: grad. Mean of batch (band: lowest and highest).``

    Args:
        spread: what shows the spread of what is averaged.
    """
    channels = {"Colour": encoding.colour, "Line": encoding.dash, "Columns": encoding.columns,
                "Rows": encoding.rows}  # fmt: skip
    said = [f"{channel}: {factor.removeprefix(FACTOR)}." for channel, factor in channels.items() if factor]
    if encoding.averaged:
        averaged = ", ".join(factor.removeprefix(FACTOR) for factor in encoding.averaged)
        said.append(f"Mean over {averaged} ({spread}: lowest and highest).")
    return " ".join(said)
