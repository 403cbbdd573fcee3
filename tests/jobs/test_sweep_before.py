"""What is known before a sweep's first run: what can run here, what is missing, what is done."""

import pytest

from jobs import execute, store
from jobs.checks import Node, why_not_on
from jobs.execute import run_sweep
from jobs.run import make_run
from jobs.site import Container, Site
from jobs.store import LEFT_OUT, Manifest
from jobs.sweep import parser, read_request
from jobs.sweep_file import expand
from profiling.errors import Mistakes, UserError
from tests.ended_runs import ended_runs
from tests.jobs.scripted import HERE, execution, run_all
from tests.jobs.scripted import batches_of_ranks as batches_of_ranks  # a fixture

pytestmark = pytest.mark.long


def test_runs_this_machine_cannot_run_are_counted_by_reason(tmp_path, capsys):
    run = {"loader": ["synthetic", "dali-gpu"], "gpus_per_node": [1, 3], "batches": 2}
    assert run_all(execution(tmp_path, run=run)) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "2 runs: loader dali-gpu" in said and "1 run: 3 ranks" in said and LEFT_OUT not in said
    assert run_all(execution(tmp_path, run=run, unavailable="skip")) == 0
    work = execution(tmp_path, run=run, unavailable="skip")
    assert execute.print_plan(work, *expand(work.sweep)) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{LEFT_OUT}: 2 runs: loader dali-gpu" in said and "cannot start" not in said
    record = store.read_record(tmp_path / "s" / "sweep.json", execute.SweepRecord)
    assert len(record.excluded) == 3 and len(record.order) == 4


def test_a_tool_that_is_not_on_the_path_is_known_before_its_runs_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = {"batches": 3, "batch": 2, "profile": ["none", "tau"]}
    work = execution(tmp_path, run=run)
    execute.print_plan(work, *expand(work.sweep))
    said = capsys.readouterr()
    missing = "1 run: profile tau needs tau_exec on the PATH (see python -m jobs.doctor)"
    assert missing in " ".join(said.err.split()) and "profiling.wrap" not in said.out
    assert run_all(work) == 1
    assert run_all(execution(tmp_path, run=run, unavailable="skip")) == 0


def test_a_dry_run_begins_with_what_there_is_to_do_and_how_long_it_may_take(tmp_path, capsys):
    work = execution(tmp_path)
    execute.print_plan(work, *expand(work.sweep))
    assert capsys.readouterr().err.splitlines()[0] == f"{tmp_path}/s: to do: 4, done: 0"
    run_all(work)
    first, *others = ended_runs(work.directory)
    for directory in others:
        manifest = store.read_record(directory / "manifest.json", Manifest)
        store.write_record(directory / "manifest.json", manifest.model_copy(update={"seconds": 200.0}))
    store.remove(first)
    capsys.readouterr()
    execute.print_plan(work, *expand(work.sweep))
    said = capsys.readouterr()
    assert said.err.splitlines()[0].endswith("1 (about 3 min), done: 3")
    assert said.out.count("# 1 of 1: ") == 1


def test_what_a_container_holds_is_not_looked_for_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run({"profile": "tau", "profile_mode": "python"})
    (why,) = why_not_on(Node(HERE), run)
    assert "needs tau_python on the PATH" in why
    assert not list(why_not_on(Node(HERE, sees_programs=False), run))


def test_models_that_a_container_holds_are_not_looked_for_outside(tmp_path):
    (tmp_path / "s.yaml").write_text("run: {model: resnet999}")
    arguments = parser().parse_args([str(tmp_path / "s.yaml")])
    with pytest.raises(UserError, match="invalid model 'resnet999'"):
        read_request(arguments, Site())
    box = Container(runtime="apptainer", image="/images/newer.sif")
    assert read_request(arguments, Site(container=box)).sweep_runs


def test_data_that_are_not_there_are_known_before_the_first_run_and_said_once(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run = {"batches": 3, "data": [str(tmp_path / "none"), str(tmp_path / "empty")], "batch": [2, 4],
           "loader": ["synthetic", "pytorch"]}  # fmt: skip
    work = execution(tmp_path, run=run)
    assert execute.print_plan(work, *expand(work.sweep)) == 4
    said = " ".join(capsys.readouterr().err.split())
    wrong = f"2 runs: there is no data folder {tmp_path / 'none'}; correct --data (in a sweep file: `data`)"
    assert said.count(wrong) == 1
    assert said.count(f"2 runs: {tmp_path / 'empty'} holds no images") == 1
    only = {"batches": 3, "data": str(tmp_path / "none"), "loader": "pytorch", "batch": [2, 4]}
    work = execution(tmp_path, run=only)
    for sweep in (execute.print_plan, run_sweep):
        with pytest.raises(UserError, match="no run can start here: 2 runs: there is no data folder"):
            sweep(work, *expand(work.sweep))
    assert not work.directory.exists()


def test_where_nothing_can_run_one_line_says_why(tmp_path):
    with pytest.raises(UserError, match="no run can start here: 1 run: 8 nodes"):
        run_all(execution(tmp_path, run={"nodes": 8}))
    assert not (tmp_path / "s").exists()
    with pytest.raises(Mistakes) as several:
        run_all(execution(tmp_path, run={"nodes": [8, 9], "batches": 2}))
    first, second = several.value.lines  # a line a reason
    assert "1 run: 8 nodes" in first and second.startswith("1 run: 9 nodes")
