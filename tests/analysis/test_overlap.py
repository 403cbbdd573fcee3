"""Interval arithmetic against counting by hand, and communication of planted traces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.measures import overlap
from analysis.results.load import load
from tests.analysis.synthetic import Truth, run_of, write_sweep

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=15)


def arrays(pairs: list[tuple[int, int]]) -> overlap.Intervals:
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    return start, start + np.array([length for _, length in pairs], dtype=np.int64)


def ticks(pairs: list[tuple[int, int]]) -> set[int]:
    return {tick for start, length in pairs for tick in range(start, start + length)}


@given(PAIRS)
def test_union_covers_the_same_time_without_overlap(pairs: list[tuple[int, int]]) -> None:
    start, end = overlap.union(*arrays(pairs))
    assert overlap.length((start, end)) == len(ticks(pairs))
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@given(PAIRS, PAIRS)
def test_intersection(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = overlap.union(*arrays(first)), overlap.union(*arrays(second))
    assert overlap.intersection_length(a, b) == len(ticks(first) & ticks(second))
    assert overlap.intersection_length(b, a) == overlap.intersection_length(a, b)


@given(PAIRS, PAIRS)
def test_exposed_and_hidden_add_up(talk: list[tuple[int, int]], work: list[tuple[int, int]]) -> None:
    exposed = overlap.exposed(arrays(talk), arrays(work))
    assert exposed == len(ticks(talk) - ticks(work))
    assert exposed == overlap.exposed(arrays(talk * 2), arrays(work * 2))


@pytest.mark.parametrize("hidden_ms", [0.0, 12.0, 20.0])
def test_planted_communication_is_found(tmp_path: Path, hidden_ms: float) -> None:
    truth = Truth(communication_ms=20.0, hidden_ms=hidden_ms)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], truth)
    study = load(tmp_path)
    found = overlap.communication_of(study, study.sources[0])
    assert found is not None
    assert found.exposed_ns == pytest.approx((20 - hidden_ms) * 1e6)
    assert found.overlapped_ns == pytest.approx(hidden_ms * 1e6)


def test_one_rank_has_no_communication(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")])
    study = load(tmp_path)
    assert overlap.communication_of(study, study.sources[0]) is None
    assert not study.findings


def test_a_trace_of_two_ranks_without_a_collective_is_not_zero(tmp_path: Path) -> None:
    write_sweep(
        tmp_path, [run_of(gpus_per_node=2, profile="torch")], Truth(communication_ms=0.0, hidden_ms=0.0)
    )
    study = load(tmp_path)
    for path in study.sources[0].tables("kernels"):
        _without_collectives(path)
    assert overlap.communication_of(study, study.sources[0]) is None
    assert "holds no collective" in study.findings[0]


def _without_collectives(path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    pq.write_table(table.filter(pc.not_equal(pc.cast(table["class"], "string"), "communication")), path)
