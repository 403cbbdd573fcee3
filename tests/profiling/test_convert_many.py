"""python -m profiling.convert on many files: shared by processes and ranks, in pieces, the same result."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiling.convert import Counts, convert
from profiling.schemas import SCHEMAS
from profiling.tables import Writer, as_table
from profiling.tools import recognise
from tests.profiling.samples import SAMPLES, threads
from tests.profiling.tau_files import write_text

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")

EACH = Counts(len(SAMPLES) - 1, as_they_are=1)  # PyProf's table


def all_samples(folder):
    for name, (_, write, file) in SAMPLES.items():
        (folder / name).mkdir(parents=True)
        write(folder / name / file)
    return folder


def tables_below(folder):
    found = sorted(folder.rglob("*.parquet"))
    return {path.relative_to(folder).as_posix(): pq.read_table(path).to_pylist() for path in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of all formats."""
    folder = tmp_path_factory.mktemp("alone")
    assert convert([all_samples(folder / "raw")], out=folder / "out", jobs=1) == EACH
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
from profiling.workers import in_processes
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


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun on this machine")
def test_ranks_of_mpi_share_the_files(alone, tmp_path):
    command = [
        MPIRUN,
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        "2",
        sys.executable,
        "-m",
        "profiling.convert",
    ]
    answer = subprocess.run(
        [*command, str(alone / "raw"), "--out", str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("\n") == EACH.converted  # by the first rank alone
    assert tables_below(tmp_path) == tables_below(alone / "out")


def test_threads_of_a_tau_run_become_one_result_beside_them(tmp_path):
    folder = write_text(tmp_path / "rank_0000" / "raw", threads(2))
    assert recognise(folder) == "tau"
    assert convert([tmp_path]) == Counts(1)
    assert sorted(path.name for path in folder.glob("*.parquet")) == ["atomics.parquet", "intervals.parquet"]
    assert len(pq.read_table(folder / "intervals.parquet")) == 8
    assert convert([tmp_path]) == Counts(1)  # its own tables are no input
    # One thread's file can be asked for.
    assert convert([folder / "profile.1.0.0"], out=tmp_path / "one") == Counts(1)
    found = tmp_path / "one" / "profile.1.0.0" / "rank_0000" / "intervals.parquet"
    assert len(pq.read_table(found)) == 4


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
