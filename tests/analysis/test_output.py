"""How answers leave: data alone on standard output, the rest on standard error; tables that are not cut."""

import fcntl
import io
import json
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.display import numbers, output
from analysis.display.metrics import FIELDS, Metric
from analysis.display.output import Answer, Part
from analysis.report.render import as_csv
from tests.analysis.commands import ROOT, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_pyprof, write_run, write_sweep
from tests.analysis.test_report import plant_kernel_name

COMMANDS = ("scaled", "kernels")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two world sizes, profiled and not, and a run that failed."""
    path = tmp_path_factory.mktemp("results") / "sweep"
    runs = [run_of(gpus_per_node=size, profile=profile) for size in (1, 2) for profile in ("none", "torch")]
    write_sweep(path, runs, excluded=(("run_0_x", "more ranks than cores"),))
    write_run(path, run_of(gpus_per_node=2, batch=64), Truth(), exit_code=137, reason="killed")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_is_the_data_and_nothing_else(results: Path, command: str) -> None:
    module = f"analysis.{command}"
    csv = run(module, results, "--format", "csv")
    rows = run(module, results, "--format", "json")
    assert csv.code == rows.code == 1  # a point failed
    assert len(csv.csv) == len(rows.json) > 0
    assert all(list(row) == csv.out.splitlines()[0].split(",") for row in rows.json)
    for row, same in zip(csv.csv, rows.json, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in same.items()}
    for ran in (csv, rows):
        assert "killed (run_0" in ran.err
        assert "(run_0_x)" in ran.err
        assert "Traceback" not in ran.err


def test_a_file_holds_what_standard_output_would(results: Path, tmp_path: Path) -> None:
    module = "analysis.batches"
    for form in ("table", "csv", "json"):
        shown = run(module, results, "--format", form)
        written = run(module, results, "--format", form, "--output", tmp_path / form)
        assert (written.code, written.out, written.err) == (shown.code, "", shown.err)
        assert (tmp_path / form).read_text() == shown.out
    run(module, results, "--format", "parquet", "--out", tmp_path / "parquet")
    table = pq.ParquetFile(tmp_path / "parquet").read().to_pylist()
    assert table == json.loads((tmp_path / "json").read_text())
    assert not list(tmp_path.glob("*.partial"))


def test_only_chooses_runs_by_their_fields(results: Path) -> None:
    chosen = run("analysis.batches", results, "--format=json", "--only=gpus_per_node=2,3", "--only=batch=32")
    every = json.loads(run("analysis.batches", results, "--format", "json").out)
    two = [row for row in every if row["gpus_per_node"] == 2]
    assert 0 < len(two) < len(every) and [row["run"] for row in json.loads(chosen.out)] == [
        r["run"] for r in two
    ]
    others = run("analysis.scaled", results, "--format", "csv", "--only", "gpus_per_node=1")
    assert others.code == 0 and len(others.csv) == 1  # the run that failed is not of these
    for wrong in ("gpus_per_node=3", "gpus=2", "batch"):
        one_line_error(run("analysis.batches", results, "--only", wrong))


@pytest.mark.parametrize("name", ["=1+A2", "+cmd|'/C calc'!A0", "-2-3", "@SUM(A1)"])
def test_names_are_no_formulas_of_spreadsheets(tmp_path: Path, name: str) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")])
    plant_kernel_name(tmp_path, name)
    csv = run("analysis.kernels", tmp_path, "--format", "csv").csv
    rows = run("analysis.kernels", tmp_path, "--format", "json").json
    names = [[row["kernel"] for row in answer] for answer in (csv, rows)]
    assert f"'{name}" in names[0] and name in names[1] and name not in names[0]
    assert all(numbers.cell(value) == value for value in ("-1.5e-3", "-", "-7", "a-1", -1.5, None))
    table = Part("", pd.DataFrame({"kernel": [name]}), [Metric("kernel", "", text=True)])
    assert as_csv(table).splitlines()[1].strip('"') == f"'{name}"


def test_as_a_user_calls_it_parquet_through_a_pipe(results: Path) -> None:
    """The in-process runs of these tests do what the command does."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis.scaled", str(results), "--format", "parquet"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    here = run("analysis.scaled", results, "--format", "json")
    assert (done.returncode, done.stderr.decode()) == (here.code, here.err)
    assert pq.ParquetFile(io.BytesIO(done.stdout)).read().to_pylist() == here.json


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    for nodes in range(1, 60):
        write_pyprof(tmp_path, forward=2, attributed=1, nodes=nodes)
    # The pipe is closed before the answer is written, as by head -0.
    asked = shlex.join([sys.executable, "-m", "analysis.scaled", str(tmp_path), "--format", "csv"])
    command = f"{asked} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_an_output_that_cannot_be_written_is_one_line(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "x.csv", tmp_path / "file" / "below" / "x.csv", tmp_path):
        for form in ("table", "csv", "json", "parquet"):
            line = one_line_error(run("analysis.scaled", results, "--format", form, "--output", target))
            assert f"cannot write {target}: " in line
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("command", "flag"), [("scaled", "--output"), ("timeline", "--output"), ("report.__main__", "--out")]
)
def test_no_mistyped_folder_is_made(results: Path, tmp_path: Path, command: str, flag: str) -> None:
    target = tmp_path / "mistyped" / "x"
    assert str(target) in one_line_error(run(f"analysis.{command}", results, flag, target))
    assert not target.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--group-by", "nods"), "did you mean 'nodes'?"), (("--group-by", ""), "--group-by needs a field"),
        (("--group-by", "batch,lader"), "did you mean 'loader'?"),
        (("--method", "corected"), "did you mean 'corrected'?"),
        (("--formt", "csv"), "did you mean '--format'?"),
        (("--format", "cvs"), "invalid --format 'cvs'; did you mean 'csv'?"),
        (("--scaling", "both"), "invalid --scaling 'both'; one of: "),
    ],
)  # fmt: skip
def test_a_slip_of_the_pen_is_one_line_with_the_near_miss(results, arguments, says):
    assert says in one_line_error(run("analysis.scaled", results, *arguments))


def test_columns_that_are_named_are_explained_alone_and_others_are_refused(results: Path) -> None:
    ran = run("analysis.batches", results, "--columns", "step_ms_low", "batch")
    assert ran.code == 0 and "    step_ms (_low, _high)  median" in ran.out and "\n    batch " in ran.out
    assert "warmup_dropped" not in ran.out
    assert run("analysis.batches", "--columns", results).out == run("analysis.batches", "--columns").out
    said = one_line_error(run("analysis.batches", "--columns", "step_m"))
    assert "'step_m'" in said and "'step_ms'" in said


def in_terminal(columns: int, *arguments: str) -> list[str]:
    """What a terminal of so many columns shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    words, environment = [sys.executable, "-m", *arguments], {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(words, cwd=ROOT, stdout=theirs, stderr=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        shown = b""
        # At the end of the output Linux answers a read of the terminal with an error.
        while part := _read(ours):
            shown += part
    os.close(ours)
    return shown.decode().splitlines()


def _read(terminal_fd: int) -> bytes:
    try:
        return os.read(terminal_fd, 65536)
    except OSError:
        return b""


def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_figure_and_wide_shows_all(results, monkeypatch):
    whole = run("analysis.scaled", results).out
    shown = {80: in_terminal(80, "analysis.scaled", str(results))}
    monkeypatch.setenv("COLUMNS", "160")
    shown[160] = run("analysis.scaled", results).out.splitlines()
    for columns, lines in shown.items():
        assert max(len(line) for line in lines) <= columns
        assert not any("…" in line for line in lines)
        figures = [word for line in lines for word in line.split() if word[0].isdigit() and "." in word]
        assert figures
        assert set(figures) <= set(whole.split())
    monkeypatch.setenv("COLUMNS", "80")
    wide = run("analysis.scaled", results, "--wide").out.splitlines()
    tables = [line for line in whole.splitlines() if (len(line) > 80 and " ───" in line) or " fp32 " in line]
    assert tables and set(tables) <= set(wide) and max(map(len, wide)) > 80


def test_a_kernels_name_cannot_steer_the_terminal() -> None:
    name = "gemm\x1b[2J"
    column = Metric("kernel", "m", text=True)
    table = pd.DataFrame({"kernel": [name]})
    part = Part(f"Kernels of {name}", table, [column], f"Longest: {name}.\nPer step.")
    out = output.as_terminal(Answer(pd.DataFrame(), [], [part], notes=[name]))
    assert "\x1b" not in out and out.count("gemm?[2J") == 4
    assert "Longest: gemm?[2J.\nPer step." in out


def test_failed_runs_are_one_finding_and_all_of_them_stand_in_json(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    for batch in range(1, 31):
        write_run(tmp_path, run_of(batch=batch), Truth(), exit_code=1, reason="out of memory")
    for shown in (
        run("analysis.scaled", tmp_path, "--format", "csv").err,
        run("analysis.scaled", tmp_path).out,
    ):
        assert shown.count("(30 runs)") == 1
    whole = run("analysis.scaled", tmp_path, "--format", "json", "--notes").json
    failed = [one for one in whole["findings"] if one["code"] == "run_left_out"]
    assert len({one["run"] for one in failed}) == len(failed) == 30
    assert [one["severity"] for one in failed] == [3] * 30


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (numbers.with_interval(4.5e-3, 4.49e-3, 4.51e-3), "0.00450 [0.00449, 0.00451]"),
        (numbers.with_interval(0.412, 0.4, 0.42), "0.412 [0.400, 0.420]"),
        (numbers.with_interval(120.04, 119.0, 121.0), "120.0 [119.0, 121.0]"),
        (numbers.with_interval(0.0, 0.0, 0.0), "0.0 [0.0, 0.0]"),
        (numbers.with_interval(-0.0004, -12.01, 1.0), "0.00 [-12.01, 1.00]"),
        (numbers.with_interval(6.1e-6, 6e-6, 6.2e-6), "<0.0001"),
        (numbers.with_interval(-0.01, -0.04, 0.3, 1), "0.0 [0.0, 0.3]"),
        # Zero has no sign.
        ([numbers.with_places(value, 1) for value in (-0.04, -0.05001)], ["0.0", "-0.1"]),
        ([*map(numbers.signed(3), (-0.0004, 0.0, 0.0006))], ["0.000", "0.000", "+0.001"]),
        # Of what is hardly anything nobody counts the zeros; a field's value tells its rows apart.
        ([*map(numbers.digits, (-6.1e-6, 9.9e-5, 1.234e-4))], ["-6.10e-06", "9.90e-05", "0.0001234"]),
        ([numbers.digits(value) for value in (-1e-12, 1e-8)], ["0", "1.00e-08"]),
        ([Metric("x", "").printed({"x": value}) for value in (-6.1e-6, 5e-7, 1.234e-4, 0.0, 1e-12, None)],
         [">-0.0001", "<0.0001", "0.0001234", "0", "0", "-"]),
        (FIELDS["learning_rate"].printed({"learning_rate": 3e-5}), "3.00e-05"),
    ],
)  # fmt: skip
def test_figures_keep_their_digits_however_small(shown, text) -> None:
    assert shown == text


def test_two_findings_stand_below_a_table_and_all_of_them_with_notes(results: Path) -> None:
    manifest = next(results.glob("run_0_config_1_2*_torch_*/manifest.json"))
    record = json.loads(manifest.read_text())
    late = [f"clock {n} is late" for n in range(9)]
    manifest.write_text(json.dumps({**record, "findings": late}))
    try:
        shown, whole = (run("analysis.anatomy", results, *flags).out for flags in ((), ("--notes",)))
        assert sum(one in shown for one in late) < 2 and all(one in whole for one in late)
        for out in (shown, whole):  # the run that failed comes first
            assert any("killed (run_0" in line for line in out.rstrip().rsplit("\n", len(late) + 2))
        assert "--notes" in shown.splitlines()[-1] and "--notes" not in whole
    finally:
        manifest.write_text(json.dumps(record))
