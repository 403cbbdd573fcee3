"""Print the results of a single-node study.

    python -m analysis.studies results/studies/layers-cpu-20260101T120000.000

The commands python -m train.studies.* end with this output; docs/studies.md explains each quantity.
"""

import argparse
from typing import Any

from analysis.frames.measure import Command
from profiling.errors import UserError


def _load(given: argparse.Namespace) -> Any:
    from analysis.measures.studies import load  # imports pandas: not for the help

    results = load(given.path, given.peaks)
    if len(results) > 1:
        names = ", ".join(result.path.name for result in results)
        raise UserError(f"{given.path} holds several studies ({names}); name one of them")
    return results[0]


main = Command(__name__, "studies", __doc__, load=_load)
