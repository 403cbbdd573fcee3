"""How does an answer of the opening look? As a small drawing, which needs no chart library."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from analysis.display.numbers import change, digits
from analysis.display.plots import GREY, PALETTE

MOST_BARS = 4  # that the first screen has room for
_WIDTH, _HEIGHT = 320, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 22  # around the lines
_ROW = 24  # of bars
_CHARACTER = 8  # the width of one, at most: digits of 12 px
_NAME = 150  # the width of their names
_LONGEST = 24  # characters of a name beside a bar
_LONGEST_OF_LINE = 40  # a line of a name below lines
_MOST_LINES = 3  # of such a name
_SIGN = 22  # the width of a line's key
_LEGEND_LINE = 16
_APART = 8  # points of two lines at one x
_HIGHEST_OF_INTERVALS = 2.0  # times the highest value; a longer one is cut, so that lines stay readable
_TICK_APART = 1.25  # times the highest value of the lines: from there on the axis has a tick for it, too

Line = tuple[str, Sequence[tuple[float, float]]]
"""A name and its points (x, y), x ascending."""


@dataclass(frozen=True)
class Drawing:
    """An image of vectors, and what it shows."""

    svg: Markup
    caption: str


Ends = Mapping[str, Mapping[float, tuple[float, float]]]
"""Of a name's points, by x, the ends of the interval."""


def lines(series: Sequence[Line], unit: str, label: str, ends: Ends = MappingProxyType({})) -> Drawing:
    """Lines from 0 to the highest value, or end of an interval; counts, which double, stand evenly
    spaced, and points of two lines a little apart.

    Args:
        series: two at most, so that their names fit.
        unit: of y; label: what is shown, for those who do not see it.
        ends: of intervals; one that is cut where the axis ends has an arrow there.
    """
    counts = sorted({x for _, points in series for x, _ in points})
    highest = max(y for _, points in series for _, y in points) or 1.0
    highs = [high for name, _ in series for _, high in ends.get(name, {}).values()]
    top = max(highest, min(max(highs, default=0.0), _HIGHEST_OF_INTERVALS * highest))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float, aside: float = 0.0) -> str:
        across = _LEFT + width * counts.index(x) / max(1, len(counts) - 1)
        return f"{across + aside:.1f},{_TOP + height * (1 - min(y, top) / top):.1f}"

    parts = [_axis([top, highest] if top > _TICK_APART * highest else [top], unit, height)]
    for x in counts:
        across = at(x, 0).split(",")[0]
        anchor = "end" if x == counts[-1] > counts[0] else "middle"  # so that four digits are not cut off
        parts.append(Markup('<text x="{}" y="{}" text-anchor="{}">{:g}</text>').format(
            across, _HEIGHT - 6, anchor, x
        ))  # fmt: skip
    below = _HEIGHT + 10
    for place, (name, points) in enumerate(series):
        colour, dash = PALETTE[place], "6 4" if place else ""
        aside = (place - (len(series) - 1) / 2) * _APART
        line = Markup(
            '<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
        )
        parts.append(line.format(" ".join(at(x, y, aside) for x, y in points), colour, dash))
        for x, (low, high) in ends.get(name, {}).items():
            bottom, end = at(x, max(0.0, low), aside), at(x, high, aside)
            parts.append(_interval(bottom, end, colour, is_cut=high > top))
        key = Markup('<line x1="0" x2="{0}" y1="{1}" y2="{1}" stroke="{2}" stroke-width="2" '
                     'stroke-dasharray="{3}"/>')  # fmt: skip
        parts.append(key.format(_SIGN, below, colour, dash))
        for text in textwrap.wrap(name, _LONGEST_OF_LINE, max_lines=_MOST_LINES, placeholder="…"):
            parts.append(Markup('<text x="{}" y="{}">{}</text>').format(_SIGN + 6, below + 4, text))
            below += _LEGEND_LINE
    cut = "; arrow: the interval reaches higher" if max(highs, default=0.0) > top else ""
    return _drawing(parts, below - 6, label + cut)


def _interval(bottom: str, end: str, colour: str, is_cut: bool) -> Markup:
    bar = Markup('<polyline class="interval" points="{} {}" stroke="{}" stroke-width="1.5"/>')
    arrow = Markup('<path class="cut" d="M{} m-4,6 l4,-6 l4,6" fill="none" stroke="{}" stroke-width="1.5"/>')
    return bar.format(bottom, end, colour) + (arrow.format(end, colour) if is_cut else Markup(""))


def _axis(ticks: Sequence[float], unit: str, height: int) -> Markup:
    """The axes, with the highest tick first, and 0."""
    tick = Markup('<text x="{}" y="{:g}" text-anchor="end">{}</text>')
    line = Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    places = {f"{one:.3g} {unit}": height * (1 - one / ticks[0]) for one in ticks} | {"0": height}
    return Markup("").join([
        *(tick.format(_LEFT - 6, round(_TOP + y + 4, 1), text) for text, y in places.items()),
        line.format(_LEFT, _WIDTH - _RIGHT, _TOP + height, _TOP + height),
    ])  # fmt: skip


def bars(values: Sequence[tuple[str, float]], unit: str, label: str, unsure: Collection[str] = ()) -> Drawing:
    """A bar for each name, in the order given; values are 0 or more, of ``unsure`` names perhaps 0: grey."""
    widest = max(value for _, value in values) or 1.0
    room = _WIDTH - _NAME - 84
    parts = []
    for place, (name, value) in enumerate(values):
        y, width = _ROW * place, room * value / widest
        end = _NAME + width + 5
        bar = Markup('<text x="{0}" y="{1}" text-anchor="end">{2}</text>'
                     '<rect x="{3}" y="{4}" width="{5:.1f}" height="{6}" fill="{7}"/>'
                     '<text x="{8:.1f}" y="{1}">{9} {10}</text>')  # fmt: skip
        short = _shortened(name, _LONGEST)
        parts.append(bar.format(
            _NAME - 6, y + 16, short, _NAME, y + 4, width, _ROW - 8,
            GREY if name in unsure else PALETTE[0], end, digits(value, 3), unit,
        ))  # fmt: skip
    grey = "; grey: the interval holds 0" if any(name in unsure for name, _ in values) else ""
    return _drawing(parts, _ROW * len(values) + 4, label + grey)


def differences(values: Sequence[tuple[str, float]], unit: str, label: str) -> Drawing:
    """A bar for each name to the left or the right of 0, in the order given."""
    widest = max(abs(value) for _, value in values) or 1.0
    sides = [any(value < 0 for _, value in values), any(value >= 0 for _, value in values)]
    each = (_WIDTH - _NAME) / sum(sides)
    room = each - 5 - _CHARACTER * max(len(f"{change(value)} {unit}") for _, value in values)
    zero = _NAME + each * sides[0]
    height = _ROW * len(values)
    parts = [Markup('<line class="axis" x1="{0}" x2="{0}" y1="0" y2="{1}"/>').format(zero, height)]
    for place, (name, value) in enumerate(values):
        y, width = _ROW * place, room * abs(value) / widest
        start, end = (zero, zero + width + 5) if value >= 0 else (zero - width, zero - width - 5)
        bar = Markup('<text x="{0}" y="{1}" text-anchor="end">{2}</text>'
                     '<rect x="{3:.1f}" y="{4}" width="{5:.1f}" height="{6}" fill="{7}"/>'
                     '<text x="{8:.1f}" y="{1}" text-anchor="{9}">{10} {11}</text>')  # fmt: skip
        parts.append(bar.format(
            _NAME - 6, y + 16, _shortened(name, _LONGEST), start, y + 4, width, _ROW - 8,
            PALETTE[5 if value > 0 else 2], end, "start" if value >= 0 else "end", change(value), unit,
        ))  # fmt: skip
    return _drawing(parts, height + 4, label)


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _drawing(parts: Sequence[Markup], height: int, label: str) -> Drawing:
    image = Markup('<svg class="small" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return Drawing(image.format(_WIDTH, height, label, Markup("").join(parts)), label)
