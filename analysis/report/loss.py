"""What is lost between few ranks and many, and in which part of a batch? The report's section of it."""

from collections.abc import Sequence
from typing import Any

from analysis.display import plots
from analysis.display.terminal import Rows
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.scaling import scaled_parts
from analysis.report.per_point import named
from analysis.report.render import Chart, Section
from analysis.report.sections import series_factors
from analysis.report.views import as_view, called, varied

_HEADING = "What is lost, and where?"
_COLOURS = {**plots.PART_COLOURS, "unattributed": "#000000"}


def section(own: Rows, factors: Sequence[str]) -> Section | None:
    """The loss of each point by part, stacked, and the figures; None: there are base points only."""
    part = scaled_parts.loss_part(own, intervals=True)
    if part is None:
        return None
    known = [row for row in part.rows if row["loss_unattributed_pct"] is not None]
    text = (
        "Percentage points of ideal scaling, by how much each part of a profiled batch grew from the base "
        "point; parts below 0 shrank. Exposed transfer is of gradients; exposed wait is for ranks that come "
        "later to a collective. What unprofiled batches grew by and profiled ones did not is not "
        "attributed. All of a bar, those below 0 taken off, is 100 % less the scaling efficiency."
    )
    if not known:
        text = "Which part of a batch grew is not known: no point has profiled runs, nor has its base point."
    views = [as_view(part, "loss-table", varied(own))]
    return Section("loss", _HEADING, text, [_chart(known, factors)] if known else [], views)


def _chart(known: Rows, factors: Sequence[str]) -> Chart:
    series = series_factors(factors)
    ordered = sorted(known, key=lambda row: (called(row, series), row["world_size"] or 0))
    bars = named([{**row, **_parts(row)} for row in ordered], [*series, "world_size"], factors)
    figure = plots.parts(bars, _COLOURS, "What is lost to scaling", unit="pct", of="percentage points")
    label = "Percentage points of scaling efficiency lost, by part of the batch, a bar a point"
    return Chart("loss", figure, label)


def _parts(row: dict[str, Any]) -> dict[str, float]:
    """The parts that a bar is stacked of, each time once."""
    known = finest({name: row.get(f"loss_{name}_pct") for name in EVERY})
    return {f"{name}_pct": value for name, value in known.items()} | {
        "unattributed_pct": float(row["loss_unattributed_pct"])
    }
