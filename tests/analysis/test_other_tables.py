"""PyProf tables as others may have them: each gives right figures, or one clear line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import write_pyprof
from tests.analysis.test_bad_results import truncate

# What write_pyprof plants: 5 forward passes (3 trials in the first), 2 attributed backward passes.
TFLOP = (5 * 6e9 + 3 * 6e9 + 5 * 1e3) / 5 / 1e12 + 6e9 / 1e12
NAME = (
    "run_{rep}_config_{nodes}_{gpus}_{net}_nvprof_{workers}_{model}_{loader}_{batch}_fp16_{compute}"
    "_ret_0{rank}"
)


def name(ending: str = ".gzip", **values: object) -> str:
    known = {
        "rep": 0, "nodes": 1, "gpus": 2, "net": "ib", "workers": 2, "model": "resnet50", "loader": "dali-gpu",
        "batch": 32, "compute": "fp32", "rank": "_0",
    }  # fmt: skip
    return NAME.format(**{**known, **values}) + ending


def figures(path: Path) -> list[dict[str, str]]:
    ran = run("analysis.scaled", path, "--format", "csv")
    assert ran.code == 0, ran.err
    return ran.csv


@pytest.mark.parametrize(
    ("ending", "rank"), [(".gzip", "_0"), (".parquet", "_15"), (".snappy.parquet", ""), ("", "_0"), ("", "")]
)
def test_any_ending_with_or_without_a_rank(tmp_path: Path, ending: str, rank: str) -> None:
    for given in (tmp_path, write_pyprof(tmp_path, name=name(ending, rank=rank))):
        (row,) = figures(given)
        assert (row["fprop_steps"], row["bprop_steps"]) == ("5", "2")
        assert float(row["tflop_per_step"]) == pytest.approx(TFLOP)
        assert (row["nodes"], row["gpus_per_node"], row["world_size"]) == ("1", "2", "2")


def test_repetitions_ranks_and_folders_of_a_configuration_are_one_row(tmp_path: Path) -> None:
    write_pyprof(tmp_path, name=name(rep=0))
    write_pyprof(tmp_path, name=name(rep=1))
    write_pyprof(tmp_path, name=name(rep=0, rank="_1"))
    write_pyprof(tmp_path / "second", name=name(rep=0))
    write_pyprof(tmp_path, name=name(nodes=16, model="mymodel"))
    row, other = figures(tmp_path)
    assert (row["tables"], row["fprop_steps"], row["bprop_steps"]) == ("4", "20", "8")
    assert float(row["tflop_per_step"]) == pytest.approx(TFLOP)
    assert other["nodes"] == "16" and other["fprop_flop_coverage_pct"] == ""  # its model is not known


def changed(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def replace(table: pa.Table, column: str, values: object) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, values)


def of_type(column: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: replace(table, column, table[column].cast(kind))


def in_part(table: pa.Table) -> pa.Table:
    """Half a nanosecond and half a FLOP more a launch than whole numbers."""
    for column in ("Sil(ns)", "FLOPs"):
        values = [value + 0.5 if value else value for value in table[column].to_pylist()]
        table = replace(table, column, pa.array(values, pa.float64()))
    return table


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "extra columns": lambda table: table.append_column("Comment", pa.array(["x"] * len(table))),
    "index of pandas": lambda table: table.append_column("__index_level_0__", pa.array(range(len(table)))),
    "other order": lambda table: table.select(table.column_names[::-1]),
    "rows in other order": lambda table: table.take(pa.array(range(len(table)))[::-1]),
    "FLOPs as integers": of_type("FLOPs", pa.int64()),
    "durations as fractions": of_type("Sil(ns)", pa.float64()),
    "durations as text": of_type("Sil(ns)", pa.string()),
    "FLOPs as decimals": of_type("FLOPs", pa.decimal128(38, 3)),
    "bytes as text": of_type("Bytes", pa.string()),
    "names as dictionaries": of_type("Kernel", pa.dictionary(pa.int32(), pa.string())),
    "large strings": of_type("Op", pa.large_string()),
}

ASKED = (("scaled", "corrected"), ("efficiency", "published"), ("kernels", "corrected"))


def answers(folder: Path) -> list[list[dict[str, str]]]:
    return [run(f"analysis.{one}", folder, "--format=csv", "--method", method).csv for one, method in ASKED]


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[dict[str, str]]]]:
    """A table that no test changes, and the answers on it."""
    table = write_pyprof(tmp_path_factory.mktemp("before"))
    expected = answers(table.parent)
    assert all(expected)
    return table, expected


@pytest.mark.parametrize("what", CHANGES)
def test_tables_of_other_columns_and_types(as_it_is, tmp_path: Path, what: str) -> None:
    table, expected = as_it_is
    changed(Path(shutil.copy(table, tmp_path)), CHANGES[what])
    assert answers(tmp_path) == expected


@pytest.mark.parametrize("first", [True, False])
def test_the_first_tables_types_do_not_round_the_second(tmp_path: Path, first: bool) -> None:
    """Read together, a table of fractions beside one of integers keeps its fractions."""
    fractions = write_pyprof(tmp_path / "both", nodes=1 if first else 8)
    write_pyprof(tmp_path / "both", nodes=8 if first else 1)
    changed(fractions, in_part)
    alone = run("analysis.efficiency", fractions, "--method", "published", "--format", "csv").csv
    beside = run("analysis.efficiency", tmp_path / "both", "--method", "published", "--format", "csv").csv
    assert alone[0] in beside


@pytest.mark.parametrize("column", ["FLOPs", "Bytes", "Sil(ns)"])
def test_values_that_are_missing_or_no_numbers(tmp_path: Path, column: str) -> None:
    path = write_pyprof(tmp_path)

    def without_some(table: pa.Table) -> pa.Table:
        values = [float(value) for value in table[column].to_pylist()]
        values[0], values[1] = float("nan"), None
        return replace(table, column, pa.array(values, pa.float64()))

    changed(path, without_some)
    for command in ("scaled", "efficiency", "kernels"):
        ran = run(f"analysis.{command}", tmp_path, "--format", "csv")
        assert ran.code == 0, ran.err
        assert "nan" not in ran.out.lower()


@pytest.mark.parametrize("code", ["1", "-9", "139"])
def test_a_run_that_failed_by_its_name_does_not_count_and_is_named(tmp_path: Path, code: str) -> None:
    write_pyprof(tmp_path, name=name(nodes=1))
    failed = write_pyprof(tmp_path, name=name(nodes=8).replace("_ret_0_", f"_ret_{code}_"))
    ran = run("analysis.scaled", tmp_path, "--format", "csv")
    assert (ran.code, [row["nodes"] for row in ran.csv]) == (1, ["1"])
    assert f"exit code {code} ({failed.name})" in ran.err
    assert f"exit code {code}" in one_line_error(run("analysis.kernels", failed))


def test_no_backward_pass_attributed(tmp_path: Path) -> None:
    write_pyprof(tmp_path, attributed=0)
    ran = run("analysis.scaled", tmp_path, "--format", "csv", "--explain")
    (row,) = ran.csv
    assert (row["fprop_steps"], row["bprop_steps"], row.get("tflop_per_step", "")) == ("5", "0", "")
    assert float(row["fprop_flop_coverage_pct"]) > 0
    assert "attributed backward passes" in ran.err
    assert "kernels with FLOPs" in one_line_error(run("analysis.efficiency", tmp_path))
    # Published figures do not depend on it.
    ran = run("analysis.efficiency", tmp_path, "--method", "published")
    assert ran.code == 0 and ran.out.startswith("Kernel efficiency")


def overwrite_pages(path: Path) -> None:
    """All but the footer: the file opens, and its rows cannot be read."""
    content = path.read_bytes()
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(b"PAR1" + b"\xff" * (pages - 4) + content[pages:])


def foreign(path: Path) -> None:
    path.write_bytes(b"\x1f\x8b\x08\x00 not Parquet at all")


def lacking(path: Path) -> None:
    changed(path, lambda table: table.drop_columns(["FLOPs"]))


def overwrite_bytes(path: Path) -> None:
    """Its counts could be read, its bytes not: half a row would look as if it counted."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = next(one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == "Bytes")
    start = column.dictionary_page_offset or column.data_page_offset
    content, size = bytearray(path.read_bytes()), column.total_compressed_size
    content[start : start + size] = b"\xff" * size
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [truncate, overwrite_pages, overwrite_bytes, foreign, lacking, lambda path: path.write_bytes(b"")],
)
def test_a_damaged_table_costs_no_other(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for nodes in (1, 2):
        write_pyprof(tmp_path, nodes=nodes)
    bad = write_pyprof(tmp_path, nodes=8)
    damage(bad)
    for command, method in ASKED:
        ran = run(f"analysis.{command}", tmp_path, "--method", method, "--format", "csv")
        assert ran.code == 1, ran
        assert [line for line in ran.err.splitlines() if bad.name in line]
        if command != "kernels":
            assert [row["nodes"] for row in ran.csv] == ["1", "2"]
        alone = run(f"analysis.{command}", bad, "--method", method, "--format", "csv")
        assert bad.name in one_line_error(alone)
