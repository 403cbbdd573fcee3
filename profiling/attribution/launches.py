"""Which call of the host launched each activity of a device, and which calls waited for the device?"""

import re

import numpy as np
import pyarrow as pa

from profiling.attribution.coding import array_of, coded, or_null
from profiling.attribution.events import Events, name_flags, pick
from profiling.tables import as_table

_DENSE = 8  # numbers to find, if each that is known has fewer than so many others beside it
# Of CUDA (with a version behind it, to Nsight Systems), HIP, Level Zero and SYCL.
_WAITS = re.compile(r"Synchronize(_|$)|^(cuda|hip)Free(_|$)|^ur(EventWait|QueueFinish)$")


def launch_of(events: Events) -> np.ndarray:
    """Index of the call that launched each device activity; -1: not recorded."""
    return matching(events.launches["correlation"], events.device["correlation"])


def launch_columns(events: Events, launch: np.ndarray) -> dict[str, pa.Array]:
    """The columns of table ``kernels`` about the calls that launched its rows."""
    launches = events.launches
    start_ns, end_ns = (pick(launches[name], launch) for name in ("start_ns", "end_ns"))
    thread = pick(np.array(events.threads, dtype=np.int64), pick(launches["thread"], launch))
    timed = end_ns > start_ns
    return {
        "launch_ns": or_null(start_ns, pa.int64()),
        "launch_end_ns": or_null(np.where(timed, end_ns, -1), pa.int64()),
        "launch_thread": array_of(thread, launch >= 0),
    }


def synchronizations_table(events: Events, rank: int) -> pa.Table:
    """The calls that waited for a device as table ``synchronizations``, by time."""
    launches = events.launches
    waits = name_flags([*events.names, ""], lambda name: _WAITS.search(name) is not None)
    rows = np.flatnonzero(waits[launches["name"]])  # -1 is the last, which has no name
    rows = rows[np.argsort(launches["start_ns"][rows], kind="stable")]
    columns = {
        "rank": np.full(len(rows), rank, dtype=np.int32),
        "name": coded(launches["name"][rows], events.names),
        "start_ns": launches["start_ns"][rows],
        "end_ns": launches["end_ns"][rows],
        "thread": np.array(events.threads, dtype=np.int64)[launches["thread"][rows]],
    }
    return as_table("synchronizations", columns)


def matching(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index in ``numbers`` of each wanted number; -1 where it is not there, or is below 0."""
    if not len(numbers):
        return np.full(len(wanted), -1, dtype=np.int64)
    least, most = int(numbers.min()), int(numbers.max())
    # A table of all numbers from the least to the most, and one place more: what is not known asks for that
    # one, the last, which stays -1. Equal numbers are written last to first, so that the first one remains.
    if most - least < _DENSE * len(numbers):  # as numbers that count launches are: several times as fast
        place_of = np.full(most - least + 2, -1)
        place_of[(numbers - least)[::-1]] = np.arange(len(numbers))[::-1]  # of equal numbers the first
        near = (wanted >= max(least, 0)) & (wanted <= most)
        return place_of[np.where(near, wanted - least, -1)]
    # Too far apart for a table: known[order] rises, and the place of a number among them is its own if equal.
    order = np.argsort(numbers, kind="stable")
    place = order[np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)]
    return np.where((numbers[place] == wanted) & (wanted >= 0), place, -1)
