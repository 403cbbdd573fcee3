"""Which events of a Kineto trace are of kinds that are not read, and is a device's work among them?

A new kind of device writes its work under categories of its own (``mtia_ccp_events``). Left out without a
word it would make the trace one of a CPU, and the host's operators the work.
"""

from collections import Counter

from profiling.attribution.events import Trace

# They hold no work of their own: links, ranges that others hold too, waits, what the profiler itself took.
_NO_WORK = frozenset((
    "gpu_user_annotation", "ac2g", "fwdbwd", "async_gpu", "async_cpu_to_gpu", "external_correlation", "Trace",
    "overhead", "cuda_sync", "cuda_event", "collective_comm", "gpu_pm_counter",
))  # fmt: skip
# Counters of kernels. Their times are made up: Kineto divides the recording evenly among them.
_COUNTERS = "cuda_profiler_range"
_SHOWN, _LONGEST = 5, 40  # categories in a line, letters of one


class Unread:
    """Counts the events that are not read."""

    def __init__(self) -> None:
        self._events = Counter[tuple[str, str]]()  # by category and process

    def add(self, category: str, process: str) -> None:
        """Count an event of a category that no reader knows."""
        if category not in _NO_WORK:
            self._events[category, process] += 1

    def note(self, trace: Trace, processes: set[str]) -> None:
        """Say in the trace's findings what is left out, and mark it if a device's work is.

        Args:
            processes: those in which operators or launches ran; events of others are a device's.
        """
        counters = {one: count for one, count in self._events.items() if one[0] == _COUNTERS}
        others = {one: count for one, count in self._events.items() if one[0] != _COUNTERS}
        device = {one: count for one, count in others.items() if one[1] not in processes}
        host = {one: count for one, count in others.items() if one[1] in processes}
        if counters:
            trace.findings.append(
                f"{sum(counters.values())} events of kind {_COUNTERS} are left out: counters of kernels "
                "without the kernels' times"
            )
        for where, mine in (("a device", device), ("the host", host)):
            if mine:
                kinds = _listed({category for category, _ in mine})
                trace.findings.append(
                    f"{sum(mine.values())} events of {where} are left out: unknown kind ({kinds})"
                )
        trace.unread = bool(counters or device)
        if trace.unread and not trace.tables["device"].rows:
            trace.findings.append("no device work can be read, so the host's operators are left out, too")


def _listed(categories: set[str]) -> str:
    """Some categories in a line; a damaged file may hold anything in their place."""
    shown = [
        "".join(one if one.isprintable() else "?" for one in name[:_LONGEST]) for name in sorted(categories)
    ]
    return ", ".join(shown[:_SHOWN]) + ", ..." * (len(shown) > _SHOWN)
