"""Was a peak of this machine measured too low? Then work that was recorded later exceeds it.

``jobs.sweep`` measures the peaks once, at its start (:mod:`train.calibrate`). What else ran on the machine in
those seconds is missing from them.
"""

import shlex

from analysis.measures.kernels.roofline import BANDWIDTH, COMPUTE
from analysis.results.study import Study
from jobs import store

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
