"""Which factor matters? What each factor explains of the throughput's variance."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.display.plots import BLUE, BROWN
from analysis.display.terminal import Part
from analysis.measures.scaling import factors
from analysis.measures.scaling.factors import Cell, varying_of
from analysis.report.base import Content, Context, SectionKind, effects, responses
from analysis.report.render import Chart
from analysis.report.sentences import first_sentence
from analysis.report.views import as_view, varied
from profiling.wording import how_many

LEAST = 2  # factors
_TOO_FEW = (
    "Not available: every run differs from every other in several factors and none is repeated, so the "
    "factors cannot be separated. Repeat configurations, or cross the factors."
)
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
    what, cells = context.once(responses)
    rows = context.once(effects)
    finite = [row for row in rows if math.isfinite(row["omega_squared"])]
    together = factors.not_told(rows)
    if not finite:
        text = _not_told(together) if together else _TOO_FEW
        return Content(text, finding=first_sentence(text))
    label = "Share of the variance that each factor explains, largest first"
    runs = sum(len(cell.responses) for cell in cells)
    part = Part("", rows, factors.shown())
    text = explained(finite, what, together, cells)
    return Content(
        text,
        [Chart("factors", effect_bars(finite, what), label, runs=how_many(runs, "run"))],
        [as_view(part, "factor-table", ())],
        finding=first_sentence(text),
    )


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
    return plots.bars(traces, f"What explains {what}", "share of the variance (omega squared)", factors)


def _bars(rows: Rows, kind: str, colour: str) -> dict[str, Any]:
    labels, shares = [row["factor"] for row in rows], [row["omega_squared"] for row in rows]
    trace = plots.bars_across(kind, labels, shares, colour, "%{x:.3f} of the variance")
    if all(row["omega_squared_low"] is not None for row in rows):
        # The estimate of next to nothing may lie below 0, where no share is.
        low = [min(row["omega_squared_low"], row["omega_squared"]) for row in rows]
        high = [max(row["omega_squared_high"], row["omega_squared"]) for row in rows]
        trace["error_x"] = plots.error_bars(shares, low, high, width=4)
    return trace


def explained(rows: Rows, what: str, together: Sequence[str], cells: Sequence[Cell]) -> str:
    """What explains most, if anything does.

    Args:
        rows: whose share is known.
        together: factors whose share is not, as they changed only together.
        cells: what the rows are of.
    """
    main = [row for row in rows if " x " not in row["factor"]]
    text = f"{_not_told(together)} " if together else ""
    significant = [row for row in main if row["p_value"] <= factors.SIGNIFICANCE]
    if not significant:
        return f"{text}No factor has a significant effect on {what}. {_of_interactions(rows, cells)}"
    first = max(significant, key=lambda row: row["omega_squared"])
    low, high = first["omega_squared_low"], first["omega_squared_high"]
    share = f"{100 * first['omega_squared']:.0f} %"
    if low is not None:
        share += f" [{100 * low:.0f}, {100 * high:.0f}]"
    # Most is what is more than half, for certain where there is an interval.
    most = (first["omega_squared"] if low is None else low) > 0.5
    text += f"The factor {first['factor']} explains {'most' if most else 'more'} of the variance of {what}"
    text += " that can be separated" if together else ""
    text += "" if most else " than any other factor"
    text += f": omega squared {share}. "
    text += f"The highest mean is that of {first['factor']} {first['best_level']}. "
    by_signal = min(main, key=lambda row: row["rank_by_signal"])["factor"]
    text += "Taguchi's signal-to-noise ratio, the SURFBoard study's measure, ranks "
    text += "it first, too. " if by_signal == first["factor"] else f"{by_signal} first. "
    return text + _of_interactions(rows, cells)


def _not_told(together: Sequence[str]) -> str:
    return (
        f"The shares of {' and '.join(together)} are not available: their levels changed only together. Add "
        "configurations that separate them."
    )


def _of_interactions(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> str:
    pairs = [row for row in rows if " x " in row["factor"]]
    if not pairs:
        return "Interactions between factors are not available."
    significant = [row["factor"] for row in pairs if row["p_value"] <= factors.SIGNIFICANCE]
    if not significant:
        return "No significant interaction between two factors was found."
    named = ", ".join(significant)
    return f"Significant interactions: {named}. For these, main effects hold only on average."


FACTORS = SectionKind("factors", "Which factor matters?", _factors, _varying)
