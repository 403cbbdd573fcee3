"""When did that end which is recorded as running when what waited for it went on?

PyTorch's Gloo backend first completes a collective's future, which wakes who waits for it, and then records
the collective's end. On busy cores the thread that is to do that gets a core only milliseconds later.

A copy from pageable memory blocks its call until the last piece is in a buffer of the driver's: the copy ends
tens of microseconds after the call.
"""

from dataclasses import replace

import numpy as np

from analysis.measures.batches.overlap import Intervals
from analysis.measures.critical_path.activities import MEMCPY, Activities
from analysis.measures.critical_path.host import on_host

# How much later than the gap's end the end of what was waited for may be recorded, as a share of the gap. A
# collective that nobody waits for ends as likely here as in any other tenth of such a gap: the rule takes one
# that ended in a long gap for what was waited for, and so errs at most a tenth more often.
_LATE = 0.1
_COVERED = 0.5  # share of the gap for which the collective ran: a shorter one does not explain it
_BLOCKED = 0.9  # share of a copy during which its call ran: one that does not wait returns earlier


def ended_in_time(activities: Activities) -> Activities:
    """The same, but what was waited for ended when that began, or returned, which waited for it."""
    end = activities.end_ns.copy()
    _end_copies(end, activities)
    _end_collectives(end, activities)
    return replace(activities, end_ns=end)


def _end_copies(end: np.ndarray, activities: Activities) -> None:
    """A copy that blocked its call to its last piece ends with it."""
    copies = np.flatnonzero((activities.kernel_class == MEMCPY) & (activities.launch >= 0))
    start, returned = activities.start_ns[copies], end[activities.launch[copies]]
    blocked = (returned < end[copies]) & (returned - start >= _BLOCKED * (end[copies] - start))
    end[copies[blocked]] = returned[blocked]


def _end_collectives(end: np.ndarray, activities: Activities) -> None:
    """A collective of a CPU that was waited for ends with the gap in which it was."""
    host = on_host(activities)
    talks = host.rows[host.talks]
    if not len(talks):
        return
    waits = np.flatnonzero(host.works & (host.before >= 0) & (host.start_ns - host.since_ns > host.usual_ns))
    gaps = host.since_ns[waits], host.start_ns[waits]
    for call, gap in _waited(gaps, (activities.start_ns[talks], end[talks])).items():
        end[talks[call]] = gaps[1][gap]


def _waited(gaps: Intervals, calls: Intervals) -> dict[int, int]:
    """Collectives that are recorded as ending after the gap in which they were waited for, and that gap.

    Of several in a gap it is the one that ends nearest to the gap's end, and none if one that ended in the
    gap is nearer. A collective is waited for once.
    """
    order = np.argsort(calls[1], kind="stable")
    ends = calls[1][order]
    found: dict[int, int] = {}
    explained: set[int] = set()
    for gap, call in _candidates(gaps, calls):
        since, begin = int(gaps[0][gap]), int(gaps[1][gap])
        late = int(calls[1][call]) - begin
        nearer = slice(*np.searchsorted(ends, [max(begin - late, since + 1), begin + 1]).tolist())
        in_gap = any(one not in found for one in order[nearer].tolist())
        if call not in found and gap not in explained and not in_gap:
            found[call] = gap
            explained.add(gap)
    return found


def _candidates(gaps: Intervals, calls: Intervals) -> list[tuple[int, int]]:
    """Gaps, and collectives that ran in most of them and ended little later: in order, the nearest first."""
    since, begin = gaps
    start, end = calls
    first = np.searchsorted(begin, start, side="right")
    counts = np.maximum(np.searchsorted(begin, end, side="left") - first, 0)
    call = np.repeat(np.arange(len(start)), counts)
    gap = np.arange(len(call)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    lasts, late = (begin - since)[gap], end[call] - begin[gap]
    ran = begin[gap] - np.maximum(start[call], since[gap])
    fits = np.flatnonzero((late <= _LATE * lasts) & (ran >= _COVERED * lasts))
    fits = fits[np.lexsort((late[fits], gap[fits]))]
    return list(zip(gap[fits].tolist(), call[fits].tolist(), strict=True))
