"""What would N ranks give?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.display.metrics import (
    RANGE,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    names_of,
    picked,
    telling,
)
from analysis.display.numbers import signed
from analysis.measures.scaling.certainty import shared_cores
from analysis.measures.scaling.point import Scaling
from analysis.prediction import believed, configurations, extrapolate, simulate_rows, untold
from analysis.prediction.basis import Network
from analysis.prediction.configurations import Configuration
from analysis.prediction.extrapolate import Series
from analysis.prediction.simulate import NO_STRAGGLERS
from analysis.prediction.untold import Reason
from analysis.prediction.wanted import wanted_ranks
from analysis.results.study import Study
from profiling.errors import UserError

METRICS = (
    Metric("world_size", "number of ranks", "ranks", key=True),
    Metric(
        "predicted_by",
        "method of prediction. curve: function of the number of ranks fitted to measured throughputs "
        "(analysis/prediction/curve.py); simulation: replay of the profiled step, with gradients exchanged "
        "in buckets (analysis/prediction/simulate.py)",
        text=True,
    ),
    Metric(
        "what_if",
        "change that is simulated (analysis/prediction/simulate.py explains each); empty: unchanged",
        "what if",
        text=True,
        key=True,
    ),
    Metric("backtest", "whether a measured configuration is predicted, from smaller ones only"),
    Metric(
        "scaling",
        "weak (fixed per-GPU batch size) or strong (fixed global batch size)",
        text=True,
    ),
    Metric("global_batch", "images of a step of all ranks", "global\nbatch"),
    Metric("believed", "false: the other method is preferred, for a reason given below the table"),
    Metric("images_per_s", "images/s of all ranks", "images/s", RANGE, priority=2),
    Metric("step_ms", "duration of a step of the job", interval=RANGE),
    Metric(
        "scaling_efficiency_pct",
        "relative to the smallest measured number of ranks",
        "efficiency\n%",
        places=1,
    ),
    Metric("gain_pct", "gain in images/s from the change", show=signed(1)),
    Metric(
        "measured_images_per_s",
        "measured images/s, where the configuration was measured",
        "measured\nimages/s",
    ),
    Metric("error_pct", "difference of the prediction from the measurement", show=signed(1)),
    Metric("measured_on", "numbers of ranks used for the prediction", "from\nranks", text=True),
    Metric("shapes", "curve: the functions that fit", text=True),
    Metric("traced_ranks", "simulation: number of profiled ranks"),
    Metric(
        "fit_error_pct",
        "simulation: difference of the simulated step on traced_ranks from the measured one",
        "fit error\nof step, %",
        show=signed(1),
    ),
    Metric(
        "exchange",
        "allreduce algorithm that fits best (analysis/prediction/exchange_forms.py)",
        text=True,
    ),
    Metric("exchanges_tried", "algorithms that fit about as well", text=True),
    Metric("allreduce_error_pct", "difference of the profiled allreduces from the best fit"),
    Metric("late_ranks", "stragglers among the profiled ranks"),
    Metric("buckets", "gradient buckets per step"),
    Metric("exposed_ms", "exposed part of the gradient exchange"),
    Metric("overlapped_ms", "part of the gradient exchange that is overlapped with computation"),
    Metric("measured_overlapped_ms", "overlapped part as measured on traced_ranks"),
    Metric(
        "alpha_us",
        "latency of a link (between nodes, if there are several), fitted to allreduces or given; empty: "
        "the allreduces have one size, so latency and bandwidth cannot be separated",
    ),
    Metric("beta_gb_per_s", "bandwidth of a link"),
    Metric("alpha_in_node_us", "latency of a link within a node, if there are several nodes"),
    Metric("beta_in_node_gb_per_s", "bandwidth of a link within a node"),
)
_NAMES = names_of(METRICS)
COLUMNS = {"Columns: the configuration's fields, then": METRICS}
NO_TRACE = (
    "a table of throughputs has no profile: --what-if, --alpha-us and --beta-gb-per-s need a sweep's results"
)


@dataclass(frozen=True)
class Predictions:
    """What can be predicted, and in lines why the rest cannot.

    Attributes:
        of: what the configuration of all rows is called, where others have no row.
    """

    rows: Rows
    untold: Sequence[str]
    of: str = ""

    @property
    def title(self) -> str:
        return f"Predicted throughput{self.of and f': {self.of}'}"


def of_study(
    study: Study,
    ranks: str = "",
    what_ifs: Sequence[str] = (),
    network: Network | None = None,
    scaling: Scaling | None = None,
    gpus_per_node: int | None = None,
) -> Predictions:
    """The rows of a sweep: curves, then simulations.

    Args:
        ranks: as the flag ``--ranks`` has them.
        scaling: by default what the report chooses (:func:`analysis.prediction.configurations.chosen`).
        gpus_per_node: that a node holds; by default as measured (:class:`~.configurations.Nodes`).

    Raises:
        UserError: neither can be made, with why.
    """
    sweep_configurations = configurations.configurations(study, scaling, gpus_per_node)
    if not sweep_configurations:
        why = "traces hold no batch size, so no images/s" if study.of_kind("trace") else "these hold none"
        raise UserError(f"{untold.NEITHER}: it needs results of runs, and {why}")
    series = extrapolate.series_of(sweep_configurations)
    wanted = wanted_ranks(ranks, [one.ranks[-1] for one in series])
    simulated, reasons = simulate_rows.rows(study, sweep_configurations, wanted, what_ifs, network)
    names = untold.names_of(series)
    try:
        curves, without_curve = extrapolate.rows(series, wanted)
    except UserError as error:
        curves, without_curve = [], [Reason(name, str(error)) for name in names]
    rows = [*curves, *simulated]
    own = [name for name, one in zip(names, sweep_configurations, strict=True)
           if not _is_baseline_only(one, sweep_configurations)]  # fmt: skip
    without_curve, reasons = ([one for one in some if one.of in own] for some in (without_curve, reasons))
    shared = shared_cores(study)
    if not rows:
        # Then more measured numbers of ranks would not help.
        lacks = shared if without_curve or reasons else ""
        raise UserError(f"{untold.NEITHER}: {lacks}" if lacks else _neither(without_curve, reasons, own))
    ahead = [row for row in simulated if not row["backtest"] and not row["what_if"]]
    lines = untold.of_both(without_curve, reasons, _with_rows(ahead, series), own)
    if shared and not all(row["backtest"] for row in rows):
        lines = [f"predictions for more ranks do not hold: {shared}", *lines]
    return _predictions(rows, lines, series)


def of_table(series: Sequence[Series], ranks: str = "") -> Predictions:
    """The rows of a table of rates.

    Raises:
        UserError: there are none, with why.
    """
    wanted = wanted_ranks(ranks, [one.ranks[-1] for one in series])
    made, reasons = extrapolate.rows(series, wanted)
    names = untold.names_of(series)
    if not made:
        raise UserError(_neither(reasons, [], names))
    return _predictions(made, untold.of_both(reasons, [], (), names), series)


def _predictions(rows: Rows, lines: Sequence[str], series: Sequence[Series]) -> Predictions:
    names = _with_rows(rows, series)
    return Predictions(believed.judged(rows), lines, names[0] if len(names) == 1 else "")


def _with_rows(rows: Rows, series: Sequence[Series]) -> list[str]:
    """What those configurations are called that have rows."""
    names = untold.names_of(series)
    return [name for name, one in zip(names, series, strict=True) if any(_is_of(row, one) for row in rows)]


def _is_of(row: Mapping[str, Any], one: Series) -> bool:
    return all(str(row.get(name)) == str(value) for name, value in one.fields.items())


def _is_baseline_only(one: Configuration, among: Sequence[Configuration]) -> bool:
    """Whether all points of a configuration are those from which others start: nobody asks about it."""
    own = [point.fields for point in one.points]
    return any(
        other is not one and all(any(point.fields == fields for point in other.points) for fields in own)
        for other in among
    )


def _neither(curves: Sequence[Reason], simulations: Sequence[Reason], names: Sequence[str]) -> str:
    """Why there is neither a curve nor a simulation, in one line.

    That profiles do not determine it either adds nothing; what a simulation lacks may be easier to give.
    """
    said = untold.lines(curves, names)
    known = {one.why for one in curves}
    lacking = untold.lines([one for one in simulations if one.why not in known and not one.possible], names)
    also = f"; no simulation: {lacking[0]}" if lacking else ""
    why = first_of(said) if said else "all these numbers of ranks were measured"
    return f"{untold.NEITHER}: {why}{also}"


def first_of(reasons: Sequence[str]) -> str:
    """The first reason, and how many there are: one line."""
    return reasons[0] + (f" (the first of {len(reasons)} reasons)" if len(reasons) > 1 else "")


_RANGES = {
    extrapolate.CURVE: "Ranges of curves: over all functions that fit the measured throughputs.",
    simulate_rows.SIMULATION: "Ranges of simulations: over all allreduce algorithms that fit the profiled "
    "allreduces; steps, calls and runs are resampled.",
}
_NOT_95 = (
    "Ranges are not 95 % confidence intervals, and leave out network contention that begins only on more "
    "ranks (docs/methods.md: how often they contain the true value)."
)


_NO_STRAGGLERS = (
    f"{NO_STRAGGLERS}: the latest rank comes with the median one. How long ranks wait: "
    "analysis.communication; the step if none waited, each at its own pace: analysis.critical_path."
)


def caption(rows: Rows, in_words: bool = True) -> str:
    """What stands below the table: what the ranges are, and how good predictions were.

    Args:
        in_words: which method to believe, too.
    """
    lines = believed.sentences(rows) if in_words else []
    for method, ranges in _RANGES.items():
        of = [row for row in rows if row["predicted_by"] == method]
        errors = [abs(row["error_pct"]) for row in of if row["backtest"]]
        if of and errors:
            lines.append(
                f"{ranges}\nBacktests (each from smaller configurations only): {len(errors)}, median error "
                f"{np.median(errors):.1f} %, largest {max(errors):.1f} %."
            )
        elif of:
            lines.append(f"{ranges}\nToo few configurations for a backtest: the accuracy is unknown.")
    if any(row["images_per_s_high"] is None for row in rows):
        lines.append("No upper limit of images/s (-): the measurements do not determine it.")
    if any(NO_STRAGGLERS in row["what_if"] for row in rows):
        lines.append(_NO_STRAGGLERS)
    return "\n".join([*lines, _NOT_95])


def fields_of(rows: Rows) -> list[str]:
    """The columns of rows that are no :data:`METRICS`: a run's fields, or those of a table of rates."""
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _NAMES]


def shown(rows: Rows) -> list[Column]:
    """The tables' columns; those that no row fills are left out."""
    # Of strong scaling a rank's batch is that of the largest measured point, and no configuration.
    strong = all(row["scaling"] == "strong" for row in rows)
    varying = [name for name in telling(rows, fields_of(rows)) if name != "batch" or not strong]
    sizes = ["global_batch"] if strong and telling(rows, ["global_batch"]) else []
    figures = picked(
        METRICS, *sizes, "predicted_by", "world_size", "what_if", "images_per_s", "gain_pct",
        "scaling_efficiency_pct", "exposed_ms", "exchange", "fit_error_pct", "measured_images_per_s",
        "error_pct", "measured_on",
    )  # fmt: skip
    return filled(columns([*fields(varying), *figures]), rows)
