"""What did a rank's host do, and for how long does it pause between operators where it waits for nothing?"""

from dataclasses import dataclass

import numpy as np

from analysis.measures.critical_path.activities import COMMUNICATION, KERNEL, OPERATOR, Activities
from analysis.measures.critical_path.before import at, in_chains

_USUAL_PCT = 95  # percentile of the gaps between a CPU's operators: a longer one may be a wait


@dataclass(frozen=True)
class OnHost:
    """Calls, and operators of a CPU, in order of their start.

    Attributes:
        rows: which activities they are.
        start_ns: when each began.
        before: the activity before it in its chain, -1: none; ``since_ns``: when that ended, or long ago.
        works: operators that compute; ``talks``: collectives.
        usual_ns: a gap before an operator that is no longer than this is no wait.
    """

    rows: np.ndarray
    start_ns: np.ndarray
    before: np.ndarray
    since_ns: np.ndarray
    works: np.ndarray
    talks: np.ndarray
    usual_ns: int


def on_host(activities: Activities) -> OnHost:
    """What a rank's host did."""
    rows = np.flatnonzero(activities.kind != KERNEL)
    start, before = activities.start_ns[rows], in_chains(activities)[rows]
    since = at(activities.end_ns, before)
    operates = activities.kind[rows] == OPERATOR
    talks = operates & (activities.kernel_class[rows] == COMMUNICATION)
    works = operates & ~talks
    gaps = (start - since)[works & (before >= 0)]
    usual = int(np.percentile(gaps, _USUAL_PCT)) if len(gaps) else 0
    return OnHost(rows, start, before, since, works, talks, usual)
