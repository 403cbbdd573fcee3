"""Compare two results, or a series of them: effects, intervals and tests.

    python -m analysis.compare A B                        two sets of results: before and after
    python -m analysis.compare A B --across compute       A and B were run with different values of this field
    python -m analysis.compare A B --threshold 2          accept regressions of less than 2 %
    python -m analysis.compare A B C ...                  results in order, such as nightly sweeps

One row per configuration and quantity. For converted traces (one job per side): one row for the step, and for
each stage, part, collective and kernel class. For three or more results: one row per configuration and
result, with the change point of the step where a permutation test finds one (8 results or more); the last
result is tested against those before.

P values are corrected for the number of tests within each kind of row. The exit code is 1 if the whole
interval of a row of kind step or combined is above --threshold. Without a real difference, this happens in at
most 5 % of comparisons. With too few runs for a verdict, the exit code is 0, however large the slowdown.

A verdict on one configuration needs 4 runs of it per side, 5 if 2 to 6 configurations are compared, and 6 if
there are 7 to 23. The verdict on all of them together needs 3 runs of each per side. "No difference shown"
("no difference" in CSV and JSON) does not mean that there is none: any effect in the interval is possible.
"""

from pathlib import Path

from analysis.frames.load import load
from analysis.frames.measure import Command, flag

main = Command(
    __name__, "compare", __doc__,
    flag(
        "other", lambda paths, study: [load(path, study.own_peaks) for path in paths], type=Path, nargs="+",
        metavar="B", help="results after: a sweep, a run, or traces; several: in order",
    ),
    flag("--across", metavar="FIELD,...", help="fields in which A and B may differ"),
    flag("--threshold", type=float, default=0.0, metavar="PCT", help="slowdown of a step to accept, %% [0]"),
)  # fmt: skip
