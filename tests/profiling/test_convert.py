"""python -m profiling.convert: recognises by content, converts what it can, says what it cannot."""

import pytest

from profiling.convert import main
from profiling.tables import read
from profiling.tools import read as read_any
from profiling.tools import recognise
from tests.builders import data_of
from tests.profiling.samples import NVPROF_SUMMARY, pyprof
from tests.profiling.traces import Trace, training_step


def trace(path):
    made = Trace(distributedInfo={"rank": 2, "world_size": 1})
    training_step(made, 0)
    return made.write(path)


def test_a_tool_is_recognised_by_content_not_by_name(tmp_path):
    assert recognise(trace(tmp_path / "a.bin.gz")) == "torch"
    assert recognise(trace(tmp_path / "b.txt")) == "torch"
    assert recognise(pyprof(tmp_path / "c.json")) == "pyprof"
    (tmp_path / "d.json").write_text('{"results": []}')
    (tmp_path / "e.json.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / "f").write_bytes(b"")
    assert [recognise(tmp_path / name) for name in ("d.json", "e.json.gz", "f")] == [None] * 3


@pytest.mark.parametrize(
    ("changes", "rows", "flops"),
    [
        ([{"Sil(ns)": 5.0}, {"Sil(ns)": -5.0}, {"Sil(ns)": float("nan")}, {"Sil(ns)": 1e30}], 1, [10]),
        ([{}, {"Idx": None}], 1, [10]),
        ([{"FLOPs": value} for value in (1.5, -1.0, float("inf"), None)], 4, [1.5, None, None, None]),
        ([{"Kernel": None, "Op": None, "Direction": None, "Module": None}], 1, [10]),
        ([{"Device": 1 << 31}, {"Stream": 1 << 40}], 2, [10, 10]),
        ([{"Idx": "0", "Sil(ns)": "7", "FLOPs": "3", "Device": "-", "Stream": "a"}], 1, [3]),
    ],
)  # fmt: skip
def test_absurd_rows_of_a_pyprof_table_are_left_out_and_counted(tmp_path, changes, rows, flops):
    converted = read_any(pyprof(tmp_path / "table.parquet", *changes))
    assert converted.tables["kernels"]["flops"].to_pylist() == flops
    left_out = len(changes) - rows
    damaged = [{"n": left_out, "what": "rows"}] if left_out else []
    assert data_of(converted.findings, "records_damaged") == damaged


def test_files_and_folders_become_tables(tmp_path, capsys):
    (tmp_path / "raw" / "deep").mkdir(parents=True)
    trace(tmp_path / "raw" / "rank0.json.gz")
    trace(tmp_path / "raw" / "deep" / "rank0.json.gz")
    (tmp_path / "table.csv").write_text(NVPROF_SUMMARY)
    out = tmp_path / "out"
    assert main([str(tmp_path / "raw"), str(tmp_path / "table.csv"), "--out", str(out)]) == 0
    # Of a trace its job's folder, with a folder a rank; of a table, which is no trace, one of its own.
    assert sorted(found.name for found in out.iterdir()) == ["deep", "raw", "table"]
    assert read(out / "raw" / "rank_0002", "kernels").num_rows == 8
    assert read(out / "raw" / "rank_0002", "markers").num_rows == 5
    assert (out / "table" / "intervals.parquet").is_file()
    assert sorted(capsys.readouterr().out.split()) == [str(out / name) for name in ("deep", "raw", "table")]


def test_a_damaged_trace_and_a_named_file_of_another_format_fail_and_the_rest_is_converted(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    trace(folder / "good.json")
    (tmp_path / "notes.txt").write_text("hello")
    (folder / "cut.json").write_bytes((folder / "good.json").read_bytes()[:-400])
    out = ["--out", str(tmp_path / "out")]
    assert main([str(folder), *out]) == 1
    assert "cut.json" in capsys.readouterr().err
    assert main([str(folder / "good.json"), str(tmp_path / "notes.txt"), *out]) == 1
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "out" / "good")
    lines = [line for line in printed.err.splitlines() if "notes.txt" in line]
    assert len(lines) == 1
    assert "--tool" in lines[0]
    assert printed.err.splitlines()[-1] == "scaleprof: 1 converted, 1 not"


def test_other_files_of_a_folder_are_counted_and_no_failure(tmp_path, capsys):
    """What lies beside traces: notes, pictures, tables, empty files."""
    trace(tmp_path / "good.json")
    for number in range(60):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([number]))
    (tmp_path / "README").write_text("My traces of Friday.\n")
    (tmp_path / "prices.csv").write_text("name,price\na,1\n")
    (tmp_path / "__init__.py").touch()
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert not any(".jpg" in line for line in said)
    assert said[-1].startswith("scaleprof: 1 converted, 0 not, 63 ")


def test_pyprofs_tables_are_not_converted(tmp_path, capsys):
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    for job in ("a", "b"):
        (jobs / job).mkdir(parents=True)
        pyprof(jobs / job / "rank0.parquet")
    assert main([str(jobs), "--out", str(out)]) == 0 and not out.exists()
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("scaleprof: 0 converted, 0 not, 2 ")
    trace(jobs / "trace.json")
    assert main([str(jobs / "a"), str(jobs / "trace.json"), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out / 'trace'}\n"
    assert printed.err.startswith("scaleprof: 1 converted, 0 not, 1 ")
