"""Was the CPU free while something was measured? The kernel says how long threads waited for a core.

A load average cannot say that: it is the whole host's, also of cores that a container does not have, and
counts the ranks that measure.
"""

from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_BUSY = 0.1  # of the time; by then what is measured is as much too low


def waited_s() -> float | None:
    """How long the threads of this process have been ready to run without a core; None: it is not known."""
    waits = []
    for path in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waits.append(int(path.read_text().split()[1]))
    return sum(waits) / 1e9 if waits else None


def share_of(before: float | None, now: float | None, wall_s: float, threads: int) -> float:
    """Which share of their time threads have waited between two readings; 0 if it is not known."""
    if before is None or now is None or wall_s <= 0:
        return 0.0
    return max(0.0, now - before) / (wall_s * threads)


def findings_of(share: float) -> list[str]:
    """What is said of peaks that were measured while threads waited for such a share of the time."""
    if share < _BUSY:
        return []
    return [
        f"while the peaks were measured, threads waited {100 * min(share, 1):.0f} % of the time for a core "
        "(other processes, or a CPU limit): the peaks may be too low, and efficiencies too high"
    ]
