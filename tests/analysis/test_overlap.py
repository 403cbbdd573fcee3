"""Interval arithmetic against counting by hand, and communication of planted traces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.frames import divide as overlap
from profiling import tables
from tests.analysis.commands import run
from tests.analysis.synthetic import MS, Truth, run_of, write_sweep

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=15)

NAMES = ("exposed", "overlapped")


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
def test_what_is_covered(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = overlap.union(*arrays(first)), overlap.union(*arrays(second))
    assert overlap.covered(a, b).sum() == len(ticks(first) & ticks(second)) == overlap.covered(b, a).sum()


@pytest.mark.parametrize("hidden_ms", [0.0, 12.0, 20.0])
def test_planted_communication_is_found(tmp_path: Path, hidden_ms: float) -> None:
    truth = Truth(communication_ms=20.0, hidden_ms=hidden_ms)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], truth)
    assert exposed_of(tmp_path) == pytest.approx(np.array([[20 - hidden_ms, hidden_ms]] * 3), abs=1e-9)


@pytest.mark.parametrize("step_ms", [100.0, 110.0])
def test_a_collective_that_outlasts_its_batch_is_one_figure_everywhere(
    tmp_path: Path, step_ms: float
) -> None:
    """80 ms that begin 45 ms after a batch does: after its kernels (60 ms) it is exposed to its end.

    The next batch's kernels hide the rest, but of the last one, whose rest no recorded batch holds.
    """
    truth = Truth({2: step_ms}, noise_ms=0.0, perturbation=1.0, warmup=0, communication_ms=80.0)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch", attribute_from=20)], truth)
    rest = 45 + 80 - step_ms
    hidden = 15 + rest * 19 / 20
    assert exposed_of(tmp_path) == pytest.approx(np.array([[step_ms - 60, hidden]] * 3), abs=1e-9)


def test_shares_of_several_kinds_and_of_what_reaches_in_add_up(tmp_path: Path) -> None:
    """One kind's calls outlast the batch, another's end in it; a call of no batch reaches into one."""
    truth = Truth({4: 100.0}, noise_ms=0.0, perturbation=1.0, warmup=0, communication_ms=50.0)
    write_sweep(tmp_path, [run_of(gpus_per_node=4, profile="torch")], truth)
    for path in next(tmp_path.glob("run_*")).glob("rank_*"):
        rows = tables.read(path, "kernels").to_pylist()
        talks = [row for row in rows if row["class"] == "communication"]
        more = [row | {"start_ns": row["start_ns"] + 30 * MS, "short_name": "ncclAllGather"} for row in talks]
        early = talks[0] | {"start_ns": talks[0]["start_ns"] - 100 * MS, "duration_ns": 130 * MS}
        early |= {"batch_index": None}
        columns = {name: [row[name] for row in (early, *rows, *more)] for name in early}
        tables.write(tables.as_table("kernels", columns), path, "kernels")
    found = exposed_of(tmp_path)
    assert found == pytest.approx(np.array([found[0]] * 3), abs=1e-9) and found[0, 0] == pytest.approx(40)
    assert len(run("analysis.communication", tmp_path, "--format", "json", "--all").json) == 2


def exposed_of(path: Path) -> np.ndarray:
    """Exposed and overlapped, ms, as scaled, anatomy and communication have them, shape (3, 2)."""
    (scaled,), (anatomy,), calls = (
        run(f"analysis.{name}", path, "--format", "json", "--all").json
        for name in ("scaled", "anatomy", "communication")
    )
    of_row = [[row[f"{name}_communication_ms"] for name in NAMES] for row in (scaled, anatomy)]
    return np.array([*of_row, [sum(row[f"{name}_ms"] for row in calls) for name in NAMES]])


def test_one_rank_has_no_communication(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")])
    ran = run("analysis.scaled", tmp_path, "--format", "json", "--all")
    assert ran.json[0].get("exposed_communication_ms") is None and "collective" not in ran.err


def test_a_trace_of_two_ranks_without_a_collective_is_not_zero(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    for path in tmp_path.glob("run_*/rank_*/kernels.parquet"):
        _without_collectives(path)
    ran = run("analysis.scaled", tmp_path, "--format", "json", "--all")
    assert ran.json[0].get("exposed_communication_ms") is None and "not recorded: collectives" in ran.err


def _without_collectives(path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    pq.write_table(table.filter(pc.not_equal(pc.cast(table["class"], "string"), "communication")), path)
