"""What users get wrong, and the one line that each mistake ends in: what, where, and the right word."""

import subprocess
from pathlib import Path

import pytest

from tests.analysis.commands import ROOT, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep

# command and arguments -> what the line says; {here} is a folder of the fixture below, with results in a/
MISTAKES = {
    "jobs.sweep configs/quik.yaml": "no sweep file configs/quik.yaml; did you mean 'configs/quick.yaml'?",
    "jobs.sweep quick": "no sweep file quick; did you mean 'configs/quick.yaml'?",
    "jobs.sweep {here}/model.yaml --dry-run": "model.yaml, line 2: invalid model 'resnet19'; did you",
    "jobs.sweep {here}": "is a folder; expected a sweep file",
    "jobs.sweep": "missing argument: config",
    "jobs.sweep configs/quick.yaml --launcher slrum": "invalid --launcher 'slrum'; did you mean 'slurm'?",
    "jobs.sweep configs/quick.yaml --dry-runs": "unknown flag --dry-runs; did you mean '--dry-run'?",
    "jobs.sweep configs/quick.yaml --out {here}/file": "Not a directory: ",
    "train --gpus-per-node 2": "1 x 2 ranks requested, 1 started",
    "train --out {here}/a": "holds a sweep; choose another folder",
    "jobs.doctor x": "unexpected argument: x ",
    "jobs.commands scald": "unknown command 'scald'; did you mean 'scaled'?",
    "analysis.scaled one={here}/a 2=x": "with its number of ranks",
    "analysis.scaled {here}/emty": "emty does not exist; did you mean '",
    # What follows depends on whether the project's folder holds results, as after `make demo`.
    "analysis.scaled /nowhere/at/all": "/nowhere/at/all does not exist",
    "analysis.scaled {here}/file": "file is no ",
    "analysis.scaled {here}/empty": "empty holds no results",
    "analysis.scaled {here}/a --group-by lodaer": "unknown field 'lodaer'; did you mean 'loader'?",
    "analysis.efficiency {here}/a --group-by job": "unknown field 'job'; did you mean 'run'?",
    "analysis.batches {here}/a --format cvs": "invalid --format 'cvs'; did you mean 'csv'?",
    "analysis.kernels {here}/a --by pass": "'pass'; did you mean 'direction'?",
    "analysis.anatomy {here}/a --by batch": "--by: unknown level 'batch'; did you mean 'step'?",
    "analysis.anatomy {here}/a --group-by nodes": "did you mean '--by'?",
    "analysis.compare {here}/a": "missing argument: B",
    "profiling.watch --batch 30 my.py": "unknown flag --batch; did you mean '--batches'?",
    "profiling.wrap --tool nsyss --out x": "did you mean 'nsys'?",
}  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    (folder / "file").write_text("hello")
    (folder / "empty").mkdir()
    (folder / "model.yaml").write_text("run: {model: [resnet18,\n  resnet19]}")
    write_sweep(folder / "a", [run_of(), run_of(profile="torch")], Truth(step_ms={1: 100.0}))
    return folder


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_ends_in_one_line(command, here, monkeypatch):
    monkeypatch.chdir(ROOT)
    module, *words = [word.replace("{here}", str(here)) for word in command.split()]
    module = "train.__main__" if module == "train" else module
    assert MISTAKES[command] in one_line_error(run(module, *words))


def test_all_mistakes_of_a_runs_flags_are_said_at_once():
    words = ("--batch-size=3", "--loader=dali_cpu", "--batch=-3", "--sedd=1", "--compute=fp32")
    ran = run("train.__main__", *words)
    assert (ran.code, ran.out, ran.err.splitlines()) == (2, "", [
        "scaleprof: error: unknown flag --batch-size; did you mean '--batch'?",
        "scaleprof: error: unknown flag --sedd; did you mean '--seed'?",
        "scaleprof: error: invalid loader 'dali_cpu'; did you mean 'dali-cpu'?",
        "scaleprof: error: invalid batch '-3': should be greater than or equal to 1",
    ])  # fmt: skip


@pytest.mark.parametrize("words", ["--batch-size 3", "--nodes 3", "--out {here}/a"])
def test_what_all_ranks_find_wrong_is_reported_by_rank_0(words, here, monkeypatch):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    said = {}
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        said[rank] = run("train.__main__", *words.replace("{here}", str(here)).split())
    assert one_line_error(said[0])
    assert (said[1].code, said[1].out, said[1].err) == (2, "", "")


def test_a_place_where_nothing_can_be_written_is_one_line(tmp_path):
    place = tmp_path / "read-only"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a read-only place cannot be made here (mounting needs root)")
    try:
        line = one_line_error(run("train.data", "make", place / "x"))
        assert f"{place}/x" in line
    finally:
        subprocess.run(["umount", str(place)], check=True)
