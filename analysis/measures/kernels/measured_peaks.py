"""Was a peak of this machine measured too low? Then work that was recorded later exceeds it.

``jobs.sweep`` measures the peaks once, at its start (:mod:`train.calibrate`). What else ran on the machine in
those seconds is missing from them.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import shortened
from analysis.measures.kernels.of_run import DEFAULT_BY
from analysis.measures.kernels.roofline import ABOVE_PCT, BANDWIDTH, COMPUTE
from analysis.results.study import Study
from jobs import store

_SHARES = {COMPUTE: "flops_efficiency_of_measured_pct", BANDWIDTH: "bandwidth_efficiency_of_measured_pct"}
# Of the time of all kernels: what is shorter is timed too coarsely to judge a peak by.
_OF_WEIGHT_PCT = 1.0
# What a launch moves at least to judge the bandwidth: as much as the copy that measured it on a CPU. Smaller
# tensors are faster, in a cache.
_UNCACHED_MB = 128.0
_RATES = {COMPUTE: "FLOP rate", BANDWIDTH: "memory bandwidth"}
_WHY = {
    COMPUTE: "it was measured too low (a busy machine, for example)",
    # Bytes are those of tensors, which need not leave a cache.
    BANDWIDTH: "it was measured too low (a busy machine, for example), or tensors stayed in a cache",
}


def too_low(study: Study, bound: str, reached: str) -> str:
    """What is said of a measured peak that work exceeds, and how to measure it again.

    Args:
        bound: the peak, :data:`COMPUTE` or :data:`BANDWIDTH`.
        reached: the work and its share of that peak: ``2 configurations reach up to 113 %``.
    """
    return (
        f"{reached} of the {_RATES[bound]} measured on this machine: {_WHY[bound]}. Efficiencies relative to "
        f"it are then too high. To measure it again, while nothing else runs: {_command(study)}"
    )


def exceeded(study: Study, kernels: Rows, by: Sequence[str] = DEFAULT_BY) -> list[str]:
    """A line for each measured peak that kernels exceed, which names the one that exceeds it most.

    Args:
        kernels: rows of :func:`analysis.measures.kernels.of_run.kernels_of`, grouped ``by``.
    """
    lines = []
    for bound, name in _SHARES.items():
        most = max(
            (row for row in kernels if _judges(row, bound)), key=lambda row: row[name] or 0, default=None
        )
        if most and (most[name] or 0) > ABOVE_PCT:
            first, *others = [shortened(str(most[one])) for one in by if most[one]] or ["a kernel"]
            kernel = f"{first} ({', '.join(others)})" if others else first
            lines.append(too_low(study, bound, f"{kernel} reaches {most[name]:.0f} %"))
    return lines


def _judges(row: Mapping[str, Any], bound: str) -> bool:
    """Whether a kernel is long enough, and for the bandwidth large enough, to judge a peak by."""
    large = (row["mbyte_per_step"] or 0) >= _UNCACHED_MB * row["calls_per_step"]
    return (row["share_pct"] or 0) >= _OF_WEIGHT_PCT and (large or bound == COMPUTE)


def _command(study: Study) -> str:
    """What measures the peaks again as the sweep did, with as many ranks per node as its largest run."""
    runs = [source.fields for source in study.of_kind("run")]
    largest = max(runs, key=lambda fields: fields["gpus_per_node"])
    ranks = largest["gpus_per_node"]
    starts = ["torchrun", "--nproc-per-node", str(ranks)] if ranks > 1 else ["python"]
    precision = study.calibration.precision if study.calibration else largest["compute"]
    flags = {"device": largest["device"], "precision": precision, "threads": largest["threads"]}
    folder = study.path if (study.path / store.CALIBRATION).exists() else study.path.parent
    return shlex.join([
        *starts, "-m", "train.calibrate", *(f"--{name}={value}" for name, value in flags.items()),
        f"--out={folder / store.CALIBRATION}",
    ])  # fmt: skip
