"""What is odd about how a recording was attributed? Counted window by window, said once."""

import numpy as np

from profiling.attribution.checks import clock_findings, stage_findings
from profiling.attribution.events import RANGE, Trace
from profiling.attribution.windows import Windows


class Tally:
    """Counts over the rows of all windows.

    Args:
        trace: the recording; its malformed events and its own findings are said with the rest.
        windows: its windows, whose marks are checked.
        rank: whose recording it is.
    """

    def __init__(self, trace: Trace, windows: Windows, rank: int) -> None:
        self._trace, self._windows, self._rank = trace, windows, rank
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
        trace, source = self._trace, self._windows.batches.source
        found = list(trace.findings)
        if trace.malformed:
            found.append(
                f"{trace.malformed} events lack a required field or hold an absurd one; they are left out"
            )
        if self._rows and trace.world_size > 1 and not self._collectives:
            where = "on its GPU" if trace.on_device else "among its operators"
            found.append(
                f"one of {trace.world_size} ranks, and no collective {where}: communication is not recorded, "
                "not absent (it runs where this profiler does not look, or without CUDA activities)"
            )
        found += clock_findings(self._early, self._launched, self._earliest_ns)
        marks = self._windows.marks
        ranges = marks["kind"] == RANGE
        names = [trace.names[name] for name in marks["name"][ranges]]
        found += stage_findings(self._rank, names, marks["start_ns"][ranges])
        if self._launched < self._rows:
            found.append(
                f"{self._rows - self._launched} of {self._rows} device activities have no recorded launch "
                "(it came before the trace): they have no batch, direction or operator"
            )
        if self._rows and not source:
            found.append("nothing tells its batches apart: no ProfilerStep, End of Batch or Optimizer.step")
        elif source == "Optimizer.step":
            found.append(
                "batches are told by the end of Optimizer.step, for want of ProfilerStep and End of Batch"
            )
        if not trace.inputs and self._rows:
            found.append(
                "no input shapes: FLOPs and bytes of operators are not known; profile with record_shapes"
            )
        return found
