"""Predict the throughput of more ranks.

    python -m analysis.predict DIR --ranks 8,16,32        from the measured configurations of a sweep
    python -m analysis.predict DIR --what-if fp16-gradients,network=2x,bucket-mb=50,no-stragglers,no-loader
    python -m analysis.predict DIR --alpha-us 20 --beta-gb-per-s 12      from a trace of one rank
    python -m analysis.predict TABLE.csv --ranks 256      from a table of images/s by number of GPUs

One row per configuration and number of ranks. Predictions assume the same software, and a network that
behaves as measured.

``_low`` and ``_high`` are the range over all curves, or allreduce algorithms, that fit the measurements, with
the spread of steps, allreduces and runs. It is not a 95 % confidence interval: limits that begin beyond the
measured number of ranks (shared links, another switch) are not included
(benchmarks/results/prediction_coverage.md has the measured coverage). A configuration that the data do not
determine has no row; if none can be predicted, the exit code is 2.

A table needs a column of ranks (world_size, n_gpus, gpus or ranks) and one of images per second
(images_per_s, img_per_s, img_s_global, images_per_second). The columns framework, model, platform, gpu, mode,
precision, batch_per_gpu, loader, grad and compute separate configurations, if present.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from analysis.display import output
from analysis.display.metrics import fields
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.prediction import configurations, extrapolate, simulate
from analysis.prediction.predictions import COLUMNS, METRICS, caption, fields_of, of_study, of_table, shown
from analysis.prediction.simulate_rows import Network
from jobs.flags import make_parser
from profiling.errors import UserError, run_command
from profiling.findings import Finding


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    network = _network(arguments)
    what_ifs = simulate.parse_what_ifs(arguments.what_if)
    study, findings = None, list[Finding]()
    if arguments.path.suffix == ".csv" and arguments.path.is_file():
        if what_ifs or network != Network():
            raise UserError("--what-if, --alpha-us and --beta-gb-per-s need a sweep's results, not a table")
        rows, findings = of_table(extrapolate.read_table(arguments.path), arguments.ranks)
    else:
        study = load(arguments.path, arguments.peaks)
        rows = of_study(study, arguments.ranks, what_ifs, network, arguments.scaling, arguments.gpus_per_node)
    rows = [_with_batch_of_a_rank(row) for row in rows]
    part = Part("Predicted throughput", rows, shown(rows), caption(rows))
    metrics = [*fields(fields_of(rows)), *METRICS]
    return output.emit(Answer(rows, metrics, [part], verdict=findings), study, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.predict", __doc__)
    parser.add_argument("path", type=Path, metavar="DIR|TABLE.csv", help="a sweep's results, or a CSV table")
    parser.add_argument(
        "--ranks",
        default="",
        metavar="P,...",
        help="world sizes to predict [twice and four times the largest of each configuration]",
    )
    parser.add_argument(
        "--what-if",
        default="",
        metavar="CHANGE,...",
        help=f"changes to simulate, of {','.join(simulate.DEFAULT_WHAT_IFS)} [none]",
    )
    parser.add_argument(
        "--alpha-us", type=float, metavar="US", help="latency of a link, microseconds [fitted]"
    )
    parser.add_argument(
        "--beta-gb-per-s", type=float, metavar="GB_PER_S", help="bandwidth of a link, 1e9 bytes/s [fitted]"
    )
    parser.add_argument(
        "--scaling", choices=configurations.KINDS,
        help="weak: fixed per-GPU batch size; strong: fixed global batch size [the kind for which more "
        "configurations have a baseline]",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N",
        help="GPUs per node [the most measured on one node; if all runs used one node, "
        f"{configurations.GPUS_OF_A_NODE}]",
    )  # fmt: skip
    return output.add_output_flags(parser, COLUMNS)


def _with_batch_of_a_rank(row: dict[str, Any]) -> dict[str, Any]:
    """A prediction with the batch of its own ranks: of strong scaling it has that of the largest point."""
    if row["scaling"] != "strong":
        return row
    batch = row["global_batch"] / row["world_size"]
    return row | {"batch": int(batch) if batch == int(batch) else batch}


def _network(arguments: argparse.Namespace) -> Network:
    alpha, beta = arguments.alpha_us, arguments.beta_gb_per_s
    if alpha is not None and not 0 <= alpha < np.inf:
        raise UserError(f"--alpha-us: invalid latency {alpha:g}; give 0 or more")
    if beta is not None and not 0 < beta < np.inf:
        raise UserError(f"--beta-gb-per-s: invalid bandwidth {beta:g}; give more than 0")
    if arguments.gpus_per_node is not None and arguments.gpus_per_node < 1:
        raise UserError(f"--gpus-per-node: invalid number of GPUs {arguments.gpus_per_node}")
    return Network(alpha, beta)


if __name__ == "__main__":
    run_command(main)
