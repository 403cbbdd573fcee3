"""Which setting matters? A section of the report: what each factor explains of the throughput's variance."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display import plots
from analysis.display.terminal import Part, Rows
from analysis.measures.scaling import factors
from analysis.report.render import Chart, Section
from analysis.report.views import as_view, varied
from analysis.results.study import Study
from profiling.errors import UserError

HEADING = "Which setting matters?"
LEAST = 2  # factors: what one explains, the scaling charts show
_TOO_FEW = (
    "Not known: every run differs from every other in several factors, and none is repeated, so that nothing "
    "tells the factors apart. Repeat the points, or cross the factors."
)
_COLOURS = {"main effect": "#0072B2", "interaction": "#E69F00"}


def section(study: Study) -> Section | None:
    """Share of the variance by factor with its interval, largest first; none where fewer than two vary."""
    runs = varied(source.fields for source in study.of_kind("run"))
    if len(runs) < LEAST and not study.tau_intervals:
        return None
    try:
        what, cells = factors.responses(study)
        if len(factors.varying_of(cells)) < LEAST:
            return None
        made = factors.rows(cells)
    except UserError as error:
        return Section("factors", HEADING, f"Not known: {error}.")
    told = [row for row in made if math.isfinite(row["omega_squared"])]
    together = factors.not_told(made)
    if not told:
        return Section("factors", HEADING, _not_told(together) if together else _TOO_FEW)
    chart = Chart(
        "factors", effects(told, what), "Share of the variance that each factor explains, largest first"
    )
    part = Part("", made, factors.shown(), factors.caption(cells, made))
    return Section(
        "factors", HEADING, _text(told, what, together), [chart], [as_view(part, "factor-table", ())]
    )


def effects(made: Rows, what: str) -> plots.Figure:
    """Omega squared of each factor and pair as a bar with its 95 % interval, largest on top.

    Args:
        made: rows of :func:`analysis.factors.rows`.
        what: the response.
    """
    order = sorted(made, key=lambda row: -row["omega_squared"])
    traces = []
    for kind, colour in _COLOURS.items():
        rows = [row for row in order if (" x " in row["factor"]) == (kind == "interaction")]
        if rows:
            traces.append(_bars(rows, kind, colour))
    layout = {
        **plots.bars(f"What explains {what}", "share of the variance (omega squared)", len(order)),
        "barmode": "overlay",
    }
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": [row["factor"] for row in order]}
    return {"data": traces, "layout": layout}


def _bars(rows: Rows, kind: str, colour: str) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [row["factor"] for row in rows],
        "x": [row["omega_squared"] for row in rows],
        "marker": {"color": colour},
        "hovertemplate": "%{y}: %{x:.3f} of the variance<extra></extra>",
    }
    if all(row["omega_squared_low"] is not None for row in rows):
        # The estimate of next to nothing may lie below 0, where no share is.
        above = [max(row["omega_squared_high"] - row["omega_squared"], 0.0) for row in rows]
        below = [max(row["omega_squared"] - row["omega_squared_low"], 0.0) for row in rows]
        ends = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        trace["error_x"] = {**ends, "thickness": 1.5, "width": 4}
    return trace


def _text(made: Rows, what: str, together: Sequence[str]) -> str:
    """What explains most, if anything does.

    Args:
        made: rows whose share is known.
        together: factors whose share is not, as they changed only together.
    """
    main = [row for row in made if " x " not in row["factor"]]
    text = f"{_not_told(together)} " if together else ""
    found = [row for row in main if row["p_value"] <= factors.SIGNIFICANCE]
    if not found:
        return f"{text}No factor was found to change {what}. {_of_interactions(made)}"
    first = max(found, key=lambda row: row["omega_squared"])
    text += f"{first['factor']} explains most of the variance of {what}"
    text += " that can be told apart" if together else ""
    text += f": {100 * first['omega_squared']:.0f} % (best: {first['best_level']}). "
    by_signal = min(main, key=lambda row: row["rank_by_signal"])["factor"]
    text += "Taguchi's signal-to-noise ratio, the reference's measure, ranks "
    text += "it first, too. " if by_signal == first["factor"] else f"{by_signal} first. "
    return text + _of_interactions(made)


def _not_told(together: Sequence[str]) -> str:
    return (
        f"What {' and '.join(together)} explain is not known: their levels changed only together. Add the "
        "configurations that part them."
    )


def _of_interactions(made: Sequence[Mapping[str, Any]]) -> str:
    pairs = [row for row in made if " x " in row["factor"]]
    if not pairs:
        return "Whether factors depend on each other cannot be told: points ran once, or were not crossed."
    found = [row["factor"] for row in pairs if row["p_value"] <= factors.SIGNIFICANCE]
    if not found:
        return "No two factors were found to depend on each other."
    named = ", ".join(found)
    return f"The effect of one depends on the other in {named}: there, main effects hold on average only."
