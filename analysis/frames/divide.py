"""Divide the time of a rank's steps by what runs in them: unions and overlaps of intervals, in ns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]
NOTHING: Intervals = (np.array([], np.int64), np.array([], np.int64))
EVER = 1 << 61  # ns, 73 years: later than any clock's time, and twice that and a time fit into 63 bits


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """The same times as disjoint intervals in order; empty ones are dropped."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if (start[1:] > end[:-1]).all():  # as those of one stream are, which are most
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(start) - 1]])
    return start[heads], reach[tails]


def minus(intervals: Intervals, others: Intervals) -> Intervals:
    """What of disjoint ``intervals`` no interval of ``others`` covers."""
    left = complement(intervals)
    return complement(union(np.concatenate([left[0], others[0]]), np.concatenate([left[1], others[1]])))


def complement(intervals: Intervals) -> Intervals:
    """All times outside of disjoint intervals that are in order."""
    start, end = intervals
    start, end = np.concatenate([[-EVER], end]), np.concatenate([start, [EVER]])
    keep = end > start
    return start[keep], end[keep]


def length(intervals: Intervals) -> int:
    """The summed length of disjoint intervals, in ns."""
    start, end = intervals
    return int((end - start).sum())


def covered(intervals: Intervals, by: Intervals) -> np.ndarray:
    """How much of each of ``intervals`` is covered by ``by`` (disjoint, in order), in ns."""
    before_start, before_end = np.split(_until(np.concatenate(intervals), by), 2)
    return before_end - before_start


def _until(times: np.ndarray, intervals: Intervals) -> np.ndarray:
    """Covered time before each of ``times``."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(end - start)])
    count = np.searchsorted(start, times, side="right")
    last_end = end[np.maximum(count - 1, 0)]
    return whole[count] - np.where(count > 0, np.maximum(last_end - times, 0), 0)


PARTS = ("compute", "exposed_communication", "exposed_loader", "exposed_copies", "idle")
# What some parts are made of; these add up to their part.
WITHIN = {
    "exposed_communication": ("exposed_transfer", "exposed_wait"),
    "exposed_loader": ("loader_kernels", "loader_copies", "loader_wait"),
    "idle": ("idle_host_bound", "idle_other"),
}
BESIDE = ("overlapped_communication", "overlapped_loader")
# All of them, each part followed by what it is made of.
EVERY = (*(name for part in PARTS for name in (part, *WITHIN.get(part, ()))), *BESIDE)
# Of these what they are made of has causes of its own, and is shown in their place where it is known.
SPLIT = ("exposed_communication", "idle")
STAGES = ("load", "forward", "backward", "update", "end")


@dataclass(frozen=True)
class Activities:
    """What runs on one rank, as any intervals in ns; they may overlap within and between kinds."""

    compute: Intervals = NOTHING
    communication: Intervals = NOTHING
    loader_kernels: Intervals = NOTHING
    loader_copies: Intervals = NOTHING
    loader_waits: Intervals = NOTHING  # when the next batch was waited for
    copies: Intervals = NOTHING
    queued: Intervals | None = None  # launched on the device, and not begun; None: not known
    unseen: Intervals = NOTHING  # nothing more was recorded: idle time may be the host's or not

    @cached_property
    def exposed(self) -> Intervals:
        """When communication is exposed, disjoint and in order."""
        return minus(union(*self.communication), union(*self.compute))

    @cached_property
    def layers(self) -> dict[str, Intervals]:
        """By the names of :data:`ORDER` when that part or one before it has the time; disjoint, in order."""
        known, found = NOTHING, {}
        for name, kind in ORDER.items():
            activity: Intervals | None = getattr(self, kind)
            if activity is not None:
                found[name] = known = _joined(known, activity) if len(activity[0]) else known
        return found


_UNSEEN = "idle_unseen"  # of idle time: which of WITHIN it is of is not recorded
# Part (or what it is made of) -> the activity that has the time.
ORDER = {
    "compute": "compute", "exposed_communication": "communication", "loader_kernels": "loader_kernels",
    "loader_copies": "loader_copies", "loader_wait": "loader_waits", "exposed_copies": "copies",
    "idle_other": "queued", _UNSEEN: "unseen",
}  # fmt: skip


def finest(known: Mapping[str, float | None]) -> dict[str, float]:
    """Of figures of :data:`EVERY` those of :data:`PARTS`, or, if known, of what :data:`SPLIT` consist of."""
    there = {name: float(value) for name, value in known.items() if value is not None and not np.isnan(value)}
    split_up = {part for part in SPLIT if there.keys() >= {*WITHIN[part]}}
    names = [name for part in PARTS for name in (WITHIN[part] if part in split_up else (part,))]
    return {name: there[name] for name in names if name in there}


def split(windows: Intervals, activities: Activities, stages: int = 1) -> dict[str, np.ndarray]:
    """Each window's time in ns by part (:data:`PARTS` add up to the window), and the rest of :data:`EVERY`.

    Not what communication is made of (:func:`transfer_and_wait`), nor idle time where that is not known.

    ``stages``: how many windows ``[start, end)`` a batch has, one after the other.
    """
    reached = [covered(windows, layer) for layer in activities.layers.values()]
    taken = np.diff(reached, axis=0, prepend=np.zeros((1, len(windows[0])), np.int64))
    parts = dict(zip(activities.layers, taken, strict=True))
    parts["exposed_loader"] = sum(parts[name] for name in WITHIN["exposed_loader"])
    parts["idle"] = windows[1] - windows[0] - sum(parts[name] for name in PARTS[:-1])
    unseen = parts.pop(_UNSEEN)
    if "idle_other" in parts:
        parts["idle_host_bound"] = _host_bound(parts["idle"], parts["idle_other"], unseen, stages)
        parts["idle_other"] = parts["idle"] - parts["idle_host_bound"]
    loader = _joined(_joined(activities.loader_kernels, activities.loader_copies), activities.loader_waits)
    for name, activity in (("communication", union(*activities.communication)), ("loader", loader)):
        parts[f"overlapped_{name}"] = covered(windows, activity) - parts[f"exposed_{name}"]
    return parts


def _host_bound(idle: np.ndarray, other: np.ndarray, unseen: np.ndarray, stages: int) -> np.ndarray:
    """The host-bound idle time of each window, in ns.

    What is unseen, at the end of the last batch, is divided as in the same stage of the others: as other idle
    time it would make the last batch unlike those before it, which are few where a profiler recorded.
    """
    seen = idle - unseen
    host = seen - other
    known = np.divide(host, seen, out=np.full(len(seen), np.nan), where=seen > 0).reshape(-1, stages)
    # By stage the median of the batches that were idle in it; of all stages where none was.
    whole = float(host.sum() / seen.sum()) if seen.any() else 0.0
    shares = [np.median(column) if len(column := of[~np.isnan(of)]) else whole for of in known.T]
    return host + np.rint(unseen * np.tile(shares, len(known))).astype(np.int64)


def transfer_and_wait(windows: Intervals, exposed: Intervals, transfers: Intervals) -> dict[str, np.ndarray]:
    """What the exposed communication of each window is made of, in ns.

    ``transfers``: since the last rank had come to each collective, to its end; before that this rank waited.
    """
    moved = union(*transfers)
    whole = covered(windows, exposed)
    transfer = whole + covered(windows, moved) - covered(windows, _joined(exposed, moved))
    return {"exposed_transfer": transfer, "exposed_wait": whole - transfer}


def shares(calls: Intervals, windows: Intervals, activities: Activities) -> tuple[np.ndarray, np.ndarray]:
    """What of the exposed and of the hidden communication of the windows is each collective's, in ns.

    Each has what it lasts in the windows beyond calls that began before it. A call of an earlier batch may
    reach into the first window: the others bear its time in proportion, so that the shares add up.
    """
    start, end = calls
    before = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    own, within = (np.minimum(np.maximum(start, before), end), end), union(*windows)
    inside = covered(own, within)
    exposed = covered(own, minus(within, activities.compute))
    all_exposed = covered(windows, activities.exposed).sum()
    all_hidden = covered(windows, union(*activities.communication)).sum() - all_exposed
    return _scaled(exposed, all_exposed), _scaled(inside - exposed, all_hidden)


def _scaled(weights: np.ndarray, total: float) -> np.ndarray:
    whole = weights.sum()
    return weights * (total / whole) if whole else np.full(len(weights), total / max(len(weights), 1))


def _joined(first: Intervals, second: Intervals) -> Intervals:
    return union(np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]))


def activities_of(kernels: dict[str, np.ndarray], waits: Intervals = NOTHING) -> Activities:
    """The activities of a rank, each disjoint, from its ``kernels`` and when it waited for its loader.

    ``kernels``: columns ``start_ns, duration_ns, class, direction`` of rows that have a start, and, for what
    was queued, ``device`` and ``launch_ns`` (below 0: not known).
    """
    kind, direction = kernels["class"], kernels["direction"]
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    moves = of_class(kernels, "memcpy", "memset")
    loader = (kind == "loader") | (direction == "loader")
    communication = (kind == "communication") & ~loader
    last = end.max(initial=-EVER)

    def pick(mask: np.ndarray) -> Intervals:
        return union(start[mask], end[mask])

    return Activities(
        compute=pick(~(loader | moves | communication)), communication=pick(communication),
        loader_kernels=pick(loader & ~moves), loader_copies=pick(loader & moves), loader_waits=waits,
        copies=pick(moves & ~loader), queued=queued(kernels) if "launch_ns" in kernels else None,
        unseen=(np.array([last]), np.array([last + EVER])),
    )  # fmt: skip


def of_class(kernels: dict[str, np.ndarray], *names: str) -> np.ndarray:
    """Which kernels are of one of these classes."""
    return np.any([kernels["class"] == name for name in names], axis=0)


def launch_known(kernels: dict[str, np.ndarray]) -> np.ndarray:
    """Which activities have a launch that can be: recorded, and not after they began."""
    return (kernels["launch_ns"] >= 0) & (kernels["launch_ns"] <= kernels["start_ns"])


def queued(kernels: dict[str, np.ndarray]) -> Intervals | None:
    """When the device had been given something that had not begun yet; None: no launch is known.

    Idle time outside of it is host-bound: the next launch was late. An activity without a known launch may
    have been queued since the device last ended one.
    """
    known = launch_known(kernels)
    if not known.any():
        return None
    order = np.argsort(kernels["start_ns"], kind="stable")
    start = kernels["start_ns"][order]
    reach = np.maximum.accumulate(start + kernels["duration_ns"][order])
    since = np.concatenate([start[:1] - EVER, reach])[np.searchsorted(start, start)]
    begin = np.minimum(np.where(known[order], kernels["launch_ns"][order], since), start)
    return union(begin, start)


def windows_of(edges: np.ndarray) -> Intervals:
    """The stages of batches one after the other, from :func:`edges_of`."""
    return edges[:, :-1].ravel(), edges[:, 1:].ravel()


def edges_of(batches: dict[str, np.ndarray]) -> np.ndarray:
    """The six instants of each batch, in ns, shape (batches, 6)."""
    edges = np.empty((len(batches["start_ns"]), len(STAGES) + 1), np.int64)
    edges[:, 0] = batches["start_ns"]
    for place, stage in enumerate(STAGES[:-1]):
        edges[:, place + 1] = edges[:, place] + batches[f"{stage}_ns"]
    edges[:, -1] = batches["end_ns"]
    # Rounding may put the end of the last stage after the batch's by a nanosecond, a damaged row by any time.
    return np.minimum(edges, edges[:, -1:])
