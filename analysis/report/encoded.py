"""How does a section draw a sweep? With channels for the factors that matter most."""

from typing import Any

import pandas as pd

from analysis.display import lines
from analysis.display.encoding import encode_lines, in_words
from analysis.display.metrics import Rows
from analysis.report.base import Context
from analysis.report.render import Chart
from analysis.report.views import called


def line_chart(context: Context, id: str, points: Rows, axes: lines.Axes, label: str) -> Chart:
    """Lines of the points of a sweep, by the factors that matter most.

    Args:
        points: with the columns of ``axes``, ``facts`` (the factors that tell lines apart) and ``label``.
        label: what it shows, for those who do not see it.
    """
    facts = [point["facts"] for point in points]
    encoding = encode_lines(facts, context.by_effect(list(facts[0])))
    figure = lines.lines(pd.DataFrame(points), encoding, axes, _name)
    return Chart(id, figure, label, in_words(encoding), wide=bool(encoding.columns))


def with_lines(points: Rows, x: str) -> Rows:
    """The points of configurations that were measured at several ``x``; all of them if none was."""
    measured: dict[str, set[Any]] = {}
    for point in points:
        measured.setdefault(point["label"], set()).add(point[x])
    return [point for point in points if len(measured[point["label"]]) > 1] or points


def _name(factor: str, level: Any) -> str:
    return called({factor: level}, [factor])
