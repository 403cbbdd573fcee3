"""profiling.convert into a folder that holds something: nothing is lost without a word."""

import os
from pathlib import Path

import pytest

from analysis.results.load import how_to_convert
from analysis.results.raw import are_two_results, load_or_convert
from jobs.sweep_file import read_sweep
from profiling import convert
from profiling.convert import main
from profiling.errors import UserError
from profiling.traced_job import read_job
from profiling.traces import one_unit, records
from profiling.traces.together import said_once
from profiling.traces.unchanged import taken_back
from tests.analysis.commands import run
from tests.profiling.samples import NVPROF_METRICS, VTUNE
from tests.profiling.test_convert_many import tables_below
from tests.profiling.traced_jobs import Planted, trace_of, write_job


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


def test_a_job_of_other_files_is_not_replaced_and_it_is_said(tmp_path, two, capsys):
    first, second = two
    out = tmp_path / "out"
    for path in (first, second, first, second):
        capsys.readouterr()
        assert converted(out, path) == 0
    assert sizes_in(out) == {"run": 2, "run-2": 3} and read_job(out / "run-2").name == "run-2"
    assert "other files" not in capsys.readouterr().err  # it has a folder of its own by now
    converted(out, *two)
    assert sizes_in(out) == {"run": 2, "run-2": 3}
    converted(tmp_path / "new", first)
    capsys.readouterr()
    converted(tmp_path / "new", second)
    file = first.resolve() / "run" / "rank0.json"
    line = f"{tmp_path}/new/run holds a job of other files (e.g. {file}): this one is in run-2 (--overwrite "
    assert line in capsys.readouterr().err


@pytest.fixture
def read(monkeypatch):
    """The names of the files that are read to be converted."""
    names = []

    def noted(unit, real=one_unit.tables_of):
        names.append(unit.path.name)
        return real(unit)

    monkeypatch.setattr(one_unit, "tables_of", noted)
    return names


def test_what_is_unchanged_is_not_converted_again(tmp_path, read, capsys):
    raw = write_job(tmp_path / "raw", Planted(ranks=3))
    out = tmp_path / "out"
    assert converted(out, raw) == 0
    whole, said = tables_below(out), capsys.readouterr()
    read.clear()
    assert converted(out, raw) == 0 and not read
    again = capsys.readouterr()
    line = "scaleprof: 3 files are unchanged since they were converted; --overwrite converts them again\n"
    counted = said.err.replace("3 converted, 0 not", "0 converted, 3 unchanged, 0 not")
    assert counted != said.err and again.err == line + counted and again.out == said.out
    assert tables_below(out) == whole and not list(out.glob(".*"))
    changed = raw / "rank1.json"
    before, text = changed.stat(), changed.read_text()
    changed.write_text(text.replace("298.0", "198.0"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p brings it
    assert (text != changed.read_text()) and changed.stat().st_size == before.st_size
    (raw / "rank2.json").unlink()
    assert converted(out, raw) == 0 and read == ["rank1.json"]
    said = capsys.readouterr().err
    assert "1 file is unchanged since it was converted" in said and "1 converted, 1 unchanged, 0 not" in said
    assert sizes_in(out) == {"raw": 2}
    read.clear()
    assert converted(out, raw, options=["--overwrite"]) == 0 and read == ["rank0.json", "rank1.json"]


def test_a_trace_that_is_not_used_is_not_converted_again_and_is_used_where_the_other_is_gone(
    tmp_path, read, capsys
):
    raw, out = write_job(tmp_path / "raw", Planted(ranks=3)), tmp_path / "out"
    (raw / "again_rank1.json").write_bytes((raw / "rank1.json").read_bytes())
    converted(out, raw)
    whole = tables_below(out)
    read.clear()
    assert converted(out, raw) == 0 and not read
    assert "0 converted, 3 unchanged, 0 not, 1 not used\n" in capsys.readouterr().err
    assert tables_below(out) == whole and sizes_in(out) == {"raw": 3}
    (raw / "rank1.json").unlink()
    assert converted(out, raw) == 0 and not read
    assert read_job(out / "raw").ranks[1].source == "again_rank1.json" and sizes_in(out) == {"raw": 3}
    assert not list((out / "raw" / ".converted").glob("*/"))  # it is in no two places


def test_tables_that_are_not_those_any_more_that_were_written_are_written_again(two, tmp_path, read):
    first, second = two
    out = tmp_path / "out"
    converted(out, second)
    converted(out, first, options=["--overwrite"])
    read.clear()
    converted(out, second)
    assert len(read) == 3 and sizes_in(out) == {"run": 2, "run-2": 3}
    read.clear()
    (out / "run-2" / "rank_0001" / "kernels.parquet").write_bytes(b"")
    converted(out, second)
    assert read == ["rank1.json"]


def test_what_changes_while_other_files_are_converted_is_converted_by_the_next_call(
    two, tmp_path, read, monkeypatch
):
    first, out = two[0], tmp_path / "out"
    converted(out, first)
    with monkeypatch.context() as meanwhile:

        def changed(unit, *more):
            os.utime(unit.path, ns=(1, 1))
            return taken_back(unit, *more)

        meanwhile.setattr(convert, "taken_back", changed)
        read.clear()
        assert converted(out, first) == 0 and not read
    assert converted(out, first) == 0 and len(read) == 2


def test_files_that_are_removed_meanwhile_end_no_conversion(two, tmp_path, monkeypatch, capsys):
    """One before it was converted, the other one after that."""
    early, late = sorted((two[0] / "run").iterdir())

    def gone(units, jobs, real=convert._convert_here):
        early.unlink()
        outcomes = real(units, jobs)
        late.unlink()
        return outcomes

    monkeypatch.setattr(convert, "_convert_here", gone)
    assert converted(tmp_path / "out", two[0]) == 1
    said = capsys.readouterr().err
    assert f"cannot read {early}: No such file" in said and "1 converted, 1 not" in said
    assert sizes_in(tmp_path / "out") == {"run": 1}


def test_other_code_makes_other_tables(two, tmp_path, read, monkeypatch):
    for code in ("one", "one", "other"):
        monkeypatch.setattr(records, "_code", lambda code=code: code)
        converted(tmp_path / "out", two[0])
    assert len(read) == 4


def test_tables_beside_their_files_are_not_written_again(two, read, capsys):
    for _ in range(2):
        assert main([str(two[0]), "--jobs", "1"]) == 0
    assert len(read) == 2 and "2 files are unchanged" in capsys.readouterr().err


def test_tables_of_two_files_of_one_name_are_kept_apart(tmp_path, capsys):
    (tmp_path / "sum.csv").write_text(VTUNE)
    (tmp_path / "sum.txt").write_text(NVPROF_METRICS)
    for out in ([], ["--out", str(tmp_path / "out")]):
        folder = Path(out[1]) if out else tmp_path
        for name, into in 2 * (("sum.csv", "sum"), ("sum.txt", "sum-2")):
            capsys.readouterr()
            assert main([str(tmp_path / name), *out]) == 0
            said = capsys.readouterr()
            assert said.out == f"{folder / into}\n"
            line = f"{folder}/sum holds the tables of {tmp_path}/sum.csv: those of sum.txt are in sum-2 ("
            assert (line in said.err) is (name == "sum.txt" and "unchanged" not in said.err)
        assert tables_in(folder / "sum") - tables_in(folder / "sum-2") == {"intervals"}
        assert main([str(tmp_path / "sum.txt"), *out, "--overwrite"]) == 0
        assert capsys.readouterr().out == f"{folder / 'sum'}\n" and "intervals" not in tables_in(
            folder / "sum"
        )


def tables_in(folder):
    return {path.stem for path in folder.glob("*.parquet")}


def test_a_job_of_other_files_is_replaced_if_that_is_asked_for(tmp_path, two):
    first, second = two
    converted(tmp_path / "out", second)
    assert converted(tmp_path / "out", first, options=["--overwrite"]) == 0
    assert sizes_in(tmp_path / "out") == {"run": 2}


def test_traces_that_were_moved_are_the_same_job(tmp_path, two):
    converted(tmp_path / "out", two[0])
    converted(tmp_path / "out", two[0].rename(tmp_path / "elsewhere"))
    assert sizes_in(tmp_path / "out") == {"run": 2}


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


def test_a_report_of_traces_is_of_no_other_traces_that_were_converted_there(tmp_path, two):
    (tmp_path / "new").mkdir()
    output = tmp_path / "new" / "report.html"
    assert len(load_or_convert([two[0] / "run"], output)[0].sources) == 1
    assert len(load_or_convert([two[0] / "run"], output)[0].sources) == 1
    with pytest.raises(UserError, match=r"run-converted/run was converted from other files \(e.g. .*p1/run/"):
        load_or_convert([two[1] / "run"], output)


def test_commands_that_name_folders_with_blanks_are_quoted(tmp_path):
    raw = write_job(tmp_path / "my traces", Planted(ranks=2))
    held = f"{tmp_path} holds raw traces of the torch profiler (my traces/rank0.json); convert them first: "
    assert how_to_convert(tmp_path).startswith(held)
    assert how_to_convert(raw).endswith(f"python -m profiling.convert '{raw}' --out DIR")
    converted(tmp_path / "out", raw)
    with pytest.raises(UserError, match=f"python -m profiling.convert '{raw}'$"):
        are_two_results([raw, tmp_path / "out"])
    with pytest.raises(UserError, match=f"python -m analysis.report '{raw}', or"):
        read_sweep(raw)


def test_the_report_of_traces_of_which_one_is_damaged_ends_as_their_conversion(tmp_path):
    raw = write_job(tmp_path / "cut", Planted(ranks=3))
    (raw / "rank2.json").write_text('{"traceEvents": [{"ph": "X", "na')
    assert converted(tmp_path / "out", raw) == 1
    done = run("analysis.report.__main__", raw)
    assert (
        done.code == 1 and "rank2.json" in done.err and (tmp_path / "cut-converted" / "report.html").is_file()
    )


def test_reports_and_timelines_among_traces_are_no_files_in_an_unrecognised_format(tmp_path, capsys):
    raw = write_job(tmp_path / "raw", Planted(ranks=1))
    for name in ("report.html", "compared-with-b.html", "trace.pftrace.gz"):
        (raw / name).write_text("ours")
    converted(tmp_path / "out", raw)
    assert "scaleprof: 1 converted, 0 not\n" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "advised"), [((), True), (("--batch-marker", "nosuch"), False)])
def test_ranges_that_are_steps_are_advised_to_those_who_have_named_none(tmp_path, options, advised, capsys):
    trace = trace_of(Planted(ranks=1), 0, marker="")
    trace.events = [event for event in trace.events if not event["name"].startswith("Optimizer")]
    trace.write(tmp_path / "one.json")
    converted(tmp_path / "out", tmp_path / "one.json", options=options)
    said = capsys.readouterr().err
    assert "the whole recording counts as one step" in said
    assert ("--batch-marker REGEX selects" in said) is advised


def test_jobs_of_which_the_same_is_said_are_named():
    assert said_once([("a", "late"), ("b", "odd"), ("c", "late")]) == ["2 jobs (a, c): late", "b: odd"]
    assert said_once([(name, "late") for name in "abc"]) == ["3 jobs (a, b, ...): late"]
