"""The reference's TAU tables, as others may have them: durations, scaling, and what they are made of."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.commands import Ran, one_line_error, run
from tests.analysis.synthetic import write_pyprof, write_tau
from tests.analysis.test_bad_results import truncate
from tests.analysis.test_other_tables import overwrite_pages

# 40 s that do not depend on the batch size, 0.25 s an image of the batch: 48 s at 32, 56 s at 64.
SECONDS = {(n, 4, batch): [40 + batch / 4 + 2 * (n - 1)] * 3 for n in (1, 2) for batch in (32, 64)}


def published(path: Path, *more: str) -> Ran:
    return run("analysis.scaled", path, "--method", "published", "--format", "csv", *more)


def test_epoch_durations_and_their_scaling(whole) -> None:
    assert len(whole) == 4
    for row in whole:
        nodes, batch = int(row["nodes"]), int(row["batch"])
        seconds, base = SECONDS[nodes, 4, batch][0], SECONDS[1, 4, batch][0]
        figures = {
            "application_s": seconds, "epoch_duration_s": seconds * 1e6 / (50 * batch * 4 * nodes),
            "base_nodes": 1, "scaling_efficiency_pct": 100 * base / seconds,
            "batch_independent_pct": 100 * (seconds - batch / 4) / seconds,
        }  # fmt: skip
        assert {name: float(row[name]) for name in figures} == pytest.approx(figures)


def change(path: Path, column: str, values: list | None) -> None:
    table = pq.ParquetFile(path).read()
    place = table.column_names.index(column)
    table = table.remove_column(place)
    pq.write_table(table if values is None else table.add_column(place, column, [values]), path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The answer on a table that nobody has changed."""
    return published(write_tau(tmp_path_factory.mktemp("whole") / "i.gzip", SECONDS)).csv


def test_a_column_less_and_numbers_written_as_text(whole, tmp_path: Path) -> None:
    path = write_tau(tmp_path / "i.gzip", SECONDS)
    for column in ("nodes", "gpus_per_node", "batch_size_per_gpu", "inc_time", "gpu"):
        change(path, column, [str(value) for value in pq.ParquetFile(path).read()[column].to_pylist()])
    assert published(path).csv == whole
    for column in "network_backend", "profile_level", "neural_network", "grad_precision", "compute_precision":
        change(path, column, None)
        lacking = published(path).csv
        assert [row["scaling_efficiency_pct"] for row in lacking] == [
            row["scaling_efficiency_pct"] for row in whole
        ]


@pytest.mark.parametrize("value", [None, 0])
def test_runs_that_do_not_say_their_nodes_are_left_out_with_a_note(tmp_path: Path, value: int | None) -> None:
    path = write_tau(tmp_path / "i.gzip", SECONDS)
    nodes = pq.ParquetFile(path).read()["nodes"].to_pylist()
    change(path, "nodes", [value if each == 2 else each for each in nodes])
    for command in ("scaled", "communication"):
        more = ("--method", "published") if command == "scaled" else ()
        ran = run(f"analysis.{command}", path, *more, "--format", "csv")
        assert ran.code == 0, ran.err
        assert {row["nodes"] for row in ran.csv} == {"1"}
        assert "6 runs without" in ran.err


def test_runs_under_two_profilers_are_not_mixed(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "i.gzip", {(1, 4, 32): [60.0], (2, 4, 32): [90.0]})
    count = pq.ParquetFile(path).metadata.num_rows
    change(path, "profile_level", ["tau_exec"] * (count // 3) + ["tau_python"] * (count - count // 3))
    rows = published(path).csv
    assert [(row["profile"], row["base_nodes"]) for row in rows] == [("tau_exec", "1"), ("tau_python", "2")]


@pytest.mark.parametrize("named", ["batch1_5runs.gzip", "lisa_batch1_interval.gzip", "start_batch_1.parquet"])
def test_runs_of_one_batch_give_no_epoch_and_a_batch_duration_beside_those_of_50(tmp_path, named):
    write_tau(tmp_path / named, {(1, 4, 32): [41.0, 40.0, 42.0]})
    assert "data on scaling" in one_line_error(published(tmp_path / named))
    write_tau(tmp_path / "timed.gzip", {(1, 4, 32): [66.0, 65.5]})
    ran = published(tmp_path, "--explain")
    assert len(ran.csv) == 1
    # GPU 0 takes half a second less than the slowest: (65.5 - 40.5) / 50, and (65.25 - 40.5) / 49.
    assert "5 differences of 49 steps: 500 -> 505.1" in ran.err
    (row,) = run("analysis.batches", tmp_path, "--format", "csv").csv
    assert float(row["tau_step_ms"]) == pytest.approx(500)


def test_fewer_gathers_than_50_are_runs_of_one_batch(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "nameless.gzip", {(1, 4, 32): [41.0]})
    table = pq.ParquetFile(path).read().to_pylist()
    for row in table:
        if row["function"] == "mpi_allreduce":
            row.update(function="mpi_gather", calls=12)
    pq.write_table(pa.Table.from_pylist(table), path)
    assert "data on scaling" in one_line_error(published(path))


@pytest.mark.parametrize("damage", [truncate, overwrite_pages])
def test_a_damaged_table_costs_no_other(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_tau(tmp_path / "good.gzip", SECONDS)
    bad = write_tau(tmp_path / "bad.gzip", {(4, 4, 32): [60.0]})
    damage(bad)
    ran = published(tmp_path)
    assert (ran.code, len(ran.csv)) == (1, 4)
    assert "(bad.gzip)" in ran.err and "bad.gzip" in one_line_error(published(bad))


def test_pyprof_tables_that_tau_timed_have_the_published_scaled_efficiency(tmp_path: Path) -> None:
    """24 s for 50 batches over start-up: 0.48 s a batch; FLOPs and bytes of write_pyprof over 25 of these."""
    write_pyprof(tmp_path / "kernels", nodes=1)
    write_pyprof(tmp_path / "kernels", nodes=8)
    write_tau(tmp_path / "batch1.gzip", {(1, 2, 32): [41.0, 41.0]}, network="IB", grad="fp16")
    write_tau(tmp_path / "timed.gzip", {(1, 2, 32): [64.0, 65.0]}, network="IB", grad="fp16")
    ran = published(tmp_path, "--explain")
    (row,) = [row for row in ran.csv if row["step_duration_s"]]
    assert float(row["step_duration_s"]) == pytest.approx(24 / 50)
    flops = (5 * 6e9 + 3 * 6e9 + 5e3) + 2 * 6e9
    moved = (5 + 3) * 3e6 + 2 * 2 * 2e6 + 5e3
    assert float(row["flops_efficiency_of_step_pct"]) == pytest.approx(100 * flops / (25 * 0.48) / 4.29e12)
    assert float(row["bandwidth_efficiency_of_step_pct"]) == pytest.approx(100 * moved / (25 * 0.48) / 288e9)
    assert "1 swapped columns: " in ran.err
    assert len(published(tmp_path, "--group-by", "nodes").csv) == 1


@pytest.mark.parametrize(
    ("end_s", "forward_s", "least_s"), [(0.45, 0.4, 0.4), (0.4, 0.45, 0.4), (0.5, 0.6, 0.48)]
)
@pytest.mark.parametrize("with_tau", [True, False])
def test_the_published_step_is_the_least_of_taus_and_of_those_by_marks(
    tmp_path: Path, end_s: float, forward_s: float, least_s: float, with_tau: bool
) -> None:
    """Forward passes count from the 27th on: those before are 0.1 s apart."""
    kernels = write_pyprof(tmp_path / "kernels", nodes=1)
    if with_tau:
        write_tau(tmp_path / "batch1.gzip", {(1, 2, 32): [41.0, 41.0]}, network="IB", grad="fp16")
        write_tau(tmp_path / "timed.gzip", {(1, 2, 32): [64.0, 65.0]}, network="IB", grad="fp16")
    begins = [0.1 * min(step, 26) + forward_s * max(step - 26, 0) for step in range(51)]
    marks = [("Forward Pass", at) for at in begins] + [("End of Batch", end_s * step) for step in range(51)]
    lines = [f"{number},{name},{round(1e18 + at * 1e9)}" for number, (name, at) in enumerate(marks)]
    (tmp_path / f"{kernels.stem}.csv").write_text("\n".join([",name_str,timestamp", *lines]))
    (row,) = [row for row in published(tmp_path).csv if row["step_duration_s"]]
    expected = least_s if with_tau else min(end_s, forward_s)
    assert float(row["step_duration_s"]) == pytest.approx(expected, rel=1e-4)
