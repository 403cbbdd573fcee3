"""Rows of analysis.predict: curves and simulations of more ranks, and which of the two is better founded."""

from collections.abc import Sequence

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
from analysis.frames.study import Study
from analysis.measures.certainty import shared_cores
from analysis.measures.points import Scaling
from analysis.prediction import extrapolate, simulate_rows
from analysis.prediction.configurations import CONFIGURATION, Configuration, configurations, wanted_ranks
from analysis.prediction.extrapolate import CURVE, Series
from analysis.prediction.simulate_rows import SIMULATION, Network
from jobs.run_fields import own_names
from profiling.errors import UserError
from profiling.findings import Finding, lines

METRICS = (
    Metric("world_size", "number of ranks", "ranks", key=True),
    Metric(
        "predicted_by", "curve: fitted to measured throughputs; simulation: replay of the profiled step",
        text=True,
    ),
    Metric("what_if", "simulated change; empty: unchanged", "what if", text=True, key=True),
    Metric("backtest", "whether a measured configuration is predicted, from smaller ones only"),
    Metric("scaling", "weak (fixed per-GPU batch size) or strong (fixed global batch size)", text=True),
    Metric("global_batch", "images of a step of all ranks", "global\nbatch"),
    Metric("believed", "false: the other method is better founded", show=lambda one: "yes" if one else "no"),
    Metric("images_per_s", "images/s of all ranks", "images/s", RANGE, priority=2),
    Metric("step_ms", "duration of a step of the job", interval=RANGE),
    Metric(
        "scaling_efficiency_pct", "relative to the smallest measured number of ranks", "efficiency\n%",
        places=1,
    ),
    Metric("gain_pct", "gain in images/s from the change", show=signed(1)),
    Metric("measured_images_per_s", "measured images/s of this configuration", "measured\nimages/s"),
    Metric("error_pct", "difference of the prediction from the measurement", show=signed(1)),
    Metric("measured_on", "numbers of ranks used for the prediction", "from\nranks", text=True),
    Metric("shapes", "curve: the functions that fit", text=True),
    Metric("traced_ranks", "simulation: number of profiled ranks"),
    Metric(
        "fit_error_pct", "simulation: difference of the simulated step on traced_ranks from the measured one",
        "fit error\nof step, %", show=signed(1),
    ),
    Metric("exchange", "allreduce algorithm that fits best", text=True),
    Metric("exchanges_tried", "algorithms that fit about as well", text=True),
    Metric("allreduce_error_pct", "difference of the profiled allreduces from the best fit"),
    Metric("late_ranks", "stragglers among the profiled ranks"),
    Metric("buckets", "gradient buckets per step"),
    Metric("exposed_ms", "exposed part of the gradient exchange"),
    Metric("overlapped_ms", "part of the gradient exchange that is overlapped with computation"),
    Metric("measured_overlapped_ms", "overlapped part as measured on traced_ranks"),
    Metric("alpha_us", "latency of a link (the slowest); empty: all allreduces have one size"),
    Metric("beta_gb_per_s", "bandwidth of a link (the slowest)"),
    Metric("alpha_in_node_us", "latency of a link within a node, if there are several nodes"),
    Metric("beta_in_node_gb_per_s", "bandwidth of a link within a node"),
)  # fmt: skip
_NAMES = names_of(METRICS)
COLUMNS = {"Columns: the configuration's fields, then": METRICS}

# A simulated step that is further off the measured one explains it less well than none, percent.
_MOST_FIT_ERROR_PCT = 10.0
# A largest error of back-tests that is by less above the other method's than this is alike, percent.
_ALIKE_PCT = 1.0


def of_study(
    study: Study,
    ranks: str = "",
    what_ifs: Sequence[str] = (),
    network: Network | None = None,
    scaling: Scaling | None = None,
    gpus_per_node: int | None = None,
) -> Rows:
    """The rows of a sweep: curves, then simulations. What has no row is a finding of the study.

    Args:
        ranks: as the flag ``--ranks`` has them.
        scaling: by default what the report chooses.
        gpus_per_node: that a node holds; by default as measured (:class:`~.configurations.Nodes`).

    Raises:
        UserError: neither can be made, with why.
    """
    found = configurations(study, scaling, gpus_per_node)
    if not found:
        raise UserError("no prediction: no runs with a batch size")
    series = extrapolate.series_of(found)
    wanted = wanted_ranks(ranks, [one.ranks[-1] for one in series])
    names = extrapolate.names_of(series)
    simulated, not_simulated = simulate_rows.rows(study, found, wanted, what_ifs, network, names)
    curves, not_extrapolated = extrapolate.rows(series, wanted)
    rows = judged([*curves, *simulated])
    own = [name or None for name, one in zip(names, found, strict=True) if not _is_baseline_only(one, found)]
    findings = [one for one in (*not_extrapolated, *not_simulated) if one.configuration in own]
    findings = _lacking(findings, rows, series)
    if (findings or any(not row["backtest"] for row in rows)) and shared_cores(study):
        findings = [Finding("cores_shared")]
    if not rows:
        raise UserError(_nothing(findings))
    for one in findings:
        study.log.add(one)
    return rows


def of_table(series: Sequence[Series], ranks: str = "") -> tuple[Rows, list[Finding]]:
    """The rows of a table of rates, and findings on what has none.

    Raises:
        UserError: there are none, with why.
    """
    wanted = wanted_ranks(ranks, [one.ranks[-1] for one in series])
    rows, findings = extrapolate.rows(series, wanted)
    if not rows:
        raise UserError(_nothing(findings))
    return judged(rows), _lacking(findings, rows, series)


def _nothing(findings: Sequence[Finding]) -> str:
    return "; ".join(lines(findings)) or "no prediction: all these numbers of ranks were measured"


def _lacking(findings: Sequence[Finding], rows: Rows, series: Sequence[Series]) -> list[Finding]:
    """The findings, but on ranks that one of the methods predicts."""
    ahead = [row for row in rows if not row["backtest"] and not row["what_if"]]
    shown = {
        (name or None, row["world_size"])
        for name, one in zip(extrapolate.names_of(series), series, strict=True)
        for row in ahead
        if all(str(row.get(field)) == str(value) for field, value in one.fields.items())
    }
    answer = []
    for one in dict.fromkeys(findings):
        if one.code == "not_predicted":
            ranks = [count for count in one.data["ranks"] if (one.configuration, count) not in shown]
            one = one.of(data={**one.data, "ranks": ranks})
        if one.data.get("ranks") != []:
            answer.append(one)
    return answer


def _is_baseline_only(one: Configuration, among: Sequence[Configuration]) -> bool:
    """Whether all points of a configuration are those from which others start: nobody asks about it."""
    own = [point.fields for point in one.points]
    return any(
        other is not one and all(any(point.fields == fields for point in other.points) for fields in own)
        for other in among
    )


# --- which of two methods is better founded -------------------------------------------------------------


def judged(rows: Rows) -> Rows:
    """The rows with ``believed``: that no other method of the configuration is the better founded one.

    The simulation replays a traced step, so it knows what a rate does not say: how much of the exchange the
    backward pass hid on the measured ranks, and which ranks are late. It is believed unless its step, or what
    it said of measured points, is further off than the curve's; where that is by little, so are both.
    """
    if not rows:
        return rows
    # Of strong scaling the batch of all ranks tells configurations apart: that of a rank is of one point.
    strong = {"batch": "global_batch"} if rows[0].get("scaling") == "strong" else {}
    names = [strong.get(name, name) for name in CONFIGURATION if name in rows[0]] + own_names(*rows)
    keys = [tuple(str(row.get(name)) for name in names or ["measured_on"]) for row in rows]
    alike: dict[tuple[str, ...], Rows] = {}
    for key, row in zip(keys, rows, strict=True):
        alike.setdefault(key, []).append(row)
    methods = {key: _method(of) for key, of in alike.items()}
    return [
        row | {"believed": methods[key] in ("", row["predicted_by"])}
        for key, row in zip(keys, rows, strict=True)
    ]


def _method(alike: Rows) -> str:
    """The better founded method of a configuration; empty: none predicts more ranks, or back-tests are for
    the curve by too little.
    """
    ahead = [row for row in alike if not row["backtest"] and not row["what_if"]]
    methods = {row["predicted_by"] for row in ahead}
    if methods != {CURVE, SIMULATION}:
        return next(iter(methods), "")
    fits = [abs(row["fit_error_pct"]) for row in ahead if row["predicted_by"] == SIMULATION]
    if max(fits) > _MOST_FIT_ERROR_PCT:
        return CURVE
    tested: dict[str, dict[int, float]] = {CURVE: {}, SIMULATION: {}}
    for row in alike:
        if row["backtest"]:
            tested[row["predicted_by"]][row["world_size"]] = abs(row["error_pct"])
    both = tested[CURVE].keys() & tested[SIMULATION].keys()
    curve, simulation = (max((tested[name][ranks] for ranks in both), default=0.0) for name in tested)
    if simulation > curve + _MOST_FIT_ERROR_PCT:
        return CURVE
    return "" if simulation > curve + _ALIKE_PCT else SIMULATION


# --- the table ------------------------------------------------------------------------------------------


def caption(rows: Rows) -> str:
    """How good the methods were on measured configurations, a line each."""
    errors = {
        method: [abs(row["error_pct"]) for row in rows if row["predicted_by"] == method and row["backtest"]]
        for method in (CURVE, SIMULATION)
    }
    return "\n".join(
        f"{method}: {len(of)} backtests, median error {np.median(of):.1f} %, largest {max(of):.1f} %"
        for method, of in errors.items()
        if of
    )


def fields_of(rows: Rows) -> list[str]:
    """The columns of rows that are no :data:`METRICS`: a run's fields, or those of a table of rates."""
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _NAMES]


def shown(rows: Rows) -> list[Column]:
    """The tables' columns; those that no row fills are left out."""
    # Of strong scaling a rank's batch is that of the largest measured point, and no configuration.
    strong = all(row["scaling"] == "strong" for row in rows)
    varying = [name for name in telling(rows, fields_of(rows)) if name != "batch" or not strong]
    sizes = ["global_batch"] if strong and telling(rows, ["global_batch"]) else []
    sizes += telling(rows, ["believed"])
    figures = picked(
        METRICS, *sizes, "predicted_by", "world_size", "what_if", "images_per_s", "gain_pct",
        "scaling_efficiency_pct", "exposed_ms", "exchange", "fit_error_pct", "measured_images_per_s",
        "error_pct", "measured_on",
    )  # fmt: skip
    return filled(columns([*fields(varying), *figures]), rows)
