"""What would N ranks give?

The columns are explained in analysis/predict.py.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.terminal import Column, Rows, with_interval
from analysis.measures.scaling.points import Scaling
from analysis.prediction import believed, configurations, extrapolate, simulate_rows
from analysis.prediction.basis import Network
from analysis.prediction.extrapolate import Series
from analysis.results.study import Study
from profiling.errors import UserError

COLUMNS = (
    "ranks", "method", "what_if", "backtest", "scaling", "believed", "images_per_s", "images_per_s_low",
    "images_per_s_high", "batch_ms", "batch_ms_low", "batch_ms_high", "scaling_efficiency_pct", "gain_pct",
    "measured_images_per_s", "error_pct", "measured_on", "shapes", "traced_ranks", "fit_error_pct",
    "exchange", "exchanges_tried", "allreduce_error_pct", "late_ranks", "buckets", "exposed_ms", "hidden_ms",
    "measured_hidden_ms", "alpha_us", "beta_gb_per_s", "alpha_in_node_us", "beta_in_node_gb_per_s",
)  # fmt: skip
# A prediction over more than this many times the measured ranks is guessing.
FARTHEST = 16
NO_TRACE = "a table of rates has no trace: --what-if, --alpha-us and --beta-gb-per-s need a sweep's results"


def of_study(
    study: Study,
    ranks: str = "",
    what_ifs: Sequence[str] = (),
    network: Network | None = None,
    scaling: Scaling | None = None,
    gpus_per_node: int | None = None,
) -> Rows:
    """The rows of a sweep: curves, then simulations; a finding says why a configuration has none of these.

    Args:
        ranks: as the flag ``--ranks`` has them.
        scaling: by default what the report chooses (:func:`analysis.prediction.configurations.chosen`).
        gpus_per_node: that a node holds; by default as measured (:class:`~.configurations.Nodes`).

    Raises:
        UserError: neither can be made, with why.
    """
    found = configurations.configurations(study, scaling, gpus_per_node)
    series = extrapolate.series_of(found)
    wanted = wanted_ranks(ranks, series)
    simulated, reasons = simulate_rows.rows(study, found, wanted, what_ifs, network)
    try:
        curves, untold = extrapolate.rows(series, wanted)
    except UserError as error:
        if not simulated:
            raise UserError(_neither([str(error)], reasons)) from None
        curves, untold = [], [str(error)]
    made = [*curves, *simulated]
    if not made:
        raise UserError(_neither(untold, reasons))
    for reason in untold:
        study.note(f"no curve: {reason}")
    for reason in reasons:
        study.note(f"not simulated: {reason}")
    return believed.judged(made)


def _neither(untold: Sequence[str], reasons: Sequence[str]) -> str:
    """Why there is neither a curve nor a simulation; a reason of both once."""
    own = [reason for reason in reasons if reason not in untold]
    also = f"; nor can a step be simulated: {'; '.join(own)}" if own else "; nor can a step be simulated"
    return "; ".join(untold) + also


def wanted_ranks(text: str, series: Sequence[Series]) -> list[int]:
    largest = max((one.ranks[-1] for one in series), default=1)
    if not text:
        return [2 * largest, 4 * largest]
    values = [value.strip() for value in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", value) and int(value) > 0 for value in values):
        raise UserError(f"--ranks: {text!r} is no list of numbers of ranks, e.g. 8,16,32")
    if max(map(int, values)) > FARTHEST * largest:
        raise UserError(
            f"--ranks: {max(map(int, values))} ranks are more than {FARTHEST} times the measured {largest}: "
            "measure a larger point first"
        )
    if series and max(map(int, values)) <= min(one.ranks[-1] for one in series):
        raise UserError(f"--ranks: {text} ranks or more were measured; give more than {largest}")
    return [int(value) for value in values]


_RANGES = {
    extrapolate.CURVE: "Ranges of curves: of all shapes of cost that the measured rates allow.",
    simulate_rows.SIMULATION: "Ranges of simulations: of all forms of the exchange that the recorded "
    "allreduces allow; batches, calls and runs resampled.",
}
_NOT_95 = (
    "No range is a 95 % interval: links that only more ranks have to share are in none (docs/methods.md says "
    "how often ranges hold)."
)


def caption(made: Rows, in_words: bool = True) -> str:
    """What stands below the table: what the ranges are, and how good predictions were.

    Args:
        in_words: which method to believe, too.
    """
    lines = believed.sentences(made) if in_words else []
    for method, ranges in _RANGES.items():
        of = [row for row in made if row["method"] == method]
        errors = [abs(row["error_pct"]) for row in of if row["backtest"]]
        if of and errors:
            lines.append(
                f"{ranges}\nBack-tests (each from smaller points only): {len(errors)}, median error "
                f"{np.median(errors):.1f} %, largest {max(errors):.1f} %."
            )
        elif of:
            lines.append(f"{ranges}\nToo few points for a back-test: how good this is, is not known.")
    return "\n".join([*lines, _NOT_95])


def shown(made: Rows, fields: Sequence[str]) -> list[Column]:
    """The terminal's columns; those that no row fills are left out."""

    def get(name: str) -> Any:
        return lambda row: row.get(name)

    def percent(name: str) -> Any:
        return lambda row: None if row.get(name) is None else f"{row[name]:+z.1f}"

    def rate(row: Mapping[str, Any]) -> str:
        return with_interval(row["images_per_s"], row["images_per_s_low"], row["images_per_s_high"])

    varying = [name for name in fields if len({str(row.get(name)) for row in made}) > 1]
    # Of strong scaling a rank's batch is that of the largest measured point, and no configuration.
    strong = all(row["scaling"] == "strong" for row in made)
    varying = [name for name in varying if name != "batch" or not strong]
    columns = [
        *(Column(name, get(name), left=True) for name in varying),
        Column("method", get("method"), left=True),
        Column("ranks", get("ranks"), key=True),
        Column("what if", get("what_if"), left=True, key=True),
        Column("images/s\n[range]", rate),
        Column("gain\n%", percent("gain_pct")),
        Column("efficiency\n%", lambda row: f"{row['scaling_efficiency_pct']:.1f}"),
        Column("exposed\nms", get("exposed_ms")),
        Column("exchange", get("exchange"), left=True),
        Column("step off\nmeasured, %", percent("fit_error_pct")),
        Column("measured\nimages/s", get("measured_images_per_s")),
        Column("error\n%", percent("error_pct")),
        Column("from\nranks", get("measured_on"), left=True),
    ]
    return [one for one in columns if any(one.value(row) not in (None, "") for row in made)]
