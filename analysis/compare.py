"""Compare two results: effects, intervals and tests.

    python -m analysis.compare A B                        two sets of results: before and after
    python -m analysis.compare A B --across compute       the two sides differ in this field
    python -m analysis.compare A B --threshold 2          accept regressions of less than 2 %

For converted traces (one job on each side): one row per step duration, part, collective and kernel class.

One row per configuration and quantity.

The rows of each kind are tested together. The kinds step and combined decide the exit code: 1 if a row of
theirs is slower by more than --threshold, with all of its interval. Without a real difference, this happens
in at most 5 % of comparisons. "Too few runs" is not an error: however large such a slowdown is, the exit code
stays 0.

A verdict on one configuration takes 4 runs of it per side, 5 if 2 to 6 configurations are compared, 6 if 7
to 23 are; one on several configurations together takes 3 of each. "No difference shown" ("no difference" in
CSV and JSON) does not say that there is none: the effect may be any that the interval holds.
"""

from pathlib import Path

from analysis.frames.load import load
from analysis.frames.measure import Command, flag
from profiling.errors import run_command

main = Command(
    "compare", __doc__,
    flag(
        "other", lambda path, study: load(path, study.own_peaks), type=Path, metavar="B",
        help="results after: a sweep, a run, or traces",
    ),
    flag("--across", metavar="FIELD,...", help="fields in which A and B may differ"),
    flag("--threshold", type=float, default=0.0, metavar="PCT", help="accepted slowdown of a step, %% [0]"),
)  # fmt: skip

if __name__ == "__main__":
    run_command(main)
