"""What users get wrong, and the one line that each mistake ends in: what, where, and the right word."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from jobs.run import make_run
from jobs.site import read_site
from jobs.sweep_file import expand, read_sweep
from profiling.errors import UserError
from tests.analysis.commands import ROOT, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())


def read_text(read: Callable, text: str, path: Path) -> None:
    path.write_text(text)
    read(path)


READ = {
    "run": lambda values, path: make_run(values, path.name),
    "sweep": partial(read_text, lambda path: expand(read_sweep(path), path.name)),
    "program": lambda run, path: read_text(read_sweep, f"run:\n  {run}\n", path),
    "site": partial(read_text, read_site),
}


@pytest.mark.parametrize(
    ("kind", "given", "says"), [(kind, *mistake) for kind in READ for mistake in MISTAKES[kind]]
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(kind, given, says, tmp_path):
    with pytest.raises(UserError) as error:
        READ[kind](given, tmp_path / "conf.yaml")
    said = str(error.value)
    assert says in said and "conf.yaml" in said and "\n" not in said and "Input should" not in said


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    (folder / "file").write_text("hello")
    (folder / "empty").mkdir()
    (folder / "model.yaml").write_text("run: {model: [resnet18,\n  resnet19]}")
    write_sweep(folder / "a", [run_of(), run_of(profile="torch")], Truth(step_ms={1: 100.0}))
    return folder


@pytest.mark.parametrize(("command", "says"), MISTAKES["command"])
def test_a_mistake_of_a_command_ends_in_one_line(command, says, here, monkeypatch):
    monkeypatch.chdir(ROOT)
    module, *words = [word.replace("{here}", str(here)) for word in command.split()]
    module = "train.__main__" if module == "train" else module
    assert says in one_line_error(run(module, *words))


def test_all_mistakes_of_a_runs_flags_are_said_at_once():
    words = ("--batch-size=3", "--loader=dali_cpu", "--batch=-3", "--sedd=1", "--compute=fp32")
    ran = run("train.__main__", *words)
    assert (ran.code, ran.out) == (2, "")
    meant = [line.rpartition("did you mean ")[2] for line in ran.err.splitlines()]
    assert meant[:3] == ["'--batch'?", "'--seed'?", "'dali-cpu'?"] and len(meant) == 4 and "-3" in meant[3]


@pytest.mark.parametrize("words", ["--batch-size 3", "--nodes 3", "--out {here}/a"])
def test_what_all_ranks_find_wrong_is_reported_by_rank_0(words, here, monkeypatch):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    said = {}
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}.items():
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
        assert f"{place}/x" in one_line_error(run("train.data", "make", place / "x"))
    finally:
        subprocess.run(["umount", str(place)], check=True)
