"""How does a table become a chart? Each function takes a table and gives a plotly figure as plain data.

Series differ in symbol and dash as well as in colour.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.display.canvas import (
    PALETTE,
    SYMBOLS,
    Figure,
    axis_end,
    axis_of_counts,
    bars,
    bars_across,
    beside_ticks,
    error_bars,
    escaped,
    figure,
    in_order,
    is_drawn,
    layout,
    plain_numbers,
    shortened,
)
from analysis.display.colours import (
    BLUE,
    BROWN,
    DARK_GREY,
    GREEN,
    MID_GREY,
    PALE_GREY,
    PINK,
    SKY,
    VERMILLION,
    WINE,
    YELLOW,
)

STAGE_COLOURS = {"load": BROWN, "forward": SKY, "backward": BLUE, "update": GREEN}
PART_COLOURS = {
    "compute": BLUE,
    "exposed_transfer": VERMILLION,
    "exposed_wait": YELLOW,
    "exposed_communication": WINE,  # of runs whose communication is not split
    "exposed_loader": BROWN,
    "exposed_copies": PINK,
    "idle_host_bound": DARK_GREY,
    "idle_other": PALE_GREY,
    "idle": MID_GREY,  # of runs whose idle time is not split
}


def predictions(points: pd.DataFrame, title: str) -> Figure:
    """Images/s against ranks, measured and predicted, a line a label.

    Args:
        points: columns ``world_size, images_per_s`` (``_low``, ``_high``), ``label, facts``.
    """
    traces = []
    ordered = points.sort_values("world_size")
    for index, (name, series) in enumerate(ordered.groupby("label", sort=False)):
        trace = _styled(series, str(name), index, "world_size", "images_per_s")
        trace["hovertemplate"] = f"{trace['name']}<br>%{{x}} ranks: %{{y:.4g}} images/s<extra></extra>"
        low, high = series["images_per_s_low"], series["images_per_s_high"]
        trace["error_y"] = error_bars(series["images_per_s"], low, high)
        traces.append(trace)
    placed = _against(points, "world_size", "ranks", escaped(title), "images/s")
    if top := axis_end(points["images_per_s"].max(), points["images_per_s_high"]):
        placed["yaxis"]["range"] = [0, top]
    return figure(traces, placed)


def parts(
    points: pd.DataFrame, colours: dict[str, str], title: str, unit: str = "ms", of: str = "ms per step"
) -> Figure:
    """What each part of a batch takes, a bar a configuration; parts below 0 go to the left.

    Args:
        points: columns ``<part>_<unit>`` for the keys of ``colours`` (those that are absent, or 0 everywhere,
            are left out), ``label, facts``.
        colours: :data:`STAGE_COLOURS` or :data:`PART_COLOURS`.
        unit, of: how columns end, and what the axis says.
    """
    labels = [escaped(str(name)) for name in points["label"]]
    traces = []
    for part, colour in colours.items():
        column, words = f"{part}_{unit}", part.replace("_", " ")
        if column in points and is_drawn(points[column]):
            hover = f"%{{y}}<br>{words}: %{{x:.2f}} {of}"
            trace = bars_across(words, labels, points[column], colour, hover)
            traces.append(trace | {"customdata": points["facts"].tolist()})
    return figure(traces, bars(title, of, len(points)))


def kernels(top: pd.DataFrame, title: str) -> Figure:
    """The kernels that take most time, longest on top.

    Args:
        top: columns ``short_name, class, ms_per_step``; the parts of a name stand in one bar.
    """
    traces = []
    for index, (name, of_class) in enumerate(top.groupby("class", sort=False)):
        colour = PALETTE[index % len(PALETTE)]
        traces.append(_of_kernels(escaped(str(name)), of_class, "short_name", "ms_per_step", colour))
    whole = top.groupby("short_name", sort=False)["ms_per_step"].sum().sort_values(ascending=False)
    return in_order(traces, bars(title, "ms per step", len(whole)), [shortened(name) for name in whole.index])


def changes(points: pd.DataFrame, colours: Mapping[str, str], title: str, names: Mapping[str, str]) -> Figure:
    """By how much each configuration changed, a bar each with its interval, coloured by verdict.

    Args:
        points: columns ``configuration, effect_pct`` (``_low``, ``_high``), ``judged, facts``.
        colours: verdict -> colour; names: what a verdict is called, if not so.
    """
    traces = []
    for verdict, colour in colours.items():
        here = points[points["judged"] == verdict]
        if here.empty:
            continue
        labels, values = [escaped(name) for name in here["configuration"]], here["effect_pct"]
        trace = bars_across(names.get(verdict, verdict), labels, values, colour, "%{y}<br>%{x:+.2f} %")
        trace["error_x"] = error_bars(values, here["effect_pct_low"], here["effect_pct_high"], width=4)
        traces.append(trace | {"customdata": here["facts"].tolist()})
    order = [escaped(name) for name in points["configuration"]]
    return in_order(traces, bars(title, "% of the step in A", len(order)), order)


def growth(points: pd.DataFrame, title: str) -> Figure:
    """By how much each kernel grew or shrank, largest change on top.

    Args:
        points: columns ``quantity, difference_ms, facts``.
    """
    order = [shortened(name) for name in points["quantity"]]
    grew = points["difference_ms"] > 0
    traces = [
        _of_kernels(name, here, "quantity", "difference_ms", colour, sign="+")
        | {"customdata": here["facts"].tolist()}
        for name, here, colour in (
            ("longer in B", points[grew], VERMILLION),
            ("shorter in B", points[~grew], GREEN),
        )
        if not here.empty
    ]
    return in_order(traces, bars(title, "ms per step, B minus A", len(order)), order)


def _of_kernels(
    name: str, points: pd.DataFrame, label: str, column: str, colour: str, sign: str = ""
) -> dict[str, Any]:
    """Bars of kernels, whose names are shortened beside them and whole under the mouse."""
    labels, hover = [shortened(kernel) for kernel in points[label]], f"%{{hovertext}}<br>%{{x:{sign}.3f}}"
    trace = bars_across(name, labels, points[column], colour, f"{hover} ms per step")
    return trace | {"hovertext": [escaped(kernel) for kernel in points[label]]}


def shares(points: pd.DataFrame, unit: str = "GPU") -> Figure:
    """Share of communication (drawn through) and of copies (dashed) against batch size, a line a label.

    Args:
        points: columns ``batch, communication_pct, copies_pct, label, facts``.
        unit: of what the batch size is: ``GPU`` or ``rank``.
    """
    traces = []
    for index, (name, series) in enumerate(points.sort_values("batch").groupby("label", sort=False)):
        for part, dash in (("communication", "solid"), ("copies", "dash")):
            trace = _styled(series, f"{name}: {part}", index, "batch", f"{part}_pct", dash)
            hover = f"{escaped(str(name))}<br>%{{x}}: {part} %{{y:.2f}} %<extra></extra>"
            traces.append({**trace, "hovertemplate": hover})
    placed = _against(
        points, "batch", f"per-{unit} batch size, images", "Communication and copies", "% of time"
    )
    return figure(traces, placed)


def _styled(
    series: pd.DataFrame, name: str, index: int, x: str, y: str, dash: str = "solid"
) -> dict[str, Any]:
    """A line with marks in the look of the ``index``-th."""
    colour = PALETTE[index % len(PALETTE)]
    return {
        "x": plain_numbers(series[x]),
        "y": plain_numbers(series[y]),
        "name": escaped(name),
        "mode": "lines+markers",
        "meta": series["facts"].iloc[0],
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 9, "color": colour},
        "line": {"color": colour, "width": 2, "dash": dash},
    }


def _against(points: pd.DataFrame, column: str, what: str, title: str, unit: str) -> dict[str, Any]:
    yaxis = {"title": beside_ticks(unit), "rangemode": "tozero"}
    return {**layout(title), "xaxis": axis_of_counts(points[column], what), "yaxis": yaxis}
