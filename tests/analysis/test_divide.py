"""The parts of a batch add up to its wall time, whatever runs when; planted parts are found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.frames.divide import (
    BESIDE,
    EVER,
    PARTS,
    STAGES,
    WITHIN,
    Activities,
    activities_of,
    complement,
    covered,
    edges_of,
    queued,
    split,
    transfer_and_wait,
    windows_of,
)

MS = 1_000_000


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
    exposed = Activities(compute, communication).exposed
    found = transfer_and_wait(intervals((0, 200)), exposed, transfers)
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


def test_the_wait_for_the_loader_is_the_loaders():
    batches = {
        "batch_index": np.array([0]), "start_ns": np.array([0]), "load_ns": np.array([30 * MS]),
        "forward_ns": np.array([20 * MS]),
        "backward_ns": np.array([30 * MS]), "update_ns": np.array([10 * MS]),
        "end_ns": np.array([100 * MS]), "attributed": np.array([True]),
    }  # fmt: skip
    kernels = {
        "start_ns": np.array([10, 40, 85]) * MS, "duration_ns": np.array([5, 20, 10]) * MS,
        "class": np.array(["gemm", "gemm", "memcpy"]), "direction": np.array(["fprop", "fprop", "none"]),
    }  # fmt: skip
    edges = edges_of(batches)
    begin, end = windows = windows_of(edges)
    found = split(windows, activities_of(kernels, (edges[:, 0], edges[:, 1])))
    assert len(begin) == len(STAGES) and list(end - begin) == [30 * MS, 20 * MS, 30 * MS, 10 * MS, 10 * MS]
    assert (found["exposed_loader"] == np.array([25, 0, 0, 0, 0]) * MS).all()
    assert (found["loader_wait"] == found["exposed_loader"]).all()
    assert (found["compute"] == np.array([5, 10, 10, 0, 0]) * MS).all()
    assert (found["exposed_copies"] == np.array([0, 0, 0, 5, 5]) * MS).all()
    assert "idle_other" not in found


# --- launches -----------------------------------------------------------------------------------------


def launched(*rows: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Kernels of (launch, start, end) on a device."""
    launch, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    words = {"class": np.full(len(rows), "gemm"), "direction": np.full(len(rows), "fprop")}
    return {"launch_ns": launch, "start_ns": start, "duration_ns": end - start, **words}


def idle_of(*rows: tuple[int, int, int], until: int = 100) -> tuple[int, int]:
    """(host-bound, other) idle time of the kernels' window [0, until)."""
    found = split(intervals((0, until)), activities_of(launched(*rows)))
    return int(found["idle_host_bound"][0]), int(found["idle_other"][0])


@pytest.mark.parametrize(
    ("rows", "host_bound", "other"),
    [
        # Launched before the one before it ended: the gap is a dependency's, or the launch's latency.
        ([(0, 0, 40), (10, 50, 100)], 0, 10),
        # Launched 7 after the gap began: 7 are the host's, the other 3 the latency of the launch.
        ([(0, 0, 40), (47, 50, 100)], 7, 3),
        # Two streams: while either waits for its turn on an idle device, the host is not late.
        ([(0, 0, 40), (30, 60, 80), (55, 58, 100)], 0, 18),
        # What comes before the first launch is the host's.
        ([(15, 20, 100)], 15, 5),
        # What follows the last kernel is not known: it is divided as the rest, and other if there is none.
        ([(15, 20, 90)], 15 + 8, 5 + 2),
        ([(0, 0, 90)], 0, 10),
        # A launch that is not known, or after its kernel's start, makes no gap the host's.
        ([(0, 0, 40), (-1, 50, 60), (65, 70, 100)], 5, 15),
        ([(0, 0, 40), (99, 50, 100)], 0, 10),
    ],
)
def test_idle_is_the_hosts_until_the_next_launch(rows, host_bound, other):
    assert idle_of(*rows) == (host_bound, other)
    assert idle_of(*reversed(rows)) == (host_bound, other)


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
            earlier = [end for _, begun, end in rows if begun < start]
            since = launch if known else max(earlier, default=-1)
            waits |= since <= tick < start
        host_bound += not busy and not waits
        seen += not busy
    unseen = max(100 - ends, 0)
    assert idle_of(*rows)[0] == host_bound + (round(unseen * (host_bound / seen)) if seen else 0)


def test_the_end_of_the_last_batch_is_divided_as_the_same_stage_of_the_median_batch():
    # Batches of 100, of two stages: idle are 10 of the first, of which 2 are latency, and 20 at the end, all
    # the host's but in the first batch, which is a slow one.
    rows = [
        row
        for start in range(0, 500, 100)
        for row in ((start + 8, start + 10, start + 50), (start + 40, start + 50, start + 80))
    ]
    rows[1] = (40, 70, 80)
    edges = np.arange(0, 501, 50)
    found = split((edges[:-1], edges[1:]), activities_of(launched(*rows)), stages=2)
    host, other = (found[name].reshape(-1, 2).tolist() for name in ("idle_host_bound", "idle_other"))
    assert host == [[8, 20], *[[8, 20]] * 4] and other == [[2, 20], *[[2, 0]] * 4]


def test_without_any_launch_idle_is_not_split():
    assert queued(launched((-1, 10, 20), (30, 20, 25))) is None
    assert activities_of(launched((-1, 10, 20))).queued is None
