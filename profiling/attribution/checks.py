"""What is wrong with a profile? Marks or ranks that are missing, clocks that ran backwards.

What is found is named, so that no count is trusted that is short. Of a recording it is counted window by
window and said once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from profiling.attribution.events import RANGE, Columns, Trace
from profiling.schemas import MARKS
from profiling.wording import how_many, noun, verb

_SHOWN = 8
# What marks a batch once, by our loop and by others'.
MARKED_ONCE = (*MARKS, "Load Data", "Optimizer Step", "Allreduce Gradients")


def missing_marks(counts: Mapping[int, Mapping[str, float]], world_size: int = 0) -> list[str]:
    """What is wrong with how often each rank passed the stages of a batch.

    Args:
        counts: rank -> stage -> how often.
        world_size: how many ranks should be there.
    """
    findings = []
    marked = {
        rank: {name: count for name, count in of.items() if name in MARKED_ONCE}
        for rank, of in counts.items()
    }
    most = max((count for of in marked.values() for count in of.values()), default=0)
    everywhere = sorted({name for of in marked.values() for name in of}, key=MARKED_ONCE.index)
    if most == 0:
        return ["no stage of a step is marked, so steps cannot be counted"] if counts else []
    for rank in sorted(marked):
        for name in everywhere:
            count = marked[rank].get(name, 0)
            if count < most:
                findings.append(f"rank {rank}: {count:g} of {most:g} {name!r}: the last are missing")
    absent = world_size - len(counts)
    if absent > 0:
        # A damaged file may name rank 999,999,999: the absent ones are counted, not listed.
        first = list(islice((rank for rank in range(world_size) if rank not in counts), _SHOWN))
        findings.append(f"{_ranks(first, absent)} of {world_size} left no profile")
    return findings


def stage_findings(rank: int, names: Sequence[str], start_ns: np.ndarray) -> list[str]:
    """What is wrong with the stages of a rank's batches: some are missing, or they are out of order.

    Args:
        names: of its ranges and marks, those that are no stage included.
        start_ns: when each began, shape (names,).
    """
    counts = Counter(name for name in names if name in MARKED_ONCE)
    findings = missing_marks({rank: counts}) if counts else []
    if findings or not all(name in counts for name in MARKS):
        return findings
    place = {name: number for number, name in enumerate(MARKS)}
    stage = np.array([place.get(name, -1) for name in names])
    begun = start_ns[stage >= 0]
    stage = stage[stage >= 0][np.argsort(begun, kind="stable")]
    wrong = int((stage != np.arange(len(stage)) % len(MARKS)).sum())
    if wrong:
        findings.append(
            f"{wrong} of {how_many(len(stage), 'stage')} {verb(wrong, 'are')} out of order within the step: "
            "the clock went backwards, or several processes wrote the markers"
        )
    return findings


def clock_findings(early: int, launched: int, earliest_ns: int) -> list[str]:
    """What is wrong with the clocks of the host and a device: activities that begin before they are launched.

    Args:
        early: how many do, of ``launched`` with a recorded launch.
        earliest_ns: by how much the worst of them.
    """
    if not early:
        return []
    return [
        f"{early} of {launched} device activities {verb(early, 'begin')} before the launch, by up to "
        f"{earliest_ns / 1000:g} us: the clock went backwards, or device and host clocks differ"
    ]


def _ranks(first: list[int], count: int) -> str:
    shown = ", ".join(map(str, first)) + (f" and {count - len(first)} more" if count > len(first) else "")
    return f"{noun(count, 'rank')} {shown}"


def malformed_finding(events: int) -> str:
    """That some events cannot be used."""
    return (
        f"{how_many(events, 'event')} {verb(events, 'lack')} a required field or {verb(events, 'have')} an "
        "impossible value: left out"
    )


class Tally:
    """Counts over the rows of all windows.

    Args:
        trace: the recording; its malformed events and its own findings are said with the rest.
        marks: its ranges that tell batches and stages, columns as of host events.
        source: what tells its batches apart; empty if nothing does.
        rank: whose recording it is.
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

    def findings(self) -> list[str]:
        """What is odd, one sentence each."""
        trace, marks, source = self._trace, self._marks, self._source
        texts = list(trace.findings)
        if trace.malformed:
            texts.append(malformed_finding(trace.malformed))
        if self._rows and trace.world_size > 1 and not self._collectives:
            where = "on its GPU" if trace.on_device else "among its operators"
            texts.append(
                f"{trace.world_size} ranks, but no collective {where}: either they do not communicate, or "
                "it was not recorded"
            )
        texts += clock_findings(self._early, self._launched, self._earliest_ns)
        ranges = marks["kind"] == RANGE
        names = [trace.names[name] for name in marks["name"][ranges]]
        texts += stage_findings(self._rank, names, marks["start_ns"][ranges])
        if self._launched < self._rows:
            missing = self._rows - self._launched
            texts.append(
                f"{missing} of {self._rows} kernels and copies {verb(missing, 'have')} no recorded launch "
                "(launched before the recording began): operator, stage and step are unknown"
            )
        if self._rows and not source:
            texts.append("no markers separate its steps: no ProfilerStep, End of Batch or Optimizer.step")
        elif source == "Optimizer.step":
            texts.append(
                "no ProfilerStep or End of Batch markers: using the end of Optimizer.step as the step "
                "boundary"
            )
        if not trace.inputs and self._rows:
            advice = "; profile with record_shapes" if trace.may_have_shapes else ""
            texts.append(f"no input shapes: FLOPs and bytes of operators are unknown{advice}")
        return texts
