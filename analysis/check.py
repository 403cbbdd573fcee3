"""Print which nodes are slow, by the result of jobs.check.

    python -m jobs.check                     measure, and print this
    python -m analysis.check results/check   print it again

One row per node, the slow ones first. A node is slow if a figure of it is at least 5 % below the median, and
further than chance explains: of equal nodes, one is reported in 5 % of checks (docs/methods.md).
"""

import argparse
from typing import Any

from analysis.frames.measure import Command


def _load(given: argparse.Namespace) -> Any:
    from analysis.measures.check import load  # imports pandas: not for the help

    return load(given.path)


main = Command(__name__, "check", __doc__, load=_load)
