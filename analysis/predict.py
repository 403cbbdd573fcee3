"""What would N ranks give?

    python -m analysis.predict DIR --ranks 8,16,32        from a sweep's measured points
    python -m analysis.predict DIR --what-if fp16-gradients,network=2x,bucket-mb=50,no-stragglers,no-loader
    python -m analysis.predict DIR --alpha-us 20 --beta-gb-per-s 12      from a trace of one rank
    python -m analysis.predict TABLE.csv --ranks 256      from a table of images/s by number of GPUs

A row is a configuration and a number of ranks: ``batch_ms`` and ``images_per_s`` with ``_low`` and
``_high``, ``scaling_efficiency_pct`` over the smallest measured number, ``scaling`` (weak: the batch of a
rank is constant; strong: that of the job is), ``measured_on`` (the ranks that it is made from), ``believed``
(false: the other method is better founded, and a line says why) and ``method``:

    curve         how the cost of more ranks may grow, fitted to measured rates (analysis/prediction/curve.py:
                  ``shapes``)
    simulation    the step replayed from its trace, its gradients exchanged in buckets
                  (analysis/prediction/simulate.py): ``traced_ranks``; ``late_ranks`` of them, late again and again;
                  ``buckets``; ``exposed_ms`` and ``hidden_ms`` of the exchange, ``measured_hidden_ms`` of
                  that on ``traced_ranks``; ``exchange``, the form of the allreduce that fits best, of
                  ``exchanges_tried`` that fit about as well (analysis/prediction/exchange_forms.py); ``alpha_us`` and
                  ``beta_gb_per_s`` of its links (between nodes, where there are several; those in a node:
                  ``alpha_in_node_us``, ``beta_in_node_gb_per_s``), fitted to allreduces or given;
                  ``allreduce_error_pct``, by how much the recorded ones are off it; and ``fit_error_pct``, by
                  how much the batch that is simulated on ``traced_ranks`` is off the measured one

``_low`` and ``_high`` are ranges of what was tried: of all shapes, or forms, that the measured points allow,
with how much batches, allreduces and runs differ, and wider with every doubling where a measured point was
outside of what smaller ones gave. They are no 95 % interval: what begins only beyond the measured points
(links that many ranks have to share, another switch) is in neither. benchmarks/results/prediction_coverage.md
says how often they hold the truth. What cannot be told has no row, and a line says why.

A row with ``what_if`` is a simulation with something changed, and ``gain_pct`` what that gives in images/s;
analysis/prediction/simulate.py says what each change does. Rows with ``backtest`` true predict a point that was
measured, from smaller ones only: ``measured_images_per_s`` and ``error_pct`` say how well.

A prediction holds for the same software, and a network that goes on as it did.

A table needs a column of ranks (world_size, n_gpus, gpus or ranks) and one of images a second (images_per_s,
img_per_s, img_s_global, images_per_second); framework, model, platform, gpu, mode, precision, batch_per_gpu,
loader, grad and compute tell configurations, where it has them.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.display import output
from analysis.display.terminal import Answer, Column, Part, Rows, with_interval
from analysis.measures.scaling import Scaling
from analysis.prediction import believed, configurations, extrapolate, simulate, simulate_rows
from analysis.prediction.basis import Network
from analysis.prediction.extrapolate import Series
from analysis.results.load import load
from analysis.results.study import Study
from jobs.flags import make_parser
from profiling.errors import UserError, run_command

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
        gpus_per_node: that a node holds; by default as measured (:class:`analysis.prediction.configurations.Nodes`).

    Raises:
        UserError: neither can be made, with why.
    """
    found = configurations.configurations(study, scaling, gpus_per_node)
    series = extrapolate.series_of(found)
    wanted = _wanted(ranks, series)
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
        study.find(f"no curve: {reason}")
    for reason in reasons:
        study.find(f"not simulated: {reason}")
    return believed.judged(made)


def _neither(untold: Sequence[str], reasons: Sequence[str]) -> str:
    """Why there is neither a curve nor a simulation; a reason of both once."""
    own = [reason for reason in reasons if reason not in untold]
    also = f"; nor can a step be simulated: {'; '.join(own)}" if own else "; nor can a step be simulated"
    return "; ".join(untold) + also


def main() -> int:
    arguments = _parser().parse_args()
    network = _network(arguments)
    what_ifs = simulate.parse_what_ifs(arguments.what_if)
    study = None
    untold: list[str] = []
    if arguments.path.suffix == ".csv" and arguments.path.is_file():
        if what_ifs or network != Network():
            raise UserError(NO_TRACE)
        series = extrapolate.read_table(arguments.path)
        made, untold = extrapolate.rows(series, _wanted(arguments.ranks, series))
        if not made:
            raise UserError("; ".join(untold))
        made = believed.judged(made)
    else:
        study = load(arguments.path, arguments.peaks)
        made = of_study(study, arguments.ranks, what_ifs, network, arguments.scaling, arguments.gpus_per_node)
    fields = [name for name in dict.fromkeys(name for row in made for name in row) if name not in COLUMNS]
    part = Part("Predicted throughput", made, shown(made, fields), caption(made))
    return output.emit(Answer(made, [*fields, *COLUMNS], [part], notes=untold), study, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.predict", __doc__)
    parser.add_argument("path", type=Path, metavar="DIR|TABLE.csv", help="a sweep's results, or a table")
    parser.add_argument(
        "--ranks", default="", metavar="P,...", help="world sizes to predict [twice, four times]"
    )
    parser.add_argument(
        "--what-if", default="", metavar="CHANGE,...", help=f"of {','.join(simulate.DEFAULT_WHAT_IFS)} [none]"
    )
    parser.add_argument(
        "--alpha-us", type=float, metavar="US", help="latency of a message of a ring [fitted], microseconds"
    )
    parser.add_argument(
        "--beta-gb-per-s", type=float, metavar="GB_PER_S", help="bandwidth of a link [fitted], 1e9 bytes/s"
    )
    parser.add_argument(
        "--scaling", choices=configurations.KINDS,
        help="weak: the batch of a GPU is constant; strong: the global batch is [as the report: strong where "
        "only that was measured]",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N",
        help="GPUs that a node holds [the most measured on one; where all points are of one node, "
        f"{configurations.GPUS_OF_A_NODE}]",
    )  # fmt: skip
    return output.add_output_flags(parser)


def _network(arguments: argparse.Namespace) -> Network:
    alpha, beta = arguments.alpha_us, arguments.beta_gb_per_s
    if alpha is not None and not 0 <= alpha < np.inf:
        raise UserError(f"--alpha-us: {alpha:g} is no latency; it must be 0 or more")
    if beta is not None and not 0 < beta < np.inf:
        raise UserError(f"--beta-gb-per-s: {beta:g} is no bandwidth; it must be more than 0")
    if arguments.gpus_per_node is not None and arguments.gpus_per_node < 1:
        raise UserError(f"--gpus-per-node: {arguments.gpus_per_node} is no number of GPUs")
    return Network(alpha, beta)


def _wanted(text: str, series: Sequence[Series]) -> list[int]:
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
        return lambda row: None if row.get(name) is None else f"{row[name]:+.1f}"

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


if __name__ == "__main__":
    run_command(main)
