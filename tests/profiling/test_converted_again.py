"""profiling.convert into a folder that holds something: nothing is lost without a word."""

import os
from pathlib import Path

import pytest

from profiling.convert import main
from profiling.traced_job import read_job
from profiling.traces import units
from tests.profiling.samples import NVPROF_METRICS, VTUNE
from tests.profiling.test_convert_many import tables_below
from tests.profiling.traced_jobs import Planted, write_job

SKIP = ("--skip-existing",)


def converted(out, *paths, options=()):
    return main([*map(str, paths), "--out", str(out), "--jobs", "1", *options])


def sizes_in(out):
    return {path.name: len(list(path.glob("rank_*/kernels.parquet"))) for path in out.iterdir()}


@pytest.fixture
def two(tmp_path):
    """Two jobs whose folders have one name."""
    first = write_job(tmp_path / "p1" / "run", Planted(ranks=2))
    second = write_job(tmp_path / "p2" / "run", Planted(ranks=3))
    return first.parent, second.parent


def test_a_job_of_other_files_is_not_replaced(tmp_path, two):
    first, second = two
    out = tmp_path / "out"
    for path in (first, second, first, second):
        assert converted(out, path) == 0
    assert sizes_in(out) == {"run": 2, "run-2": 3} and read_job(out / "run-2").name == "run-2"
    converted(out, *two)
    assert sizes_in(out) == {"run": 2, "run-2": 3}


@pytest.fixture
def read(monkeypatch):
    """The names of the files that are read to be converted."""
    names = []

    def noted(unit, real=units._convert):
        names.append(unit.path.name)
        return real(unit)

    monkeypatch.setattr(units, "_convert", noted)
    return names


def test_a_second_conversion_gives_the_same_and_skips_what_is_older_than_its_tables(tmp_path, read, capsys):
    raw = write_job(tmp_path / "raw", Planted(ranks=3))
    other = write_job(tmp_path / "raw" / "deep", Planted(ranks=2))
    (raw / "notes.txt").write_text("hello")
    out = tmp_path / "out"
    assert converted(out, raw) == 0 and len(read) == 6
    whole = tables_below(out)
    read.clear()
    assert converted(out, raw) == 0 and len(read) == 6 and tables_below(out) == whole
    read.clear()
    assert converted(out, raw, options=SKIP) == 0 and read == ["notes.txt"]
    assert "0 converted, 0 not, 5 skipped, 1 " in capsys.readouterr().err
    assert tables_below(out) == whole
    changed = other / "rank1.json"
    before, text = changed.stat(), changed.read_text()
    changed.write_text(text.replace("298.0", "198.0"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p brings it
    assert (text != changed.read_text()) and changed.stat().st_size == before.st_size
    read.clear()
    # All of its job, which is a part of the folder of the other one.
    assert converted(out, other, options=SKIP) == 0 and read == ["rank0.json", "rank1.json"]
    assert tables_below(out) != whole and sizes_in(out) == {"raw": 3, "deep": 2}


def test_a_trace_that_is_not_used_is_skipped_and_is_used_where_the_other_is_gone(tmp_path, read, capsys):
    raw, out = write_job(tmp_path / "raw", Planted(ranks=3)), tmp_path / "out"
    (raw / "again_rank1.json").write_bytes((raw / "rank1.json").read_bytes())
    converted(out, raw)
    assert "3 converted, 0 not, 1 " in capsys.readouterr().err
    whole = tables_below(out)
    read.clear()
    assert converted(out, raw, options=SKIP) == 0 and not read
    assert tables_below(out) == whole and sizes_in(out) == {"raw": 3}
    (raw / "rank1.json").unlink()
    assert converted(out, raw, options=SKIP) == 0
    assert read_job(out / "raw").ranks[1].source == "again_rank1.json" and sizes_in(out) == {"raw": 3}


def test_tables_of_two_files_of_one_name_are_kept_apart(tmp_path, capsys):
    (tmp_path / "sum.csv").write_text(VTUNE)
    (tmp_path / "sum.txt").write_text(NVPROF_METRICS)
    for out in ([], ["--out", str(tmp_path / "out")]):
        folder = Path(out[1]) if out else tmp_path
        for name, into in 2 * (("sum.csv", "sum"), ("sum.txt", "sum-2")):
            assert main([str(tmp_path / name), *out]) == 0
            assert capsys.readouterr().out == f"{folder / into}\n"
        assert tables_in(folder / "sum") - tables_in(folder / "sum-2") == {"intervals"}
        assert main([str(tmp_path / "sum.txt"), *out, "--overwrite"]) == 0
        assert capsys.readouterr().out == f"{folder / 'sum'}\n"
        assert "intervals" not in tables_in(folder / "sum")


def tables_in(folder):
    return {path.stem for path in folder.glob("*.parquet")}


def test_what_the_conversion_did_not_write_it_does_not_delete(tmp_path, two):
    out = tmp_path / "out"
    converted(out, two[1])
    mine = [out / "run" / name for name in ("report.html", "notes.txt", "rank_0000/notes.txt")]
    for path in mine:
        path.write_text("mine")
    (two[1] / "run" / "rank2.json").unlink()
    converted(out, two[1])
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert sizes_in(out) == {"run": 2} and not (out / "run" / "rank_0002").exists()
