"""The steps of a recording that scaleprof's training loop did not time, and their stages.

They correspond to what the training loop's CUDA events would show: a step ends when the device has finished
what was launched until the step's end on the host, or at that end, if the device finished earlier. The first
one begins when the device has finished what was launched before the recording. A step in which forward and
backward passes alternate (gradient accumulation, a pipeline) has no such stages; if no pass is known, a step
has no stages at all. A recording that counts as a single step begins with the device's first kernel; what the
program did before (starting CUDA, loading modules, the first copies) is startup.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_times import NAMED, PERIOD, SLOW, WHOLE, BatchTimes, slow_head
from profiling.attribution.context import BPROP, FPROP, LOADING, UPDATING
from profiling.attribution.events import COMMUNICATION, MEMCPY, MEMSET
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.tables import as_table

# What the table's metadata say of its batches: see BatchTimes.
SOURCE_KEY, CONFIDENCE_KEY = b"source", b"confidence"

_ALTERNATE = 0.05  # passes alternate if more of the forward kernels' time is after the first backward one
_COMPLETE = 0.9  # of the kernels of the others, with which the first batch of a recording is complete
_BESIDE = (COMMUNICATION, MEMCPY, MEMSET)  # may run beside the model, on other streams
_SHORTEST_NS = 1000  # of a step: readers take it for damage that one has no time
_UNKNOWN, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass
class _Batch:
    """What is known of one: times in ns, ``_UNKNOWN`` where nothing is."""

    rows: int = 0
    first_ns: int = _NEVER
    computes_ns: int = _NEVER  # when the device begins with its first kernel
    reach_ns: int = _UNKNOWN  # when the device has done all that was launched in it, the loader's work apart
    model_begins_ns: int = _NEVER  # first start and last end of the model's kernels
    model_ends_ns: int = _UNKNOWN
    # When forward, backward and update begin, and the update ends.
    stages: tuple[int, int, int, int] | None = None
    passes_alternate: bool = False


@dataclass
class BatchRows:
    """Collects the rows of all windows, and makes the table ``batches`` of them."""

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
        """Add rows of a window; times in ns, ``launched_ns`` below 0: not known, ``batch`` -1: none."""
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
            times = np.where(launched_ns[rows] >= 0, launched_ns[rows], start_ns[rows])
            if one.rows:  # in two windows
                one.stages = None
            else:
                columns = (column[rows] for column in (start_ns, end_ns, direction, kind))
                one.stages, one.passes_alternate = _stages(times, *columns)
            one.rows += len(rows)
            one.first_ns = min(one.first_ns, int(times.min()))
            computing = rows[~np.isin(kind[rows], (MEMCPY, MEMSET))]
            one.computes_ns = min(one.computes_ns, int(start_ns[computing].min(initial=_NEVER)))
            not_loading = rows[direction[rows] != LOADING]
            one.reach_ns = max(one.reach_ns, int(end_ns[not_loading].max(initial=_UNKNOWN)))
            model = not_loading[~np.isin(kind[not_loading], _BESIDE)]
            one.model_begins_ns = min(one.model_begins_ns, int(start_ns[model].min(initial=_NEVER)))
            one.model_ends_ns = max(one.model_ends_ns, int(end_ns[model].max(initial=_UNKNOWN)))

    def table(self, rank: int) -> pa.Table:
        """The table ``batches``, numbered from 0; UserError: ranges that the user named hold no work."""
        times, known = self.batches, [self._known.get(int(one), _Batch()) for one in self.batches.index]
        count = len(known)
        first = np.array([one.first_ns for one in known])
        start = np.where(times.start_ns == _UNKNOWN, first, times.start_ns)
        end = np.array(times.last_ns, np.int64)
        if self.on_device and times.source not in (PERIOD, WHOLE):
            # Copies and collectives that still run when the model is in its next step end none: nothing
            # waits for them (asynchronous checkpoints, gathers of parameters).
            next_begins = [*(one.model_begins_ns for one in known[1:]), _NEVER]
            of_each = [
                one.model_ends_ns if one.reach_ns > begins and one.model_ends_ns != _UNKNOWN else one.reach_ns
                for one, begins in zip(known, next_begins, strict=True)
            ]
            reach = np.maximum.accumulate(np.array([self._earlier_ns, *of_each], np.int64))
            end = np.maximum(end, reach[1:])
            start = np.maximum(start, reach[:-1])
        if self.on_device and times.source == WHOLE and known[0].computes_ns != _NEVER:
            start = np.array([known[0].computes_ns])  # behind its start-up
        start = np.minimum(start, end)
        if times.source.startswith(NAMED) and (empty := int((start == end).sum())):
            raise UserError(
                f"--batch-marker {times.source.removeprefix(NAMED)}: {empty} of {count} ranges have no time "
                "on the GPU: name ranges that each hold a whole step"
            )
        if n := int((start == end).sum()):
            # The device was busy with the step before until this one ended on the host.
            data = {"what": ["times of steps on the device"], "n": n, "of": count}
            self.findings.append(Finding("not_recorded", data=data))
            end = np.where(start == end, end + _SHORTEST_NS, end)
        complete = np.ones(count, bool)  # in the recording from its start: all, or all but the first
        if not times.begun and count > 1:
            complete[0] = known[0].rows >= _COMPLETE * np.median([one.rows for one in known[1:]])
        left_out = {"recorded in part": int(not complete[:1].all())}
        if slow := slow_head((end - start)[complete]):
            left_out[f"over {SLOW:g} times as long"] = slow
            complete[: int(np.argmax(complete)) + slow] = False
        for why, n in left_out.items():
            self.findings += [Finding("first_steps_left_out", data={"n": n, "why": why})] if n else []
        if n := sum(one.passes_alternate for one in known):
            self.findings.append(Finding("passes_alternate", data={"n": n, "of": count}))
        if times.source == PERIOD or (times.source == WHOLE and any(one.rows for one in known)):
            recurring = {"recurring_pct": 100 * times.confidence} if times.source == PERIOD else {}
            self.findings.append(Finding("steps_unmarked", data={"by": times.source} | recurring))
        if times.source == PERIOD:
            end = end + 1  # where the next one begins
        table = as_table("batches", {
            "rank": np.full(count, rank, np.int32),
            "batch_index": np.arange(count, dtype=np.int32),
            "start_ns": start,
            **_durations(known, start, end),
            "end_ns": end,
            "attributed": complete,
        })  # fmt: skip
        metadata = {SOURCE_KEY: times.source, CONFIDENCE_KEY: str(times.confidence)}
        return table.replace_schema_metadata(metadata)


def _stages(
    launched_ns: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, direction: np.ndarray, kind: np.ndarray
) -> tuple[tuple[int, int, int, int] | None, bool]:
    """(when forward, backward and update begin and the update ends, or None; whether passes alternate)."""
    works = ~np.isin(kind, _BESIDE)
    forward, backward = (np.flatnonzero(works & (direction == one)) for one in (FPROP, BPROP))
    if not len(forward) or not len(backward):
        return None, False
    began = int(start_ns[backward].min())
    lasted = end_ns[forward] - start_ns[forward]
    if lasted[start_ns[forward] > began].sum() > _ALTERNATE * lasted.sum():
        return None, True
    # Gradients are set to zero before a step, or after it: that is no update of this batch.
    updates = works & (direction == UPDATING) & (start_ns >= start_ns[backward].max())
    begun = int(launched_ns[forward].min())
    if not updates.any():
        done = int(end_ns[backward].max())
        return (begun, began, done, done), False
    return (begun, began, int(start_ns[updates].min()), int(end_ns[updates].max())), False


def _durations(known: list[_Batch], start: np.ndarray, end: np.ndarray) -> dict[str, pa.Array]:
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
