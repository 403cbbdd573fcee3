"""Predictions of analysis.predict, with what-ifs where a step was traced."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Rows, records
from analysis.measures.certainty import shared_cores, without_unusable_intervals
from analysis.prediction import predict
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.predict import CURVE
from analysis.prediction.simulate import DEFAULT_WHAT_IFS
from analysis.prediction.simulation import SIMULATION
from analysis.report.base import Content, Context, SectionKind, as_view, called, facts
from analysis.report.render import Chart
from jobs.run_fields import own_names
from profiling.errors import UserError
from profiling.findings import Finding

_WORTH_TRYING_PCT = 5.0
_NAMES = {CURVE: "curve", SIMULATION: "simulated"}


def predicted(context: Context) -> Rows:
    """What analysis.predict says, with its what-ifs.

    Raises:
        UserError: nothing, and why.
    """
    if shared_cores(context.study):
        raise UserError(str(Finding("cores_shared")))
    return records(predict.of_study(context.study, what_ifs=DEFAULT_WHAT_IFS))


def _prediction(context: Context) -> Content:
    """Measured and predicted throughput, and what changes would give."""
    rows, factors = context.once(predicted), context.factors
    shown, measured, name = _foremost(rows, context)
    figure = plots.predictions(_points(rows, measured, shown, factors), f"Measured and predicted: {name}")
    caption = plots.CUT if plots.is_cut(figure) else ""
    (part,) = predict.answer(pd.DataFrame(rows)).tables
    view = as_view(replace(part, title="", caption=""), "prediction-table", factors)
    return Content("", [Chart("prediction", figure, caption)], [view])


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


PREDICTION = SectionKind(
    "prediction",
    "What throughput would more ranks reach?",
    _prediction,
    lambda context: bool(context.own),
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


# --- what the opening takes of them ------------------------------------------------------------------------

# What-if -> the field, and its value (by default the what-if's own), of runs that measure it.
MEASURED_AS = {
    "fp16-gradients": ("grad", "fp16"),
    "bucket-mb": ("bucket_mb", ""),
    "no-loader": ("loader", "synthetic"),
}


def _most_measured(row: dict[str, Any]) -> int:
    return int(str(row.get("measured_on") or 0).split()[-1])


def to_try(predicted: Rows, points: Rows) -> dict[str, Any] | None:
    """The change that gives most, on the fewest ranks that were predicted: they are the surest.

    Ranks that another configuration was measured on count only if nothing beyond is predicted. What was
    measured in the same sweep needs no simulation: the results say what it gives.
    """
    tried = [
        row
        for row in predicted
        if row.get("what_if")
        and (row.get("gain_pct") or 0) >= _WORTH_TRYING_PCT
        and row["world_size"] > _most_measured(row)
        and row.get("believed", True)
        and not was_measured(row, points)
    ]
    measured = max((point["world_size"] for point in points), default=0)
    ahead = [row for row in tried if row["world_size"] > measured] or tried
    nearest = [row for row in ahead if row["world_size"] == min(one["world_size"] for one in ahead)]
    return max(nearest, key=lambda row: row["gain_pct"], default=None)


def was_measured(predicted: dict[str, Any], points: Rows) -> bool:
    """Whether a row of several ranks has the change, and is otherwise of the same configuration."""
    name, _, value = predicted["what_if"].partition("=")
    field, measured = MEASURED_AS.get(name, ("", ""))
    if not field:
        return False
    names = (*CONFIGURATION, *own_names(predicted))
    changed = {one: str(predicted.get(one)) for one in names} | {field: measured or value}
    return any(
        point["world_size"] > 1 and all(_same(point.get(one), changed[one]) for one in changed)
        for point in points
    )


def _same(value: Any, text: str) -> bool:
    # A what-if says 50 where the field is 50.0.
    return str(value) == text or (isinstance(value, float) and f"{value:g}" == text)


def disagreement(rows: Rows) -> Finding | None:
    """Where the ranges of curve and simulation, of the job as it is, do not overlap; None: nowhere."""
    names = [*CONFIGURATION, "world_size"]
    ahead = [row for row in rows if not row.get("what_if") and not row.get("backtest")]
    for row in ahead:
        for other in ahead:
            alike = all(str(row.get(name)) == str(other.get(name)) for name in names)
            if alike and (row.get("images_per_s_high") or math.inf) < (other.get("images_per_s_low") or 0.0):
                return Finding("predictions_disagree", data={"ranks": row["world_size"]})
    return None
