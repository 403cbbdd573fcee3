"""A notebook gets what the commands answer, as DataFrames, and the report's charts as figures."""

import ast
import json
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from plotly.graph_objects import Figure

from analysis import load
from analysis.report.build import build
from profiling.errors import UserError
from tests.analysis.commands import run
from tests.analysis.synthetic import run_of, write_sweep
from tests.analysis.test_published import kernel_file, published

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "sweep"
    write_sweep(path, [run_of(gpus_per_node=size, profile=p) for size in (1, 2) for p in ("none", "torch")])
    return path


@pytest.mark.parametrize("command", ["kernels", "scaled"])  # all are asked in one way
def test_a_frame_holds_what_the_commands_csv_does(sweep, command, capsys):
    frame = getattr(load(sweep), command)()
    assert capsys.readouterr().out == ""
    ran = run(f"analysis.{command}", sweep, "--format", "json", "--all")
    assert list(frame.columns) == list(ran.json[0]) and len(frame) == len(ran.json) > 0
    for name in frame:
        expected = pd.Series([row[name] for row in ran.json])
        if pd.api.types.is_numeric_dtype(frame[name]) and expected.notna().any():
            assert frame[name].to_numpy(float) == pytest.approx(expected.to_numpy(float), nan_ok=True)
    meaning = frame.attrs["meaning"]
    assert meaning and all(name in frame and said for name, said in meaning.items())


def test_what_does_not_count_is_said_beside_the_frame(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=size, profile="torch") for size in (1, 2)])
    damaged = min(tmp_path.glob("run_*_1_2_*/rank_*/kernels.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:200])
    attributes = load(tmp_path).kernels().attrs
    bad = [one["run"] for one in attributes["findings"] if one["code"] == "run_left_out"]
    assert bad == [damaged.parents[1].name]
    assert attributes["notes"] == run("analysis.kernels", tmp_path, "--format", "csv").err.splitlines()


def test_wrong_use_is_one_line(sweep, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "nowhere")
    results = load(sweep)
    with pytest.raises(UserError, match=r"^format: no setting in a notebook"):
        results.batches(format="csv")
    with pytest.raises(UserError, match=r"^--group-by: unknown field 'noodes'; did you mean 'nodes'\?$"):
        results.scaled(group_by="noodes")
    with pytest.raises(UserError, match="--group-by"):
        results.scaled(gruop_by="nodes")
    with pytest.raises(AttributeError, match=r"^no command 'scald'; did you mean 'scaled'\?$") as wrong:
        _ = results.scald
    assert "".join(traceback.format_exception_only(wrong.value)).count("'scaled'") == 1
    assert {"scaled", "charts", "path"} <= set(dir(results))
    assert "Scaling efficiency" in results.scaled.__doc__


def test_questions_are_asked_in_several_threads_at_once(sweep, monkeypatch):
    """Each command reads its own settings, and none the words that Python was started with."""
    monkeypatch.setattr("sys.argv", ["python", "--not-a-flag"])
    results = load(sweep)
    wanted = [["gpus_per_node"], ["nodes"]] * 2
    with ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(lambda names: results.scaled(group_by=names), wanted))
    assert [len(frame) for frame in frames] == [2, 1] * 2


def test_charts_are_those_of_the_report(sweep):
    results = load(sweep)
    drawn = {section.id: len(section.charts) for section in build(results.study).sections if section.charts}
    charts = results.charts()
    assert {name: len(figures) for name, figures in charts.items()} == drawn
    assert all(isinstance(figure, Figure) for figures in charts.values() for figure in figures)


def shown(path, names: dict) -> list:
    """What the cells of a notebook show, run one after the other: the last expression of each."""
    answers = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"]  # the notebook is kept without outputs
        cell_code = ast.parse("".join(cell["source"]))
        last = cell_code.body[-1]
        if isinstance(last, ast.Expr):
            cell_code.body[-1] = ast.Assign([ast.Name("_", ast.Store())], last.value)
            ast.fix_missing_locations(cell_code)
        exec(compile(cell_code, str(path), "exec"), names)
        if isinstance(last, ast.Expr):
            answers.append(names["_"])
    return answers


def bars(figure: Figure) -> dict[str, dict[str, float]]:
    return {bar.name: dict(zip(bar.y, bar.x, strict=True)) for bar in figure.data}


def some_of(surfboard: Path, folder: Path) -> Path:
    """Of the reference's 32 tables those that differ in one factor from the one that it draws first."""
    first = ("2", "resnet50", "dali-gpu", "32", "fp16")  # workers, model, loader, batch, gradients
    (folder / "pyprof_kernels").mkdir()
    for path in (surfboard / "pyprof_kernels").iterdir():
        if sum(one != other for one, other in zip(path.name.split("_")[7:12], first, strict=True)) <= 1:
            (folder / "pyprof_kernels" / path.name).symlink_to(path)
    return folder


def test_the_notebook_draws_the_references_figures(root, shared_data, monkeypatch, tmp_path):
    surfboard = shared_data / "surfboard"
    some = some_of(surfboard, tmp_path)
    monkeypatch.setenv("SURFBOARD", str(some))
    names: dict = {}
    answers = shown(root / "docs" / "notebook.ipynb", names)
    figures = [answer for answer in answers if isinstance(answer, Figure)]
    assert len(figures) == 4 + 1 + 3 + 1
    # Kernels: the published seconds to the printed digit, and the command's own milliseconds.
    table = published(surfboard, "kernel_durations_fprop_dali-gpu_2_32_fp16")[:5]
    drawn = bars(figures[0])
    for row in table:
        assert f"{drawn['1 node'][row['kernel']]:.6f}".rstrip("0") == row["1_node_s"].rstrip("0")
        assert f"{drawn['8 nodes'][row['kernel']]:.6f}".rstrip("0") == row["8_nodes_s"].rstrip("0")
    of_one = load(kernel_file(surfboard, 1, "dali-gpu"))
    corrected = of_one.kernels(kernel_file(surfboard, 8, "dali-gpu"), direction="bprop")
    most = corrected.groupby("kernel").a_ms_per_step.sum().max()
    assert max(bars(figures[3])["1 node"].values()) == pytest.approx(most)
    # Compute efficiency: published and corrected stand side by side.
    ran = run("analysis.efficiency", some, "--method=published", "--group-by", "batch,nodes", "--format=csv")
    heights = {height for bar in figures[4].data for height in bar.y}
    said = {round(float(row["compute_efficiency_pct"]), 6) for row in ran.csv}
    assert said <= {round(height, 6) for height in heights}
    assert len(heights) == 2 * len(said) == 8
    for factor, figure in zip(("loader", "workers", "grad"), figures[5:8], strict=True):
        assert sum(len(bar.y) for bar in figure.data) == 2 * 2 * 2 * 2, factor
    assert names["scaled"].attrs["meaning"]["tflop_per_step"]
