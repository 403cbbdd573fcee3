"""The batches of a recording that no training loop of ours kept, and their stages.

As our own loop's events on a GPU would tell it: a batch ends when the device has done what was launched until
its end on the host, or on the host, if the device was done before. The first one begins when the device has
done what was launched before the recording began. Where forward and backward passes take
turns in a batch (gradient accumulation, a pipeline), it has no such stages, and where no pass is known none.
A whole recording that counts as one batch begins with the device's first kernel: what the program did before
(starting CUDA, loading modules, the first copies) is its start-up.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_times import NAMED, PERIOD, SLOW, WHOLE, BatchTimes, slow_head
from profiling.attribution.coding import COMMUNICATION, MEMCPY, MEMSET
from profiling.attribution.context import BPROP, FPROP, LOADING, UPDATING
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.tables import as_table

# What the table's metadata say of its batches: see BatchTimes.
SOURCE_KEY, CONFIDENCE_KEY = b"source", b"confidence"

_TAKES_TURNS = (
    0.05  # of the forward kernels' time after the first backward one, from which on they take turns
)
_WHOLE = 0.9  # of the kernels of the others, with which the first batch of a recording is a whole one
_UNKNOWN, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass
class _Batch:
    """What is known of one: times in ns, ``_UNKNOWN`` where nothing is."""

    rows: int = 0
    first_ns: int = _NEVER
    computes_ns: int = _NEVER  # when the device begins with its first kernel
    reach_ns: int = _UNKNOWN
    # When forward, backward and update begin, and the update ends.
    stages: tuple[int, int, int, int] | None = None
    take_turns: bool = False


@dataclass
class BatchRows:
    """Collects the rows of all windows, and makes the table ``batches`` of them.

    Attributes:
        findings: what is to be said of the batches.
    """

    batches: BatchTimes
    on_device: bool
    findings: list[Finding] = field(default_factory=list)
    _earlier_ns: int = _UNKNOWN  # when the device had done what was launched before the first batch
    _known: dict[int, _Batch] = field(default_factory=dict)

    def add(
        self,
        batch: np.ndarray,
        launched_ns: np.ndarray,
        start_ns: np.ndarray,
        end_ns: np.ndarray,
        direction: np.ndarray,
        kind: np.ndarray,
    ) -> None:
        """Rows of a window: of each its batch (-1: none), times in ns, direction and class as numbers.

        Args:
            launched_ns: below 0: not known.
        """
        if not self._known:
            first = int(start_ns[batch >= 0].min(initial=_NEVER))
            begin = int(self.batches.start_ns[:1].max(initial=0))  # launches that are not known are at -1
            earlier = (batch < 0) & (start_ns < first) & (launched_ns < begin)
            self._earlier_ns = max(self._earlier_ns, int(end_ns[earlier].max(initial=_UNKNOWN)))
        order = np.argsort(batch, kind="stable")
        edges = np.flatnonzero(np.diff(batch[order])) + 1
        for rows in np.split(order, edges):
            number = int(batch[rows[0]]) if len(rows) else -1
            if number < 0:
                continue
            one = self._known.setdefault(number, _Batch())
            several = one.rows > 0
            one.rows += len(rows)
            times = np.where(launched_ns[rows] >= 0, launched_ns[rows], start_ns[rows])
            one.first_ns = min(one.first_ns, int(times.min()))
            computing = rows[~np.isin(kind[rows], (MEMCPY, MEMSET))]
            one.computes_ns = min(one.computes_ns, int(start_ns[computing].min(initial=_NEVER)))
            own = rows[direction[rows] != LOADING]
            one.reach_ns = max(one.reach_ns, int(end_ns[own].max(initial=_UNKNOWN)))
            one.stages, one.take_turns = (
                (None, one.take_turns)
                if several
                else _stages(times, start_ns[rows], end_ns[rows], direction[rows], kind[rows])
            )

    def table(self, rank: int) -> pa.Table:
        """The table ``batches``, numbered from 0; stages are null where they are not known.

        Raises:
            UserError: ranges that the user named hold no work of their own, so that they are no batches.
        """
        times, known = self.batches, [self._known.get(int(one), _Batch()) for one in self.batches.index]
        count = len(known)
        first = np.array([one.first_ns for one in known])
        start = np.where(times.start_ns == _UNKNOWN, first, times.start_ns)
        end = np.array(times.last_ns, np.int64)
        if self.on_device and times.source not in (PERIOD, WHOLE):
            of_each = [self._earlier_ns, *(one.reach_ns for one in known)]
            reach = np.maximum.accumulate(np.array(of_each, np.int64))
            end = np.maximum(end, reach[1:])
            start = np.maximum(start, reach[:-1])
        if self.on_device and times.source == WHOLE:
            start = self._started(known[0], start)
        start = np.minimum(start, end)
        if times.source.startswith(NAMED) and (empty := int((start == end).sum())):
            raise UserError(
                f"--batch-marker {times.source.removeprefix(NAMED)}: {empty} of {count} ranges have no time "
                "on the GPU: name ranges that each hold a whole step"
            )
        whole = np.ones(count, bool)  # in the recording from its start: all, or all but the first
        if not times.begun and count > 1:
            whole[0] = known[0].rows >= _WHOLE * np.median([one.rows for one in known[1:]])
        self._say(known, whole)
        slow = slow_head((end - start)[whole])
        if slow:
            self.findings.append(
                Finding("first_steps_left_out", data={"n": slow, "why": f"over {SLOW:g} times as long"})
            )
            whole[: int(np.argmax(whole)) + slow] = False
        if times.source == PERIOD:
            end = end + 1  # where the next one begins
        table = as_table("batches", {
            "rank": np.full(count, rank, np.int32),
            "batch_index": np.arange(count, dtype=np.int32),
            "start_ns": start,
            **_durations(known, start, end),
            "end_ns": end,
            "attributed": whole,
        })  # fmt: skip
        return table.replace_schema_metadata(
            {SOURCE_KEY: times.source, CONFIDENCE_KEY: str(times.confidence)}
        )

    def _started(self, recording: _Batch, start: np.ndarray) -> np.ndarray:
        """When a recording that is one batch begins: behind its start-up, if a kernel ends that."""
        if recording.computes_ns == _NEVER:
            return start
        return np.array([recording.computes_ns])

    def _say(self, known: list[_Batch], whole: np.ndarray) -> None:
        if len(whole) and not whole[0]:
            self.findings.append(Finding("first_steps_left_out", data={"n": 1, "why": "recorded in part"}))
        if turns := sum(one.take_turns for one in known):
            self.findings.append(Finding("passes_alternate", data={"n": turns, "of": len(known)}))
        source, confidence = self.batches.source, self.batches.confidence
        if source == PERIOD or (source == WHOLE and any(one.rows for one in known)):
            data = {"by": source} | ({"recurring_pct": 100 * confidence} if source == PERIOD else {})
            self.findings.append(Finding("steps_unmarked", data=data))


def _stages(
    launched_ns: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    direction: np.ndarray,
    kind: np.ndarray,
) -> tuple[tuple[int, int, int, int] | None, bool]:
    """When forward, backward and update begin and the update ends; None: not known. Do passes take turns?"""
    works = ~np.isin(kind, (COMMUNICATION, MEMCPY, MEMSET))
    forward, backward = (np.flatnonzero(works & (direction == one)) for one in (FPROP, BPROP))
    if not len(forward) or not len(backward):
        return None, False
    began = int(start_ns[backward].min())
    lasted = end_ns[forward] - start_ns[forward]
    if lasted[start_ns[forward] > began].sum() > _TAKES_TURNS * lasted.sum():
        return None, True
    # Gradients are set to zero before a step, or after it: that is no update of this batch.
    updates = works & (direction == UPDATING) & (start_ns >= start_ns[backward].max())
    if not updates.any():
        done = int(end_ns[backward].max())
        return (int(launched_ns[forward].min()), began, done, done), False
    update = int(start_ns[updates].min())
    return (int(launched_ns[forward].min()), began, update, int(end_ns[updates].max())), False


def _durations(known: list[_Batch], start: np.ndarray, end: np.ndarray) -> dict[str, pa.Array]:
    """The stages' columns, in ns, null where they are not known."""
    names = ("load_ns", "forward_ns", "backward_ns", "update_ns")
    rows: list[tuple[int | None, ...]] = []
    for one, begun, ended in zip(known, start.tolist(), end.tolist(), strict=True):
        if one.stages is None:
            rows.append((None,) * len(names))
            continue
        # Each begins within the batch, and not before the one before it.
        edges = np.maximum.accumulate(np.clip(np.array([begun, *one.stages], np.int64), begun, ended))
        rows.append(tuple(np.diff(edges).tolist()))
    return {name: pa.array([row[place] for row in rows], pa.int64()) for place, name in enumerate(names)}
