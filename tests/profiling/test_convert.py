"""python -m profiling.convert: what becomes of files and folders, once, again, shared, and cut short."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.frames.load import load
from profiling import traces
from profiling.convert import Counts, convert, main
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.schemas import SCHEMAS
from profiling.tables import Writer, as_table, read
from profiling.tools import read as read_any
from profiling.tools import recognise
from profiling.traced_job import read_job
from tests.analysis.commands import run
from tests.builders import data_of
from tests.profiling.samples import NVPROF_METRICS, NVPROF_SUMMARY, SAMPLES, VTUNE, pyprof, threads
from tests.profiling.tau_files import write_text
from tests.profiling.traced_jobs import Planted, trace_of, write_job
from tests.profiling.traces import Trace, training_step


def trace(path):
    made = Trace(distributedInfo={"rank": 2, "world_size": 1})
    training_step(made, 0)
    return made.write(path)


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


def test_files_and_folders_become_tables_and_what_else_lies_there_is_counted(tmp_path, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    (raw / "deep").mkdir(parents=True)
    for path in (raw / "rank0.json.gz", raw / "deep" / "rank0.json.gz"):
        trace(path)
    (tmp_path / "table.csv").write_text(NVPROF_SUMMARY)
    # Notes, pictures, tables, empty files; PyProf's tables stay as they are.
    for number in range(60):
        (raw / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([number]))
    others = {"README": "My traces of Friday.\n", "prices.csv": "name,price\na,1\n", "a.py": ""}
    for name, text in others.items():
        (raw / name).write_text(text)
    pyprof(raw / "deep" / "table.parquet")
    assert main([str(raw), str(tmp_path / "table.csv"), "--out", str(out)]) == 0
    # Of a trace its job's folder, with a folder a rank; of a table, which is no trace, one of its own.
    assert sorted(found.name for found in out.iterdir()) == ["deep", "raw", "table"]
    assert read(out / "raw" / "rank_0002", "kernels").num_rows == 8
    assert read(out / "raw" / "rank_0002", "markers").num_rows == 5
    assert (out / "table" / "intervals.parquet").is_file()
    printed = capsys.readouterr()
    assert sorted(printed.out.split()) == [str(out / name) for name in ("deep", "raw", "table")]
    said = printed.err.splitlines()
    assert not any(".jpg" in line for line in said)
    assert [int(number) for number in re.findall(r"\d+", said[-1])] == [3, 0, 1, 63]
    assert main([str(raw / "deep" / "table.parquet"), "--out", str(tmp_path / "none")]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("scaleprof: 0 converted, 0 not, 1 ")
    assert not (tmp_path / "none").exists()


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
    (line,) = [line for line in printed.err.splitlines() if "notes.txt" in line]
    assert "--tool" in line
    assert printed.err.splitlines()[-1] == "scaleprof: 1 converted, 1 not"


EACH = Counts(len(SAMPLES) - 1, as_they_are=1)  # PyProf's table


def tables_below(folder):
    found = sorted(folder.rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): pq.read_table(path).to_pylist() for path in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of all formats."""
    folder = tmp_path_factory.mktemp("alone")
    for name, (_, write, file) in SAMPLES.items():
        (folder / "raw" / name).mkdir(parents=True)
        write(folder / "raw" / name / file)
    assert convert([folder / "raw"], out=folder / "out", jobs=1) == EACH
    return folder


def test_every_format_becomes_tables(alone):
    found = tables_below(alone / "out")
    jobs = {"net", "rep", "timeline", "details", "TAU text", "tauprofile"}
    tables = {"nvprof summary", "vtune"}
    assert {Path(name).parts[0] for name in found} >= {*jobs, "raw"}
    assert {Path(name).parts[1] for name in found if name.startswith("raw/")} >= tables
    assert all(rows for name, rows in found.items() if name.startswith(tuple(jobs)))
    for path in (alone / "out").rglob("*.parquet"):
        assert pq.read_schema(path).equals(SCHEMAS[path.stem]), path


def test_two_processes_give_the_same(alone, tmp_path):
    assert convert([alone / "raw"], out=tmp_path, jobs=2) == EACH
    assert tables_below(tmp_path) == tables_below(alone / "out")


WORKERS_WITHOUT_PARENT = """
import os, signal
from profiling.convert import in_processes
with in_processes(abs, [-1, -2], 2) as futures:
    print(*(future.result() for future in futures), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_whose_parent_was_killed_end(root):
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKERS_WITHOUT_PARENT], cwd=root, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = parent.communicate(timeout=60)  # until the last of them has closed it
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
    assert said == "1 2\n"


def test_threads_of_a_tau_run_become_one_result_beside_them(tmp_path):
    folder = write_text(tmp_path / "rank_0000" / "raw", threads(2))
    assert recognise(folder) == "tau"
    assert convert([tmp_path]) == Counts(1)
    assert sorted(path.name for path in folder.glob("*.parquet")) == ["atomics.parquet", "intervals.parquet"]
    assert len(pq.read_table(folder / "intervals.parquet")) == 8
    assert convert([tmp_path]) == Counts(1)  # its own tables are no input
    # One thread's file can be asked for.
    assert convert([folder / "profile.1.0.0"], out=tmp_path / "one") == Counts(1)
    assert len(pq.read_table(tmp_path / "one" / "profile.1.0.0" / "rank_0000" / "intervals.parquet")) == 4


def test_a_table_in_pieces_is_whole_or_not_there(tmp_path):
    names = ["first", "second", None]
    with Writer(tmp_path) as writer:
        for name in names:
            writer.add("markers", as_table("markers", {"name": [name] * 50_000, "start_ns": range(50_000)}))
    table = pq.read_table(tmp_path / "markers.parquet")
    assert table.schema == SCHEMAS["markers"] and len(table) == 150_000
    assert table["name"].combine_chunks().cast(pa.string()).unique().to_pylist() == names
    with pytest.raises(RuntimeError), Writer(tmp_path / "broken") as writer:
        for _ in range(4):
            writer.add("markers", table)
        raise RuntimeError
    assert not any(path.is_file() for path in (tmp_path / "broken").rglob("*"))


def converted(out, *words):
    return main([*map(str, words), "--out", str(out), "--jobs", "1"])


def sizes_in(out):
    return {path.name: len(list(path.glob("rank_*/kernels.parquet"))) for path in out.iterdir()}


@pytest.fixture
def two(tmp_path):
    """Two jobs whose folders have one name."""
    first = write_job(tmp_path / "p1" / "run", Planted(ranks=2))
    return first.parent, write_job(tmp_path / "p2" / "run", Planted(ranks=3)).parent


def test_a_job_of_other_files_is_not_replaced(tmp_path, two):
    first, second = two
    out = tmp_path / "out"
    for path in (first, second, first, second):
        assert converted(out, path) == 0
    assert sizes_in(out) == {"run": 2, "run-2": 3} and read_job(out / "run-2").name == "run-2"
    converted(out, *two)
    assert sizes_in(out) == {"run": 2, "run-2": 3}


@pytest.fixture
def converting(monkeypatch):
    """The names of the files that are read to be converted."""
    names = []

    def noted(unit, real=traces._convert):
        names.append(unit.path.name)
        return real(unit)

    monkeypatch.setattr(traces, "_convert", noted)
    return names


def test_a_second_conversion_gives_the_same_and_skips_what_is_older_than_its_tables(
    tmp_path, converting, capsys
):
    raw = write_job(tmp_path / "raw", Planted(ranks=3))
    other = write_job(tmp_path / "raw" / "deep", Planted(ranks=2))
    (raw / "notes.txt").write_text("hello")
    out = tmp_path / "out"
    assert converted(out, raw) == 0 and len(converting) == 6
    whole = tables_below(out)
    converting.clear()
    assert converted(out, raw) == 0 and len(converting) == 6 and tables_below(out) == whole
    converting.clear()
    assert converted(out, raw, "--skip-existing") == 0 and converting == ["notes.txt"]
    assert "0 converted, 0 not, 5 skipped, 1 " in capsys.readouterr().err
    assert tables_below(out) == whole
    changed = other / "rank1.json"
    before, text = changed.stat(), changed.read_text()
    changed.write_text(text.replace("298.0", "198.0"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p brings it
    assert (text != changed.read_text()) and changed.stat().st_size == before.st_size
    converting.clear()
    # All of its job, which is a part of the folder of the other one.
    assert converted(out, other, "--skip-existing") == 0 and converting == ["rank0.json", "rank1.json"]
    assert tables_below(out) != whole and sizes_in(out) == {"raw": 3, "deep": 2}


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


RANKS = 4


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_job(tmp_path / "raw", Planted(ranks=RANKS), name="rank_{}.json")


# As the command, but one file does this to the process that converts it.
COMMAND = """
import os, signal, sys, time
from profiling import convert, traces
real = traces._convert
def one(unit):
    if unit.path.name == "rank_2.json":
        {act}
    return real(unit)
traces._convert = one
if __name__ == "__main__":
    convert.run_command(convert.main)
"""


def command(tmp_path: Path, raw: Path, act: str, *options: str) -> subprocess.CompletedProcess:
    script = tmp_path / "command.py"
    script.write_text(COMMAND.format(act=act))
    return subprocess.run(
        [sys.executable, script, raw, "--out", tmp_path / "out", *options], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(Path.cwd())}, start_new_session=True,
    )  # fmt: skip


def test_a_file_that_kills_its_process_costs_only_itself(raw, tmp_path):
    done = command(tmp_path, raw, "os.kill(os.getpid(), signal.SIGKILL)", "--jobs", "2")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{raw / 'rank_2.json'}: " in done.stderr
    ranks = sorted(path.name for path in (tmp_path / "out" / "raw").glob("rank_*"))
    assert ranks == ["rank_0000", "rank_0001", "rank_0003"]
    assert not list((tmp_path / "out").glob(".*"))


def test_ctrl_c_is_one_line_and_leaves_nothing_half_written(raw, tmp_path):
    # As from a terminal: to all processes, be they at work or still starting.
    done = command(tmp_path, raw, "os.killpg(0, signal.SIGINT); time.sleep(600)", "--jobs", "2")
    assert (done.returncode, done.stderr) == (130, "scaleprof: error: interrupted\n")
    assert not list((tmp_path / "out").rglob("*"))


def test_a_conversion_that_was_killed_is_not_taken_for_results(raw, tmp_path):
    done = command(tmp_path, raw, "os.kill(os.getpid(), signal.SIGKILL)", "--jobs", "1")
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="is not complete"):
        load(tmp_path / "out")
    assert convert([raw], out=tmp_path / "out", jobs=1) == Counts(RANKS)
    assert not list((tmp_path / "out").glob(".*"))


def test_control_characters_of_names_reach_neither_the_terminal_nor_folders(tmp_path, capsys):
    evil = "\x1b]0;t\x07\x1b[2J\x9b31m"
    folder = tmp_path / f"job{evil}"
    folder.mkdir()
    for rank in range(2):
        made = trace_of(Planted(ranks=2), rank)
        for event in made.events:
            event["name"] += evil * (event["cat"] == "kernel")
        made.write(folder / f"{evil}rank{rank}.json")
    (folder / f"{evil}notes.json").write_text('{"traceEvents": [{"cat": "kernel"')
    assert main([str(folder), "--out", str(tmp_path / "out")]) in (EXIT_DONE, EXIT_FAILED)
    (job,) = (tmp_path / "out").iterdir()
    assert job.name.isprintable() and len(read_job(job).ranks) == 2
    with pytest.raises(SystemExit):
        run_command(lambda: main([str(tmp_path / evil)]))
    said = "".join(capsys.readouterr())
    for command in ("kernels", "timeline", "report.__main__", "batches"):
        ran = run(f"analysis.{command}", tmp_path / "out")
        said += ran.out + ran.err
    assert all(sign.isprintable() or sign == "\n" for sign in said)
