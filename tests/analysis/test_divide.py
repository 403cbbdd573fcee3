"""The parts of a batch add up to its wall time, whatever runs when; planted parts are found."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.frames.divide import (
    BESIDE,
    EVER,
    PARTS,
    WITHIN,
    Activities,
    activities_of,
    complement,
    covered,
    queued,
    split,
    transfer_and_wait,
)


def intervals(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


some = st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 60)), max_size=12).map(
    lambda pairs: intervals(*((start, start + length) for start, length in pairs))
)
edges = st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True).map(sorted).map(np.array)

# Rows of (which kind of activity, start, length): one list is drawn faster than one a kind.
of_any_kind = st.lists(st.tuples(st.integers(0, 7), st.integers(-50, 250), st.integers(0, 60)), max_size=20)


@given(of_any_kind, edges)
def test_parts_and_what_they_are_made_of_add_up_to_the_nanosecond(rows, edges):
    kinds = [[(start, start + length) for one, start, length in rows if one == kind] for kind in range(8)]
    windows = edges[:-1], edges[1:]
    compute, communication, *rest = (intervals(*pairs) for pairs in kinds)
    activities = Activities(compute, communication, *rest)
    found = split(windows, activities)
    # Transfers are the last parts of communication.
    transfers = intervals(*(((start + end) // 2, end) for start, end in kinds[1]))
    found |= transfer_and_wait(windows, activities.exposed, transfers)
    assert (sum(found[name] for name in PARTS) == np.diff(edges)).all()
    for part, names in WITHIN.items():
        assert (sum(found[name] for name in names) == found[part]).all()
    assert all((column >= 0).all() for column in found.values())


def ticks(*of: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """From -100 to 400, a tick a row: whether it is in each of these."""
    line = np.zeros((500, len(of)), bool)
    for place, (start, end) in enumerate(of):
        for begin, until in zip(start.tolist(), end.tolist(), strict=True):
            line[max(begin + 100, 0) : max(until + 100, 0), place] = True
    return line


@given(some, some, some)
def test_a_transfer_is_what_is_exposed_once_the_last_rank_has_come(compute, communication, transfers):
    found = transfer_and_wait(intervals((0, 200)), Activities(compute, communication).exposed, transfers)
    computes, talks, moves = ticks(compute, communication, transfers)[100:300].T
    assert found["exposed_transfer"][0] == (talks & ~computes & moves).sum()
    assert found["exposed_wait"][0] == (talks & ~computes & ~moves).sum()


def test_what_is_left_outside_reaches_beyond_any_clock():
    begin, end = complement(intervals((10, 20)))
    assert list(begin) == [-EVER, 20] and list(end) == [10, EVER]
    now = 1_800_000_000 * 10**9  # of a clock that counts from 1970, in 2027
    assert covered(intervals((now, now + 5)), complement(intervals((0, now + 2))))[0] == 3


def test_the_first_in_order_has_the_time():
    found = split(
        intervals((0, 100)),
        Activities(
            compute=intervals((0, 40)),
            communication=intervals((30, 60)),
            loader_kernels=intervals((50, 70)),
            loader_copies=intervals((55, 75)),
            loader_waits=intervals((10, 80)),
            copies=intervals((70, 90)),
            queued=intervals((80, 96)),
        ),
    )
    assert [int(found[name][0]) for name in PARTS] == [40, 20, 20, 10, 10]
    assert [int(found[name][0]) for name in WITHIN["exposed_loader"]] == [10, 5, 5]
    assert [int(found[name][0]) for name in WITHIN["idle"]] == [4, 6]
    assert [int(found[name][0]) for name in BESIDE] == [10, 50]


def launched(*rows: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Kernels of (launch, start, end) on a device."""
    launch, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    words = {"class": np.full(len(rows), "gemm"), "direction": np.full(len(rows), "fprop")}
    return {"launch_ns": launch, "start_ns": start, "duration_ns": end - start, **words}


def idle_of(*rows: tuple[int, int, int], until: int = 100) -> tuple[int, int]:
    """(host-bound, other) idle time of the kernels' window [0, until)."""
    found = split(intervals((0, until)), activities_of(launched(*rows)))
    return int(found["idle_host_bound"][0]), int(found["idle_other"][0])


rows_of_kernels = st.lists(
    st.tuples(st.integers(-1, 90), st.integers(0, 90), st.integers(1, 20)), min_size=1, max_size=8
).map(lambda rows: [(launch, start, start + took) for launch, start, took in rows])


@given(rows_of_kernels)
def test_against_counting_tick_by_tick(rows):
    if not any(0 <= launch <= start for launch, start, _ in rows):
        assert queued(launched(*rows)) is None
        return
    host_bound, seen = 0, 0
    ends = max(end for *_, end in rows)
    for tick in range(min(ends, 100)):
        busy = any(start <= tick < end for _, start, end in rows)
        waits = False
        for launch, start, _ in rows:
            known = 0 <= launch <= start
            # Of an unknown launch: from the last end before it began, if any of those before has ended.
            since = launch if known else max([end for _, begun, end in rows if begun < start], default=-1)
            waits |= since <= tick < start
        host_bound += not busy and not waits
        seen += not busy
    unseen = max(100 - ends, 0)
    assert idle_of(*rows)[0] == host_bound + (round(unseen * (host_bound / seen)) if seen else 0)
