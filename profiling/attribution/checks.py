"""Problems of a profile, counted window by window: missing markers or ranks, clocks that ran backwards."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import numpy as np

from profiling.attribution.batch_times import OPTIMIZER_STEP
from profiling.attribution.events import RANGE, Columns, Trace
from profiling.findings import Finding
from profiling.schemas import MARKS

_SHOWN = 1 << 10
# What marks a batch once, by our loop and by others'.
MARKED_ONCE = (*MARKS, "Load Data", "Optimizer Step", "Allreduce Gradients")


def missing_marks(counts: Mapping[int, Mapping[str, float]], world_size: int = 0) -> list[Finding]:
    """What is wrong with how often each rank passed each stage; ``world_size``: ranks expected."""
    marked = {rank: {name: of[name] for name in MARKED_ONCE if name in of} for rank, of in counts.items()}
    most = max((count for of in marked.values() for count in of.values()), default=0)
    if most == 0:
        return [Finding("steps_unmarked", data={"by": "nothing"})] if counts else []
    findings = [
        Finding("marks_missing", rank=rank, data={"stage": name, "n": count, "of": most})
        for rank in sorted(marked)
        for name in MARKED_ONCE
        if any(name in of for of in marked.values()) and (count := marked[rank].get(name, 0)) < most
    ]
    return findings + missing_ranks(counts, world_size)


def missing_ranks(there: Collection[int], world_size: int) -> list[Finding]:
    """That ranks are missing, if some are: how many, and the first of them (a world size may be damaged)."""
    if len(there) >= world_size:
        return []
    first = list(islice((rank for rank in range(world_size) if rank not in there), _SHOWN))
    return [
        Finding("profiles_missing", data={"n": world_size - len(there), "of": world_size, "ranks": first})
    ]


def stage_findings(rank: int, names: Sequence[str], start_ns: np.ndarray) -> list[Finding]:
    """What is wrong with the stages of a rank's batches, by its ranges' names and starts, shape (names,)."""
    counts = Counter(name for name in names if name in MARKED_ONCE)
    findings = missing_marks({rank: counts}) if counts else []
    if findings or not all(name in counts for name in MARKS):
        return findings
    place = {name: number for number, name in enumerate(MARKS)}
    stage = np.array([place.get(name, -1) for name in names])
    begun = start_ns[stage >= 0]
    stage = stage[stage >= 0][np.argsort(begun, kind="stable")]
    wrong = int((stage != np.arange(len(stage)) % len(MARKS)).sum())
    return [Finding("stages_out_of_order", rank=rank, data={"n": wrong, "of": len(stage)})] if wrong else []


class Tally:
    """Counts over the rows of all windows of a recording.

    ``marks``: its ranges that tell batches and stages, columns as of host events; ``source``: what marks its
    batches; empty if nothing does.
    """

    def __init__(self, trace: Trace, marks: Columns, source: str, rank: int) -> None:
        self._trace, self._marks, self._source, self._rank = trace, marks, source, rank
        self._rows = self._collectives = self._launched = self._early = self._earliest_ns = 0

    def add(self, launched_ns: np.ndarray, start_ns: np.ndarray, is_collective: np.ndarray) -> None:
        """Count a window's rows: when each was launched (-1: not known) and began, in ns."""
        early = np.where(launched_ns >= 0, launched_ns - start_ns, 0)
        self._rows += len(early)
        self._collectives += int(is_collective.sum())
        self._launched += int((launched_ns >= 0).sum())
        self._early += int((early > 0).sum())
        self._earliest_ns = max(self._earliest_ns, int(early.max(initial=0)))

    def findings(self) -> list[Finding]:
        trace, marks, rows = self._trace, self._marks, self._rows
        found = list(trace.findings)
        if trace.malformed:
            found.append(Finding("records_damaged", data={"n": trace.malformed, "what": "events"}))
        if trace.overruns:
            found.append(Finding("overruns_cut", data={"n": trace.overruns, "of": rows}))
        if rows and trace.world_size > 1 and not self._collectives:
            found.append(Finding("no_collectives", data={"ranks": trace.world_size}))
        if self._early:
            data = {"n": self._early, "of": self._launched, "by_ns": self._earliest_ns}
            found.append(Finding("begun_before_launch", data=data))
        ranges = marks["kind"] == RANGE
        names = [trace.names[name] for name in marks["name"][ranges]]
        found += stage_findings(self._rank, names, marks["start_ns"][ranges])
        if self._launched < rows:
            found.append(Finding("launches_missing", data={"n": rows - self._launched, "of": rows}))
        if rows and self._source in ("", OPTIMIZER_STEP):
            found.append(Finding("steps_unmarked", data={"by": self._source or "nothing"}))
        if rows and trace.may_have_shapes and not trace.inputs:
            found.append(Finding("not_recorded", data={"what": "input shapes"}))
        return found
