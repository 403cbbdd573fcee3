"""What is wrong with a profile? Marks or ranks that are missing, clocks that ran backwards.

What is found is named, so that no count is trusted that is short.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from profiling.tables import BACKWARD, END_OF_BATCH, FORWARD, UPDATE

_SHOWN = 8
_IN_ORDER = (FORWARD, BACKWARD, UPDATE, END_OF_BATCH)
# What marks a batch once, by our loop and by others'.
STAGES = (FORWARD, BACKWARD, UPDATE, END_OF_BATCH, "Load Data", "Optimizer Step", "Allreduce Gradients")


def missing_marks(counts: Mapping[int, Mapping[str, float]], world_size: int = 0) -> list[str]:
    """What is wrong with how often each rank passed the stages of a batch.

    Args:
        counts: rank -> stage -> how often.
        world_size: how many ranks should be there.
    """
    found = []
    marked = {
        rank: {name: count for name, count in of.items() if name in STAGES} for rank, of in counts.items()
    }
    most = max((count for of in marked.values() for count in of.values()), default=0)
    everywhere = sorted({name for of in marked.values() for name in of}, key=STAGES.index)
    if most == 0:
        return ["no stage of a batch is marked, so batches cannot be counted"] if counts else []
    for rank in sorted(marked):
        for name in everywhere:
            count = marked[rank].get(name, 0)
            if count < most:
                found.append(f"rank {rank} has {count:g} of its {most:g} {name!r}: the last are missing")
    absent = world_size - len(counts)
    if absent > 0:
        # A damaged file may name rank 999,999,999: the absent ones are counted, not listed.
        first = list(islice((rank for rank in range(world_size) if rank not in counts), _SHOWN))
        found.append(f"{_ranks(first, absent)} of {world_size} left no profile")
    return found


def stage_findings(rank: int, names: Sequence[str], start_ns: np.ndarray) -> list[str]:
    """What is wrong with the stages of a rank's batches: some are missing, or they are out of order.

    Args:
        names: of its ranges and marks, those that are no stage included.
        start_ns: when each began, shape (names,).
    """
    counts = Counter(name for name in names if name in STAGES)
    found = missing_marks({rank: counts}) if counts else []
    if found or not all(name in counts for name in _IN_ORDER):
        return found
    place = {name: number for number, name in enumerate(_IN_ORDER)}
    stage = np.array([place.get(name, -1) for name in names])
    begun = start_ns[stage >= 0]
    stage = stage[stage >= 0][np.argsort(begun, kind="stable")]
    wrong = int((stage != np.arange(len(stage)) % len(_IN_ORDER)).sum())
    if wrong:
        found.append(
            f"{wrong} of {len(stage)} stages do not come in the order of a batch: the clock went backwards, "
            "or several processes marked them"
        )
    return found


def clock_findings(early: int, launched: int, earliest_ns: int) -> list[str]:
    """What is wrong with the clocks of the host and a device: activities that begin before they are launched.

    Args:
        early: how many do, of ``launched`` with a recorded launch.
        earliest_ns: by how much the worst of them.
    """
    if not early:
        return []
    return [
        f"{early} of {launched} device activities begin before they are launched, by up to "
        f"{earliest_ns / 1000:g} us: the clock went backwards, or the device's is not the host's"
    ]


def _ranks(first: list[int], count: int) -> str:
    shown = ", ".join(map(str, first)) + (f" and {count - len(first)} more" if count > len(first) else "")
    return f"rank {shown}" if count == 1 else f"ranks {shown}"
