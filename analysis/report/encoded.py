"""Charts of a sweep, with colours, dashes and panels for the factors that matter most."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.display import lines, plots
from analysis.display.lines import caption, encode, stacked
from analysis.display.metrics import Rows
from analysis.report.base import Context
from analysis.report.render import Chart
from analysis.report.views import called

MOST_BARS = 16  # that a chart names one by one


def line_chart(context: Context, id: str, points: Rows, axes: lines.Axes, first: Sequence[str] = ()) -> Chart:
    """Lines of the points of a sweep, by the factors that matter most.

    Args:
        points: with the columns of ``axes``, ``facts`` (the factors that tell lines apart) and ``label``.
        first: factors that get the best channels, whatever they explain.
    """
    facts = [point["facts"] for point in points]
    others = context.by_effect([name for name in facts[0] if name not in first])
    encoding = encode(facts, [*first, *others])
    sizes = [name for name in ("nodes", "gpus_per_node") if name in context.factors]
    sized = [
        {**point, "sizes": {name: point[name] for name in sizes if point.get(name) is not None}}
        for point in points
    ]
    figure = lines.lines(pd.DataFrame(sized), encoding, axes, _name)
    wide = bool(encoding.columns)
    said = [caption(encoding)]
    if plots.is_cut(figure):
        said.append(plots.CUT)
    return Chart(id, figure, " ".join(filter(None, said)), wide)


def bar_chart(
    context: Context,
    id: str,
    points: pd.DataFrame,
    colours: dict[str, str],
    title: str,
    unit: str = "ms",
    of: str = "ms per step",
) -> Chart:
    """Stacked bars: one for each configuration, or, of many, one for each number of ranks in panels.

    Args:
        points: as :func:`plots.parts` has them, with the fields of the runs.
    """
    # Of a trace the nodes are not known.
    sized = {"nodes", "gpus_per_node"} <= set(points) and points["nodes"].notna().all()
    if len(points) <= MOST_BARS or not sized:
        return Chart(id, plots.parts(points, colours, title, unit=unit, of=of))
    facts = points["facts"].tolist()
    factors = [name for name in facts[0] if name not in ("nodes", "gpus_per_node")]
    encoding = encode(facts, context.by_effect(factors), are_bars=True)
    # Only the parts: a field of the run may be called like one (compute).
    columns = {part: points[f"{part}_{unit}"] for part in colours if f"{part}_{unit}" in points}
    ranks = points["nodes"] * points["gpus_per_node"]
    by_part = pd.DataFrame({**columns, "ranks": ranks, "facts": points["facts"]})
    figure = stacked(by_part, encoding, colours, title, of, _name)
    said = caption(encoding, spread="error bars")
    return Chart(id, figure, said, bool(encoding.columns))


def with_lines(points: Rows, x: str) -> Rows:
    """The points of configurations that were measured at several ``x``; all of them if none was."""
    measured: dict[str, set[Any]] = {}
    for point in points:
        measured.setdefault(point["label"], set()).add(point[x])
    return [point for point in points if len(measured[point["label"]]) > 1] or points


def _name(factor: str, level: Any) -> str:
    return called({factor: level}, [factor])
