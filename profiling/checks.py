"""Did every rank mark every batch? What is missing is named, so that no count is trusted that is short."""

from collections.abc import Mapping
from itertools import islice

from profiling.tables import BACKWARD, END_OF_BATCH, FORWARD, UPDATE

_SHOWN = 8
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


def _ranks(first: list[int], count: int) -> str:
    shown = ", ".join(map(str, first)) + (f" and {count - len(first)} more" if count > len(first) else "")
    return f"rank {shown}" if count == 1 else f"ranks {shown}"
