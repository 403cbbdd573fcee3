"""Predict the throughput of more ranks.

    python -m analysis.predict DIR --ranks 8,16,32        from the measured configurations of a sweep
    python -m analysis.predict DIR --what-if fp16-gradients,network=2x,bucket-mb=50,no-stragglers,no-loader
    python -m analysis.predict TABLE.csv --ranks 256      from a table of images/s by number of GPUs

One row per configuration and number of ranks. Predictions assume the same software, and a network that
behaves as measured.

_low and _high are the range over all curves, or allreduce algorithms, that fit the measurements, widened by
the variation of steps, allreduces and runs. It is not a 95 % confidence interval: limits that appear only
above the measured number of ranks (shared links, another switch) are not included
(benchmarks/results/prediction_coverage.md has the measured coverage). A configuration with too few
measurements has no row; if none can be predicted, the exit code is 2.

A table needs a column of ranks (world_size, n_gpus, gpus or ranks) and one of images per second
(images_per_s, img_per_s, img_s_global, images_per_second). The columns framework, model, platform, gpu, mode,
precision, batch_per_gpu, loader, grad and compute separate configurations, if present.
"""

import argparse

from analysis.frames.load import load
from analysis.frames.measure import RANKS, SCALING, Command, at_least, flag
from analysis.frames.study import Study


def _load(arguments: argparse.Namespace) -> Study:
    is_table = (path := arguments.path).suffix == ".csv" and path.is_file()
    return Study(path) if is_table else load(path, arguments.peaks)


main = Command(
    __name__, "predict", __doc__,
    RANKS,
    flag(
        "--what-if", default="", metavar="CHANGE,...",
        help="changes to simulate: fp16-gradients,network=2x,bucket-mb=50,no-stragglers,no-loader [none]",
    ),
    SCALING,
    flag(
        "--gpus-per-node", type=at_least(1, int), metavar="N",
        help="GPUs per node [the largest number measured; if all runs used one node, 8]",
    ),
    module="analysis.prediction.predict", load=_load,
)  # fmt: skip
