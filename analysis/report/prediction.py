"""What would more ranks give? The section of analysis.predict, with what-ifs where a step was traced."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.measures.scaling.certainty import shared_cores, without_unusable_intervals
from analysis.prediction import predictions
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.extrapolate import CURVE
from analysis.prediction.simulate import DEFAULT_WHAT_IFS
from analysis.prediction.simulate_rows import SIMULATION
from analysis.report.base import Content, Context, SectionKind
from analysis.report.forecast import to_try
from analysis.report.render import Chart
from analysis.report.sentences import number, range_in_words, ranks_in_words, runs_in_words
from analysis.report.views import as_view, called, facts
from jobs.run_fields import own_names
from profiling.errors import UserError
from profiling.findings import Finding

_CURVE = "The curve extrapolates the measured throughput; its range covers the other curves that fit."
_SIMULATION = (
    "The simulation replays the profiled step with its gradients exchanged in buckets, unchanged and with "
    "one change at a time; its range covers the allreduce algorithms that fit the profiled allreduces."
)
_NOT_SIMULATED = "No step could be simulated; the notes below say why."
_BOTH = (
    "Ranges are not 95 % confidence intervals: neither method knows of limits that begin beyond the "
    "measured number of ranks (a switch, shared links). Errors come from predicting a measured "
    "configuration from smaller ones."
)
# A range whose ends are further apart than this factor is no headline.
_WIDEST = 10.0
_NO_INTERVAL = "Ranges are not confidence intervals."
_BY = {CURVE: "by the curve", SIMULATION: "by simulation"}
_NAMES = {CURVE: "curve", SIMULATION: "simulated"}


def predicted(context: Context) -> Rows:
    """What analysis.predict says, with its what-ifs.

    Raises:
        UserError: nothing, and why.
    """
    if shared_cores(context.study):
        raise UserError(str(Finding("cores_shared")))
    return predictions.of_study(context.study, what_ifs=DEFAULT_WHAT_IFS)


def known(context: Context) -> Rows:
    """The same of the configurations that filters leave; none where there are none."""
    try:
        return context.rows_of(predicted)
    except UserError:
        return []


def _prediction(context: Context) -> Content:
    """Measured and predicted throughput, and what changes would give."""
    rows, factors = context.once(predicted), context.factors
    simulated = [row for row in rows if row["predicted_by"] == SIMULATION]
    sentences = [_CURVE, _SIMULATION if simulated else _NOT_SIMULATED, _BOTH]
    shown, measured, name = _foremost(rows, context)
    figure = plots.predictions(_points(rows, measured, shown, factors), f"Measured and predicted: {name}")
    label = f"Measured and predicted images/s, by number of ranks: {name}"
    part = Part("", rows, predictions.shown(rows), predictions.caption(rows))
    return Content(
        " ".join(sentence for sentence in sentences if sentence),
        [Chart("prediction", figure, label, _said_of(figure, measured), runs=runs_in_words(measured))],
        [as_view(part, "prediction-table", factors)],
    )


def _foremost(rows: Rows, context: Context) -> tuple[dict[str, Any], Rows, str]:
    """The prediction that matters most, the points of its configuration, and what that is called."""
    simulated = [row for row in rows if row["predicted_by"] == SIMULATION]
    # The chart backs the summary's sentence, where there is one.
    return _of_row(to_try(rows, context.own) or _widest(simulated or rows), context)


def _of_row(shown: dict[str, Any], context: Context) -> tuple[dict[str, Any], Rows, str]:
    """A prediction, the points of its configuration, and what that is called."""
    names = [factor for factor in context.lines if factor in (*CONFIGURATION, *own_names(shown))]
    measured = [row for row in context.own if same_configuration(row, shown)]
    return shown, sorted(measured, key=lambda row: row["nodes"]), name_of(shown, names)


def name_of(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """What the configuration of a prediction is called; of strong scaling by the batch of all ranks."""
    whole = {"batch": "global_batch"} if row.get("scaling") == "strong" else {}
    return called(row, [whole.get(name, name) for name in fields])


def _headline(context: Context) -> str:
    """The throughput of more ranks in a sentence; what a change would give, the opening says."""
    rows = context.rows_of(predicted)
    ahead = [row for row in rows if not row["what_if"] and not row["backtest"] and row["believed"]]
    if not ahead:
        return headline(*_foremost(rows, context)) if rows and not to_try(rows, context.own) else ""
    shown = _widest([row for row in ahead if row["predicted_by"] == SIMULATION] or ahead)
    others = [
        row
        for row in ahead
        if row["predicted_by"] != shown["predicted_by"]
        and row["world_size"] == shown["world_size"]
        and same_configuration(row, shown)
    ]
    return headline(*_of_row(shown, context), others)


def _said_of(figure: plots.Figure, measured: Rows) -> str:
    """What stands below the chart."""
    said = [plots.CUT] if plots.is_cut(figure) else []
    sizes = [row["world_size"] for row in measured]
    if len(set(sizes)) < len(sizes):
        said.append("Predictions are made from the measurements on the fewest nodes.")
    return " ".join(said)


def headline(
    shown: Mapping[str, Any], measured: Rows, name: str, others: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The prediction in a sentence; empty where its range says next to nothing.

    Args:
        shown: a row of analysis.predict.
        measured: the points of its configuration, those on the fewest nodes first.
        name: what the configuration is called.
        others: rows of it on as many ranks, of other methods that are founded as well.
    """
    if not _says_enough(shown):
        return ""
    ranks = ranks_in_words(shown["world_size"])
    here = next((row["images_per_s"] for row in measured if row["world_size"] == shown["world_size"]), None)
    of = f"{name}; measured: {digits(here)}" if here is not None else name
    rates = ", ".join([_rate(shown, " images/s"), *(_rate(row) for row in others if _says_enough(row))])
    if shown["what_if"]:
        return f"What if: {shown['what_if']} would give {rates} on {ranks} ({of}). {_NO_INTERVAL}"
    return f"Predicted on {ranks} ({of}): {rates}. {_NO_INTERVAL}"


def _says_enough(row: Mapping[str, Any]) -> bool:
    low, high = number(row, "images_per_s_low"), number(row, "images_per_s_high")
    return bool(high <= _WIDEST * low)  # nor where there is no upper limit


def _rate(row: Mapping[str, Any], unit: str = "") -> str:
    """``171 images/s by simulation (range 106 to 205)``."""
    by = _BY[row["predicted_by"]]
    return f"{digits(row['images_per_s'], 3)}{unit} {by} ({range_in_words(row)})"


PREDICTION = SectionKind(
    "prediction",
    "What throughput would more ranks reach?",
    _prediction,
    lambda context: bool(context.own),
    finding=_headline,
)


def _widest(rows: Rows) -> dict[str, Any]:
    """A row of the configuration that was predicted fastest on most ranks."""
    return max(rows, key=lambda row: (row["world_size"], not row["what_if"], row["images_per_s"]))


def _points(rows: Rows, measured: Rows, shown: Mapping[str, Any], factors: Sequence[str]) -> pd.DataFrame:
    """The chart's points: a line of what was measured, one a method, one a what-if.

    Where a number of ranks was measured on several numbers of nodes, predictions are made from the fewest:
    the others are points of their own.

    Args:
        measured: those on the fewest nodes first.
    """
    points: list[dict[str, Any]] = []
    on_line: set[int] = set()
    for row in map(without_unusable_intervals, measured):
        apart = row["world_size"] in on_line
        label = f"measured on {row['nodes']} nodes" if apart else "measured"
        on_line.add(row["world_size"])
        points.append({**row, "label": label})
    for row in rows:
        if same_configuration(row, shown):
            name = f"simulated with {row['what_if']}" if row["what_if"] else _NAMES[row["predicted_by"]]
            points.append({**row, "label": name})
    alike = facts(shown, [name for name in factors if name in (*CONFIGURATION, *own_names(shown))])
    columns = ["world_size", "images_per_s", "images_per_s_low", "images_per_s_high", "label"]
    table = pd.DataFrame([{name: point.get(name) for name in columns} | {"facts": alike} for point in points])
    return table.astype(dict.fromkeys(columns[:-1], float))  # also where no point has an upper limit


def same_configuration(row: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether a row is of the configuration; gradients of one rank have no precision.

    Where the batch of the job is constant, that of a rank tells points, not configurations.
    """
    apart = {"grad"} if row.get("world_size") == 1 else set()
    apart |= {"batch"} if shown.get("scaling") == "strong" else set()
    names = [name for name in (*CONFIGURATION, *own_names(row, shown)) if name not in apart]
    return all(str(row.get(name)) == str(shown.get(name)) for name in names)
