"""The parts of a batch add up to its wall time, whatever runs when; planted parts are found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import anatomy
from analysis.anatomy import BESIDE, PARTS, Activities, of_rank, split
from analysis.load import load
from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep

MS = 1_000_000
NOTHING = (np.array([], np.int64), np.array([], np.int64))


def intervals(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


some = st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 60)), max_size=12).map(
    lambda pairs: intervals(*((start, start + length) for start, length in pairs))
)


@given(some, some, some, some, st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True))
def test_parts_add_up_to_the_nanosecond(compute, communication, loader, copies, edges):
    edges = np.array(sorted(edges))
    found = split((edges[:-1], edges[1:]), Activities(compute, communication, loader, copies))
    assert (sum(found[name] for name in PARTS) == np.diff(edges)).all()
    assert all((found[name] >= 0).all() for name in (*PARTS, *BESIDE))


@given(some, some)
def test_overlapped_and_exposed_are_all_of_the_communication(compute, communication):
    found = split(intervals((0, 200)), Activities(compute, communication, NOTHING, NOTHING))
    line = np.zeros(400, bool)
    for start, end in zip(*communication, strict=True):
        line[start + 50 : end + 50] = True
    whole = line[50:250].sum()
    assert found["exposed_communication"][0] + found["overlapped_communication"][0] == whole


def test_the_first_in_order_has_the_time():
    found = split(
        intervals((0, 100)),
        Activities(
            compute=intervals((0, 40)),
            communication=intervals((30, 60)),
            loader=intervals((50, 80)),
            copies=intervals((70, 90)),
        ),
    )
    assert [int(found[name][0]) for name in PARTS] == [40, 20, 20, 10, 10]
    assert [int(found[name][0]) for name in BESIDE] == [10, 10]


def test_planted_parts_are_found(tmp_path):
    # Of 100 ms: 60 ms of kernels, and on 2 ranks 20 ms of collectives, 15 of them hidden; 10 % is waiting.
    truth = Truth(noise_ms=0.0, perturbation=1.0)
    runs = [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)]
    write_sweep(tmp_path, runs, truth)
    one, two = sorted(anatomy.rows(load(tmp_path)), key=lambda row: row["gpus_per_node"])
    assert one["wall_ms"] == pytest.approx(100) and two["wall_ms"] == pytest.approx(110)
    assert one["exposed_communication_ms"] == 0
    assert two["exposed_communication_ms"] + two["overlapped_communication_ms"] == pytest.approx(20, abs=0.01)
    for row in (one, two):
        assert sum(row[f"{name}_ms"] for name in PARTS) == pytest.approx(row["wall_ms"], abs=1e-6)
        assert row["compute_ms"] == pytest.approx(60, abs=0.01)


def test_stages_and_ranks_add_up_to_the_whole(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    study = load(tmp_path)
    whole = anatomy.rows(study)[0]
    by_stage = anatomy.rows(study, ["stage"])
    assert [row["stage"] for row in by_stage] == list(anatomy.STAGES)
    assert sum(row["wall_ms"] for row in by_stage) == pytest.approx(whole["wall_ms"])
    by_rank = anatomy.rows(study, ["rank"])
    assert [row["attributed_batches"] for row in by_rank] == [20, 20] and whole["attributed_batches"] == 40


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
    found = of_rank(batches, kernels)
    assert list(found["stage"]) == list(anatomy.STAGES)
    assert (found["wall_ns"] == np.array([30, 20, 30, 10, 10]) * MS).all()
    assert (found["exposed_loader_ns"] == np.array([25, 0, 0, 0, 0]) * MS).all()
    assert (found["compute_ns"] == np.array([5, 10, 10, 0, 0]) * MS).all()
    assert (found["exposed_copies_ns"] == np.array([0, 0, 0, 5, 5]) * MS).all()


def test_a_run_without_a_profiler_is_said_in_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "needs a run under a profiler" in one_line_error(run("analysis.anatomy", tmp_path))


def test_a_damaged_run_costs_no_other(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)])
    damaged = next(tmp_path.glob("run_*config_1_2_*")) / "rank_0001"
    tables.table_path(damaged, "kernels").write_bytes(b"PAR1 no more")
    ran = run("analysis.anatomy", tmp_path, "--format", "csv")
    assert ran.code == 1 and len(ran.csv) == 1 and "rank_0001" in ran.err


def test_an_unknown_level_names_the_nearest(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")])
    assert "stage" in one_line_error(run("analysis.anatomy", tmp_path, "--by", "stages"))
