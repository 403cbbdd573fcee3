"""Predicted throughput of more ranks, by curves and by simulation, and which of the two is preferred.

Where a measured point lies outside the range predicted from smaller ones, ranges beyond it are widened by
that distance for every doubling of the ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import RANGE, Metric, fields, names_of, telling
from analysis.display.numbers import signed
from analysis.display.output import Answer
from analysis.frames.measure import measure
from analysis.frames.study import Study
from analysis.measures.points import Scaling, shared_cores
from analysis.prediction import configurations, curve
from analysis.prediction.configurations import Configuration
from analysis.prediction.simulation import SIMULATION, parse_what_ifs, simulations
from analysis.prediction.traced_step import Traced, traced
from profiling.errors import UserError
from profiling.findings import Finding, lines

METRICS = (
    Metric("global_batch", "images of a step of all ranks", "global\nbatch"),
    Metric("world_size", "number of ranks", "ranks", key=True),
    Metric("predicted_by", "curve: fitted to measured throughputs; simulation: replay of the profiled step",
           text=True),
    Metric("what_if", "simulated change; empty: unchanged", "what if", text=True, key=True),
    Metric("backtest", "whether a measured configuration is predicted, from smaller ones only", table=False),
    Metric("scaling", "weak (fixed per-GPU batch size) or strong (fixed global batch size)", text=True,
           table=False),
    Metric("believed", "false: the other method is preferred", show=lambda one: "yes" if one else "no",
           priority=0),
    Metric("images_per_s", "images/s of all ranks", "images/s", RANGE, priority=2),
    Metric("step_ms", "duration of a step of the job", interval=RANGE, table=False),
    Metric("scaling_efficiency_pct", "relative to the smallest measured number", "efficiency\n%", places=1),
    Metric("gain_pct", "gain in images/s from the change", show=signed(1), priority=2),
    Metric("measured_images_per_s", "measured images/s of this configuration", "measured\nimages/s"),
    Metric("error_pct", "difference of the prediction from the measurement", show=signed(1)),
    Metric("measured_on", "numbers of ranks used for the prediction", "from\nranks", text=True),
    Metric("shapes", "curve: the functions that fit", text=True, table=False),
    Metric("traced_ranks", "simulation: number of profiled ranks", table=False),
    Metric("fit_error_pct", "simulation: difference of the simulated step on traced_ranks from the measured",
           "fit error\nof step, %", show=signed(1)),
    Metric("exchange", "allreduce algorithm that fits best", text=True),
    Metric("exchanges_tried", "algorithms that fit about as well", text=True, table=False),
    Metric("allreduce_error_pct", "difference of the profiled allreduces from the best fit", table=False),
    Metric("late_ranks", "stragglers among the profiled ranks", table=False),
    Metric("buckets", "gradient buckets per step", table=False),
    Metric("exposed_ms", "exposed part of the gradient exchange"),
    Metric("alpha_us", "latency of a link (the slowest); empty: all allreduces have one size", table=False),
    Metric("beta_gb_per_s", "bandwidth of a link (the slowest)", table=False),
    Metric("alpha_in_node_us", "latency of a link within a node, if there are several nodes", table=False),
    Metric("beta_in_node_gb_per_s", "bandwidth of a link within a node", table=False),
)  # fmt: skip
COLUMNS = {"Columns: the configuration's fields, then": METRICS}
_COUNTS = ("traced_ranks", "late_ranks", "buckets")
_BACKTESTS = "{}: {} backtests, median error {:.1f} %, largest {:.1f} %"

CURVE = "curve"
_MOST_FIT_ERROR_PCT = 10.0  # of the simulated step, or of back-tests: beyond it the curve is preferred
_ALIKE_PCT = 1.0  # difference of the methods' largest errors of back-tests that is none


@measure(COLUMNS)
def predict(
    study: Study, ranks: str = "", what_if: str = "", scaling: Scaling | None = None,
    gpus_per_node: int | None = None,
) -> Answer:  # fmt: skip
    """A row a configuration and number of ranks, of a sweep or of a CSV table of rates."""
    frame = of_study(study, ranks, parse_what_ifs(what_if), scaling, gpus_per_node)
    # In strong scaling, rows so far have the batch of the largest measured point.
    if "batch" in frame and (strong := frame["scaling"] == "strong").any():
        batch = (frame["global_batch"] / frame["world_size"]).astype(float)
        sizes = [int(value) if value == int(value) else value for value in batch]
        frame["batch"] = frame["batch"].mask(strong, pd.Series(sizes, frame.index, dtype=object))
    return answer(frame)


def answer(frame: pd.DataFrame) -> Answer:
    own = [str(name) for name in frame if name not in ("of", *names_of(METRICS))]
    strong = bool((frame["scaling"] == "strong").all())
    shown = set(telling(frame, own)) - ({"batch"} if strong else set())
    shown |= set(telling(frame, ["believed", *(["global_batch"] if strong else [])]))
    hidden = {*own, "believed", "global_batch"} - shown
    metrics = [replace(one, table=one.table and one.name not in hidden) for one in (*fields(own), *METRICS)]
    tested = frame[frame["backtest"]]
    errors = tested["error_pct"].abs().groupby(tested["predicted_by"], sort=False)
    rows_of_errors = errors.agg(["size", "median", "max"]).itertuples(name=None)
    caption = "\n".join(_BACKTESTS.format(*row) for row in rows_of_errors)
    return Answer(frame, metrics, title="Predicted throughput", caption=caption)


def of_study(
    study: Study, ranks: str = "", what_ifs: Sequence[str] = (), scaling: Scaling | None = None,
    gpus_per_node: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """The predictions of a sweep or a table of rates; configurations without any are findings."""
    if is_table := study.path.suffix == ".csv" and study.path.is_file():
        if what_ifs:
            raise UserError("--what-if needs a sweep's results, not a table")
        found = configurations.read_table(study.path)
    else:
        found = configurations.of_study(study, scaling, gpus_per_node)
    if not found:
        raise UserError("no prediction: no runs with a batch size")
    targets = configurations.target_ranks(ranks, [one.ranks[-1] for one in found])
    steps = [[traced(study, point) for point in one.points] for one in found]
    frame, findings = predictions(found, steps, targets, what_ifs)
    # A configuration whose points all belong to others, as their baselines, is not asked about.
    places = [{point.name for point in one.points} for one in found]
    unasked = [
        one.name or None
        for one, own in zip(found, places, strict=True)
        if own and any(other is not own and own <= other for other in places)
    ]
    findings = [one for one in findings if one.configuration not in unasked]
    if (findings or not frame["backtest"].all()) and not is_table and shared_cores(study):
        findings = [Finding("cores_shared")]
    if frame.empty:
        none = "no prediction: all these numbers of ranks were measured"
        raise UserError("; ".join(lines(findings)) or none)
    for one in findings:
        study.add(one)
    return frame


def predictions(
    found: Sequence[Configuration],
    steps: Sequence[Sequence[Traced | str]],
    targets: Sequence[int],
    what_ifs: Sequence[str] = (),
) -> tuple[pd.DataFrame, list[Finding]]:
    """Back-tests and predictions of both methods, and findings on numbers of ranks that neither predicts.

    ``steps``: of each configuration and point the traced step, or what it lacks. Columns: the fields of
    configurations, ``of`` (their place in ``found``), :data:`METRICS`.
    """
    made = [curves(one, targets) for one in found]
    replayed = [number for number, one in enumerate(found) if one.points]
    made += [simulations(found[number], steps[number], targets, what_ifs) for number in replayed]
    numbers = [*range(len(found)), *replayed]
    rows = [{"of": number, **row} for number, (of, _) in zip(numbers, made, strict=True) for row in of]
    frame = judged(_frame(found, rows))
    ahead = frame[~frame["backtest"] & (frame["what_if"] == "")]
    known = {(found[of].name or None, size) for of, size in ahead[["of", "world_size"]].to_numpy().tolist()}
    lacking = []
    for finding in dict.fromkeys(finding for _, findings in made for finding in findings):
        if finding.code == "not_predicted":
            ranks = [count for count in finding.data["ranks"] if (finding.configuration, count) not in known]
            finding = finding.of(data={**finding.data, "ranks": ranks})
        if finding.data.get("ranks") != []:
            lacking.append(finding)
    return frame, lacking


def _frame(found: Sequence[Configuration], rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows of :func:`prediction` as :data:`METRICS` have them, after the fields of their configurations."""
    names = [name for name in names_of(METRICS) if name not in ("believed", "global_batch")]
    frame = pd.DataFrame(rows, columns=["of", "images", *names])
    frame["backtest"] = frame["backtest"].astype(bool)
    of = [found[number] for number in frame["of"]]
    batches = [
        round(one.images(ranks)) if {"batch", "batch_per_gpu"} & one.fields.keys() else None
        for one, ranks in zip(of, frame["world_size"], strict=True)
    ]
    frame["global_batch"] = pd.Series(batches, frame.index, dtype="Int64")
    frame["scaling"] = ["strong" if one.strong else "weak" for one in of]
    # Where the low end of a step is 0, the rate has no upper limit.
    step_s = frame[["step_ms", "step_ms_high", "step_ms_low"]].astype(float) / 1e3
    rates = ["images_per_s", "images_per_s_low", "images_per_s_high"]
    frame[rates] = (1 / step_s.where(step_s > 0)).mul(frame["images"], axis=0).to_numpy()
    per_rank = np.array([one.images_per_s[0] / one.ranks[0] for one in of])
    frame["scaling_efficiency_pct"] = 100 * frame["images_per_s"] / frame["world_size"] / per_rank
    measured = [dict(zip(one.ranks, one.images_per_s, strict=True)) for one in of]
    at = [rate.get(ranks, np.nan) for rate, ranks in zip(measured, frame["world_size"], strict=True)]
    frame["measured_images_per_s"] = pd.Series(at, frame.index, dtype=float).where(frame["backtest"])
    frame["error_pct"] = 100 * (frame["images_per_s"] / frame["measured_images_per_s"] - 1)
    frame = frame.astype(dict.fromkeys(_COUNTS, "Int64")).drop(columns="images")
    fields = pd.DataFrame([one.fields for one in of], index=frame.index, dtype=object)
    return pd.concat([fields.drop(columns=[name for name in fields if name in frame]), frame], axis=1)


def curves(one: Configuration, targets: Sequence[int]) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Back-tests of a configuration, then its predictions, and findings on ranks without any."""
    if len(one.ranks) < 2:
        ahead = [ranks for ranks in targets if ranks > one.ranks[0]]
        return [], [one.not_predicted(ahead, configurations.ONE_SIZE)]

    def predicted(ranks: int, count: int) -> dict[str, Any]:
        """From the smallest ``count`` points; wider by as much as earlier predictions missed."""
        known, errors = one.ranks[:count], one.errors[:count]
        found = curve.predict(known, one.times_s[:count], ranks, errors or None, one.strong)
        wider = float(np.exp(missed * configurations.doublings(known[-1], ranks)))
        step_s = (found.time, found.low / wider, found.high * wider)
        images, shapes = one.images(ranks), " ".join(found.shapes)
        return configurations.prediction(CURVE, ranks, images, step_s, known, shapes=shapes)

    rows: list[dict[str, Any]] = []
    missed = 0.0
    for place in range(2, len(one.ranks)):
        rows.append(predicted(one.ranks[place], place) | {"backtest": True})
        noise = one.errors[place] if one.errors else curve.ASSUMED_SCATTER
        off = configurations.outside(one.times_s[place], rows[-1], noise)
        missed = max(missed, off / configurations.doublings(*one.ranks[place - 1 : place + 1]))
    near, findings = one.within_reach(targets)
    for ranks in near:
        row = predicted(ranks, len(one.ranks))
        if one.nodes == 1 and one.layout(ranks).nodes > 1:
            findings.append(one.not_predicted([ranks], configurations.LINKS))
        elif configurations.is_too_wide(row):
            findings.append(one.not_predicted([ranks], configurations.TOO_WIDE))
        else:
            rows.append(row)
    return rows, findings


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``believed``: whether their method is preferred for the configuration, or both are.

    The simulation, which knows how much of the exchange is hidden and who straggles, is preferred unless its
    step or its back-tests are much further off than the curve's; both are if it is little.
    """

    def method(rows: pd.DataFrame) -> str:
        """The preferred one of a configuration; empty: both, or there is no prediction."""
        ahead = rows[~rows["backtest"] & (rows["what_if"] == "")]
        methods = set(ahead["predicted_by"])
        if methods != {CURVE, SIMULATION}:
            return next(iter(methods), "")
        tested = rows[rows["backtest"]].pivot(index="world_size", columns="predicted_by", values="error_pct")
        errors = tested.reindex(columns=[CURVE, SIMULATION]).dropna().abs().max().fillna(0.0)
        further_off = errors[SIMULATION] - errors[CURVE]
        if (ahead["fit_error_pct"].abs().max() > _MOST_FIT_ERROR_PCT) or further_off > _MOST_FIT_ERROR_PCT:
            return CURVE
        return "" if further_off > _ALIKE_PCT else SIMULATION

    better = frame["of"].map({of: method(rows) for of, rows in frame.groupby("of")})
    return frame.assign(believed=(better == "") | (better == frame["predicted_by"]))
