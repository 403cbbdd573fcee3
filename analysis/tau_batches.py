"""Step duration of a run, from its TAU profile.

    python -m analysis.tau_batches PROFILE                         a run, its rank's folder, or TAU's files
    python -m analysis.tau_batches PROFILE --startup PROFILE ...   subtracts the startup of one-step runs

One row per rank and estimator, best estimator first.
"""

from pathlib import Path

from analysis.frames.measure import Command, flag
from analysis.frames.study import Study

main = Command(
    __name__, "tau_batches", __doc__,
    flag(
        "--startup", type=Path, nargs="+", default=[], metavar="PROFILE",
        help="profiles of runs of one step each",
    ),
    flag("--batches", type=int, metavar="N", help="number of steps, if the profile does not count them"),
    load=lambda given: Study(given.path), module="analysis.measures.tau",
)  # fmt: skip
