"""Step duration from what TAU recorded of a run.

    python -m analysis.tau_batches PROFILE                         a run, its rank's folder, or TAU's files
    python -m analysis.tau_batches PROFILE --startup PROFILE ...   with runs of one step each

One row per rank and estimator, best estimator first.
"""

from pathlib import Path

from analysis.frames.measure import Command, flag
from analysis.frames.study import Study
from profiling.errors import run_command

main = Command(
    "tau_batches",
    __doc__,
    flag("--startup", type=Path, nargs="+", default=[], metavar="PROFILE", help="runs of one step"),
    flag("--batches", type=int, metavar="N", help="number of steps, if the run marks none"),
    load=lambda given: Study(given.path),
)

if __name__ == "__main__":
    run_command(main)
