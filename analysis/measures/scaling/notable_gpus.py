"""Of many GPUs, which does a table show?"""

import math
from collections.abc import Mapping
from typing import Any

from analysis.display.metrics import Rows

_MOST_GPUS = 24  # of a run, all of which a table shows
_IDLEST, _BUSIEST = 8, 3  # of more GPUs


def notable_gpus(rows: Rows, all_by: str) -> tuple[Rows, str]:
    """The GPUs that a reader looks for, of runs of many: those that are busy least, and most.

    Args:
        rows: of analysis.utilization, of one run or more.
        all_by: what shows all GPUs.

    Returns:
        (their rows in order, what the others are in a line; empty: there are no others).
    """
    kept: set[int] = set()
    for run in dict.fromkeys(row["run"] for row in rows):
        order = sorted((row for row in rows if row["run"] == run), key=_busy)
        some = order if len(order) <= _MOST_GPUS else [*order[:_IDLEST], *order[-_BUSIEST:]]
        kept |= {id(row) for row in some}
    rest = [row for row in rows if id(row) not in kept]
    if not rest:
        return rows, ""
    line = f"{len(rest):,} of {len(rows):,} rows not shown ({all_by} shows all)"
    busy = [share for row in rest if (share := _busy(row)) < math.inf]
    of_rest = f": GPU utilization {min(busy):.1f} to {max(busy):.1f} %" if busy else ""
    return [row for row in rows if id(row) in kept], f"{line}{of_rest}."


def _busy(row: Mapping[str, Any]) -> float:
    """The share of time in which kernels run, in percent; what is not known is sorted last."""
    share = row.get("gpu_utilization_pct")
    return math.inf if share is None else float(share)
