"""The roofline of a run: its kernels against the peaks of arithmetic and memory, and a table by class."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Column, Rows, columns, picked
from analysis.display.plots import GREY
from analysis.display.terminal import Part
from analysis.measures.kernels import costs
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.roofline import Roof, roofs
from analysis.measures.kernels.rows import BY, kernels_of
from analysis.report.base import Content, Context, SectionKind
from analysis.report.render import Chart
from analysis.report.views import as_view, called, facts
from analysis.results.source import Source
from profiling.errors import UserError

TOP = 60  # kernels of the chart: those that take most time
_SMALLEST, _LARGEST = 6.0, 36.0  # diameter of a kernel's point, in pixels
_FEW_DECADES = 300.0  # from least to most; over more, powers of ten are ticks enough
_MARGIN = 2.0  # how far the roofs go beyond the kernels, as a factor


def _sources(context: Context) -> list[Source]:
    return kernels.with_kernels(context.study)


def _roofline(context: Context) -> Content:
    """The roofline of the run of which most ranks were recorded."""
    study, (source, placed, named_roofs) = context.study, context.once(_foremost)
    name, of_run = called(source.fields, context.factors), facts(source.fields, context.factors)
    drawn = figure(_points(placed[:TOP], named_roofs[0][1]), named_roofs, plots.escaped(f"Roofline: {name}"))
    chart = Chart("roofline", plots.of_one(drawn, of_run))
    by_class = [
        {**row, **of_run}
        for row in kernels_of(study, source, by=("class",))
        if row["intensity_flop_per_byte"] is not None
    ]
    view = as_view(Part("", by_class, _columns(named_roofs), ""), "roofline-table", context.factors)
    return Content(name, [chart], [view])


def _foremost(context: Context) -> tuple[Source, Rows, list[tuple[str, Roof]]]:
    """The run that is shown, its kernels that have a place in the chart, and the roofs.

    Raises:
        UserError: none is known.
    """
    study, sources = context.study, context.once(_sources)
    source = max(sources, key=lambda each: (len(each.tables("kernels")), -sources.index(each)))
    rows = kernels_of(study, source)
    placed = [row for row in rows if row["intensity_flop_per_byte"]]
    named_roofs = [
        (name, roof)
        for name, roof in zip(("datasheet", "measured"), roofs(costs.bound_of(study, source)), strict=True)
        if roof
    ]
    if not rows:
        raise UserError("no profiled run has a kernel in a profiled step")
    if not placed:
        raise UserError("the profiler recorded no FLOPs or bytes for any kernel")
    if not named_roofs:
        raise UserError("no peak of this device: neither from a datasheet (--peaks FILE) nor measured")
    return source, placed, named_roofs


def _points(placed: Rows, roof: Roof) -> pd.DataFrame:
    """What the chart needs; the rate is of the launches whose bytes are known, as the intensity is."""
    table = pd.DataFrame(placed)
    table["flops_per_s"] = [
        (row["roof_pct"] if row["roof_pct"] is not None else row["roof_of_measured_pct"])
        / 100 * roof.at(row["intensity_flop_per_byte"])
        for row in placed
    ]  # fmt: skip
    table["hint"] = [
        f"{row['kernel']} ({row['direction']}): {row['ms_per_step']:.3f} ms per step" for row in placed
    ]
    return table


def _columns(named_roofs: Sequence[tuple[str, Roof]]) -> list[Column]:
    figures = picked(kernels.METRICS, "ms_per_step", "share_pct", "intensity_flop_per_byte", "bound")
    roof, of_measured = picked(kernels.METRICS, "roof_pct", "roof_of_measured_pct")
    of_roof = {
        "datasheet": roof.column("of datasheet roof, %"),
        "measured": of_measured.column("of measured roof, %"),
    }
    return [*columns([BY["class"], *figures]), *(of_roof[name] for name, _ in named_roofs)]


def figure(kernels: pd.DataFrame, roofs: Sequence[tuple[str, Roof]], title: str) -> plots.Figure:
    """FLOP/s against arithmetic intensity, log-log, with both roofs; a point a kernel, its area its time.

    Args:
        kernels: columns ``kernel, class, direction, ms_per_step, intensity_flop_per_byte`` (above 0) and
            ``flops_per_s``, and ``hint``, what the pointer shows of each.
        roofs: name and roof; the first is drawn solid.
    """
    lowest = float(kernels["intensity_flop_per_byte"].min())
    highest = float(kernels["intensity_flop_per_byte"].max())
    ridges = [roof.ridge_flop_per_byte for _, roof in roofs]
    span = (min([lowest, *ridges]) / _MARGIN, max([highest, *ridges]) * _MARGIN)
    lines = [_roof_line(name, roof, span, number) for number, (name, roof) in enumerate(roofs)]
    largest = float(kernels["ms_per_step"].max())
    points = [
        _trace(of_class, str(name), number, largest)
        for number, (name, of_class) in enumerate(kernels.groupby("class", sort=False))
    ]
    rates = [rate for line in (*lines, *points) for rate in line["y"] if rate > 0]
    return {"data": [*lines, *points], "layout": _layout(title, span, (min(rates), max(rates)))}


def _roof_line(name: str, roof: Roof, span: tuple[float, float], number: int) -> dict[str, Any]:
    at = [span[0], roof.ridge_flop_per_byte, span[1]]
    return {
        "x": at,
        "y": [roof.at(intensity) / 1e9 for intensity in at],
        "name": plots.escaped(name),
        "mode": "lines",
        "line": {"color": GREY, "width": 2, "dash": "solid" if number == 0 else "dash"},
        "hovertemplate": f"{plots.escaped(name)}: %{{y:.4g}} GFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
    }


def _trace(of_class: pd.DataFrame, name: str, number: int, largest: float) -> dict[str, Any]:
    sizes = np.sqrt(of_class["ms_per_step"] / largest) * _LARGEST if largest else of_class["ms_per_step"]
    return {
        "x": of_class["intensity_flop_per_byte"].tolist(),
        "y": (of_class["flops_per_s"] / 1e9).tolist(),
        "name": plots.escaped(name),
        "mode": "markers",
        "hovertext": [plots.escaped(text) for text in of_class["hint"]],
        "hovertemplate": "%{hovertext}<br>%{x:.3g} FLOP/byte, %{y:.4g} GFLOP/s<extra></extra>",
        "marker": {
            "size": np.maximum(sizes, _SMALLEST).tolist(),
            "color": plots.PALETTE[number % len(plots.PALETTE)],
            "symbol": plots.SYMBOLS[number % len(plots.SYMBOLS)],
            "opacity": 0.8,
        },
    }


def _layout(title: str, span: tuple[float, float], rates: tuple[float, float]) -> dict[str, Any]:
    return {
        **plots.layout(title),
        "height": 480,
        "xaxis": _axis("arithmetic intensity, FLOP/byte", *span),
        "yaxis": _axis("GFLOP/s", *rates),
    }


def _axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis whose ticks are whole numbers: plotly's own are single digits over few decades."""
    if not 0 < low <= high:
        return {"title": plots.beside_ticks(title), "type": "log"}
    steps = (1, 2, 5) if high / low <= _FEW_DECADES else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    return {
        "title": plots.beside_ticks(title),
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:,.10g}" for tick in ticks],
    }


ROOFLINE = SectionKind(
    "roofline",
    "What bounds the kernels?",
    _roofline,
    lambda context: bool(context.once(_sources)),
)
