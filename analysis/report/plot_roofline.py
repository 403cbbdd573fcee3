"""How does the place of kernels on the roofline become a chart? As plain data of a plotly figure."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.measures.kernels.roofline import Roof

_SMALLEST, _LARGEST = 6.0, 36.0  # diameter of a kernel's point, in pixels
_FEW_DECADES = 300.0  # from least to most; over more, powers of ten are ticks enough
_MARGIN = 2.0  # how far the roofs go beyond the kernels, as a factor


def roofline(kernels: pd.DataFrame, roofs: Sequence[tuple[str, Roof]], title: str) -> plots.Figure:
    """FLOP/s against arithmetic intensity, log-log, with both roofs; a point a kernel, its area its time.

    Args:
        kernels: columns ``kernel, class, direction, ms_per_batch, intensity_flop_per_byte`` (above 0) and
            ``flops_per_s``, and ``hint``, what the pointer shows of each.
        roofs: name and roof; the first is drawn solid.
    """
    lowest = float(kernels["intensity_flop_per_byte"].min())
    highest = float(kernels["intensity_flop_per_byte"].max())
    ridges = [roof.ridge_flop_per_byte for _, roof in roofs]
    span = (min([lowest, *ridges]) / _MARGIN, max([highest, *ridges]) * _MARGIN)
    lines = [_roof(name, roof, span, number) for number, (name, roof) in enumerate(roofs)]
    largest = float(kernels["ms_per_batch"].max())
    points = [
        _points(of_class, str(name), number, largest)
        for number, (name, of_class) in enumerate(kernels.groupby("class", sort=False))
    ]
    rates = [rate for line in (*lines, *points) for rate in line["y"] if rate > 0]
    return plots.figure([*lines, *points], _layout(title, span, (min(rates), max(rates))))


def _roof(name: str, roof: Roof, span: tuple[float, float], number: int) -> dict[str, Any]:
    at = [span[0], roof.ridge_flop_per_byte, span[1]]
    return {
        "x": at,
        "y": [roof.at(intensity) / 1e9 for intensity in at],
        "name": name,
        "mode": "lines",
        "line": {"color": "#7F7F7F", "width": 2, "dash": "solid" if number == 0 else "dash"},
        "hovertemplate": f"{name}: %{{y:.4g}} GFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
    }


def _points(of_class: pd.DataFrame, name: str, number: int, largest: float) -> dict[str, Any]:
    sizes = np.sqrt(of_class["ms_per_batch"] / largest) * _LARGEST if largest else of_class["ms_per_batch"]
    return {
        "x": of_class["intensity_flop_per_byte"].tolist(),
        "y": (of_class["flops_per_s"] / 1e9).tolist(),
        "name": name,
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
