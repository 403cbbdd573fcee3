"""What did one rank do? Kernels, the calls that launched them and those that waited for them, in one list."""

from dataclasses import dataclass

import numpy as np

from analysis.measures.critical_path.recorded import UNKNOWN, Recorded
from profiling.schemas import CLASSES

# What an activity is: a call that launches, one that waits for a device, an operator of a CPU, a kernel.
CALL, WAIT, OPERATOR, KERNEL = range(4)
COMMUNICATION = CLASSES.index("communication")
MEMCPY, MEMSET = CLASSES.index("memcpy"), CLASSES.index("memset")
_LOADER = "loader"


@dataclass(frozen=True)
class Activities:
    """Arrays of one element an activity, in order of the start; times in ns.

    Attributes:
        kind: CALL, WAIT, OPERATOR or KERNEL.
        row: of the kernels (a call's: of the first that it launched), or of the waits.
        kernel_class: a number of ``schemas.CLASSES``; of calls -1.
        chain: a number for all that comes one after the other: on a stream, or in threads that take turns.
        launch: of a kernel the activity that launched it; -1: not known.
        batch_index: -1: of none.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray
    row: np.ndarray
    kernel_class: np.ndarray
    chain: np.ndarray
    launch: np.ndarray
    batch_index: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)


def activities_of(recorded: Recorded) -> Activities:
    """A rank's activities."""
    kernels, waits = recorded.kernels, recorded.waits
    start, device = kernels["start_ns"], kernels["device"]
    launched = np.flatnonzero((device >= 0) & (kernels["launch_ns"] >= 0) & (kernels["launch_ns"] <= start))
    # A graph's kernels have one call.
    calls, first, call_of = np.unique(
        np.stack([kernels["launch_ns"][launched], kernels["launch_thread"][launched]]),
        axis=1, return_index=True, return_inverse=True,
    )  # fmt: skip
    rows = launched[first]
    counts = len(start), len(rows), len(waits["start_ns"])
    thread = np.concatenate([kernels["stream"], calls[1], waits["thread"]])
    kind = np.repeat([KERNEL, CALL, WAIT], counts)
    kind[: counts[0]][device < 0] = OPERATOR
    kernel_class = np.concatenate([recorded.kind, np.full(counts[1] + counts[2], UNKNOWN)])
    unsorted = {
        "start_ns": np.concatenate([start, calls[0], waits["start_ns"]]),
        "end_ns": np.concatenate(
            [start + kernels["duration_ns"], np.maximum(kernels["launch_end_ns"][rows], calls[0]),
             waits["end_ns"]]
        ),
        "kind": kind,
        "row": np.concatenate([np.arange(counts[0]), rows, np.arange(counts[2])]),
        "kernel_class": kernel_class,
        "chain": _chains(kind, kernel_class, thread, device, _threads_of_loader(recorded, launched)),
        "batch_index": np.concatenate(
            [kernels["batch_index"], kernels["batch_index"][rows], np.full(counts[2], UNKNOWN)]
        ),
    }  # fmt: skip
    # A call before the kernel that starts with it.
    order = np.lexsort((unsorted["end_ns"], kind, unsorted["start_ns"]))
    place = np.argsort(order)
    launch = np.full(len(order), UNKNOWN)
    launch[launched] = place[counts[0] :][call_of.ravel()]
    found = Activities(launch=launch[order], **{name: column[order] for name, column in unsorted.items()})
    _fill_batches(found)
    return found


def _threads_of_loader(recorded: Recorded, launched: np.ndarray) -> np.ndarray:
    """The threads that launched nothing but what readies the next batch."""
    loads = recorded.texts["direction"].equal(_LOADER)[launched]
    threads = recorded.kernels["launch_thread"][launched]
    return np.setdiff1d(threads[loads], threads[~loads])


def _chains(
    kind: np.ndarray, kernel_class: np.ndarray, thread: np.ndarray, device: np.ndarray, loaders: np.ndarray
) -> np.ndarray:
    """Numbers of chains: a stream, a thread of collectives (on a CPU), a loader's thread; the rest is one.

    The threads of a program take turns: its own waits while autograd's has the backward pass.
    """
    own = (kind == KERNEL) | (kernel_class == COMMUNICATION) | ((kind != OPERATOR) & np.isin(thread, loaders))
    devices = np.zeros(len(kind), np.int64)
    devices[: len(device)] = device + 1
    threads, line = np.unique(thread, return_inverse=True)
    place = np.where(own, devices * len(threads) + line, -1)
    return 2 * place + (kind == KERNEL)


def _fill_batches(found: Activities) -> None:
    """A call that waits is of the batch of the call before it in its chain."""
    for chain in np.unique(found.chain[found.kind == WAIT]).tolist():
        mine = np.flatnonzero(found.chain == chain)
        place = np.where(found.kind[mine] == WAIT, -1, np.arange(len(mine)))
        known = np.maximum.accumulate(place)
        found.batch_index[mine] = np.where(known >= 0, found.batch_index[mine][known], UNKNOWN)
