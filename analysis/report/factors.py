"""The section on factors: what each explains of the throughput's variance."""

import math
from typing import Any

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.display.plots import BLUE, BROWN
from analysis.display.terminal import Part
from analysis.measures.scaling import factors
from analysis.measures.scaling.factors import varying_of
from analysis.report.base import Content, Context, SectionKind, effects, responses
from analysis.report.render import Chart
from analysis.report.views import as_view, varied

LEAST = 2  # factors
_COLOURS = {"main effect": BLUE, "interaction": BROWN}


def _varying(context: Context) -> bool:
    """Whether two factors vary or more: what one explains, the scaling charts show."""
    runs = varied(source.fields for source in context.study.of_kind("run"))
    if len(runs) < LEAST and not context.study.tau_intervals:
        return False
    _, cells = context.once(responses)
    return len(varying_of(cells)) >= LEAST


def _factors(context: Context) -> Content:
    """Share of the variance by factor with its interval, largest first."""
    what, _ = context.once(responses)
    rows = context.once(effects)
    finite = [row for row in rows if math.isfinite(row["omega_squared"])]
    part = Part("", rows, factors.shown())
    charts = [Chart("factors", effect_bars(finite, what))] if finite else []
    return Content("", charts, [as_view(part, "factor-table", ())])


def effect_bars(rows: Rows, what: str) -> plots.Figure:
    """Omega squared of each factor and pair as a bar with its interval, largest on top.

    Args:
        rows: of :func:`analysis.factors.rows`.
        what: the response.
    """
    order = sorted(rows, key=lambda row: -row["omega_squared"])
    traces = []
    for kind, colour in _COLOURS.items():
        of_kind = [row for row in order if (" x " in row["factor"]) == (kind == "interaction")]
        if of_kind:
            traces.append(_bars(of_kind, kind, colour))
    factors = [row["factor"] for row in order]
    return plots.bars(traces, f"What explains {what}", "omega squared", factors)


def _bars(rows: Rows, kind: str, colour: str) -> dict[str, Any]:
    labels, shares = [row["factor"] for row in rows], [row["omega_squared"] for row in rows]
    trace = plots.bars_across(kind, labels, shares, colour, "%{x:.3f} of the variance")
    if all(row["omega_squared_low"] is not None for row in rows):
        # The estimate of next to nothing may lie below 0, where no share is.
        low = [min(row["omega_squared_low"], row["omega_squared"]) for row in rows]
        high = [max(row["omega_squared_high"], row["omega_squared"]) for row in rows]
        trace["error_x"] = plots.error_bars(shares, low, high, width=4)
    return trace


FACTORS = SectionKind("factors", "Which factor matters?", _factors, _varying)
